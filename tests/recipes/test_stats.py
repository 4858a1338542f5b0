"""Bootstrap intervals: known values, coverage, pairing, edge cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from envs.errors import ConfigError
from recipes.stats import bootstrap_ci, paired_bootstrap

SKEWED = [0.0, 0.1, 0.1, 0.2, 0.3, 0.3, 0.5, 0.9, 2.5, 4.0]


def test_it_agrees_with_scipy_on_a_skewed_sample() -> None:
    mean, low, high = bootstrap_ci(SKEWED, seed=1, n=100_000)
    reference = scipy_stats.bootstrap(
        (np.array(SKEWED),), np.mean, n_resamples=100_000, method="BCa", random_state=2
    ).confidence_interval
    assert mean == pytest.approx(0.89)
    assert low == pytest.approx(reference.low, abs=0.02)
    assert high == pytest.approx(reference.high, abs=0.03)
    assert high - mean > mean - low  # the skew shows


def test_it_comes_near_the_normal_interval_on_a_large_sample() -> None:
    values = np.random.default_rng(0).normal(3, 2, 2000)
    mean, low, high = bootstrap_ci(list(values), seed=0, n=4000)
    half = 1.96 * values.std(ddof=1) / math.sqrt(len(values))
    assert mean == pytest.approx(values.mean())
    assert low == pytest.approx(mean - half, abs=0.01)
    assert high == pytest.approx(mean + half, abs=0.01)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for trial in range(300):
        sample = (rng.random(40) < 0.7).astype(float)
        _, low, high = bootstrap_ci(list(sample), seed=trial, n=1000)
        hits += low <= 0.7 <= high
    assert 0.90 <= hits / 300 <= 0.985


def test_the_same_seed_gives_the_same_interval_and_another_one_nearly() -> None:
    assert bootstrap_ci(SKEWED, seed=3) == bootstrap_ci(SKEWED, seed=3)
    assert bootstrap_ci(SKEWED, seed=3) != bootstrap_ci(SKEWED, seed=4)


def test_a_wider_level_gives_a_wider_interval() -> None:
    _, low, high = bootstrap_ci(SKEWED, seed=0, level=0.5)
    _, lower, higher = bootstrap_ci(SKEWED, seed=0, level=0.99)
    assert lower < low < high < higher


def test_chunks_change_nothing_but_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bootstrap_ci(SKEWED, seed=5, n=999)
    monkeypatch.setattr("recipes.stats._CHUNK", 70)
    assert bootstrap_ci(SKEWED, seed=5, n=999) == pytest.approx(whole, abs=0.15)


@pytest.mark.parametrize("values", [[], [None], [float("nan"), None]])
def test_nothing_known_gives_nothing(values: list[float | None]) -> None:
    assert all(math.isnan(part) for part in bootstrap_ci(values, seed=0))
    result = paired_bootstrap(values, values, seed=0)
    assert math.isnan(result.diff) and result.n == 0 and result.dropped == len(values)


def test_one_value_and_equal_values_have_no_width() -> None:
    assert bootstrap_ci([0.4], seed=0) == (0.4, 0.4, 0.4)
    assert bootstrap_ci([1.0] * 9, seed=0) == (1.0, 1.0, 1.0)
    assert paired_bootstrap([0.0, 0.0], [1.0, 1.0], seed=0).ci95 == (1.0, 1.0)


def test_pairs_are_kept_together() -> None:
    # every case gains 0.1 or 0.2, though cases lie far apart: only pairing sees how sure the gain is
    before = [float(k) for k in range(20)]
    after = [value + (0.1 if k % 2 else 0.2) for k, value in enumerate(before)]
    result = paired_bootstrap(before, after, seed=0)
    assert result.diff == pytest.approx(0.15)
    assert 0.1 < result.ci95[0] < 0.15 < result.ci95[1] < 0.2
    assert (result.n, result.dropped) == (20, 0)


def test_unknown_sides_drop_the_pair_and_are_counted() -> None:
    result = paired_bootstrap([0.0, None, 0.5, 0.0], [1.0, 1.0, float("nan"), 0.0], seed=0)
    assert (result.diff, result.n, result.dropped) == (0.5, 2, 2)
    assert bootstrap_ci([1.0, None, 0.0], seed=0)[0] == 0.5


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 before, 2 after"):
        paired_bootstrap([1.0, 2.0, 3.0], [1.0, 2.0], seed=0)
    with pytest.raises(ConfigError, match="infinite"):
        bootstrap_ci([1.0, float("inf")], seed=0)
    for wrong in ({"level": 1.0}, {"level": 0.0}, {"n": 0}):
        with pytest.raises(ConfigError, match="level must"):
            bootstrap_ci([1.0, 2.0], seed=0, **wrong)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_the_interval_lies_within_the_values(values: list[float]) -> None:
    mean, low, high = bootstrap_ci(values, seed=0, n=300)
    slack = 1e-12
    assert min(values) - slack <= low <= high <= max(values) + slack
    swapped = paired_bootstrap(values, [0.0] * len(values), seed=0, n=300)
    assert swapped.diff == pytest.approx(-mean)
