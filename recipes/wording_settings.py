"""Who words a set's messages: the templates, a model over an endpoint, and noise over either (docs/wording.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.endpoint import Endpoint
from envs.errors import ConfigError
from envs.judge import Judge
from envs.llm_simulator import LLMSimulator
from envs.merge import Merging
from envs.noise import Noise
from envs.personas import get_persona
from envs.simulator import Simulator
from envs.wording_report import WordingReport

CACHE = Path("runs/cache/wording")
"""Where a model's replies are kept unless a call names another folder."""


@dataclass(frozen=True, slots=True)
class WordingSettings:
    """All fields but `cache` are recorded in the manifest. The default is the plain templates.

    Raises `ConfigError` or `UnknownName` for what cannot be.
    """

    endpoint: str | None = None
    """A chat model that words the messages, as openai:http://HOST:PORT/v1#MODEL."""
    temperature: float = 0.8
    seed: int = 0
    judge: bool = False
    """Whether the same model also judges each message that the rules let pass."""
    persona: str | None = None
    """A style for the model to write in; for templates, the noise that goes with it."""
    typos: float | None = None
    """Chance of a typo a word; None: the persona's own (for a model's messages: none)."""
    merge: float = 0.0
    """Chance that a turn joins the one before it."""
    merge_cap: int = 3
    """Most edits of a message."""
    cache: Path = CACHE

    def __post_init__(self) -> None:
        if self.endpoint is not None:
            Endpoint.parse(self.endpoint)
        elif self.judge:
            raise ConfigError("a judge reads what a model words; name the model with --wording")
        if self.persona is not None:
            get_persona(self.persona)
        if self.temperature < 0:
            raise ConfigError(f"a temperature is 0 or more, got {self.temperature}")
        if self.typos is not None and not 0 <= self.typos <= 1:
            raise ConfigError(f"a typo rate is a chance from 0 to 1, got {self.typos}")
        Merging(self.merge, self.merge_cap)

    @property
    def plain(self) -> bool:
        """Whether the messages are the templates' own."""
        return self.endpoint is None and not self.noisy and self.persona in (None, "plain")

    @property
    def noisy(self) -> bool:
        return bool(self.typos or self.merge)

    def recorded(self) -> dict[str, Any]:
        """Return what the manifest holds, from which `from_recorded` makes the same settings."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "cache"}

    @classmethod
    def from_recorded(cls, recorded: Mapping[str, Any], cache: Path | None = None) -> WordingSettings:
        return cls(**recorded, cache=cache or CACHE)

    @classmethod
    def chosen(
        cls, own: Mapping[str, Any], given: Mapping[str, Any], cache: Path | None = None
    ) -> WordingSettings:
        """Return a set's `own` keys with what a call has `given`; None was not given.

        The endpoint "templates" stands for no model.
        """
        keys = {**own, **{key: value for key, value in given.items() if value is not None}}
        if keys.get("endpoint") == "templates":
            keys["endpoint"] = None
        return cls(**keys, cache=cache or CACHE)

    def simulator(self, report: WordingReport) -> Simulator | None:
        """Return the simulator, None for the plain templates; a model's messages are counted in `report`."""
        if self.plain:
            return None
        below: LLMSimulator | None = None
        if self.endpoint is not None:
            chat = Endpoint.parse(self.endpoint, cache=self.cache)
            below = LLMSimulator(
                chat,
                persona=self.persona,
                temperature=self.temperature,
                seed=self.seed,
                judge=Judge(chat) if self.judge else None,
                report=report,
            )
            if not self.noisy:
                return below
        persona = "plain" if below is not None else self.persona or "plain"
        return Noise(
            below, persona=persona, typo_rate=self.typos, merge_rate=self.merge, merge_cap=self.merge_cap
        )
