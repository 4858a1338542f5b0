"""Case-paired differences: a row against the reference, and clean against drift (IDG).

Only cases graded on both sides are paired. `left_out` counts the others: they lack a verdict on a side, or were
not played there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from recipes.compare.grid import ALL, Grid
from recipes.compare.resample import Estimate, Resamples
from recipes.significance import clustered_mcnemar, holm, mcnemar, smallest_difference


@dataclass(frozen=True, slots=True)
class McNemar:
    """What McNemar's test sees of two sides a and b, a - b being the difference."""

    only_a: int
    """Cases with full credit only on side a."""
    only_b: int
    p: float
    """Exact, whole tasks flipped (`clustered_mcnemar`): read this one."""
    p_cases: float
    """Exact, every case flipped by itself (`mcnemar`); equal to `p` with one case a task."""
    p_holm: float | None = None
    """`p` corrected for the number of rows compared; None where nothing is compared with it."""
    smallest: float | None = None
    """The smallest difference that so many cases, so many of them discordant, show with 80% power; None where
    there is none, or where tasks have several cases: the note is for one case a task."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Means of a - b over the pairs. `score` is None where only full credit is compared."""

    row: str
    against: str
    condition: str
    stratum: str
    car: Estimate
    score: Estimate | None
    test: McNemar | None
    """None without a pair."""
    left_out: int


def differences(grid: Grid, draws: Resamples, condition: str, stratum: str = ALL) -> list[Difference]:
    """Return every other row minus the reference, Holm-corrected over the rows."""
    if not grid.has(grid.reference, condition):
        return []
    found = []
    for row in grid.rows:
        if row == grid.reference or not grid.has(row, condition):
            continue
        sides = (row, condition), (grid.reference, condition)
        label = (row, grid.reference, condition, stratum)
        one = difference(grid, draws, *sides, label=label, scores=True)
        if one is not None:
            found.append(one)
    return _corrected(found)


def drift_gap(grid: Grid, draws: Resamples, row: str, stratum: str = ALL) -> Difference | None:
    """Return IDG, CAR(clean) - CAR(drift) of the same cases; None where one of the two was not run."""
    clean = grid.clean_of(row)
    if clean is None or clean == (row, "drift") or not grid.has(row, "drift"):
        return None
    label = (row, f"{clean[0]}, {clean[1]}", "drift", stratum)
    return difference(grid, draws, clean, (row, "drift"), label=label)


def difference(
    grid: Grid,
    draws: Resamples,
    a: tuple[str, str],
    b: tuple[str, str],
    *,
    label: tuple[str, str, str, str],
    among: np.ndarray | None = None,
    scores: bool = False,
) -> Difference | None:
    """Return a - b, both (row, condition), in the label's stratum; None where neither has a case there.

    `label` is (row, against, condition, stratum); `among`, bool [pairs], keeps fewer pairs.
    """
    inside = grid.where(label[3])
    if among is not None:
        inside = inside & among
    played = inside & ((grid.state(*a) > 0) | (grid.state(*b) > 0))
    if not played.any():
        return None

    def gap(measure: str) -> np.ndarray:
        return np.where(inside, grid.values(*a, measure) - grid.values(*b, measure), np.nan)

    full = gap("car")
    car = draws.estimate(full, signed=True)
    return Difference(
        *label,
        car=car,
        score=draws.estimate(gap("score"), signed=True) if scores else None,
        test=_test(grid, full, car.n),
        left_out=int(played.sum()) - car.n,
    )


def _test(grid: Grid, full: np.ndarray, n: int) -> McNemar | None:
    if n == 0:
        return None
    totals: dict[str, list[int]] = {}
    for place in np.flatnonzero(~np.isnan(full)):
        totals.setdefault(grid.tasks[place], []).append(int(full[place]))
    only_a, only_b = int(np.count_nonzero(full == 1)), int(np.count_nonzero(full == -1))
    return McNemar(
        only_a,
        only_b,
        clustered_mcnemar([sum(one) for one in totals.values()]),
        mcnemar(only_a, only_b),
        smallest=smallest_difference(n, (only_a + only_b) / n) if len(totals) == n else None,
    )


def _corrected(found: Sequence[Difference]) -> list[Difference]:
    """Return the differences with Holm's p over all that could be tested."""
    tested = [one.test for one in found if one.test is not None]
    adjusted = iter(holm([test.p for test in tested]))
    return [
        one if one.test is None else replace(one, test=replace(one.test, p_holm=next(adjusted)))
        for one in found
    ]
