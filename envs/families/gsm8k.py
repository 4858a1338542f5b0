"""GSM8K: grade-school word problems. The goals are the question's sentences, the grade is numeric.

Goals come from structure, not from a model: a sentence whose numbers can be followed through the calculator
annotations of the gold solution has variants (the same sentence with another number), and the changed answer
is known by running the annotations again. Data: openai/grade-school-math (MIT), `gsm8k/{train,test}.jsonl`;
sharded records (`envs/sharded.py`), whose shards are the goals instead.

Two verdicts. `strict`: the final number of the answer, read as `envs.numbers` does, equals the gold as an exact
rational. `official`: the text after the first `#### ` of the answer, commas dropped, equals that of the gold.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from envs.calculator import strip_annotations
from envs.errors import DataError, GraderError, unknown_name
from envs.families import _gsm8k_text as words
from envs.families._gsm8k_work import MOST, Problem, changes, read, work, work_out
from envs.intent import Goal, IntentState
from envs.jsonl import benchmark_file, read_jsonl
from envs.numbers import extract_number, format_number
from envs.sharded import shard_goals, text_field
from envs.task import Grade, Quarantined, SourceTask

VERDICTS = ("strict", "official")
_CONTEXT = (
    'Work the word problem out step by step. End with a line "#### <number>" that holds the final answer.'
)
_OPENING = "I have a math word problem for you."
_OFFICIAL = re.compile(r"#### (-?[0-9.,]+)")
_FLAGS = {
    # Known by the question, because the same id means different questions in different files.
    "5efe7b03f61a": 'the gold counts "three times more" as four times (openai/grade-school-math, issue 25)',
}


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

    def __init__(self, verdict: str = "strict") -> None:
        if verdict not in VERDICTS:
            raise unknown_name("verdict of gsm8k:", verdict, VERDICTS)
        self.verdict = verdict

    def with_verdict(self, verdict: str) -> Gsm8k:
        """Return the family with `Grade.score` from this verdict. Raises `UnknownName`."""
        return Gsm8k(verdict)

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
        problem = _problem(task)
        if sentence is None or not task.payload["linked"]:
            return []
        at = [n for g, n in sorted(work(problem).links.linked) if g == sentence]
        texts = zip_longest(*(changes(problem, (sentence, n)) for n in at))
        flat = [text for row in texts for text in row if text is not None][:MOST]
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
        """Compare the final number of `answer` with the gold; `detail` holds both verdicts.

        Strict, 18, 18.00 and $18 agree and no marker is needed; official, the answer must say `#### 18`.
        """
        gold, got = Fraction(task.payload["answer"]), extract_number(answer)
        found = official_number(answer)
        verdicts = {"strict": got == gold, "official": found == official_number(task.payload["solution"])}
        right = verdicts[self.verdict]
        detail = {
            "extracted": None if got is None else str(got),
            "expected": str(gold),
            "extracted_official": found,
            **verdicts,
        }
        return Grade(float(right), right, detail)

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
        if task.payload["question"] not in held:
            raise GraderError(f"{task.id}: the state does not say what is asked")
        value = _work_out(task, held)
        for text in extras:
            value = _obey(task, text, value)
        return f"#### {format_number(value)}"

    def from_record(self, record: Mapping[str, Any]) -> SourceTask:
        """Return the task of a sharded record: `question`, `answer`, `task_id` and `shards` are read.

        The first shard asks the question. A shard whose number can be followed through the solution has
        variants; in a record where none can, only decoys drift. Raises `DataError`.
        """
        solution = text_field(record, "answer")
        answer = extract_number(solution.partition("####")[2])
        if answer is None:
            raise DataError('the answer holds no number after "####"')
        goals = shard_goals(record)
        payload = {
            "solution": solution,
            "answer": str(answer),
            "sentences": [goal.text for goal in goals],
            "question": 0,
            "flags": _flags(text_field(record, "question")),
        }
        linked = _unlinked_reason(Problem(tuple(payload["sentences"]), solution, str(answer))) is None
        id = text_field(record, "task_id")
        return SourceTask(id, self.name, "sharded", _OPENING, _CONTEXT, goals, payload | {"linked": linked})

    def records(self, source: Path | None, split: str) -> Iterator[dict[str, Any]]:
        """Yield the items of a file in the sharded layout, still without shards. Raises as `load` does."""
        for row, record in read_jsonl(_file(source, split), ("question", "answer")):
            name = "GSM8K" if split == "test" else f"GSM8K-{split}"  # upstream's ids count the test split
            texts = {key: str(record[key]) for key in ("question", "answer")}
            yield {"task": "math", "task_id": f"sharded-{name}/{row}", **texts}

    def _scan(self, source: Path | None, split: str) -> Iterator[SourceTask | Quarantined]:
        for row, record in read_jsonl(_file(source, split), ("question", "answer")):
            yield self._task(f"gsm8k/{split}/{row}", split, str(record["question"]), str(record["answer"]))

    def _task(self, id: str, split: str, question: str, solution: str) -> SourceTask | Quarantined:
        answer = extract_number(solution.partition("####")[2])
        if answer is None:
            return Quarantined(id, 'the solution holds no number after "####"')
        texts = words.sentences(question)
        if not texts:
            return Quarantined(id, "the question is empty")
        reason = _unlinked_reason(Problem(tuple(texts), solution, str(answer)))
        if reason is not None:
            return Quarantined(id, reason)
        slots = [*words.slots(texts[:-1]), "question"]
        goals = tuple(
            Goal(f"g{n}", text, slot) for n, (text, slot) in enumerate(zip(texts, slots, strict=True), 1)
        )
        payload = {
            "solution": solution,
            "answer": str(answer),
            "sentences": texts,
            "question": len(texts) - 1,
            "flags": _flags(question),
            "linked": True,
        }
        return SourceTask(id, self.name, split, _OPENING, _CONTEXT, goals, payload)


def official_number(text: str) -> str | None:
    """Return what the official extraction finds: the text after the first `#### `, commas dropped."""
    match = _OFFICIAL.search(text)
    return None if match is None else match.group(1).replace(",", "")


def _file(source: Path | None, split: str) -> Path:
    if split not in Gsm8k.splits:
        raise DataError(f"gsm8k has no split {split!r}; it has {', '.join(Gsm8k.splits)}")
    return benchmark_file(
        source, "gsm8k", f"{split}.jsonl", "grade_school_math/data of openai/grade-school-math"
    )


def _flags(question: str) -> list[str]:
    known = hashlib.sha256(question.encode()).hexdigest()[:12]
    return [_FLAGS[known]] if known in _FLAGS else []


def _problem(task: SourceTask) -> Problem:
    return Problem(tuple(task.payload["sentences"]), task.payload["solution"], task.payload["answer"])


def _unlinked_reason(problem: Problem) -> str | None:
    """Return why no number of a problem can be changed, or None."""
    try:
        links = work(problem).links
    except (DataError, ZeroDivisionError) as error:
        return str(error)
    if links.reason is None and not any(changes(problem, place) for place in sorted(links.linked)):
        return "no number can be changed so that every step stays whole and not negative"
    return links.reason


def _sentence_of(task: SourceTask, goal: Goal) -> int | None:
    """Return the index of the sentence that a goal or variant stands for; None for a decoy."""
    base = goal.id.split(".")[0]
    return next((n for n, known in enumerate(task.goals) if known.id == base), None)


def _work_out(task: SourceTask, held: dict[int, str]) -> Fraction:
    """Return the answer for the sentence texts `held`, by sentence index."""
    originals = task.payload["sentences"]
    if not task.payload["linked"]:
        if any(held.get(n) != text for n, text in enumerate(originals)):
            raise GraderError(
                f"{task.id}: no number can be followed to the answer, so only G* can be executed"
            )
        return Fraction(task.payload["answer"])
    problem = _problem(task)
    values = {}
    for g, n in work(problem).links.linked:
        if g not in held:
            raise GraderError(f"{task.id}: the state lacks {task.goals[g].text!r}, whose number is needed")
        if held[g] != originals[g]:
            forms = read(held[g], originals[g], n)
            if forms is None:
                raise GraderError(
                    f"{task.id}: {held[g]!r} holds another count of numbers than {originals[g]!r}"
                )
            values[g, n] = forms
    try:
        return work_out(problem, values)
    except ZeroDivisionError:
        raise GraderError(f"{task.id}: the state's numbers lead to a division by zero") from None


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
