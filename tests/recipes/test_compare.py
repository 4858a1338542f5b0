"""The statistics of a comparison: against numpy and scipy, and what must not matter."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from envs.errors import ConfigError, DataError, UnknownName
from recipes.cases import Case
from recipes.compare import summarize
from recipes.compare.resample import Resamples
from recipes.compare.summary import Summary
from recipes.significance import holm, mcnemar
from recipes.stats import paired_bootstrap

sys.path.insert(0, str(Path(__file__).parent))
from madecases import made_case, made_cases

CASES = made_cases(9, seed=1)


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarize(CASES, resamples=400)


def graded(row: str, condition: str = "drift", **wanted: Any) -> dict[str, Case]:
    return {
        case.case: case
        for case in CASES
        if (case.harness, case.condition) == (row, condition)
        and case.error is None
        and all(getattr(case, name) == value for name, value in wanted.items())
    }


@pytest.mark.parametrize("row", ["bare", "stateforge (trained)", "oracle"])
@pytest.mark.parametrize("stratum", ["all", "easy", "hard"])
def test_means_equal_numpy_s(summary: Summary, row: str, stratum: str) -> None:
    wanted = {} if stratum == "all" else {"stratum": stratum}
    cases = graded(row, **wanted)
    one = summary.row(row, stratum=stratum)
    assert one is not None and one.slips is not None and one.costs is not None
    scores = {family: [c.score for c in cases.values() if c.family == family] for family in summary.families}
    assert one.scores.score.value == pytest.approx(np.mean([c.score for c in cases.values()]))
    assert one.scores.score_macro.value == pytest.approx(np.mean([np.mean(s) for s in scores.values()]))  # type: ignore[arg-type]
    assert one.scores.car.value == pytest.approx(np.mean([c.full_credit for c in cases.values()]))
    assert one.slips.delete_obeyed.value == pytest.approx(np.mean([c.delete_obeyed for c in cases.values()]))
    assert one.slips.misbound.value == pytest.approx(np.mean([c.misbound for c in cases.values()]))
    turns = sum(c.turns for c in cases.values())
    assert one.costs.seconds == pytest.approx(sum(c.seconds for c in cases.values()) / turns)
    assert one.costs.output_tokens == pytest.approx(sum(c.output_tokens for c in cases.values()) / turns)
    assert one.cases - one.ungraded == len(cases) == one.scores.car.n


def test_differences_tests_and_corrections_equal_their_definitions(summary: Summary) -> None:
    bare, raw = graded("bare"), []
    for row in summary.rows:
        against = summary.against(row)
        if row == "bare":
            assert against is None
            continue
        assert against is not None and against.test is not None
        mine = graded(row)
        both = sorted(set(mine) & set(bare))
        gaps = [int(bool(mine[k].full_credit)) - int(bool(bare[k].full_credit)) for k in both]
        assert against.car.value == pytest.approx(np.mean(gaps))
        assert (against.test.only_a, against.test.only_b) == (gaps.count(1), gaps.count(-1))
        assert against.test.p_cases == pytest.approx(mcnemar(gaps.count(1), gaps.count(-1)))
        assert against.left_out == 27 - len(both)
        raw.append(against.test.p)
    corrected = [one.test.p_holm for row in summary.rows if (one := summary.against(row)) and one.test]
    assert corrected == pytest.approx(holm(raw))


def test_idg_is_the_paired_drop_from_clean_to_drift(summary: Summary) -> None:
    for stratum in ("easy", "medium", "hard"):
        clean = graded("oracle", "clean", stratum=stratum)
        drift = graded("oracle", "drift", stratum=stratum)
        both = set(clean) & set(drift)
        gap = summary.gap("oracle", stratum)
        expected = np.mean([int(bool(clean[k].full_credit)) - int(bool(drift[k].full_credit)) for k in both])
        assert gap is not None and gap.car.value == pytest.approx(expected) and gap.car.n == len(both)


def test_the_parts_of_the_gap_add_up(summary: Summary) -> None:
    assert {gap.row for gap in summary.gaps} == {"stateforge (trained)", "stateforge (untrained)"}
    for gap in summary.gaps:
        parts = [part.car.value for part in (gap.not_state, gap.state_error, gap.recovered)]
        assert gap.clean.value is not None and gap.bare.value is not None
        assert sum(float(part or 0) for part in parts) == pytest.approx(gap.clean.value - gap.bare.value)
        assert gap.n == gap.not_state.car.n == gap.recovered.car.n
    for turn in summary.turns:
        assert turn.clean is not None and turn.length is not None and turn.drift.value is not None
        whole = float(turn.clean.value or 0) - turn.drift.value
        assert float(turn.length.car.value or 0) + float(turn.drifting.car.value or 0) == pytest.approx(whole)


def test_the_order_of_the_cases_does_not_matter(summary: Summary) -> None:
    shuffled = list(CASES)
    random.Random(5).shuffle(shuffled)
    assert summarize(shuffled, resamples=400) == summary


def test_swapping_two_rows_turns_the_sign_and_nothing_else(summary: Summary) -> None:
    forth, back = (
        summary.against("oracle"),
        summarize(CASES, reference="oracle", resamples=400).against("bare"),
    )
    assert forth is not None and back is not None and forth.test is not None and back.test is not None
    assert forth.score is not None and back.score is not None
    for a, b in ((forth.car, back.car), (forth.score, back.score)):
        assert a.n == b.n and a.value == pytest.approx(-float(b.value or 0))
        assert (a.low, a.high) == pytest.approx((-float(b.high or 0), -float(b.low or 0)))
    assert forth.test.p == pytest.approx(back.test.p)
    assert (forth.test.only_a, forth.test.only_b) == (back.test.only_b, back.test.only_a)


def test_an_ungraded_case_counts_nowhere_and_is_said() -> None:
    right = [made_case(task_id=f"calls/{k}", harness=row) for k in range(6) for row in ("bare", "oracle")]
    failed = [
        made_case(task_id=f"calls/x{k}", harness="oracle", score=None, full_credit=None, error="EngineDied")
        for k in range(4)
    ]
    summary = summarize([*right, *failed], resamples=50)
    one, against = summary.row("oracle"), summary.against("oracle")
    assert one is not None and against is not None
    assert (one.scores.score.value, one.scores.car.value, one.cases, one.ungraded) == (1.0, 1.0, 10, 4)
    assert (against.car.value, against.car.n, against.left_out) == (0.0, 6, 4)
    assert summary.ungraded == [("oracle", "drift", "EngineDied", 4)]


def test_a_graded_case_stands_in_for_its_failed_tries_and_two_verdicts_are_refused() -> None:
    failed = made_case(score=None, full_credit=None, error="EngineDied")
    for cases in ([failed, made_case()], [made_case(), failed]):
        one = summarize(cases, resamples=10).row("bare")
        assert one is not None and (one.cases, one.ungraded) == (1, 0)
    with pytest.raises(DataError, match="graded twice"):
        summarize([made_case(), made_case(score=0.0, full_credit=False)])
    with pytest.raises(DataError, match="same cases"):
        summarize([made_case(), made_case(harness="oracle", family="sql")])
    with pytest.raises(UnknownName, match="reference row"):
        summarize([made_case()], reference="bear")


def test_what_cannot_be_told_is_left_out_of_its_share() -> None:
    cases = [
        made_case(task_id="calls/1", deletes=1, delete_obeyed=True),
        made_case(task_id="calls/2", deletes=1, delete_obeyed=None),
        made_case(task_id="calls/3", deletes=0, delete_obeyed=None),
    ]
    one = summarize(cases, resamples=10).row("bare")
    assert one is not None and one.slips is not None
    assert (one.slips.delete_obeyed.value, one.slips.delete_obeyed.n) == (1.0, 1)
    assert (one.slips.stale_leak.value, one.slips.stale_leak.n) == (None, 0)


def test_clean_is_the_row_s_own_else_that_of_the_clean_harness() -> None:
    cases = [
        made_case(harness="bare", condition="drift", full_credit=False, score=0.0),
        made_case(harness="clean", condition="clean"),
    ]
    gap = summarize(cases, resamples=10).gap("bare")
    assert gap is not None and (gap.against, gap.car.value) == ("clean, clean", 1.0)
    own = made_case(harness="bare", condition="clean", full_credit=False, score=0.0)
    gap = summarize([*cases, own], resamples=10).gap("bare")
    assert gap is not None and (gap.against, gap.car.value) == ("bare, clean", 0.0)


def test_nothing_to_compare_is_no_fault() -> None:
    summary = summarize([made_case()], resamples=10)
    assert summary.differences == summary.idg == summary.gaps == summary.turns == []
    empty = summarize([], resamples=10)
    assert empty.rows == [] and empty.block()["stats"] == []


def test_one_case_a_task_and_one_family_is_the_plain_bootstrap_of_scipy() -> None:
    values = np.array([0.0, 0.1, 0.1, 0.2, 0.3, 0.3, 0.5, 0.9, 2.5, 4.0])
    draws = Resamples([str(k) for k in range(10)], ["one"] * 10, n=20_000)
    mine = draws.estimate(values)
    plain = scipy_stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=2)
    ours = paired_bootstrap([0.0] * 10, list(values), seed=3, n=20_000)
    assert mine.low == pytest.approx(plain.confidence_interval.low, abs=0.03)
    assert mine.high == pytest.approx(plain.confidence_interval.high, abs=0.08)
    assert (mine.low, mine.high) == pytest.approx(ours.ci95, abs=0.08)


def test_copies_of_a_task_do_not_narrow_the_interval() -> None:
    rng = np.random.default_rng(0)
    once = rng.random(30)
    tasks = [str(k) for k in range(30)]
    alone = Resamples(tasks, ["one"] * 30, n=4000).estimate(once)
    copied = Resamples(tasks * 3, ["one"] * 90, n=4000).estimate(np.tile(once, 3))
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))
    assert (alone.n, copied.n) == (30, 90)


def test_the_macro_interval_is_that_of_a_stratified_bootstrap() -> None:
    rng = np.random.default_rng(1)
    small, large = rng.random(8), rng.random(40) + 1
    names = ["a"] * 8 + ["b"] * 40
    values = np.concatenate([small, large])
    mine = Resamples([str(k) for k in range(48)], names, n=20_000).estimate(values, macro=True)
    plain = scipy_stats.bootstrap(
        (small, large),
        lambda x, y, axis: (x.mean(axis=axis) + y.mean(axis=axis)) / 2,
        n_resamples=20_000,
        rng=3,
    ).confidence_interval
    assert mine.value == pytest.approx((small.mean() + large.mean()) / 2)
    assert (mine.low, mine.high) == pytest.approx((plain.low, plain.high), abs=0.01)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=20), st.integers(1, 4))
def test_estimates_lie_within_the_values_and_unknown_ones_are_not_zero(
    values: list[float | None], tasks: int
) -> None:
    array = np.array([np.nan if value is None else value for value in values])
    draws = Resamples([str(k % tasks) for k in range(len(values))], ["one"] * len(values), n=100)
    one = draws.estimate(array)
    known = [value for value in values if value is not None]
    assert one.n == len(known)
    if not known:
        assert (one.value, one.low, one.high) == (None, None, None)
        return
    assert one.value is not None and one.low is not None and one.high is not None
    assert one.value == pytest.approx(np.mean(known))
    if min(known) < max(known):
        assert min(known) - 1e-9 <= one.low <= one.high <= max(known) + 1e-9
    else:
        assert -1e-9 <= one.low <= one.value <= one.high <= 1 + 1e-9


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_share_without_spread_has_the_exact_binomial_interval(value: float) -> None:
    draws = Resamples([str(k) for k in range(125)], ["one"] * 125, n=10)
    exact = scipy_stats.binomtest(round(125 * value), 125).proportion_ci(0.95, "exact")
    one, two = draws.estimate(np.full(125, value)), draws.estimate(np.full(125, value), signed=True)
    assert (one.low, one.high) == pytest.approx((exact.low, exact.high))
    assert two.low == pytest.approx(-exact.high if value == 0 else 2 * exact.low - 1)
    assert two.high == pytest.approx(exact.high)


def test_there_must_be_a_resample() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        summarize([made_case()], resamples=0)
