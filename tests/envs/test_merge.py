"""Merged scripts: the same edits in the same order, folded to the same end, and as many turns in each condition."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.dialogue import build
from envs.drift import build_script
from envs.errors import ConfigError
from envs.fidelity import goals_of
from envs.intent import EMPTY, Add, Replace, fold
from envs.merge import Merging, draw_groups, merge_script
from envs.noise import Noise
from tests.envs.wording_toys import Toy

FAMILY = Toy()


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 200), st.sampled_from((1, 3, 5)), st.integers(0, 50), st.floats(0, 1), st.integers(2, 5)
)
def test_merging_keeps_edits_order_and_states(
    index: int, budget: int, seed: int, rate: float, cap: int
) -> None:
    task = FAMILY.task("train", index)
    script = build_script(FAMILY, task, budget, seed, turns_at_least=index % 3 * 8)
    sizes = draw_groups(script, Merging(rate, cap), random.Random(seed))
    merged = merge_script(script, sizes)
    assert [e for turn in merged.turns for e in turn] == [e for turn in script.turns for e in turn]
    assert merged.states[-1] == task.intent and not merged.turns[-1]
    state = EMPTY
    for edits, oracle in zip(merged.turns, merged.states, strict=True):
        assert len(edits) <= cap
        slots = [{g.slot for g in goals_of([edit])} for edit in edits]
        assert len(set().union(*slots)) == sum(map(len, slots)), "no slot twice in a message"
        # Independent edits: any order means the same.
        assert fold(state, edits) == fold(state, reversed(edits)) == oracle
        state = oracle


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 200), st.sampled_from((1, 3, 5)), st.integers(0, 50), st.sampled_from((0.3, 1.0)))
def test_conditions_keep_as_many_turns(index: int, budget: int, seed: int, rate: float) -> None:
    task, noise = FAMILY.task("heldout", index), Noise(merge_rate=rate)
    drift, matched, clean = (
        build(FAMILY, task, condition, budget, seed, noise)
        for condition in ("drift", "turn_matched", "clean")
    )
    assert len(drift.turns) == len(matched.turns) and len(clean.turns) == 1
    assert drift.final == matched.final == clean.final == task.intent
    assert not any(isinstance(e, Replace) for turn in matched.turns for e in turn.edits)
    assert sum(isinstance(e, Add) for turn in matched.turns for e in turn.edits) == len(task.goals)


def test_rate_one_merges_and_rate_zero_does_not() -> None:
    task = FAMILY.task("train", 3)
    script = build_script(FAMILY, task, 3, 0)
    none = draw_groups(script, Merging(0.0), random.Random(0))
    every = draw_groups(script, Merging(1.0), random.Random(0))
    assert none == [1] * len(script.turns)
    assert len(every) < len(none) and max(every) > 1 and every[-1] == 1
    assert merge_script(script, none) == script


@pytest.mark.parametrize(("rate", "cap"), [(-0.1, 3), (1.5, 3), (0.5, 1)])
def test_bad_options(rate: float, cap: int) -> None:
    with pytest.raises(ConfigError):
        Merging(rate, cap)


@pytest.mark.parametrize("sizes", [[1], [], [0, 50], [99]])
def test_groups_must_cut_the_script(sizes: list[int]) -> None:
    script = build_script(FAMILY, FAMILY.task("train", 0), 1, 0)
    with pytest.raises(ValueError, match="groups"):
        merge_script(script, sizes)
