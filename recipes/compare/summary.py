"""Everything that a comparison says in numbers, computed from its cases; terminal, files and page only show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from recipes.cases import Case
from recipes.compare.gaps import Decomposition, TurnControl, decompositions, turn_controls
from recipes.compare.grid import ALL, Grid, is_graded
from recipes.compare.pairs import Difference, differences, drift_gap
from recipes.compare.resample import RESAMPLES, Resamples
from recipes.compare.rows import RowStats, row_stats
from recipes.significance import smallest_difference

DISCORDANT = (0.1, 0.2, 0.3, 0.4)
"""Shares of discordant cases for which the power note is given beforehand."""


@dataclass(frozen=True, slots=True)
class Power:
    """The smallest CAR difference that `cases` paired cases show with 80% power, by share of discordant cases."""

    cases: int
    smallest: dict[float, float | None]


@dataclass(frozen=True, slots=True)
class Summary:
    rows: list[str]
    reference: str
    conditions: list[str]
    strata: list[str]
    families: list[str]
    stats: list[RowStats]
    differences: list[Difference]
    idg: list[Difference]
    gaps: list[Decomposition]
    turns: list[TurnControl]
    power: list[Power]
    ungraded: list[tuple[str, str, str, int]]
    """(row, condition, reason, cases), most first."""
    seed: int
    resamples: int

    def row(
        self, row: str, condition: str = "drift", stratum: str = ALL, family: str = ALL
    ) -> RowStats | None:
        """Return the statistics of one scope, None where the row has no case there."""
        wanted = (row, condition, stratum, family)
        for one in self.stats:
            if (one.row, one.condition, one.stratum, one.family) == wanted:
                return one
        return None

    def against(self, row: str, condition: str = "drift", stratum: str = ALL) -> Difference | None:
        """Return a row's difference to the reference."""
        return _first(self.differences, row, condition, stratum)

    def gap(self, row: str, stratum: str = ALL) -> Difference | None:
        """Return a row's IDG."""
        return _first(self.idg, row, "drift", stratum)

    def block(self) -> dict[str, Any]:
        """Return all of it as plain data for `result.json`."""
        return asdict(self)


def summarize(
    cases: Sequence[Case], *, reference: str | None = None, seed: int = 0, resamples: int = RESAMPLES
) -> Summary:
    """Return the statistics of a run's cases. Their order does not matter.

    Differences are to the row `reference` (default: `bare`, or else the first row). Raises `DataError` for
    cases that contradict each other, `UnknownName` for a reference that is no row.
    """
    grid = Grid(cases, reference)
    draws = Resamples(grid.tasks, list(grid.family), seed=seed, n=resamples)
    strata = [ALL, *grid.strata]
    families = [ALL, *grid.families] if len(grid.families) > 1 else [ALL]
    stats = [
        row_stats(grid, draws, row, condition, stratum, family)
        for condition in grid.conditions
        for stratum in strata
        for family in families
        for row in grid.rows
    ]
    compared = [
        one
        for condition in grid.conditions
        for stratum in strata
        for one in differences(grid, draws, condition, stratum)
    ]
    return Summary(
        rows=grid.rows,
        reference=grid.reference,
        conditions=grid.conditions,
        strata=grid.strata,
        families=grid.families,
        stats=[one for one in stats if one is not None],
        differences=compared,
        idg=[gap for stratum in strata for row in grid.rows if (gap := drift_gap(grid, draws, row, stratum))],
        gaps=[one for stratum in strata for one in decompositions(grid, draws, stratum)],
        turns=[one for stratum in strata for one in turn_controls(grid, draws, stratum)],
        power=_power([one.car.n for one in compared if one.stratum != ALL or len(grid.strata) == 1]),
        ungraded=_ungraded(grid.cases),
        seed=seed,
        resamples=resamples,
    )


def _first(found: Sequence[Difference], row: str, condition: str, stratum: str) -> Difference | None:
    for one in found:
        if (one.row, one.condition, one.stratum) == (row, condition, stratum):
            return one
    return None


def _power(sizes: Sequence[int]) -> list[Power]:
    distinct = sorted({size for size in sizes if size})
    return [
        Power(size, {share: smallest_difference(size, share) for share in DISCORDANT}) for size in distinct
    ]


def _ungraded(cases: Sequence[Case]) -> list[tuple[str, str, str, int]]:
    reasons = Counter(
        (case.harness, case.condition, case.error or "no verdict") for case in cases if not is_graded(case)
    )
    return [(*key, count) for key, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))]
