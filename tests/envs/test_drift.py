"""Drift scripts end in the task's intent, keep to the budget, and hold only what flips the verdict."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.drift import BUDGETS, build_script, clean_script, resolve_budget, turn_matched_script
from envs.errors import ConfigError, DataError, GraderError, UnknownName
from envs.intent import EMPTY, Add, Delete, Goal, IntentState, Replace, fold
from envs.task import Grade, SourceTask, get_family

CALLS = get_family("calls")
budgets = st.sampled_from((1, 3, 5))


def calls_task(split: str, index: int) -> SourceTask:
    return CALLS.task(split, index)  # type: ignore[attr-defined]


class Toy:
    """Things to paint red; the answer is the JSON of all slots and values."""

    name = "toy"
    structured = True
    splits = ("train",)
    goals = tuple(
        Goal(f"g{n}", f"paint the {slot} red", slot, "red") for n, slot in enumerate(("door", "wall", "roof"))
    )
    variant_values: tuple[str, ...] = ("blue", "green", "grey", "white", "black", "pink")
    decoy_slots: tuple[str, ...] = ("fence", "gate", "porch", "shed", "car", "sign")
    forgiven: tuple[str, ...] = ()
    """Values and slots that this grader does not look at."""
    failing: tuple[str, ...] = ()
    """Values and slots that crash the executor."""

    def __init__(self) -> None:
        self.graded = 0

    def task(self) -> SourceTask:
        return SourceTask("toy/train/0", "toy", "train", "I want some painting.", "", self.goals, {})

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        yield self.task()

    def gold(self, task: SourceTask) -> str:
        return self.execute(task, task.intent)

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        values = rng.sample(self.variant_values, len(self.variant_values))
        return [
            Goal(f"{goal.id}.v{n}", f"paint the {goal.slot} {v}", goal.slot, v) for n, v in enumerate(values)
        ]

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        slots = rng.sample(self.decoy_slots, len(self.decoy_slots))
        return [Goal(f"d{n}", f"paint the {slot} blue", slot, "blue") for n, slot in enumerate(slots)]

    def execute(self, task: SourceTask, state: IntentState) -> str:
        if any(goal.slot in self.failing or goal.value in self.failing for goal in state.goals):
            raise GraderError("cannot paint that")
        return json.dumps({goal.slot: goal.value for goal in state.goals})

    def grade(self, task: SourceTask, answer: str) -> Grade:
        self.graded += 1
        painted = json.loads(answer)
        wrong = [s for s, v in painted.items() if (s, v) not in {(g.slot, g.value) for g in task.goals}]
        wrong = [s for s in wrong if s not in self.forgiven and painted[s] not in self.forgiven]
        return Grade(float(not wrong), not wrong)


def edits_of(script) -> list:
    return [edit for turn in script.turns for edit in turn]


@settings(deadline=None)
@given(
    st.sampled_from(("train", "heldout")),
    st.integers(0, 500),
    budgets,
    st.integers(0, 50),
    st.sampled_from((0, 0, 25)),
)
def test_a_script_folds_into_the_tasks_intent(
    split: str, index: int, budget: int, seed: int, longer: int
) -> None:
    task = calls_task(split, index)
    script = build_script(CALLS, task, budget, seed, turns_at_least=longer)
    assert fold(EMPTY, edits_of(script)) == task.intent == script.states[-1]
    assert len(script.turns) == len(script.states) >= longer
    assert script.turns[-1] == ()
    state = EMPTY
    for turn, oracle in zip(script.turns, script.states, strict=True):
        assert len(turn) <= 1
        state = fold(state, turn)
        assert state == oracle
    assert script == build_script(CALLS, task, budget, seed, turns_at_least=longer)


@settings(deadline=None)
@given(st.integers(0, 500), budgets, st.integers(0, 50))
def test_variants_and_decoys_keep_to_the_budget_and_flip_the_verdict(
    index: int, budget: int, seed: int
) -> None:
    task = calls_task("train", index)
    script = build_script(CALLS, task, budget, seed)
    true = {goal.slot: goal for goal in task.goals}
    stated: dict[str, list[Goal]] = {}
    for edit in edits_of(script):
        if isinstance(edit, Add):
            stated.setdefault(edit.goal.slot, []).append(edit.goal)
        elif isinstance(edit, Replace):
            stated.setdefault(edit.new.slot, []).append(edit.new)
            assert edit.old.slot == edit.new.slot and edit.old.value != edit.new.value
    for slot, goal in true.items():
        *variants, last = stated.pop(slot)
        assert last == goal
        assert len(variants) <= budget and len({v.value for v in [*variants, goal]}) == len(variants) + 1
        for variant in variants:
            others = tuple(known for known in task.goals if known is not goal)
            grade = CALLS.grade(task, CALLS.execute(task, IntentState((*others, variant))))
            assert grade.error is None and not grade.full_credit
    assert len(stated) <= budget
    for decoys in stated.values():
        assert len(decoys) == 1
        grade = CALLS.grade(task, CALLS.execute(task, IntentState((*task.goals, decoys[0]))))
        assert grade.error is None and not grade.full_credit
    deleted = [edit.goal for edit in edits_of(script) if isinstance(edit, Delete)]
    assert (deleted and set(deleted) == {d for decoys in stated.values() for d in decoys}) or not stated


@pytest.mark.parametrize(("budget", "variants", "decoys"), [(1, 0.95, 0.61), (3, 1.70, 1.5), (5, 2.25, 2.5)])
def test_realised_counts_are_those_of_the_paper(budget: int, variants: float, decoys: float) -> None:
    toy, n = Toy(), 600
    kinds = [edit for seed in range(n) for edit in edits_of(build_script(toy, toy.task(), budget, seed))]
    replaced = sum(isinstance(edit, Replace) for edit in kinds)
    withdrawn = sum(isinstance(edit, Delete) for edit in kinds)
    # Five standard deviations: the spread of one draw is below b / 2 + 0.5.
    spread = 5 * (budget / 2 + 0.5)
    assert replaced / (3 * n) == pytest.approx(variants, abs=spread / (3 * n) ** 0.5)
    assert withdrawn / n == pytest.approx(decoys, abs=spread / n**0.5)


def test_orders_and_seeds_vary() -> None:
    toy = Toy()
    firsts = {build_script(toy, toy.task(), 3, seed).turns[0] for seed in range(60)}
    assert {edit.goal.id[0] for (edit,) in firsts} == {"g", "d"}
    assert len({edit.goal.slot for (edit,) in firsts}) >= 6


def test_decoys_that_the_grader_forgives_are_not_kept() -> None:
    toy = Toy()
    toy.forgiven = ("fence", "gate", "porch")
    toy.failing = ("shed",)
    seen = {
        edit.goal.slot
        for seed in range(200)
        for edit in edits_of(build_script(toy, toy.task(), 5, seed))
        if isinstance(edit, Delete)
    }
    assert seen == {"car", "sign"}


def test_variants_that_the_grader_forgives_are_not_kept() -> None:
    toy = Toy()
    toy.forgiven = ("blue", "green")
    toy.failing = ("grey",)
    seen = {
        edit.old.value
        for seed in range(200)
        for edit in edits_of(build_script(toy, toy.task(), 5, seed))
        if isinstance(edit, Replace)
    }
    assert seen == {"white", "black", "pink"}


def test_variants_flip_saves_the_check_of_variants_but_not_of_decoys() -> None:
    class Sure(Toy):
        variants_flip = True
        decoy_slots = ()

    checked, sure = Toy(), Sure()
    checked.decoy_slots = ()
    assert build_script(checked, checked.task(), 5, 0) == build_script(sure, sure.task(), 5, 0)
    assert checked.graded > 0 == sure.graded
    sure.decoy_slots = ("fence",)
    sure.forgiven = ("fence",)
    assert not any(
        isinstance(e, Delete)
        for seed in range(50)
        for e in edits_of(build_script(sure, sure.task(), 5, seed))
    )


def test_a_grader_error_is_no_flip() -> None:
    class Broken(Toy):
        def grade(self, task: SourceTask, answer: str) -> Grade:
            return Grade(0.0, False, error="no database")

    toy = Broken()
    assert all(isinstance(e, Add) for e in edits_of(build_script(toy, toy.task(), 5, 0)))


def test_families_that_cannot_execute_get_no_unchecked_drift() -> None:
    toy = Toy()
    toy.structured = False
    assert all(
        isinstance(e, Add) for seed in range(20) for e in edits_of(build_script(toy, toy.task(), 5, seed))
    )


def test_a_decoy_never_shares_a_slot_with_a_goal() -> None:
    toy = Toy()
    toy.decoy_slots = ("door", "wall", "car")
    deleted = [
        e.goal.slot
        for s in range(50)
        for e in edits_of(build_script(toy, toy.task(), 5, s))
        if isinstance(e, Delete)
    ]
    assert set(deleted) == {"car"}


def test_what_a_family_does_not_offer_cannot_drift() -> None:
    toy = Toy()
    toy.variant_values = ("red",)  # the true value is no variant
    toy.decoy_slots = ()
    script = build_script(toy, toy.task(), 5, 0, turns_at_least=12)
    assert [len(turn) for turn in script.turns].count(1) == 3 and len(script.turns) >= 12


def test_longer_scripts_go_back_and_forth() -> None:
    toy = Toy()
    script = build_script(toy, toy.task(), 1, 1, turns_at_least=60)
    assert 60 <= len(script.turns) <= 61
    back = [e for e in edits_of(script) if isinstance(e, Replace) and e.new.value == "red"]
    assert len(back) > 3  # the true value comes back again and again
    assert any(turn == () for turn in script.turns[:-1])
    adds = [e.goal for e in edits_of(script) if isinstance(e, Add) and e.goal.id.startswith("d")]
    assert len(adds) > len(set(adds)) > 0  # a decoy that comes again


@given(st.integers(0, 300), st.integers(0, 20), st.integers(0, 20))
def test_turn_matched_scripts_state_each_true_goal_once(index: int, extra: int, seed: int) -> None:
    task = calls_task("heldout", index)
    turns = len(task.goals) + 1 + extra
    script = turn_matched_script(task, turns, seed)
    assert len(script.turns) == turns and script.turns[-1] == ()
    assert sorted(edits_of(script), key=str) == sorted((Add(goal) for goal in task.goals), key=str)
    assert script.states[-1] == task.intent
    assert script == turn_matched_script(task, turns, seed)


def test_turn_matched_needs_room_for_the_goals() -> None:
    task = calls_task("train", 0)
    with pytest.raises(ConfigError, match="turns or more"):
        turn_matched_script(task, len(task.goals), 0)


def test_clean_is_one_turn_with_all_goals() -> None:
    task = calls_task("train", 1)
    script = clean_script(task)
    assert script.turns == (tuple(Add(goal) for goal in task.goals),) and script.states == (task.intent,)


def test_budgets() -> None:
    assert [resolve_budget(name) for name in BUDGETS] == [1, 3, 5]
    assert resolve_budget(4) == 4
    with pytest.raises(UnknownName, match="'medium'"):
        resolve_budget("medum")
    with pytest.raises(ConfigError):
        resolve_budget(0)


def test_a_task_without_goals_is_a_data_error() -> None:
    empty = SourceTask("toy/train/9", "toy", "train", "", "", (), {})
    with pytest.raises(DataError, match="toy/train/9"):
        build_script(Toy(), empty, 1, 0)


def test_scripts_do_not_depend_on_the_hash_seed_or_the_order_of_building() -> None:
    tasks = [calls_task("train", index) for index in range(6)]
    forward = [build_script(CALLS, task, 3, 0) for task in tasks]
    backward = [build_script(CALLS, task, 3, 0) for task in reversed(tasks)]
    assert forward == list(itertools.islice(reversed(backward), 6))
