"""Rows: what the trainer sees of a dialogue. Ids in, masks from lengths, nothing re-tokenised."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Branch:
    """Tokens that hang off a row: they attend to `ids[:at]` of the row and to themselves; positions go on from `at`.

    All its tokens are trained on (cross-entropy to the expert edit). The token that predicts `ids[0]` is
    the row's token `at - 1`.
    """

    at: int
    ids: list[int]
    weight: float = 1.0


@dataclass(slots=True)
class Row:
    """One token sequence.

    `spans` are [start, end) of the trained tokens (the tracker's own). `old_logprobs` has one float per trained
    token, in order (the behaviour policy's). `weights` one float per trained token (advantages or 1).
    `teacher_ids` / `teacher_spans`: the privileged context and where the same trained tokens stand in it.
    """

    id: str
    ids: list[int]
    spans: list[tuple[int, int]]
    old_logprobs: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    teacher_ids: list[int] | None = None
    teacher_spans: list[tuple[int, int]] | None = None

    def trained(self) -> int:
        return sum(end - start for start, end in self.spans)
