"""Made-up slot names: a training augmentation that makes a tracker read names instead of remembering them.

A small model learns the slot names of its training families by heart within a few steps and then writes them
for slots it has never seen. In an aliased dialogue every slot is called by one to three words drawn from the
training vocabulary ("velvet parade" for "output columns"), in the goals and so in what the user says. Values,
verdicts and the family's own checks are untouched: the family only ever sees its own names.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from envs.intent import Goal, IntentState
from envs.task import Family, Grade, SourceTask

MAX_WORDS = 3


class Aliased:
    """`family` seen through made-up slot names for one task; see `Family` for the methods."""

    structured = True

    def __init__(self, family: Family, task: SourceTask, words: Sequence[str], seed: int) -> None:
        self.family = family
        self.name = family.name
        self.splits = family.splits
        self.variants_flip = bool(getattr(family, "variants_flip", False))
        self._original = task
        self._words = words
        self._seed = seed
        self._goals: dict[Goal, Goal] = {}
        self.task = replace(task, goals=tuple(self._alias(goal) for goal in task.goals))

    def load(self, source: Path | None, split: str) -> Any:
        return iter((self.task,))

    def gold(self, task: SourceTask) -> str:
        return self.family.gold(self._original)

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        return [self._alias(one) for one in self.family.variants(self._original, self._own(goal), rng)]

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        return [self._alias(one) for one in self.family.decoys(self._original, rng)]

    def grade(self, task: SourceTask, answer: str) -> Grade:
        return self.family.grade(self._original, answer)

    def execute(self, task: SourceTask, state: IntentState) -> str:
        own = IntentState(tuple(self._own(goal) for goal in state.goals), state.function)
        return self.family.execute(self._original, own)

    def _alias(self, goal: Goal) -> Goal:
        if not (goal.slot and goal.value):
            return goal
        rng = random.Random(f"alias|{self._seed}|{self._original.id}|{goal.slot}")
        slot = " ".join(rng.sample(self._words, rng.randint(1, MAX_WORDS)))
        alias = replace(goal, slot=slot, text=f"the {slot} is {goal.value}")
        self._goals[alias] = goal
        return alias

    def _own(self, goal: Goal) -> Goal:
        return self._goals.get(goal, goal)
