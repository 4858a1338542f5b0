"""A small family and a chat stub for the tests of wordings: nothing here changes when a benchmark does."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from envs.intent import EMPTY, Edit, Goal, IntentState
from envs.task import Grade, SourceTask

OPENING = "I need one call of `send_parcel`."
_VALUES = {
    "delivery address": ("Brooklyn", "Queens", "Harlem", "Astoria", "Flushing", "Corona"),
    "parcel weight": ("12 kilos", "15 kilos", "31 kilos", "44 kilos", "57 kilos", "68 kilos"),
    "pickup day": ("Wednesday", "Thursday", "Saturday", "Sunday", "Monday", "Friday"),
    "insured value": ("$1,250.50", "$90", "$475", "$8,300", "$610", "$777"),
    "gift note": ("Happy Birthday, Tom!", "Get Well", "With Love", "Bon Voyage", "Cheers", "Thanks, Ann"),
}
_TEXTS = {
    "delivery address": "deliver it to {}",
    "parcel weight": "the parcel weight is {}",
    "pickup day": "pick it up on {}",
    "insured value": "insure it for {}",
    "gift note": "print {} on the gift note",
}
_DECOYS = {"courier name": ("use {} as the courier name", "Zippy"), "box color": ("take a {} box", "purple")}


def goal(slot: str, n: int = 0, suffix: str = "") -> Goal:
    """The goal of `slot` with its n-th value."""
    value = _VALUES[slot][n]
    return Goal(f"g{list(_VALUES).index(slot)}{suffix}", _TEXTS[slot].format(value), slot, value)


class Toy:
    """Parcels: the answer is the sorted values of the state; every variant and decoy flips the verdict."""

    name = "toy"
    structured = True
    splits = ("train", "heldout")

    def task(self, split: str, index: int) -> SourceTask:
        slots = list(_VALUES)[: 2 + index % 4]
        goals = tuple(goal(slot, index % 3) for slot in slots)
        payload = {"gold": sorted(g.value or "" for g in goals)}
        return SourceTask(f"toy/{split}/{index}", "toy", split, OPENING, "", goals, payload)

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        return (self.task(split, index) for index in range(1000))

    def gold(self, task: SourceTask) -> str:
        return "|".join(task.payload["gold"])

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        slot = goal.slot or ""
        others = [n for n, value in enumerate(_VALUES[slot]) if value != goal.value]
        rng.shuffle(others)
        return [
            Goal(f"{goal.id}.v{n}", _TEXTS[slot].format(_VALUES[slot][n]), slot, _VALUES[slot][n])
            for n in others
        ]

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        found = [Goal(f"d{slot}", text.format(v), slot, v) for slot, (text, v) in _DECOYS.items()]
        rng.shuffle(found)
        return found

    def execute(self, task: SourceTask, state: IntentState) -> str:
        return "|".join(sorted(g.value or "" for g in state.goals))

    def grade(self, task: SourceTask, answer: str) -> Grade:
        right = answer == self.gold(task)
        return Grade(float(right), right)


class EchoSimulator:
    """Says what it was asked and what it drew, so that a hash of its texts pins every argument."""

    def utter(
        self,
        edits: Sequence[Edit],
        turn_index: int,
        total: int,
        opening: str,
        rng: random.Random,
        live: IntentState = EMPTY,
    ) -> str:
        return (
            f"{turn_index}/{total} {opening} {rng.random():.12f} {[g.id for g in live.goals]} {list(edits)}"
        )
