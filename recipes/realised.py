"""What drift a dialogue really holds: its stale variants and withdrawn decoys, turns and tokens, summed by file.

A script may hold fewer variants and decoys than its budget allows, because only valid ones are kept.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from envs.dialogue import Dialogue
from envs.intent import Add, Delete, Goal, Replace

PAPER = {"easy": (0.95, 0.61), "hard": (2.24, 2.50)}
"""Mean variants a goal and mean decoys a dialogue that the paper reports, by budget."""
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(slots=True)
class Tally:
    """Sums over dialogues; the means are `report`'s."""

    dialogues: int = 0
    goals: int = 0
    variants: int = 0
    decoys: int = 0
    turns: int = 0
    tokens: int = 0
    """Words and punctuation marks of the user's messages: near a tokenizer's count, and of no model."""

    def add(self, dialogue: Dialogue) -> None:
        self.dialogues += 1
        self.goals += len(dialogue.final)
        self.variants += len(variants_of(dialogue))
        self.decoys += len(decoys_of(dialogue))
        self.turns += len(dialogue.turns)
        self.tokens += sum(len(_TOKEN.findall(turn.utterance)) for turn in dialogue.turns)

    def merge(self, other: Tally) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def report(self) -> dict[str, Any]:
        """Return the number of dialogues and the means: variants a goal, the rest a dialogue."""
        return {
            "dialogues": self.dialogues,
            "goals": _mean(self.goals, self.dialogues),
            "variants_per_goal": _mean(self.variants, self.goals),
            "decoys": _mean(self.decoys, self.dialogues),
            "turns": _mean(self.turns, self.dialogues),
            "tokens": _mean(self.tokens, self.dialogues),
        }


def variants_of(dialogue: Dialogue) -> dict[Goal, Goal]:
    """Return each stale variant that was stated, with the true goal that took its place in the end."""
    final = set(dialogue.final.goals)
    found: dict[Goal, Goal] = {}
    for thread in _threads(dialogue):
        if thread[-1] in final:
            found |= {goal: thread[-1] for goal in thread if goal != thread[-1]}
    return found


def decoys_of(dialogue: Dialogue) -> list[Goal]:
    """Return the goals that were stated and at last withdrawn, each once."""
    final = set(dialogue.final.goals)
    return list(dict.fromkeys(goal for t in _threads(dialogue) if t[-1] not in final for goal in t))


def _threads(dialogue: Dialogue) -> list[list[Goal]]:
    """Return, for each goal that was added, the values that it took in turn."""
    threads: list[list[Goal]] = []
    for turn in dialogue.turns:
        for edit in turn.edits:
            match edit:
                case Add(goal):
                    threads.append([goal])
                case Replace(old, new):
                    next((t for t in reversed(threads) if t[-1] == old), threads[-1]).append(new)
                case Delete():
                    pass  # the thread stays, and its last goal is not in the final state
                case _:
                    pass
    return threads


def _mean(total: int, count: int) -> float:
    return round(total / count, 3) if count else 0.0
