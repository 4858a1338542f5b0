"""Made-up slot names and values: a training augmentation that makes a tracker read instead of remember.

A small model learns the slot names of its training families by heart within a few steps, and how their values
look, and then writes those for slots it has never seen. In an aliased dialogue every slot is called by one to
three words drawn from the training vocabulary ("velvet parade" for "output columns"), and a quarter of the slots
take made-up values of one shape ("kiln, parade", "12 lanterns", "QT-407"), in the goals and so in what the user
says. Verdicts and the family's own checks are untouched: the family only ever sees its own names and values.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from envs.intent import Goal, IntentState
from envs.task import Family, Grade, SourceTask

MAX_WORDS = 3
VALUE_SHARE = 0.25
"""Share of slots whose values are made up too."""
# How a goal is put; one of each a slot, so that its variants sound alike.
_NAMED = (
    "the {slot} is {value}",
    "the {slot} is {value}",
    "the {slot} should be {value}",
    "put down {value} as {slot}",
    "keep {value} for the {slot}",
    "the {slot} stays at {value}",
    "use {value} as the {slot}",
)
# Shapes of made-up values: words a, b, c of the vocabulary, numbers m < n, letters x, y.
_SHAPES = (
    "{a}",
    "{a} {b}",
    "{a} {b} {c}",
    "{a}, {b}",
    "{a}, {b}",
    "{a} {b}, {c}",
    "{a} and {b}",
    "{a} or {b}",
    "by {a}, {b} first",
    "{m} {a}",
    "{m}.5 {a}",
    "{m} to {n} {a}",
    "between {m} and {n}",
    "{m} {a} per {b}",
    "{X}{Y}-{m}",
    "{m}/{X}{Y}",
    "{A} {B}",
    "{A} {m}",
    "{A} & {B}",
)


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
        self._known = {goal.slot for goal in task.goals}
        self._goals: dict[Goal, Goal] = {}
        self._values: dict[str | None, dict[str | None, str]] = {}
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
        slot = None
        while slot is None or slot in self._known:  # a name of this task would mean something else
            slot = " ".join(rng.sample(self._words, rng.randint(1, MAX_WORDS)))
        put = rng.choice(_NAMED)
        shape = rng.choice(_SHAPES) if rng.random() < VALUE_SHARE else None
        value = goal.value if shape is None else self._value(goal, shape)
        alias = replace(goal, slot=slot, value=value, text=put.format(slot=slot, value=value))
        self._goals[alias] = goal
        return alias

    def _value(self, goal: Goal, shape: str) -> str:
        """Return the made-up value of a goal's value; different values of a slot get different ones."""
        known = self._values.setdefault(goal.slot, {})
        attempt = 0
        while goal.value not in known:
            rng = random.Random(f"value|{self._seed}|{self._original.id}|{goal.slot}|{goal.value}|{attempt}")
            a, b, c = rng.sample(self._words, 3)
            m = rng.randint(2, 99)
            x, y = rng.sample(string.ascii_uppercase, 2)
            made = shape.format(
                a=a, b=b, c=c, A=a.capitalize(), B=b.capitalize(), m=m, n=m + rng.randint(1, 99), X=x, Y=y
            )
            if made not in known.values():
                known[goal.value] = made
            attempt += 1
        return known[goal.value]

    def _own(self, goal: Goal) -> Goal:
        return self._goals.get(goal, goal)
