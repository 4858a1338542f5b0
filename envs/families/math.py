"""`math`: quantities of a small story, multiplied and summed, then the operations that were asked for."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path

from envs.errors import GraderError, unknown_name
from envs.intent import Goal, IntentState
from envs.numbers import extract_number, format_number, parse_number
from envs.task import Grade, SourceTask
from envs.vocab.math_words import STORIES, Op, Quantity, Story

_GOALS = (3, 3, 4, 4, 4, 5, 6)
_VARIANTS = 6
_TRIES = 100


class Math:
    """Story problems. A goal is one quantity; a decoy is an operation that the task does not have."""

    name = "math"
    structured = True
    splits: tuple[str, ...] = ("train", "heldout")

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        """Yield tasks without end; `source` is not used. Raises `UnknownName` for an unknown split."""
        if split not in self.splits:
            raise unknown_name("split", split, self.splits)
        return (self.task(split, index) for index in itertools.count())

    def task(self, split: str, index: int) -> SourceTask:
        """Return task number `index`, a pure function of its arguments.

        No value on the way is zero, so another value of any quantity gives another result: each operation is
        one-to-one in what came before and, where that is not zero, in its own quantity.
        """
        if split not in self.splits:
            raise unknown_name("split", split, self.splits)
        id = f"{self.name}/{split}/{index}"
        rng = random.Random(id)
        story = STORIES[split][int(rng.random() * len(STORIES[split]))]
        core = [quantity for chain in story.chains for quantity in chain]
        count = max(_GOALS[int(rng.random() * len(_GOALS))], len(core) + 1)
        for _ in range(_TRIES):
            chosen = [*core, *rng.sample(story.extras, min(count - len(core), len(story.extras) - 5))]
            values = {quantity.slot.name: quantity.slot.pool.draw(rng) for quantity in chosen}
            steps = _steps(story, values)
            if all(step > 0 for step in steps):
                break
        else:
            raise GraderError(f"no story without a zero found for {id} in {_TRIES} tries")
        rng.shuffle(chosen)
        goals = tuple(
            _goal(f"g{number}", quantity, values[quantity.slot.name], rng)
            for number, quantity in enumerate(chosen, 1)
        )
        payload = {"story": story.name, "answer": format_number(steps[-1])}
        opening = f"Help me with the {story.name}. {story.question}"
        return SourceTask(id, self.name, split, opening, _rules(split, story.name), goals, payload)

    def gold(self, task: SourceTask) -> str:
        return self.execute(task, task.intent)

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        """Return other values of the goal's slot; each flips the verdict by construction (see `task`)."""
        quantity = _quantities(task.split, task.payload["story"]).get(goal.slot or "")
        if quantity is None or goal.value is None:
            raise GraderError(
                f"{task.id}: goal {goal.id!r} has no slot {goal.slot!r} of this story, or no value"
            )
        values = quantity.slot.pool.others(goal.value, _VARIANTS, rng)
        return [_goal(f"{goal.id}.v{number}", quantity, value, rng) for number, value in enumerate(values, 1)]

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return operations that the task leaves out; each flips the verdict by construction (see `task`)."""
        used = {goal.slot for goal in task.goals}
        free = [
            extra for extra in _story(task.split, task.payload["story"]).extras if extra.slot.name not in used
        ]
        return [
            _goal(f"d{number}", extra, extra.slot.pool.draw(rng), rng)
            for number, extra in enumerate(rng.sample(free, len(free)), 1)
        ]

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Return the answer to the story with the quantities of the state; those not given are left out.

        Of two goals for one slot the later one counts. Raises `GraderError` for an unknown slot or a value
        that is no number.
        """
        quantities = _quantities(task.split, task.payload["story"])
        values: dict[str, str] = {}
        for goal in state.goals:
            if goal.slot not in quantities or goal.value is None:
                raise GraderError(
                    f"{task.id}: goal {goal.id!r} ({goal.slot!r}) has no value or is none of {sorted(quantities)}"
                )
            values[goal.slot] = goal.value
        result = _steps(_story(task.split, task.payload["story"]), values)[-1]
        return f"The answer is {format_number(result)}."

    def grade(self, task: SourceTask, answer: str) -> Grade:
        """Score 1 iff the answer's final number equals the gold exactly, as rationals."""
        gold = parse_number(task.payload["answer"])
        if gold is None:
            return Grade(0.0, False, error=f"{task.id}: the gold {task.payload['answer']!r} is no number")
        found = extract_number(answer)
        if found is None:
            return Grade(0.0, False, {"problem": "no number found"})
        detail = {"answer": format_number(found), "gold": task.payload["answer"]}
        return Grade(1.0, True, detail) if found == gold else Grade(0.0, False, detail)


@functools.cache
def _story(split: str, name: str) -> Story:
    return next(story for story in STORIES[split] if story.name == name)


@functools.cache
def _quantities(split: str, name: str) -> dict[str, Quantity]:
    story = _story(split, name)
    core = [quantity for chain in story.chains for quantity in chain]
    return {quantity.slot.name: quantity for quantity in (*core, *story.extras)}


@functools.cache
def _rules(split: str, name: str) -> str:
    """Return the computation in words, so that the answer is determined by the quantities alone."""
    story = _story(split, name)
    start = " plus ".join(" times ".join(quantity.slot.name for quantity in chain) for chain in story.chains)
    verbs: dict[Op, str] = {
        "times": "multiply by the {}", "plus": "add the {}", "minus": "subtract the {}",
        "divide": "divide by the {}",
        "percent off": "lower by the {} (a percentage)", "percent on": "raise by the {} (a percentage)",
    }  # fmt: skip
    steps = "; ".join(verbs[extra.op].format(extra.slot.name) for extra in story.extras)
    return (
        f"Start with {start}. Then, in this order and only where it was asked for: {steps}. "
        "Give the exact number as the answer."
    )


def _goal(id: str, quantity: Quantity, value: str, rng: random.Random) -> Goal:
    return Goal(id, quantity.slot.say(value, rng), quantity.slot.name, value)


def _steps(story: Story, values: Mapping[str, str]) -> list[Fraction]:
    """Return the value after the summed chains and after each extra that is given; at least one value.

    Raises `GraderError` for a value that is no number, or a division by zero.
    """
    total = Fraction(0)
    for chain in story.chains:
        factors = [_number(values[q.slot.name]) for q in chain if q.slot.name in values]
        if factors:
            product = Fraction(1)
            for factor in factors:
                product *= factor
            total += product
    steps = [total]
    for extra in story.extras:
        if extra.slot.name in values:
            steps.append(_apply(extra.op, steps[-1], _number(values[extra.slot.name])))
    return steps


def _apply(op: Op, total: Fraction, number: Fraction) -> Fraction:
    match op:
        case "times":
            return total * number
        case "plus":
            return total + number
        case "minus":
            return total - number
        case "percent off":
            return total * (100 - number) / 100
        case "percent on":
            return total * (100 + number) / 100
        case "divide":
            if number == 0:
                raise GraderError("a story cannot divide by zero")
            return total / number


@functools.lru_cache(maxsize=10_000)
def _number(value: str) -> Fraction:
    number = parse_number(value)
    if number is None:
        raise GraderError(f"{value!r} is no quantity")
    return number


FAMILY = Math()
