"""Bootstrap intervals of means over cases that share tasks: whole tasks are drawn.

A task that was played at three budgets, or with several seeds, is one piece of luck, not three: its cases are
drawn together. With one case a task this is the plain case bootstrap of `recipes/stats.py`. A mean of families'
means draws within each family. All statistics of a comparison use the same draws: differences are paired, and
swapping two rows turns the sign and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envs.errors import ConfigError
from recipes.stats import bca

RESAMPLES = 10_000
_MOST_BYTES = 256 * 2**20  # draws kept for reuse


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` cases and its 95% interval; all three are None where n = 0."""

    value: float | None
    low: float | None
    high: float | None
    n: int


NOTHING = Estimate(None, None, None, 0)


class Resamples:
    """Draws of tasks for arrays of one value a case; `tasks[i]` and `families[i]` belong to `values[i]`."""

    def __init__(
        self, tasks: Sequence[str], families: Sequence[str], *, seed: int = 0, n: int = RESAMPLES
    ) -> None:
        if n < 1:
            raise ConfigError(f"there must be at least one resample, got {n}")
        names = sorted(set(zip(families, tasks)))
        place = {name: index for index, name in enumerate(names)}
        self._task = np.array([place[name] for name in zip(families, tasks)], dtype=np.int64)
        order = sorted({family for family, _ in names})
        self._family = np.array([order.index(family) for family, _ in names], dtype=np.int64)  # of each task
        self._seed, self._n = seed, n
        self._kept: dict[bytes, np.ndarray] = {}

    def estimate(
        self, values: np.ndarray, *, macro: bool = False, signed: bool = False, level: float = 0.95
    ) -> Estimate:
        """Return the mean of the known values and its BCa interval; NaN is unknown and left out.

        `macro`: the mean of the families' means, each family counting the same. Values lie in [0, 1], `signed`
        ones in [-1, 1]: where all are equal no resample differs, and the interval is the exact binomial one
        (Clopper and Pearson 1934) of how many tasks might lie at the far end.
        """
        known = ~np.isnan(values)
        count = int(known.sum())
        if count == 0:
            return NOTHING
        tasks = len(self._family)
        sums = np.bincount(self._task[known], values[known], tasks)
        counts = np.bincount(self._task[known], minlength=tasks).astype(float)
        present = counts > 0
        sums, counts, family = sums[present], counts[present], self._family[present]
        groups = [family == one for one in np.unique(family)] if macro else [np.full(len(family), True)]
        mean = float(np.mean([sums[group].sum() / counts[group].sum() for group in groups]))
        if values[known].min() == values[known].max():
            unseen = 1 - ((1 - level) / 2) ** (1 / len(sums))
            return Estimate(mean, mean - unseen * (mean + signed), mean + unseen * (1 - mean), count)
        draws = self._draws(present, groups)
        parts = [draws[:, group] @ np.stack([sums[group], counts[group]], axis=1) for group in groups]
        resampled = np.mean([part[:, 0] / part[:, 1] for part in parts], axis=0)
        low, high = bca(resampled, mean, _acceleration(sums, counts, groups), level)
        return Estimate(mean, low, high, count)

    def _draws(self, present: np.ndarray, groups: Sequence[np.ndarray]) -> np.ndarray:
        """Return how often each present task is drawn, within its group, in each resample: float64 [n, tasks]."""
        key = present.tobytes() + bytes([len(groups) > 1])
        if key not in self._kept:
            rng = np.random.default_rng(self._seed)
            draws = np.empty((self._n, int(present.sum())))
            for group in groups:
                size = int(group.sum())
                picks = rng.integers(0, size, size=(self._n, size))
                picks += size * np.arange(self._n)[:, None]
                drawn = np.bincount(picks.ravel(), minlength=self._n * size)
                draws[:, group] = drawn.reshape(self._n, size)
            while (
                self._kept and sum(kept.nbytes for kept in self._kept.values()) + draws.nbytes > _MOST_BYTES
            ):
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = draws
        return self._kept[key]


def _acceleration(sums: np.ndarray, counts: np.ndarray, groups: Sequence[np.ndarray]) -> float:
    """Return the BCa constant (Davison and Hinkley 1997, section 5.3.2; one group: Efron 1987).

    From each task's empirical influence l on the mean of G groups' means, K_g tasks in group g:
    a = sum_g K_g^-3 sum l^3 / (6 (sum_g K_g^-2 sum l^2)^1.5).
    """
    cubes = squares = 0.0
    for group in groups:
        mean = sums[group].sum() / counts[group].sum()
        pull = (sums[group] - mean * counts[group]) / (counts[group].sum() * len(groups))  # l / K_g
        cubes += float(np.sum(pull**3))
        squares += float(np.sum(pull**2))
    return cubes / (6 * squares**1.5) if squares > 0 else 0.0
