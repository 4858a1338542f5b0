"""What a tracker did in a dialogue, as token ids: sampled once, then scored and trained on unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field

from envs.dialogue import Dialogue
from rollout.tracker import Derived


@dataclass(slots=True)
class TrackedTurn:
    """One turn. The context of turn t is the concatenation of all `context_ids + output_ids` before it,
    then this turn's `context_ids`.

    `context_ids` are the tokens appended before the tracker writes (system prompt and user message, or the
    next message); `output_ids` what it wrote, stop id included if it was sampled; `logprobs` one per output
    id. `log` is the tracker's state after the turn (key -> text, in order), `derived` its live conclusions;
    `malformed` counts its lines that did not parse, `lines` those that did, `missed` those that named
    something absent. `forced` marks output that was given (a slip to recover from), not sampled: its
    log-probs are NaN.
    """

    context_ids: list[int]
    output_ids: list[int]
    logprobs: list[float]
    text: str
    log: dict[str, str]
    malformed: int = 0
    finish_reason: str = "stop"
    weight_version: int = 0
    cached_tokens: int = 0
    forced: bool = False
    lines: int = 1
    missed: int = 0
    derived: dict[str, Derived] = field(default_factory=dict)


@dataclass(slots=True)
class Trajectory:
    """A dialogue and the tracker's turns in it. `error` is set when it could not be finished."""

    dialogue: Dialogue
    turns: list[TrackedTurn] = field(default_factory=list)
    error: str | None = None

    def ids(self) -> list[int]:
        return [i for turn in self.turns for i in (*turn.context_ids, *turn.output_ids)]

    def spans(self) -> list[tuple[int, int]]:
        """Return [start, end) of each turn's output within `ids()`."""
        spans, at = [], 0
        for turn in self.turns:
            start = at + len(turn.context_ids)
            at = start + len(turn.output_ids)
            spans.append((start, at))
        return spans
