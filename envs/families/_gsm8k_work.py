"""Work a changed question out again: the gold solution's own steps, run on other numbers.

All that depends on a question alone (its steps, where their numbers come from, the sound changes of each
number) is kept, because dialogues of one task ask for it again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice

from envs.calculator import Exact, Step, evaluate, parse_steps
from envs.families import _gsm8k_text as words
from envs.families._gsm8k_link import Links, Source, forms, link

MOST = 12  # variants of one number; budgets use five at most
Place = tuple[int, int]
"""(sentence, number): number n of sentence s, both from 0."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and its solution; `texts` are the sentences or shards that hold the numbers."""

    texts: tuple[str, ...]
    solution: str
    answer: str


@dataclass(frozen=True, slots=True)
class Work:
    """The steps of a solution, where their leaves come from, and the result of each step."""

    steps: tuple[Step, ...]
    links: Links
    results: tuple[Exact, ...]


@lru_cache(maxsize=1 << 14)
def work(problem: Problem) -> Work:
    """Raises `DataError` for an annotation that cannot be read."""
    steps = parse_steps(problem.solution)
    links = link(problem.texts, steps, Fraction(problem.answer))
    return Work(steps, links, tuple(evaluate(step, step.leaves) for step in steps))


def work_out(problem: Problem, values: Mapping[Place, tuple[Exact, ...]]) -> Fraction:
    """Return the answer; `values` holds the forms (see `forms`) of changed numbers. Raises `ZeroDivisionError`."""
    known = work(problem)
    if not values:
        return Fraction(known.results[-1])
    results: list[Exact] = []
    for s, step in enumerate(known.steps):
        leaves = list(step.leaves)
        for at in range(len(leaves)):
            source = known.links.sources.get((s, at))
            if source is not None and source.step is not None:
                leaves[at] = results[source.step]
            elif source is not None and (source.goal, source.number) in values:
                leaves[at] = values[source.goal, source.number][source.form]
        results.append(evaluate(step, leaves))
    return Fraction(results[-1])


@lru_cache(maxsize=1 << 14)
def changes(problem: Problem, place: Place) -> tuple[str, ...]:
    """Return the sentence with its number set to near values that change the answer, nearest first.

    A result that was whole or not negative stays so, at every step.
    """
    text = problem.texts[place[0]]
    number = words.numbers(text)[place[1]]
    reach = _Reach(work(problem), place)
    sound = (value for value in _near(text, number) if reach.is_sound(forms(text, number, value)))
    return tuple(words.rewrite(text, number, value) for value in islice(sound, MOST))


class _Reach:
    """The steps that one number of the question reaches; the others keep their results."""

    def __init__(self, known: Work, place: Place) -> None:
        self._before = known.results
        self._steps: list[tuple[int, Step, list[tuple[int, Source]]]] = []
        reached: set[int] = set()
        for s, step in enumerate(known.steps):
            moved = [
                (at, source)
                for at in range(len(step.leaves))
                if (source := known.links.sources.get((s, at))) is not None
                and (
                    source.step in reached
                    if source.step is not None
                    else (source.goal, source.number) == place
                )
            ]
            if moved:
                reached.add(s)
                self._steps.append((s, step, moved))

    def is_sound(self, values: tuple[Exact, ...]) -> bool:
        """Whether a number with these forms changes the answer and leaves every step a plausible quantity."""
        results = list(self._before)
        for s, step, moved in self._steps:
            leaves = list(step.leaves)
            for at, source in moved:
                leaves[at] = values[source.form] if source.step is None else results[source.step]
            try:
                new = evaluate(step, leaves)
            except ZeroDivisionError:
                return False
            old = self._before[s]
            # zero is kept apart from positive: a step that comes to nothing makes a question odd
            if (old.denominator == 1 and new.denominator != 1) or (old > 0 and new <= 0):
                return False
            results[s] = new
        return results[-1] != self._before[-1]


def _near(text: str, number: words.Number) -> Iterator[Exact]:
    """Yield other plausible values of a number, nearest first, with as many decimals as it shows."""
    scale = 10 ** words.decimals(text, number)
    old = int(number.value * scale)  # all is counted in units of the last digit shown
    grain = 1
    while old % (grain * 10) == 0 and old >= 100 * grain:
        grain *= 10  # 80,000 moves by thousands, not by ones
    steps = [*(grain * k for k in range(1, 25)), *range(1, 41), old, 2 * old, 3 * old]
    values = {old + sign * step for step in steps for sign in (1, -1)}
    if old % 2 == 0:
        values.add(old // 2)
    least = 2 if scale == 1 else 1
    most = 99 * scale if len(number.forms) > 1 and number.value < 100 else max(4 * old, old + 40)
    if text[number.start].isalpha():
        most = min(most, 20 * scale)  # only small numbers are spelled out
    fits = [value for value in values if value != old and least <= value <= most]
    fits.sort(key=lambda value: (abs(value - old) % grain != 0, abs(value - old), value))
    return (value if scale == 1 else Fraction(value, scale) for value in fits)


def read(text: str, original: str, number: int) -> tuple[Exact, ...] | None:
    """Return the forms of a number as `text` has it; None where `text` holds another count of numbers."""
    found = words.numbers(text)
    if len(found) != len(words.numbers(original)):
        return None
    return forms(text, found[number], found[number].value)
