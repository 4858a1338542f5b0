"""GSM8K: grade-school word problems. The goals are the question's sentences, the grade is numeric.

Goals come from structure, not from a model: a sentence whose numbers can be followed through the calculator
annotations of the gold solution has variants (the same sentence with another number), and the changed answer
is known by running the annotations again. Data: openai/grade-school-math (MIT), `gsm8k/{train,test}.jsonl`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice, zip_longest
from pathlib import Path

from envs.calculator import Step, evaluate, parse_steps, strip_annotations
from envs.errors import DataError, GraderError
from envs.families import _gsm8k_text as words
from envs.families._gsm8k_link import Links, forms, link
from envs.intent import Goal, IntentState
from envs.jsonl import benchmark_file, read_jsonl
from envs.numbers import extract_number, format_number
from envs.task import Grade, Quarantined, SourceTask

_CONTEXT = (
    'Work the word problem out step by step. End with a line "#### <number>" that holds the final answer.'
)
_VARIANTS = 12  # a goal; budgets use five at most


@dataclass(frozen=True, slots=True)
class _Decoy:
    """A change of the final number: how it may be worded (`{n}` is a whole number), and what it does."""

    slot: str
    wordings: tuple[str, ...]
    apply: Callable[[Fraction, int], Fraction]
    sizes: tuple[int, ...] = (0,)


_DECOYS = (
    _Decoy(
        "final addition",
        ("On top of that, add {n} to the final total.", "Count {n} more on top of the result."),
        lambda value, n: value + n,
        (2, 3, 5, 8, 10, 12),
    ),
    _Decoy(
        "final deduction",
        ("At the very end, take {n} off the final number.", "Knock {n} off whatever comes out."),
        lambda value, n: value - n,
        (1, 2, 4, 6),
    ),
    _Decoy(
        "final doubling",
        ("In the end, double the final number.", "The answer I want is twice the result."),
        lambda value, n: value * 2,
    ),
    _Decoy(
        "final share",
        ("In the end, count only half of the result.", "Report just half of the final number."),
        lambda value, n: value / 2,
    ),
    _Decoy(
        "number of rounds",
        (
            "All of this happens {n} times, so multiply the outcome by {n}.",
            "Give me the total for {n} such cases.",
        ),
        lambda value, n: value * n,
        (3, 4, 5, 6),
    ),
    _Decoy(
        "tip",
        ("Put {n} percent on top of the final number.", "Raise the end result by {n} percent."),
        lambda value, n: value * (100 + n) / 100,
        (10, 20, 25, 50),
    ),
)


class Gsm8k:
    name = "gsm8k"
    structured = True
    splits = ("train", "test")
    variants_flip = True
    """Every variant changes the answer by construction, so a caller need not grade it again."""

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        """Yield the tasks in which at least one sentence has variants, in file order.

        `skipped` tells the others apart. Raises `MissingFiles`, `DataError`.
        """
        for task in self._scan(source, split):
            if isinstance(task, SourceTask):
                yield task

    def skipped(self, source: Path | None, split: str) -> list[Quarantined]:
        """Return the items that `load` leaves out, each with the reason."""
        return [task for task in self._scan(source, split) if isinstance(task, Quarantined)]

    def gold(self, task: SourceTask) -> str:
        return strip_annotations(task.payload["solution"])

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        """Return the sentence with one linked number changed to a near value, so that the answer changes.

        A result that was whole or not negative stays so, at every step. Ids are fixed, the order is `rng`'s.
        """
        sentence = _sentence_of(task, goal)
        if sentence is None:
            return []
        at = [n for g, n in sorted(_links(task).linked) if g == sentence]
        texts = zip_longest(*(list(_changed(task, sentence, n)) for n in at))
        flat = [text for row in texts for text in row if text is not None][:_VARIANTS]
        found = [Goal(f"{goal.id.split('.')[0]}.v{n}", text, goal.slot) for n, text in enumerate(flat, 1)]
        rng.shuffle(found)
        return found

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return extra sentences that change the final number, one of each kind, worded by `rng`."""
        found = []
        for n, decoy in enumerate(_DECOYS, 1):
            size = rng.choice(decoy.sizes)
            found.append(Goal(f"d{n}", rng.choice(decoy.wordings).format(n=size), decoy.slot))
        rng.shuffle(found)
        return found

    def grade(self, task: SourceTask, answer: str) -> Grade:
        """Compare the final number of `answer` with the gold as exact rationals: 18, 18.00 and $18 agree."""
        gold, got = Fraction(task.payload["answer"]), extract_number(answer)
        detail = {"extracted": None if got is None else str(got), "expected": str(gold)}
        return Grade(float(got == gold), got == gold, detail)

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Work the sentences of `state` out by the gold solution's own steps; then obey the decoys in order.

        Raises `GraderError` where a sentence with a needed number (or the question itself) is missing.
        """
        held: dict[int, str] = {}
        extras: list[str] = []
        for goal in state.goals:
            sentence = _sentence_of(task, goal)
            if sentence is None:
                extras.append(goal.text)
            else:
                held[sentence] = goal.text
        if len(task.goals) - 1 not in held:
            raise GraderError(f"{task.id}: the state does not say what is asked")
        value = _work_out(task, held)
        for text in extras:
            value = _obey(task, text, value)
        return f"#### {format_number(value)}"

    def _scan(self, source: Path | None, split: str) -> Iterator[SourceTask | Quarantined]:
        if split not in self.splits:
            raise DataError(f"gsm8k has no split {split!r}; it has {', '.join(self.splits)}")
        path = benchmark_file(
            source, "gsm8k", f"{split}.jsonl", "grade_school_math/data of openai/grade-school-math"
        )
        for row, record in read_jsonl(path, ("question", "answer")):
            yield self._task(f"gsm8k/{split}/{row}", split, str(record["question"]), str(record["answer"]))

    def _task(self, id: str, split: str, question: str, solution: str) -> SourceTask | Quarantined:
        answer = extract_number(solution.partition("####")[2])
        if answer is None:
            return Quarantined(id, 'the solution holds no number after "####"')
        texts = words.sentences(question)
        if not texts:
            return Quarantined(id, "the question is empty")
        slots = [*words.slots(texts[:-1]), "question"]
        goals = tuple(
            Goal(f"g{n}", text, slot) for n, (text, slot) in enumerate(zip(texts, slots, strict=True), 1)
        )
        payload = {"solution": solution, "answer": str(answer), "sentences": texts}
        task = SourceTask(
            id, self.name, split, "I have a math word problem for you.", _CONTEXT, goals, payload
        )
        try:
            reason = _links(task).reason
        except (DataError, ZeroDivisionError) as error:
            reason = str(error)
        if reason is None and not any(
            True for g, n in sorted(_links(task).linked) for _ in _changed(task, g, n)
        ):
            reason = "no number can be changed so that every step stays whole and not negative"
        return task if reason is None else Quarantined(id, reason)


def _sentence_of(task: SourceTask, goal: Goal) -> int | None:
    """Return the index of the sentence that a goal or variant stands for; None for a decoy."""
    base = goal.id.split(".")[0]
    return next((n for n, known in enumerate(task.goals) if known.id == base), None)


def _links(task: SourceTask) -> Links:
    return _linked(tuple(task.payload["sentences"]), task.payload["solution"], task.payload["answer"])[1]


def _steps(task: SourceTask) -> tuple[Step, ...]:
    return _linked(tuple(task.payload["sentences"]), task.payload["solution"], task.payload["answer"])[0]


@lru_cache(maxsize=4096)
def _linked(texts: tuple[str, ...], solution: str, answer: str) -> tuple[tuple[Step, ...], Links]:
    steps = parse_steps(solution)
    return steps, link(texts, steps, Fraction(answer))


def _run_with(task: SourceTask, values: dict[tuple[int, int], tuple[Fraction, ...]]) -> list[Fraction]:
    """Return the result of every step; `values` holds the forms of changed numbers, by (sentence, number)."""
    links = _links(task)
    results: list[Fraction] = []
    for s, step in enumerate(_steps(task)):
        leaves = list(step.leaves)
        for at in range(len(leaves)):
            source = links.sources.get((s, at))
            if source is not None and source.step is not None:
                leaves[at] = results[source.step]
            elif source is not None and (source.goal, source.number) in values:
                leaves[at] = values[source.goal, source.number][source.form]
        results.append(evaluate(step, leaves))
    return results


def _work_out(task: SourceTask, held: dict[int, str]) -> Fraction:
    """Return the answer for the sentence texts `held`, by sentence index."""
    values: dict[tuple[int, int], tuple[Fraction, ...]] = {}
    for g, n in _links(task).linked:
        if g not in held:
            raise GraderError(f"{task.id}: the state lacks {task.goals[g].slot!r}, whose number is needed")
        found, known = words.numbers(held[g]), words.numbers(task.payload["sentences"][g])
        if len(found) != len(known):
            raise GraderError(f"{task.id}: {held[g]!r} holds {len(found)} numbers, the original {len(known)}")
        values[g, n] = forms(held[g], found[n], found[n].value)
    try:
        return _run_with(task, values)[-1]
    except ZeroDivisionError:
        raise GraderError(f"{task.id}: the state's numbers lead to a division by zero") from None


def _changed(task: SourceTask, sentence: int, number: int) -> Iterator[str]:
    """Yield the sentence with the number set to near values that change the answer, nearest first."""
    text = task.payload["sentences"][sentence]
    found = words.numbers(text)[number]
    before = _run_with(task, {})
    sound = (
        value for value in _near(text, found) if _sound(task, (sentence, number), text, found, value, before)
    )
    for value in islice(sound, _VARIANTS):
        yield words.rewrite(text, found, value)


def _sound(
    task: SourceTask,
    key: tuple[int, int],
    text: str,
    number: words.Number,
    value: Fraction,
    before: Sequence[Fraction],
) -> bool:
    try:
        after = _run_with(task, {key: forms(text, number, value)})
    except ZeroDivisionError:
        return False
    # zero is kept apart from positive: a step that comes to nothing makes a question odd
    whole = all(new.denominator == 1 for old, new in zip(before, after, strict=True) if old.denominator == 1)
    positive = all(new > 0 for old, new in zip(before, after, strict=True) if old > 0)
    return after[-1] != before[-1] and whole and positive


def _near(text: str, number: words.Number) -> list[Fraction]:
    """Return other plausible values of a number, nearest first, with as many decimals as it shows."""
    old, unit = number.value, Fraction(1, 10 ** words.decimals(text, number))
    grain = unit
    while (old / (grain * 10)).denominator == 1 and old / grain >= 100:
        grain *= 10  # 80,000 moves by thousands, not by ones
    steps = (
        [grain * k for k in range(1, 25)] + [unit * k for k in range(1, 41)] + [old * k for k in (1, 2, 3)]
    )
    values = {old + sign * step for step in steps for sign in (1, -1)} | {old / 2}
    least = 2 * unit if unit == 1 else unit
    most = 99 if len(number.forms) > 1 and old < 100 else max(4 * old, old + 40 * unit)
    spelled = 20 if text[number.start].isalpha() else most
    fits = [
        v for v in values if v != old and least <= v <= min(most, spelled) and (v / unit).denominator == 1
    ]
    return sorted(fits, key=lambda v: (abs(v - old) % grain != 0, abs(v - old), v))


@lru_cache(maxsize=1)
def _decoy_patterns() -> list[tuple[re.Pattern[str], _Decoy]]:
    return [
        (re.compile(re.escape(wording).replace(r"\{n\}", r"(\d+)")), decoy)
        for decoy in _DECOYS
        for wording in decoy.wordings
    ]


def _obey(task: SourceTask, text: str, value: Fraction) -> Fraction:
    for pattern, decoy in _decoy_patterns():
        match = pattern.fullmatch(text)
        if match is not None:
            return decoy.apply(value, int(match.group(1)) if match.groups() else 0)
    raise GraderError(f"{task.id}: no known way to carry out {text!r}")


FAMILY = Gsm8k()
