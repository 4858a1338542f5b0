"""Bootstrap intervals of means and of case-paired differences.

Cases (dialogues) are resampled with replacement. The intervals are bias-corrected and accelerated (BCa,
Efron 1987), which follow the skew of small samples of 0/1 scores better than plain percentiles do. A sample
without spread has an interval of no width: read it beside n. The same seed gives the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from envs.errors import ConfigError

_CHUNK = 2_000_000  # resampled values held at once


@dataclass(frozen=True, slots=True)
class PairedDiff:
    """Mean of after - before over `n` pairs and its interval; `dropped` pairs lack a side."""

    diff: float
    ci95: tuple[float, float]
    n: int
    dropped: int = 0


def bootstrap_ci(
    values: Sequence[float | None], *, seed: int, n: int = 10_000, level: float = 0.95
) -> tuple[float, float, float]:
    """Return (mean, low, high) of the known values; None and NaN are left out.

    `n` is the number of resamples. Without a known value all three are NaN; a single value has no spread to
    learn from, so low = high = mean. Raises `ConfigError` for a level outside (0, 1) or n < 1.
    """
    known = _numbers(values)
    known = known[~np.isnan(known)]
    return _interval(known, seed, n, level)


def paired_bootstrap(
    before: Sequence[float | None],
    after: Sequence[float | None],
    *,
    seed: int,
    n: int = 10_000,
    level: float = 0.95,
) -> PairedDiff:
    """Return the mean difference after - before, cases resampled as pairs.

    `before[i]` and `after[i]` belong to the same case. Pairs with None or NaN on a side are dropped and
    counted. Raises `ConfigError` if the lengths differ. The interval is of `level`, named for its default.
    """
    if len(before) != len(after):
        raise ConfigError(
            f"paired cases must match one to one: {len(before)} before, {len(after)} after; "
            "measure both on the same dialogues"
        )
    differences = _numbers(after) - _numbers(before)
    known = differences[~np.isnan(differences)]
    mean, low, high = _interval(known, seed, n, level)
    return PairedDiff(mean, (low, high), len(known), len(differences) - len(known))


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    """Return float64 values; None becomes NaN. Raises `ConfigError` for infinities."""
    array = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    if np.isinf(array).any():
        raise ConfigError("a score is infinite; scores must be finite numbers, or None where there is none")
    return array


def _interval(values: np.ndarray, seed: int, n: int, level: float) -> tuple[float, float, float]:
    if not 0 < level < 1 or n < 1:
        raise ConfigError(f"level must lie between 0 and 1 and n be at least 1, got {level} and {n}")
    if len(values) == 0:
        return float("nan"), float("nan"), float("nan")
    mean = float(values.mean())
    if values.min() == values.max():
        return mean, mean, mean
    means = _resampled_means(values, np.random.default_rng(seed), n)
    spread = values - mean
    # for a mean the jackknife deviation of case i is proportional to its own deviation
    acceleration = float(np.sum(spread**3) / (6 * np.sum(spread**2) ** 1.5))
    low, high = bca(means, mean, acceleration, level)
    return mean, low, high


def _resampled_means(values: np.ndarray, rng: np.random.Generator, n: int) -> np.ndarray:
    """Return n means of samples drawn with replacement, float64 [n]."""
    rows = max(1, _CHUNK // len(values))
    chunks = []
    for start in range(0, n, rows):
        picks = rng.integers(0, len(values), size=(min(rows, n - start), len(values)), dtype=np.int32)
        chunks.append(values[picks].mean(axis=1))
    return np.concatenate(chunks)


def bca(resampled: np.ndarray, estimate: float, acceleration: float, level: float) -> tuple[float, float]:
    """Return the BCa interval of `estimate`; the plain percentiles where the correction has no value.

    `resampled` holds the estimates of the resamples, [n]; `acceleration` is Efron's constant of the skew.
    """
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    # ties count half: means of 0/1 scores are discrete
    ties = np.isclose(resampled, estimate, rtol=0, atol=1e-12)
    below = (np.count_nonzero((resampled < estimate) & ~ties) + 0.5 * np.count_nonzero(ties)) / len(resampled)
    if 0 < below < 1 and np.isfinite(acceleration):
        bias = stats.norm.ppf(below)
        z = bias + stats.norm.ppf(tails)
        tails = stats.norm.cdf(bias + z / (1 - acceleration * z))
    low, high = np.quantile(resampled, tails)
    return float(low), float(high)
