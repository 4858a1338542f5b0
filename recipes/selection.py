"""Which source tasks a set takes of a family: read, golds graded, sampled, near copies left out.

Everything here is a pure function of the files, the set and the seed: work is cut into pieces of a fixed size,
however many processes share them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envs.errors import MissingFiles
from envs.families import is_procedural
from envs.mix import TaskPool
from envs.task import Family, Quarantined, SourceTask, checked
from recipes.neardup import HeldOut, NearCopy
from recipes.sets import SetRecipe, share

BATCH = 32
"""Tasks of one piece of work."""

Grader = Callable[[str, Sequence[Sequence[SourceTask]]], Iterator[list[Quarantined | None]]]
"""Grades the golds of batches of a family's tasks: for each task None, or why it is quarantined."""


@dataclass(slots=True)
class Selection:
    """What a set takes of one family, and what it leaves out with the reasons."""

    family: Family
    splits: tuple[str, ...]
    tasks: list[SourceTask] = field(default_factory=list)
    quarantined: list[Quarantined] = field(default_factory=list)
    """Tasks whose gold its own grader rejects, among those that were looked at."""
    unusable: list[Quarantined] = field(default_factory=list)
    """Items that the family cannot turn into tasks, where it lists them."""
    near_copies: list[NearCopy] = field(default_factory=list)


def missing_reason(family: Family, splits: Sequence[str], data: Path | None) -> MissingFiles | None:
    """Return why a family's files cannot be read, None where they can. Raises `DataError` for broken ones."""
    try:
        for split in splits:
            next(iter(family.load(data, split)), None)
    except MissingFiles as error:
        return error
    return None


def load_tasks(family: Family, splits: Iterable[str], data: Path | None) -> list[SourceTask]:
    """Return the tasks of a family that reads files, in file order, each id once; golds are not graded here."""
    found: dict[str, SourceTask] = {}
    for split in splits:
        for task in family.load(data, split):
            found.setdefault(task.id, task)
    return list(found.values())


def select(
    recipe: SetRecipe,
    families: Sequence[tuple[Family, tuple[str, ...]]],
    data: Path | None,
    seed: int,
    limit: int | None,
    grade_golds: Grader,
    held_out: HeldOut | None = None,
) -> list[Selection]:
    """Return what the set takes of each family, tasks in file order.

    `limit` bounds the tasks of a family. Of `held_out` no task and no near copy is taken. Raises what reading
    the files raises.
    """
    takers = [
        _Taker(family, splits, recipe, data, seed, grade_golds, held_out) for family, splits in families
    ]
    if recipe.tasks == "all":
        for taker in takers:
            taker.want(limit)
    else:
        # A family that turns out to have too few usable tasks passes its share on to the others.
        capacities = [taker.size if limit is None else min(limit, taker.size) for taker in takers]
        for _ in range(sum(capacities) + 1):
            shares = share(recipe.tasks, capacities)
            for taker, count in zip(takers, shares, strict=True):
                taker.want(count)
            short = [at for at, taker in enumerate(takers) if len(taker.picked) < shares[at]]
            if not short:
                break
            for at in short:
                capacities[at] = len(takers[at].picked)
    return [taker.selection(limit) for taker in takers]


class _Taker:
    """Goes through a family's tasks, in seeded order where a sample is wanted, until enough are usable."""

    def __init__(
        self,
        family: Family,
        splits: tuple[str, ...],
        recipe: SetRecipe,
        data: Path | None,
        seed: int,
        grade_golds: Grader,
        held_out: HeldOut | None,
    ) -> None:
        self.family, self.splits, self.data = family, splits, data
        self.grade_golds, self.held_out, self.similarity = grade_golds, held_out, recipe.similarity
        self.picked: list[SourceTask] = []
        self.quarantined: list[Quarantined] = []
        self.near_copies: list[NearCopy] = []
        self._pool = TaskPool(family, splits[0]) if is_procedural(family) else None
        self._read = [] if self._pool else load_tasks(family, splits, data)
        self.size = recipe.procedural_tasks if self._pool else len(self._read)
        """Tasks there are to choose from; those of a procedural family are made when they are looked at."""
        self._places = list(range(self.size))
        self._order: dict[str, int] = {}
        if recipe.tasks != "all":
            random.Random(f"sample|{family.name}|{seed}").shuffle(self._places)
        self._next = 0
        self._spare: list[SourceTask] = []  # usable, graded with their batch, not yet wanted

    def want(self, count: int | None) -> None:
        """Pick usable tasks until there are `count` (None: all), as far as they go."""
        while self._next < self.size and (count is None or len(self.picked) + len(self._spare) < count):
            if count is None:
                step = self.size
            else:  # made tasks are graded one by one, so none is made that is not wanted
                step = count - len(self.picked) - len(self._spare) if self._pool else BATCH
            ahead = self._places[self._next : self._next + step]
            self._next += len(ahead)
            self._look_at([self._at(place) for place in ahead])
        more = len(self._spare) if count is None else max(0, count - len(self.picked))
        self.picked += self._spare[:more]
        del self._spare[:more]

    def _look_at(self, tasks: list[SourceTask]) -> None:
        apart: list[SourceTask] = []
        for task in tasks:
            copy = None if self.held_out is None else self.held_out.near_copy(task, self.similarity)
            if copy is None:
                apart.append(task)
            else:
                self.near_copies.append(copy)
        if self._pool:
            self._spare += apart  # the pool has graded them
            return
        verdicts = itertools.chain.from_iterable(self.grade_golds(self.family.name, batched(apart)))
        for task, quarantined in zip(apart, verdicts, strict=True):
            if quarantined is None:
                self._spare.append(task)
            else:
                self.quarantined.append(quarantined)

    def _at(self, place: int) -> SourceTask:
        task = self._pool.at(place)[0] if self._pool else self._read[place]
        self._order[task.id] = place
        return task

    def selection(self, limit: int | None) -> Selection:
        quarantined = [*self.quarantined, *(self._pool.quarantined.values() if self._pool else ())]
        tasks = sorted(self.picked, key=lambda task: self._order[task.id])
        listing = getattr(self.family, "skipped", None)
        unusable = [item for split in self.splits for item in listing(self.data, split)] if listing else []
        return Selection(
            self.family,
            self.splits,
            tasks if limit is None else tasks[:limit],
            sorted(quarantined, key=lambda item: item.task_id),
            unusable,
            sorted(self.near_copies, key=lambda copy: copy.task_id),
        )


def batched(tasks: Sequence[SourceTask]) -> list[tuple[SourceTask, ...]]:
    """Return the tasks in pieces of `BATCH`."""
    return [tuple(tasks[at : at + BATCH]) for at in range(0, len(tasks), BATCH)]


def quarantine_of(family: Family, tasks: Sequence[SourceTask]) -> list[Quarantined | None]:
    """Grade the golds of some tasks: for each None, or why it is quarantined (`envs.task.checked`)."""
    found = checked(_Given(family, tasks), None, "")  # type: ignore[arg-type]
    return [item if isinstance(item, Quarantined) else None for item in found]


class _Given:
    """A family seen through given tasks, for `checked`."""

    def __init__(self, family: Family, tasks: Sequence[SourceTask]) -> None:
        self._tasks = tasks
        self.gold = family.gold
        self.grade = family.grade

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        return iter(self._tasks)
