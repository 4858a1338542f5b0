"""What `fluxforge eval` can be told: one frozen pydantic model, and the rows of its table.

A row is `HARNESS[@TRACKER][+no-gate][+no-format][+no-conclusions]`, as in `stateforge@trained+no-gate`; `@oracle`
takes the scripted truth in place of a tracker. The row's text is its name in every table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from envs.dialogue import CONDITIONS
from envs.errors import ConfigError, unknown_name
from recipes.schema import Budget, EngineSettings, Names, Part

SWITCHES = ("no-gate", "no-format", "no-conclusions")
ORACLE = "oracle"
BENCHMARK = "benchmark"
"""In place of families: all that are read from benchmark files."""


def _as_tuple(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, int) else value


Budgets = Annotated[tuple[Budget, ...], BeforeValidator(_as_tuple)]
Seeds = Annotated[tuple[int, ...], BeforeValidator(_as_tuple)]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. `tracker` is a key of `trackers`, "oracle", or None where none is needed."""

    name: str
    harness: str
    tracker: str | None
    switches: tuple[str, ...]


class LimitSettings(Part):
    reply_tokens: int = Field(default=96, ge=1)
    """Longest reply of the agent before the last turn."""
    answer_tokens: int = Field(default=384, ge=1)
    """Longest answer; also of a summary."""
    tracker_tokens: int = Field(default=64, ge=1)
    """Longest output of a tracker in one turn."""
    state_chars: int = Field(default=800, ge=1)
    """Longest recap of `recap-state`, and longest state with conclusions."""
    history_chars: int = Field(default=4000, ge=1)
    """Length of history from which `summary` and `compact` shorten it."""
    keep_messages: int = Field(default=4, ge=2)
    """Newest messages that they leave as they are."""


class EndpointSettings(Part):
    timeout_s: float = Field(default=120.0, gt=0)
    """Limit of one attempt."""
    deadline_s: float = Field(default=900.0, gt=0)
    """Limit of one request with all retries and waits; a server may be started again within it."""
    retries: int = Field(default=40, ge=0)
    """Further attempts at one request after a failure that may pass."""
    key_env: str = "FLUXFORGE_API_KEY"
    """Environment variable that holds the API key."""
    extra: dict[str, object] = Field(default_factory=dict)
    """More fields of the request body, such as {chat_template_kwargs: {enable_thinking: false}}."""


class GradingSettings(Part):
    grader: Literal["strict", "official"] = "strict"
    """Verdict of families that have two; `official`: what the benchmark's own grader says."""
    allow_unsandboxed: bool = False
    """Run model-written code without isolation where the machine offers none."""
    judge: str | None = None
    """Chat model that judges SummHay's coverage, as openai:URL#MODEL."""
    cache: Path | None = None
    """Folder of the judge's replies; null: it is asked anew."""


