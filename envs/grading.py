"""How answers are graded in this process: by which verdict, in what sandbox, and with which judge.

Families of benchmarks have two verdicts, `strict` and `official`: the official one says what the benchmark's own
grader says, mistakes included; where they differ, the family's page tells why.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

from envs.endpoint import Endpoint
from envs.errors import unknown_name
from envs.families import registry
from envs.sandbox_code import SandboxConfig
from envs.task import Family

VERDICTS = ("strict", "official")


@dataclass(frozen=True, slots=True)
class Grading:
    """Options of the graders. Raises `UnknownName` for a verdict, `ConfigError` for a judge's address."""

    verdict: str = "strict"
    allow_unsandboxed: bool = False
    """Run model-written code without isolation where the machine offers none; else such a grade is an error."""
    judge: str | None = None
    """Chat model that judges coverage (SummHay), as openai:http://HOST:PORT/v1#MODEL."""
    cache: Path | None = None
    """Folder of the judge's replies."""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise unknown_name("grader", self.verdict, VERDICTS)
        if self.judge is not None:
            Endpoint.parse(self.judge)

    def apply(self) -> None:
        """Make the registered families of this process grade so. Families already handed out stay as they were."""
        known = registry()
        for name, family in known.items():
            known[name] = self._set(family)

    def _set(self, family: Family) -> Family:
        if getattr(family, "verdict", self.verdict) != self.verdict:
            if hasattr(family, "with_verdict"):
                family = family.with_verdict(self.verdict)  # type: ignore[attr-defined]
            else:
                family = copy.copy(family)
                family.verdict = self.verdict  # type: ignore[attr-defined]
        if hasattr(family, "with_sandbox") and self.allow_unsandboxed:
            family = family.with_sandbox(SandboxConfig(allow_unsandboxed=True))  # type: ignore[attr-defined]
        if hasattr(family, "with_judge") and self.judge is not None:
            chat = Endpoint.parse(self.judge, cache=self.cache)
            family = family.with_judge(chat)  # type: ignore[attr-defined]
        return family
