"""Intents: fold and diff are inverse, diff is shortest, fold is strict, conclusions die with supports."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.errors import DataError, DuplicateGoal, UnknownGoal
from envs.intent import (
    EMPTY,
    Add,
    Conclusion,
    Delete,
    Edit,
    Goal,
    IntentState,
    Replace,
    Switch,
    apply,
    diff,
    edit_from_dict,
    edit_to_dict,
    fold,
    goal_from_dict,
    state_from_dict,
    state_to_dict,
)

IDS = ("g1", "g2", "g3", "g4", "g1.v1", "d1")
goals = st.builds(
    Goal,
    id=st.sampled_from(IDS),
    text=st.sampled_from(("deliver to Brooklyn", "pay 5 dollars", "no nuts")),
    slot=st.sampled_from((None, "budget", "address")),
    value=st.sampled_from((None, "5", "Brooklyn")),
)
goal_lists = st.lists(goals, max_size=5, unique_by=lambda goal: goal.id)
functions = st.sampled_from((None, "f", "g"))
states = st.builds(IntentState, goal_lists.map(tuple), functions)
names = st.none() | st.text(max_size=5)
edits = st.one_of(
    st.builds(Add, goals),
    st.builds(Delete, goals),
    st.builds(Replace, goals, goals),
    st.builds(Switch, names, st.text()),
)


@st.composite
def states_with_conclusions(draw: st.DrawFn) -> IntentState:
    state = draw(states.filter(len))
    for number in range(draw(st.integers(0, 5))):
        live = [goal.id for goal in state.goals] + [c.id for c in state.conclusions]
        supports = draw(st.sets(st.sampled_from(live), min_size=1, max_size=3))
        state = state.conclude(Conclusion(f"c{number}", "so", frozenset(supports)))
    return state


def distance(a: IntentState, b: IntentState) -> int:
    """The least number of edits between two states of goals, by breadth-first search over all edits."""
    universe = [*a.goals, *(goal for goal in b.goals if goal not in a.goals)]
    frontier, seen = {frozenset(a.goals)}, {frozenset(a.goals)}
    for steps in itertools.count():
        if frozenset(b.goals) in frontier:
            return steps
        following: set[frozenset[Goal]] = set()
        for at in frontier:
            options: list[Edit] = [Delete(goal) for goal in at] + [
                Add(goal) for goal in universe if goal not in at
            ]
            options += [Replace(old, new) for old in at for new in universe if new != old]
            for edit in options:
                try:
                    following.add(frozenset(apply(IntentState(tuple(at)), edit).goals))
                except DuplicateGoal:
                    continue
        frontier = following - seen
        seen |= frontier
    raise AssertionError("unreachable")


@given(states, states)
def test_fold_of_diff_leads_from_a_to_b(a: IntentState, b: IntentState) -> None:
    if b.function is None and a.function is not None:
        with pytest.raises(ValueError):
            diff(a, b)
        return
    assert fold(a, diff(a, b)) == b


@given(states)
def test_diff_of_equal_states_is_empty(a: IntentState) -> None:
    assert diff(a, IntentState(tuple(reversed(a.goals)), a.function)) == []


@given(
    st.lists(goals, max_size=3, unique_by=lambda g: g.id),
    st.lists(goals, max_size=3, unique_by=lambda g: g.id),
)
def test_diff_is_as_short_as_any_edit_list(a: list[Goal], b: list[Goal]) -> None:
    first, second = IntentState(tuple(a)), IntentState(tuple(b))
    assert len(diff(first, second)) == distance(first, second)


def test_diff_pairs_goals_of_one_slot() -> None:
    old, new = Goal("g1", "pay 5", "budget", "5"), Goal("g9", "pay 6", "budget", "6")
    other, third = Goal("g2", "go to Oslo", "city", "Oslo"), Goal("g3", "no nuts")
    assert diff(IntentState((other, old)), IntentState((third, new))) == [
        Replace(old, new),
        Replace(other, third),
    ]


@given(goals, goal_lists)
def test_state_order_does_not_matter_but_is_kept(goal: Goal, listed: list[Goal]) -> None:
    state = IntentState(tuple(listed))
    turned = IntentState(tuple(reversed(listed)))
    assert state == turned and hash(state) == hash(turned)
    assert list(state.goals) == listed
    assert (goal in state) == (goal in listed)


@given(states, goals, goals)
def test_folding_is_strict(state: IntentState, goal: Goal, other: Goal) -> None:
    ids = {known.id for known in state.goals}
    if goal not in state:
        for edit in (Delete(goal), Replace(goal, other)):
            with pytest.raises(UnknownGoal):
                fold(state, [edit])
    if goal.id in ids:
        with pytest.raises(DuplicateGoal):
            fold(state, [Add(goal)])
    else:
        assert fold(state, [Add(goal), Delete(goal)]) == state
    if goal in state and other.id in ids - {goal.id}:
        with pytest.raises(DuplicateGoal):
            fold(state, [Replace(goal, other)])


def test_an_absent_goal_with_a_known_id_is_still_unknown() -> None:
    state = IntentState((Goal("g1", "pay 5 dollars"),))
    with pytest.raises(UnknownGoal):
        apply(state, Delete(Goal("g1", "pay 6 dollars")))


def test_replace_keeps_the_place() -> None:
    a, b, c = Goal("a", "a"), Goal("b", "b"), Goal("c", "c")
    assert fold(EMPTY, [Add(a), Add(b), Replace(a, c)]).goals == (c, b)


def test_switch_must_leave_the_current_function() -> None:
    state = fold(EMPTY, [Switch(None, "f"), Add(Goal("a", "a")), Switch("f", "g")])
    assert state.function == "g" and len(state) == 1
    with pytest.raises(UnknownGoal):
        apply(state, Switch("f", "h"))


@given(states_with_conclusions(), st.data())
def test_conclusions_die_with_any_support_directly_or_not(state: IntentState, data: st.DataObject) -> None:
    goal = data.draw(st.sampled_from(state.goals))
    fresh = Goal("fresh", "something new")
    for after in (apply(state, Delete(goal)), apply(state, Replace(goal, fresh))):
        # The reference: walk the supports of each conclusion down to goals.
        by_id = {c.id: c for c in state.conclusions}

        def rests_on(id: str, by_id: dict[str, Conclusion] = by_id) -> set[str]:
            if id not in by_id:
                return {id}
            return set().union(*(rests_on(support) for support in by_id[id].supports))

        expected = {c for c in state.conclusions if goal.id not in rests_on(c.id)}
        assert set(after.conclusions) == expected


@given(states_with_conclusions())
def test_adding_keeps_conclusions(state: IntentState) -> None:
    assert apply(state, Add(Goal("fresh", "new"))).conclusions == state.conclusions


def test_a_conclusion_needs_live_supports_and_an_id_of_its_own() -> None:
    state = IntentState((Goal("g1", "pay 5 dollars"),))
    with pytest.raises(UnknownGoal, match="g2"):
        state.conclude(Conclusion("c1", "cheap", frozenset({"g1", "g2"})))
    with pytest.raises(DuplicateGoal):
        state.conclude(Conclusion("g1", "cheap", frozenset({"g1"})))
    concluded = state.conclude(Conclusion("c1", "cheap", frozenset({"g1"})))
    with pytest.raises(DuplicateGoal):
        concluded.conclude(Conclusion("c1", "dear", frozenset({"g1"})))
    with pytest.raises(DuplicateGoal):  # else "c1" would name a goal and a conclusion
        apply(concluded, Add(Goal("c1", "no nuts")))
    # The conclusion dies in the same edit, so its id is free again.
    assert apply(concluded, Replace(state.goals[0], Goal("c1", "no nuts"))).goals[0].id == "c1"


def test_a_state_holds_an_id_once() -> None:
    with pytest.raises(DuplicateGoal):
        IntentState((Goal("g1", "a"), Goal("g1", "b")))


@given(edits)
def test_edits_survive_json(edit: Edit) -> None:
    assert edit_from_dict(json.loads(json.dumps(edit_to_dict(edit)))) == edit


@given(states_with_conclusions())
def test_states_survive_json_with_their_order(state: IntentState) -> None:
    back = state_from_dict(json.loads(json.dumps(state_to_dict(state))))
    assert (back.goals, back.function, back.conclusions) == (state.goals, state.function, state.conclusions)


@pytest.mark.parametrize(
    "data",
    [{}, {"op": "swap"}, {"op": "add"}, {"op": "delete", "old": {"id": "g1"}}, {"op": "switch", "old": "f"},
     {"op": "replace", "old": {"id": "g1", "text": "a"}, "new": None},
     {"op": "add", "new": {"id": 1, "text": "a"}}],
)  # fmt: skip
def test_malformed_edits_are_data_errors(data: dict[str, object]) -> None:
    with pytest.raises(DataError):
        edit_from_dict(data)


def test_a_goal_without_slot_is_free_text() -> None:
    assert goal_from_dict({"id": "g1", "text": "no nuts"}) == Goal("g1", "no nuts", None, None)