class EvalConfig(Part):
    """All of a run of `fluxforge eval`. `load_eval` makes it."""

    name: str | None = None
    """Run folder below `runs/`; null: `eval-<base>-<seed>`."""
    seed: int = Field(default=0, ge=0)
    """Decides sampling, and which tasks of a benchmark are taken."""
    data: Path | None = None
    """Folder of benchmark files, for families that read them."""
    resume: bool = False
    """Go on with the run folder: finished cases stay, those with an error are run again."""
    smoke: bool = False
    """The same path with two cases and short answers."""
    base: str = "tiny"
    """The base agent: a size name, a model folder, owner/model, or openai:URL#MODEL."""
    trackers: dict[str, str] = Field(default_factory=lambda: {"tiny": "tiny"})
    """Trackers by the name they have in rows, given as the base agent is."""
    protocol: Literal["log", "full"] = "log"
    """The trackers' protocol."""
    harnesses: Names = ("bare", "clean", "oracle", "stateforge", "executor")
    """Rows of the table: HARNESS[@TRACKER][+SWITCH...]; without a tracker, one row for each of `trackers`."""
    gate: bool = True
    """Check the last answer, and write it once more where it breaks something; false: --no-gate."""
    format: bool = True
    """Keep the output conventions with a tracker of their own; false: --no-format."""
    conclusions: bool = True
    """Let the tracker derive conclusions after each reply; false: --no-conclusions."""
    format_model: Literal["base", "tracker"] = "base"
    """Whose model keeps the output conventions."""
    neutral_replies: bool = True
    """Show the tracker short neutral replies, as in training; false: the agent's own."""
    families: Names = ("calls", "sql", "math")
    """Families that cases are taken from, as evenly as they allow; `benchmark`: all that read benchmark files."""
    cases: int = Field(default=125, ge=1)
    """Source tasks; each is played in every condition, budget, seed and row."""
    conditions: Names = ("drift",)
    """Conditions of all rows but `clean`, which has its own."""
    budgets: Budgets = (1, 3, 5)
    """Drift budgets: easy (1), medium (3), hard (5)."""
    seeds: Seeds = (0,)
    """Seeds of the scripts; each gives every task another dialogue."""
    temperature: float = Field(default=0.0, ge=0)
    """Of the base agent; 0 is greedy. Trackers are greedy always."""
    max_in_flight: int = Field(default=32, ge=1)
    """Dialogues played at once."""
    grade_workers: int = Field(default=2, ge=1)
    """Answers graded at once."""
    replay: Path | None = None
    """File of `fluxforge record`: every row answers the last turn of the recorded dialogues."""
    limits: LimitSettings = Field(default_factory=LimitSettings)
    """Lengths."""
    grading: GradingSettings = Field(default_factory=GradingSettings)
    """How answers are graded."""
    endpoint: EndpointSettings = Field(default_factory=EndpointSettings)
    """How patiently servers are asked."""
    engine: EngineSettings = Field(default_factory=EngineSettings)
    """Engines of models that are not behind an endpoint."""

    @field_validator("name")
    @classmethod
    def _folder_name(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ConfigError(f"a run's name is letters, digits, '.', '_' and '-', got {name!r}")
        return name

    @field_validator("families")
    @classmethod
    def _known_families(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from envs.families import is_procedural, registry

        known = registry()
        if names == (BENCHMARK,):
            return tuple(sorted(name for name, family in known.items() if not is_procedural(family)))
        return _known("family", names, known)

    @field_validator("conditions")
    @classmethod
    def _known_conditions(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _known("condition", names, CONDITIONS)

    @field_validator("trackers")
    @classmethod
    def _tracker_names(cls, trackers: dict[str, str]) -> dict[str, str]:
        for name in trackers:
            if name == ORACLE or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
                raise ConfigError(
                    f"a tracker's name is letters, digits, '.', '_' and '-', and not {ORACLE!r}; got {name!r}"
                )
        return trackers

    @model_validator(mode="after")
    def _can_run(self) -> EvalConfig:
        rows = self.rows()
        names = [row.name for row in rows]
        if len(set(names)) != len(names):
            raise ConfigError(f"each row once, got {', '.join(names)}")
        for what in ("budgets", "seeds"):
            if not getattr(self, what):
                raise ConfigError(f"name at least one of {what}")
        return self

    def rows(self) -> list[Row]:
        """Return the rows of the table. Raises `ConfigError` for one that cannot be, `UnknownName` for a name."""
        if not self.harnesses:
            raise ConfigError("name at least one harness")
        return [row for text in self.harnesses for row in self._rows_of(text)]

    def _rows_of(self, text: str) -> list[Row]:
        from rollout.harness import get_harness

        head, *given = text.split("+")
        harness, at, tracker = head.partition("@")
        needs = get_harness(harness).needs
        for switch in given:
            if switch not in SWITCHES:
                raise unknown_name(f"switch in row {text!r}:", switch, SWITCHES)
        off = [s for s in SWITCHES if s in given or not getattr(self, s.removeprefix("no-"))]
        off = [s for s in off if s in _switches_of(harness)]
        if unfit := [s for s in given if s not in off]:
            raise ConfigError(f"row {text!r}: harness {harness!r} has no part that {unfit[0]!r} switches off")
        tail = "".join(f"+{switch}" for switch in off)
        if needs != "states":
            if at:
                raise ConfigError(f"row {text!r}: harness {harness!r} takes no tracker; leave @{tracker} out")
            return [Row(harness + tail, harness, None, tuple(off))]
        if at and tracker != ORACLE and tracker not in self.trackers:
            raise unknown_name(f"tracker in row {text!r}:", tracker, [*self.trackers, ORACLE])
        if not at and not self.trackers:
            raise ConfigError(
                f"row {text!r} needs a tracker; name one in trackers, or write {harness}@{ORACLE}"
            )
        if not at and len(self.trackers) == 1:
            return [Row(harness + tail, harness, next(iter(self.trackers)), tuple(off))]
        chosen = [tracker] if at else list(self.trackers)
        return [Row(f"{harness}@{one}{tail}", harness, one, tuple(off)) for one in chosen]


def _switches_of(harness: str) -> tuple[str, ...]:
    """Return the switches that mean something to a harness."""
    return {
        "stateforge": SWITCHES,
        "oracle": ("no-gate", "no-format"),
        "recap-state": ("no-gate",),
    }.get(harness, ())


def _known(kind: str, names: tuple[str, ...], known) -> tuple[str, ...]:
    if not names:
        raise ConfigError(f"name at least one {kind}")
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, known)
    return tuple(dict.fromkeys(names))
