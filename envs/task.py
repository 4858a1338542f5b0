"""Source tasks, grades, and what a family must offer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from envs.errors import unknown_name
from envs.intent import Goal, IntentState


@dataclass(frozen=True, slots=True)
class SourceTask:
    """One gradable task.

    `opening` says what kind of task it is without stating any goal ("I need one call of `book_table`.").
    `context` is what an agent needs beside the goals (schema, function signatures, answer format).
    `goals` is the source intent G*. `payload` is what the grader needs, plain JSON data.
    """

    id: str
    family: str
    split: str
    opening: str
    context: str
    goals: tuple[Goal, ...]
    payload: Mapping[str, Any] = field(hash=False)

    @property
    def intent(self) -> IntentState:
        return IntentState(self.goals)


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict. `score` is in [0, 1]; `full_credit` means exactly 1.

    `error` is set when the grader itself failed; then `score` is 0.0 but the case is *ungraded* and must be
    counted apart. `detail` holds the extracted answer and what differed.
    """

    score: float
    full_credit: bool
    detail: Mapping[str, Any] = field(default_factory=dict, hash=False)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A task left out at load because its own grader rejects its gold answer (or fails on it)."""

    task_id: str
    reason: str


class Family(Protocol):
    """One benchmark. A family is one module with one registered instance."""

    name: str
    structured: bool
    """Whether `execute` exists: goals carry slot and value and fully determine the answer."""
    splits: tuple[str, ...]

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        """Yield tasks in a fixed order. Procedural families ignore `source` and never end.

        Real families read the upstream layout below `source` and raise `MissingFiles` or `DataError`.
        Golds are not checked here; `checked` does that.
        """
        ...

    def gold(self, task: SourceTask) -> str:
        """Return the reference answer as an agent would write it."""
        ...

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        """Return plausible other values of `goal` (same slot), each of which flips the verdict; shuffled by rng."""
        ...

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return plausible extra goals; the caller keeps those for which obeying flips the verdict."""
        ...

    def grade(self, task: SourceTask, answer: str) -> Grade: ...

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Answer exactly what `state` says (structured families). Raises `GraderError` if it cannot."""
        ...


def get_family(name: str) -> Family:
    """Return the family registered under `name`. Raises `UnknownName`, naming the nearest."""
    from envs import families

    registry = families.registry()
    if name not in registry:
        raise unknown_name("family", name, registry)
    return registry[name]


def checked(family: Family, source: Path | None, split: str) -> Iterator[SourceTask | Quarantined]:
    """Yield the tasks of a family; a task whose gold its own grader rejects comes as `Quarantined`."""
    for task in family.load(source, split):
        yield check_gold(family, task)


def check_gold(family: Family, task: SourceTask) -> SourceTask | Quarantined:
    """Return the task, or why it is left out: its own grader rejects its gold answer or fails on it."""
    try:
        grade = family.grade(task, family.gold(task))
    except Exception as error:  # the grader boundary: a crash is data about the item, not about us
        return Quarantined(task.id, f"the grader failed on the gold answer: {error!r}")
    if grade.error is not None:
        return Quarantined(task.id, f"the grader failed on the gold answer: {grade.error}")
    if not grade.full_credit:
        return Quarantined(task.id, f"the grader rejects the gold answer: {dict(grade.detail)}")
    return task
