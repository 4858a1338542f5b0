"""Where credit is lost: clean - oracle - tracker - bare, and clean - turn-matched - drift.

Between the ends lie the same cases, so the parts add up to the whole. Each part may be negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from recipes.compare.grid import ALL, GRADED, Grid
from recipes.compare.pairs import Difference, difference
from recipes.compare.resample import Estimate, Resamples


@dataclass(frozen=True, slots=True)
class Decomposition:
    """CAR(clean) - CAR(reference) in three parts, on the `n` cases that all four have graded."""

    row: str
    stratum: str
    n: int
    left_out: int
    clean: Estimate
    oracle: Estimate
    tracked: Estimate
    """CAR of `row`, which works with an estimated state."""
    bare: Estimate
    not_state: Difference
    """clean - oracle: lost although the exact state is at hand (length, reading, answering)."""
    state_error: Difference
    """oracle - row: lost because the tracker's state is wrong."""
    recovered: Difference
    """row - reference: what the harness wins back."""


@dataclass(frozen=True, slots=True)
class TurnControl:
    """Is it the drift or the length? On the `n` cases graded in all conditions shown."""

    row: str
    stratum: str
    n: int
    left_out: int
    clean: Estimate | None
    turn_matched: Estimate
    drift: Estimate
    length: Difference | None
    """clean - turn_matched: lost to as many turns without drift; None where there is no clean run."""
    drifting: Difference
    """turn_matched - drift: lost to the drift itself."""


def decompositions(grid: Grid, draws: Resamples, stratum: str = ALL) -> list[Decomposition]:
    """Return one for each row that works with a tracked state (named stateforge...), where all four are there."""
    clean = grid.clean_of(grid.reference) if grid.reference else None
    oracle, bare = ("oracle", "drift"), (grid.reference, "drift")
    if clean is None or clean in (oracle, bare) or not (grid.has(*oracle) and grid.has(*bare)):
        return []
    found = []
    for row in grid.rows:
        if not row.startswith("stateforge") or row == grid.reference or not grid.has(row, "drift"):
            continue
        sides = (clean, oracle, (row, "drift"), bare)
        common, left_out = _common(grid, stratum, sides)
        parts = [
            difference(grid, draws, a, b, label=(a[0], b[0], "drift", stratum), among=common)
            for a, b in pairwise(sides)
        ]
        levels = [draws.estimate(np.where(common, grid.values(*side, "car"), np.nan)) for side in sides]
        if all(part is not None for part in parts):
            found.append(Decomposition(row, stratum, int(common.sum()), left_out, *levels, *parts))  # type: ignore[arg-type]
    return found


def turn_controls(grid: Grid, draws: Resamples, stratum: str = ALL) -> list[TurnControl]:
    """Return one for each row with drifting and turn-matched cases."""
    found = []
    for row in grid.rows:
        matched, drift, clean = (row, "turn_matched"), (row, "drift"), grid.clean_of(row)
        if not (grid.has(*matched) and grid.has(*drift)):
            continue
        clean = None if clean == drift else clean
        sides = [matched, drift] if clean is None else [clean, matched, drift]
        common, left_out = _common(grid, stratum, sides)
        levels = [draws.estimate(np.where(common, grid.values(*side, "car"), np.nan)) for side in sides]
        label = (row, "turn-matched", "drift", stratum)
        drifting = difference(grid, draws, matched, drift, label=label, among=common)
        if drifting is None:
            continue
        length = None
        if clean is not None:
            label = (row, f"{clean[0]}, {clean[1]}", "turn_matched", stratum)
            length = difference(grid, draws, clean, matched, label=label, among=common)
        first = levels[0] if clean is not None else None
        n = int(common.sum())
        found.append(TurnControl(row, stratum, n, left_out, first, levels[-2], levels[-1], length, drifting))
    return found


def _common(grid: Grid, stratum: str, sides: Sequence[tuple[str, str]]) -> tuple[np.ndarray, int]:
    """Return the pairs that all sides have graded, and how many others of the last two sides there are."""
    states = [grid.state(*side) for side in sides]
    inside = grid.where(stratum)
    common = inside & np.all([state == GRADED for state in states], axis=0)
    played = inside & np.any([state > 0 for state in states[-2:]], axis=0)
    return common, int(played.sum() - common.sum())
