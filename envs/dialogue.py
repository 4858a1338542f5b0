"""Dialogues: plain data built from (task, condition, budget, seed), and the environment that plays them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envs.intent import Add, Delete, Edit, Goal, IntentState, Replace

CONDITIONS = ("clean", "drift", "turn_matched")


@dataclass(frozen=True, slots=True)
class Turn:
    """One user message, the edits it realises (empty for small talk and the final request), and G_t."""

    utterance: str
    edits: tuple[Edit, ...]
    state: IntentState


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A task shown under a condition. `id` is readable: "calls/heldout/12|drift|b1|s0"."""

    id: str
    task_id: str
    family: str
    condition: str
    budget: int
    seed: int
    turns: tuple[Turn, ...]

    @property
    def final(self) -> IntentState:
        return self.turns[-1].state

    def superseded(self, t: int) -> list[Goal]:
        """Return goals that were stated up to turn `t` (0-based, inclusive) and are not wanted after it."""
        stated: dict[Goal, None] = {}
        for turn in self.turns[: t + 1]:
            for edit in turn.edits:
                if isinstance(edit, Add):
                    stated[edit.goal] = None
                elif isinstance(edit, Replace):
                    stated[edit.new] = None
                    stated[edit.old] = None
                elif isinstance(edit, Delete):
                    stated[edit.goal] = None
        live: Sequence[Goal] = self.turns[t].state.goals
        return [goal for goal in stated if goal not in live]
