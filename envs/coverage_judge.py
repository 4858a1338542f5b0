"""The judge of coverage: a prompt from a template, a checked JSON verdict, and all that was said kept."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.endpoint import Endpoint
from envs.errors import ConfigError, EndpointError, MissingFiles
from envs.structured import ask_json

LEVELS = ("FULL_COVERAGE", "PARTIAL_COVERAGE", "NO_COVERAGE")
NONE = "NA"

_PROMPTS = Path(__file__).parent / "prompts"
_MAX_TOKENS = 2048  # room for a model that thinks aloud first


@dataclass(frozen=True, slots=True)
class Prompt:
    """A jinja2 template; `sha256` is of its text and goes into each result."""

    path: Path
    text: str
    sha256: str

    @classmethod
    def read(cls, path: Path) -> Prompt:
        """Return the template in a file. Raises `MissingFiles`, and `ConfigError` for a broken template."""
        import jinja2

        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            raise MissingFiles(f"the judge's prompt {path} is not there or cannot be read") from None
        try:
            _template(text)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{path}, line {error.lineno}: no jinja2 template ({error.message})") from None
        return cls(path, text, hashlib.sha256(text.encode()).hexdigest())

    def render(self, **fields: Any) -> str:
        """Return the prompt with its fields filled in. Raises `ConfigError` for a field that is not given."""
        import jinja2

        try:
            return _template(self.text).render(**fields)
        except jinja2.UndefinedError as error:
            raise ConfigError(f"{self.path}: {error.message}; known: {', '.join(sorted(fields))}") from None


@functools.lru_cache(maxsize=16)
def _template(text: str) -> Any:
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    # Not jinja2's own tojson, which escapes quotes and angle brackets for HTML.
    environment.filters["tojson"] = _to_json
    return environment.from_string(text)


def _to_json(value: Any, indent: int | None = None) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, indent=indent)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How far one insight is covered. `level` is None where the judge gave no usable verdict: `error` says why.

    `bullet` counts from 1, None without coverage. `outputs` are the judge's raw replies in order.
    """

    level: str | None
    bullet: int | None
    error: str | None = None
    outputs: tuple[Mapping[str, Any], ...] = ()
    how: str = "judge"


@dataclass(frozen=True)
class CoverageJudge:
    """Asks, one insight a request, which bullet of a summary covers it and how far.

    `prompt` sees the fields `insight` (text) and `bullets` ([{"bullet_id", "text"}]).
    """

    endpoint: Endpoint
    prompt: Prompt
    seed: int = 0
    workers: int = 4
    """Requests at a time. The result does not depend on it."""

    @classmethod
    def over(cls, endpoint: Endpoint, template: Path | None = None, **settings: Any) -> CoverageJudge:
        """Return the judge with our prompt, or the one in the file `template`."""
        return cls(endpoint, Prompt.read(template or _PROMPTS / "summhay_coverage.j2"), **settings)

    def about(self) -> dict[str, Any]:
        """Return what identifies the judge beside a score."""
        return {"endpoint": self.endpoint.name, "prompt_sha256": self.prompt.sha256, "seed": self.seed}

    def cover_all(self, insights: Sequence[str], bullets: Sequence[str]) -> list[Coverage]:
        """Return the coverage of each insight, in order."""
        with ThreadPoolExecutor(max(1, min(self.workers, len(insights)))) as pool:
            return list(pool.map(lambda insight: self.cover(insight, bullets), insights))

    def cover(self, insight: str, bullets: Sequence[str]) -> Coverage:
        """Return the coverage of one insight; a failing endpoint or an unusable verdict leaves it open."""
        if not bullets:
            return Coverage("NO_COVERAGE", None, how="no bullets")
        numbered = [{"bullet_id": n, "text": text} for n, text in enumerate(bullets, 1)]
        message = {"role": "user", "content": self.prompt.render(insight=insight, bullets=numbered)}
        try:
            asked = ask_json(
                self.endpoint,
                [message],
                _schema(len(bullets)),
                tidy=_tidy,
                check=_contradiction,
                seed=self.seed,
                max_tokens=_MAX_TOKENS,
            )
        except EndpointError as error:
            return Coverage(None, None, f"the judge did not answer: {error}")
        outputs = tuple(
            {"text": reply.text, "model": reply.model, "finish_reason": reply.finish_reason, "key": reply.key}
            for reply in asked.replies
        )
        if asked.value is None:
            return Coverage(None, None, f"no usable verdict in two replies: {asked.problem}", outputs)
        chosen = asked.value["bullet_id"]
        return Coverage(asked.value["coverage"], None if chosen == NONE else chosen, None, outputs)


def _schema(count: int) -> dict[str, Any]:
    number = {"type": "integer", "minimum": 1, "maximum": count}
    return {
        "type": "object",
        "properties": {
            "coverage": {"type": "string", "enum": list(LEVELS)},
            "bullet_id": {"anyOf": [number, {"type": "string", "enum": [NONE]}]},
        },
        "required": ["coverage", "bullet_id"],
        "additionalProperties": False,
    }


def _tidy(value: dict[str, Any]) -> dict[str, Any]:
    """Forgive what leaves no doubt: "3" or 3.0 for 3, None for "NA", a bullet named although none covers."""
    chosen = value.get("bullet_id")
    if isinstance(chosen, float) and chosen.is_integer():
        value = value | {"bullet_id": int(chosen)}
    if isinstance(chosen, str) and chosen.strip().isascii() and chosen.strip().isdigit():
        value = value | {"bullet_id": int(chosen.strip()[:9])}
    if value.get("coverage") == "NO_COVERAGE" and (chosen is None or isinstance(chosen, int | str)):
        value = value | {"bullet_id": NONE}
    return value


def _contradiction(value: dict[str, Any]) -> str | None:
    if value["coverage"] != "NO_COVERAGE" and value["bullet_id"] == NONE:
        return f"{value['coverage']} needs the number of the bullet that covers the insight"
    return None
