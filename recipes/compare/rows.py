"""What one row did in one scope (condition, stratum, family): scores, slips, costs, and what is ungraded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.compare.grid import ALL, GRADED, UNGRADED, Grid
from recipes.compare.resample import Estimate, Resamples


@dataclass(frozen=True, slots=True)
class Scores:
    """Mean score and CAR, each over cases (micro) and as the mean of the families' means (macro)."""

    score: Estimate
    score_macro: Estimate
    car: Estimate
    car_macro: Estimate


@dataclass(frozen=True, slots=True)
class Slips:
    """Shares of graded cases; each `n` says over how many, for not every case can tell."""

    delete_obeyed: Estimate
    """Of the cases with a withdrawn goal: the answer still obeys it."""
    misbound: Estimate
    """Of the cases with a replaced goal: its new value stands at another slot."""
    stale_leak: Estimate
    """Of the cases with a tracker: the last state holds something superseded."""
    state_exact: Estimate
    """Of the cases with a tracker: the last state is exactly the oracle's."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Sums over graded cases divided by their turns; None without a turn."""

    turns: float | None
    """A case."""
    prompt_tokens: float | None
    """A turn, of the base agent; so are the cached and output tokens."""
    cached_share: float | None
    """Cached of all prompt tokens."""
    output_tokens: float | None
    tracker_tokens: float | None
    seconds: float | None
    """Wall time a turn."""
    overhead_ms: float | None
    """Wall time a turn not spent waiting for engines."""
    retries: int
    """In all."""


@dataclass(frozen=True, slots=True)
class RowStats:
    row: str
    condition: str
    stratum: str
    family: str
    cases: int
    """Graded or not."""
    ungraded: int
    scores: Scores
    slips: Slips | None
    """None for one family: too few cases to read."""
    costs: Costs | None


def row_stats(
    grid: Grid, draws: Resamples, row: str, condition: str, stratum: str = ALL, family: str = ALL
) -> RowStats | None:
    """Return the statistics of a scope; None where the row has no case there."""
    inside = grid.where(stratum, family)
    state = grid.state(row, condition)[inside]
    if not state.any():
        return None

    def measure(name: str, *, macro: bool = False) -> Estimate:
        return draws.estimate(np.where(inside, grid.values(row, condition, name), np.nan), macro=macro)

    score, car = measure("score"), measure("car")
    whole = family == ALL
    return RowStats(
        row=row,
        condition=condition,
        stratum=stratum,
        family=family,
        cases=int(np.count_nonzero(state)),
        ungraded=int(np.count_nonzero(state == UNGRADED)),
        scores=Scores(
            score,
            measure("score", macro=True) if whole else score,
            car,
            measure("car", macro=True) if whole else car,
        ),
        slips=Slips(*(measure(name) for name in Slips.__dataclass_fields__)) if whole else None,
        costs=_costs(grid, row, condition, inside) if whole else None,
    )


def _costs(grid: Grid, row: str, condition: str, inside: np.ndarray) -> Costs:
    graded = inside & (grid.state(row, condition) == GRADED)

    def total(name: str) -> float:
        return float(grid.values(row, condition, name)[graded].sum())

    turns, prompt = total("turns"), total("prompt_tokens")

    def a_turn(amount: float) -> float | None:
        return amount / turns if turns else None

    return Costs(
        turns=turns / graded.sum() if graded.any() else None,
        prompt_tokens=a_turn(prompt),
        cached_share=total("cached_tokens") / prompt if prompt else None,
        output_tokens=a_turn(total("output_tokens")),
        tracker_tokens=a_turn(total("tracker_tokens")),
        seconds=a_turn(total("seconds")),
        overhead_ms=a_turn(1000 * (total("seconds") - total("engine_seconds"))),
        retries=int(total("retries")),
    )
