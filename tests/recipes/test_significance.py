"""Exact McNemar, its clustered form, Holm and power against published examples and scipy."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from envs.errors import ConfigError
from recipes.significance import clustered_mcnemar, holm, mcnemar, mcnemar_power, smallest_difference


# Agresti (1990, p. 350): approval of a president in two surveys, 150 changed one way and 86 the other; the exact p
# is that of R's exact2x2::mcnemar.exact. The rest: the published checks of statsmodels' mcnemar(exact=True).
@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [
        (150, 86, 3.715936e-05),
        (121, 59, 4.434449e-06),
        (70, 59, 0.378688),
        (80, 59, 0.089452),
        (30, 60, 0.00206),
        (10, 30, 0.002221),
        (10, 10, 1.0),
        (0, 0, 1.0),
        (9, 2, 0.06542969),  # vignette of exact2x2
    ],
)
def test_mcnemar_gives_the_published_p(only_a: int, only_b: int, p: float) -> None:
    assert mcnemar(only_a, only_b) == pytest.approx(p, rel=1e-5, abs=5e-7)


def test_agresti_s_large_sample_statistic_is_near() -> None:
    # the same table without the exact test: z^2 = 17.36, p = 3.1e-05
    z2 = (150 - 86) ** 2 / (150 + 86)
    assert z2 == pytest.approx(17.3559, abs=1e-4)
    assert mcnemar(150, 86) == pytest.approx(stats.chi2.sf(z2, 1), rel=0.25)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_sign_test_and_has_no_side(only_a: int, only_b: int) -> None:
    p = mcnemar(only_a, only_b)
    assert p == mcnemar(only_b, only_a)
    if only_a + only_b:
        assert p == pytest.approx(stats.binomtest(only_a, only_a + only_b).pvalue)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 5))
def test_with_one_case_a_task_the_clustered_test_is_mcnemar(only_a: int, only_b: int, same: int) -> None:
    totals = [1] * only_a + [-1] * only_b + [0] * same
    assert clustered_mcnemar(totals) == pytest.approx(mcnemar(only_a, only_b))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-3, 3), max_size=9))
def test_the_clustered_test_counts_every_assignment_of_signs(totals: list[int]) -> None:
    sums = [abs(sum(signed)) for signed in product(*((total, -total) for total in totals))]
    reached = [one >= abs(sum(totals)) for one in sums]
    assert clustered_mcnemar(totals) == pytest.approx(sum(reached) / len(sums))


def test_one_task_three_times_is_weaker_evidence_than_three_tasks() -> None:
    assert clustered_mcnemar([1] * 12) == pytest.approx(2 / 2**12)
    assert clustered_mcnemar([3] * 4) == pytest.approx(2 / 2**4)


def test_holm_gives_the_textbook_values() -> None:
    # the usual worked example: 0.01, 0.04, 0.03, 0.005 at m = 4
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.randoms())
def test_holm_is_monotone_and_between_p_and_bonferroni(values: list[float], random: object) -> None:
    adjusted = holm(values)
    ranks = sorted(range(len(values)), key=lambda i: values[i])
    assert [adjusted[i] for i in ranks] == sorted(adjusted)
    for raw, one in zip(values, adjusted, strict=True):
        assert raw <= one <= min(1.0, raw * len(values)) + 1e-12
    flipped = holm(values[::-1])
    assert flipped == pytest.approx(adjusted[::-1])


def test_power_gives_the_published_value() -> None:
    # O'Brien (2002) in the G*Power manual: 50 pairs, 40% discordant, odds ratio 0.25, one-sided 5%: 0.8393;
    # two-sided at 10% adds only the far tail
    assert mcnemar_power(50, 0.4, 0.24, alpha=0.1) == pytest.approx(0.83935, abs=2e-5)


def test_power_is_what_simulation_finds() -> None:
    n, discordant, difference = 60, 0.3, 0.18
    rng = np.random.default_rng(0)
    shares = [(discordant + difference) / 2, (discordant - difference) / 2, 1 - discordant]
    draws = rng.multinomial(n, shares, size=4000)
    found = np.mean([mcnemar(int(a), int(b)) <= 0.05 for a, b, _ in draws])
    assert mcnemar_power(n, discordant, difference) == pytest.approx(found, abs=0.025)


def test_connor_s_sample_size_is_near_the_exact_one() -> None:
    # Connor (1987), large samples: 45% against 5% needs 23 pairs for 80%; the exact test is a little short there
    z = stats.norm.ppf([0.975, 0.8])
    n = math.ceil(((z[0] * math.sqrt(0.5) + z[1] * math.sqrt(0.5 - 0.4**2)) / 0.4) ** 2)
    assert n == 23
    assert 0.7 < mcnemar_power(n, 0.5, 0.4) < 0.8


@pytest.mark.parametrize("discordant", [0.1, 0.2, 0.3, 0.4])
def test_the_smallest_difference_is_the_first_that_is_found_often_enough(discordant: float) -> None:
    least = smallest_difference(125, discordant)
    assert least is not None
    assert mcnemar_power(125, discordant, least) >= 0.8 > mcnemar_power(125, discordant, least - 1e-4)
    more = smallest_difference(500, discordant)
    assert more is not None and more < least


def test_too_few_discordant_cases_show_nothing() -> None:
    assert smallest_difference(125, 0.04) is None
    assert smallest_difference(10, 0.3) is None
    assert smallest_difference(125, 0.0) is None
    assert mcnemar_power(5, 0.0, 0.0) == 0.0


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="counts"):
        mcnemar(-1, 2)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        holm([0.5, 1.5])
    with pytest.raises(ConfigError, match="discordant"):
        mcnemar_power(10, 0.2, 0.3)
    with pytest.raises(ConfigError, match="enumerates"):
        clustered_mcnemar([300_000])
