"""Tests of full-credit differences: McNemar's exact test, its form for cases that share a task, Holm, power.

McNemar (1947) looks only at the pairs in which two rows disagree: under the null hypothesis each of them falls
either way with probability 1/2. `clustered_mcnemar` flips whole tasks instead of cases, so that the same task at
three budgets is not counted as three independent cases; where every task has one case the two are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import stats

from envs.errors import ConfigError

_MOST_FLIPS = 200_000  # the distribution below has one entry for each value of the sum


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the exact two-sided p: P(split at least this uneven | only_a + only_b fair coins).

    `only_a` and `only_b` count the cases that only one row, or only the other, got right. Without such a
    case p = 1. Raises `ConfigError` for a negative count.
    """
    if min(only_a, only_b) < 0:
        raise ConfigError(f"discordant cases are counts, got {only_a} and {only_b}")
    return float(min(1.0, 2 * stats.binom.cdf(min(only_a, only_b), only_a + only_b, 0.5)))


def clustered_mcnemar(totals: Sequence[int]) -> float:
    """Return the exact two-sided p of the sign-flip test over tasks.

    `totals[k]` is, of task k, cases that only a got right minus cases that only b got right. Under the null
    hypothesis the sign of each total is a fair coin: p = P(|sum of flipped totals| >= |sum of totals|). With
    every |total| <= 1 this is `mcnemar`. Raises `ConfigError` where the totals are too many to enumerate.
    """
    sizes = [abs(int(total)) for total in totals if total]
    reach = sum(sizes)
    if reach > _MOST_FLIPS:
        raise ConfigError(f"{reach} discordant cases are more than the exact test enumerates ({_MOST_FLIPS})")
    chances = np.zeros(2 * reach + 1)  # of a sum of -reach .. reach
    chances[reach] = 1.0
    for size in sizes:
        chances = 0.5 * (
            np.roll(chances, size) + np.roll(chances, -size)
        )  # never wraps: reach bounds the sum
    observed = abs(sum(int(total) for total in totals))
    sums = np.abs(np.arange(-reach, reach + 1))
    return float(min(1.0, chances[sums >= observed].sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's (1979) adjusted p-values in the given order.

    The k-th smallest of m is multiplied by m - k + 1, made monotone and cut at 1: comparing the results with
    alpha holds the chance of any false rejection among the m tests at alpha, however the tests depend.
    """
    if any(not 0 <= p <= 1 for p in p_values):
        raise ConfigError(f"p-values lie between 0 and 1, got {list(p_values)}")
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def mcnemar_power(n: int, discordant: float, difference: float, alpha: float = 0.05) -> float:
    """Return the chance that the exact test rejects at `alpha`.

    Of `n` cases a share `discordant` is expected to differ between the rows, and CAR to differ by
    `difference`: the share that only one row gets right is (discordant + difference) / 2. The number of
    discordant cases is random, so that this is the unconditional power. Raises `ConfigError` unless
    |difference| <= discordant <= 1 and n >= 1.
    """
    if n < 1 or not abs(difference) <= discordant <= 1:
        raise ConfigError(
            f"need n >= 1 and |difference| <= discordant <= 1, got n {n}, {difference} and {discordant}"
        )
    if discordant == 0:
        return 0.0
    share = (discordant + abs(difference)) / (2 * discordant)
    counts = np.arange(n + 1)
    edges = np.array(_edges(n, alpha))  # reject at or below the edge, on either side; -1: never
    beyond = stats.binom.cdf(edges, counts, share) + stats.binom.cdf(edges, counts, 1 - share)
    return float(stats.binom.pmf(counts, n, discordant) @ np.where(edges >= 0, beyond, 0.0))


def smallest_difference(
    n: int, discordant: float, power: float = 0.8, alpha: float = 0.05, step: float = 1e-4
) -> float | None:
    """Return the smallest CAR difference that `n` cases show with at least `power`, rounded up to `step`.

    None where even a difference of the whole discordant share, all of it one way, is found less often.
    """
    if n < 1 or mcnemar_power(n, discordant, discordant, alpha) < power:
        return None
    low, high = 0, int(np.floor(discordant / step + 1e-9))
    if mcnemar_power(n, discordant, min(discordant, high * step), alpha) < power:
        return discordant
    while high - low > 1:  # power grows with the difference
        middle = (low + high) // 2
        if mcnemar_power(n, discordant, middle * step, alpha) >= power:
            high = middle
        else:
            low = middle
    return round(high * step, 12)


@lru_cache(maxsize=64)
def _edges(n: int, alpha: float) -> tuple[int, ...]:
    """Return for m = 0 .. n the largest k with 2 P(Bin(m, 1/2) <= k) <= alpha, -1 where there is none."""
    sizes = np.arange(n + 1)
    edges = stats.binom.ppf(alpha / 2, sizes, 0.5).astype(int)
    edges = np.where(2 * stats.binom.cdf(edges, sizes, 0.5) <= alpha, edges, edges - 1)
    return tuple(int(edge) for edge in edges)
