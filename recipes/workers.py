"""The work of `fluxforge build`, in pieces: grading golds and building dialogues, here or in worker processes.

Results come in the order of the pieces, so what is written does not depend on how many processes there are.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from envs.dialogue import Dialogue, build
from envs.grading import Grading
from envs.parquet import to_table
from envs.task import Quarantined, SourceTask, get_family
from envs.wording_report import WordingReport
from recipes.realised import Tally
from recipes.selection import quarantine_of
from recipes.wording_settings import WordingSettings

_Result = TypeVar("_Result")
_AHEAD = 3  # pieces in flight for each process: enough to keep it busy, few enough to hold little in memory

_REQUESTS = 8  # dialogues of a process that wait for a model at once


@dataclass(frozen=True, slots=True)
class Stratum:
    """One file of a family: a condition, and the budget where the condition has one.

    A clean dialogue shows G* alone, so it is the same under every budget and is written once.
    """

    condition: str
    budget: str
    """easy, medium or hard; of `clean` the first budget of the set, which only its id shows."""

    @property
    def name(self) -> str:
        """Return a name that is also a split's name for `datasets`: "clean", "drift_hard"."""
        return self.condition if self.condition == "clean" else f"{self.condition}_{self.budget}"


class Workers:
    """Runs pieces of work in `jobs` processes; with one job, in this process. A context manager."""

    def __init__(self, jobs: int, grading: Grading | None = None) -> None:
        self.jobs = jobs
        self.grading = grading or Grading()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        if self.jobs > 1:
            # Spawned, not forked: pyarrow's threads do not survive a fork.
            self._pool = ProcessPoolExecutor(
                self.jobs,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=self.grading.apply,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, work: Callable[..., _Result], pieces: Iterable[tuple[Any, ...]]) -> Iterator[_Result]:
        """Yield `work(*piece)` for each piece, in order."""
        if self._pool is None:
            for piece in pieces:
                yield work(*piece)
            return
        waiting: deque[Future[_Result]] = deque()
        for piece in pieces:
            waiting.append(self._pool.submit(work, *piece))
            if len(waiting) > _AHEAD * self.jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def grade_golds(
        self, family: str, batches: Sequence[Sequence[SourceTask]]
    ) -> Iterator[list[Quarantined | None]]:
        """Yield the verdicts on the golds of each batch, see `recipes.selection.Grader`."""
        return self.map(grade_batch, ((family, batch) for batch in batches))

    def build_tables(
        self,
        family: str,
        batches: Iterable[Sequence[SourceTask]],
        strata: Sequence[Stratum],
        seed: int,
        wording: WordingSettings,
    ) -> Iterator[tuple[list[tuple[pa.Table, Tally]], WordingReport]]:
        """Yield, for each batch, the dialogues of each stratum as a table and what drift they hold; and what a
        model's wording came to."""
        return self.map(build_batch, ((family, batch, strata, seed, wording) for batch in batches))


def grade_batch(family: str, tasks: Sequence[SourceTask]) -> list[Quarantined | None]:
    return quarantine_of(get_family(family), tasks)


def build_batch(
    family: str,
    tasks: Sequence[SourceTask],
    strata: Sequence[Stratum],
    seed: int,
    wording: WordingSettings,
) -> tuple[list[tuple[pa.Table, Tally]], WordingReport]:
    """Return one table a stratum, the dialogues of `tasks` in their order, and its tally."""
    found = get_family(family)
    report = WordingReport()
    simulator = wording.simulator(report)
    results: list[tuple[pa.Table, Tally]] = []
    for stratum in strata:

        def one(task: SourceTask, stratum: Stratum = stratum) -> Dialogue:
            return build(found, task, stratum.condition, stratum.budget, seed, simulator)

        if wording.endpoint is None:
            dialogues = [one(task) for task in tasks]
        else:  # the requests of a dialogue follow each other, so several dialogues keep a server busy
            with ThreadPoolExecutor(_REQUESTS) as pool:
                dialogues = list(pool.map(one, tasks))
        tally = Tally()
        for dialogue in dialogues:
            tally.add(dialogue)
        results.append((to_table(dialogues), tally))
    return results, report
