"""The `math` family: stories with exact answers, flips by construction, and a grader that reads any text."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.errors import GraderError, UnknownName
from envs.families.math import FAMILY
from envs.intent import EMPTY, Goal, IntentState
from envs.numbers import extract_number, format_number, parse_number
from envs.task import Quarantined, SourceTask, checked, get_family
from envs.vocab.math_words import STORIES

SPLITS = ("train", "heldout")


def tasks(count: int) -> list[SourceTask]:
    return [FAMILY.task(split, index) for split in SPLITS for index in range(count)]


def bakery(*goals: tuple[str, str]) -> Fraction | None:
    """Return the answer of the bakery story for (slot, value) pairs."""
    task = next(task for task in tasks(60) if task.payload["story"] == "bakery order")
    state = IntentState(tuple(Goal(f"x{at}", "", slot, value) for at, (slot, value) in enumerate(goals)))
    return extract_number(FAMILY.execute(task, state))


@pytest.mark.parametrize("split", SPLITS)
def test_load_yields_the_numbered_tasks_and_every_gold_passes(split: str) -> None:
    assert get_family("math") is FAMILY
    loaded = list(itertools.islice(checked(FAMILY, None, split), 300))
    assert not [item for item in loaded if isinstance(item, Quarantined)]
    assert loaded == [FAMILY.task(split, index) for index in range(300)]


def test_known_answers() -> None:
    trays, each = ("tray count", "6 trays"), ("cookies per tray", "20 cookies")
    assert bakery(trays, each) == 120
    assert bakery(each, ("broken cookies", "5 cookies"), trays) == 115
    assert bakery(trays, each, ("burnt share", "25 percent")) == 90
    assert bakery(trays, each, ("holiday increase", "10 percent"), ("shop count", "8 shops")) == Fraction(
        33, 2
    )
    # the story's order counts, not the order of the goals: (120 + 30) less 20 percent
    assert bakery(("burnt share", "20 percent"), trays, ("yesterday's batch", "30 cookies"), each) == 120
    assert bakery(trays) == 6
    assert bakery() == 0
    assert bakery(trays, each, ("tray count", "7 trays")) == 140  # the later of two


def test_two_products_are_summed() -> None:
    task = next(task for task in tasks(60) if task.payload["story"] == "office supplies")
    pairs = (("paper boxes", "3 boxes"), ("box price", "4.5 dollars"), ("pen packs", "2 packs"),
             ("pack price", "10 dollars"), ("store credit", "3 dollars"))  # fmt: skip
    state = IntentState(tuple(Goal(slot, "", slot, value) for slot, value in pairs))
    assert FAMILY.execute(task, state) == "The answer is 30.5."


def test_goals_are_few_named_and_said() -> None:
    sizes = []
    for task in tasks(300):
        sizes.append(len(task.goals))
        decoys = FAMILY.decoys(task, random.Random(1))
        assert len(decoys) >= 5
        slots = [goal.slot for goal in (*task.goals, *decoys)]
        assert len(set(slots)) == len(slots)
        assert all(goal.slot and goal.slot in task.context for goal in (*task.goals, *decoys))
        for goal in (*task.goals, *decoys):
            assert goal.value and goal.value in goal.text and parse_number(goal.value) is not None
            assert len(goal.text.split()) <= 12
    assert min(sizes) == 3 and max(sizes) == 6
    assert 3.5 < sum(sizes) / len(sizes) < 4.5


def test_every_answer_has_a_finite_decimal_form() -> None:
    for task in tasks(300):
        assert "/" not in task.payload["answer"]


def test_each_variant_and_decoy_flips_the_verdict() -> None:
    for task in tasks(150):
        rng = random.Random(task.id)
        for goal in task.goals:
            variants = FAMILY.variants(task, goal, rng)
            assert len(variants) >= 5
            assert len({variant.value for variant in variants} | {goal.value}) == len(variants) + 1
            for variant in variants:
                state = IntentState(tuple(variant if g == goal else g for g in task.goals))
                assert not FAMILY.grade(task, FAMILY.execute(task, state)).full_credit
        for decoy in FAMILY.decoys(task, rng):
            answer = FAMILY.execute(task, IntentState((*task.goals, decoy)))
            assert not FAMILY.grade(task, answer).full_credit


def test_values_of_a_slot_are_different_numbers() -> None:
    for story in (*STORIES["train"], *STORIES["heldout"]):
        for quantity in (*itertools.chain(*story.chains), *story.extras):
            values = [parse_number(value) for value in quantity.slot.pool.values]
            assert None not in values and len(set(values)) == len(values) >= 6


@pytest.mark.parametrize(
    "dress", ["{}", "#### {}", "\\boxed{{{}}}", "3 + 4 = 7, so the answer is {}.", "**Answer:** {}"]
)
def test_the_gold_in_other_dress_passes_and_a_neighbor_does_not(dress: str) -> None:
    for task in tasks(50):
        gold = parse_number(task.payload["answer"])
        assert gold is not None
        assert FAMILY.grade(task, dress.format(format_number(gold))).full_credit
        for wrong in (gold + 1, gold - 1, gold * 10, -gold, gold + Fraction(1, 100)):
            grade = FAMILY.grade(task, dress.format(format_number(wrong)))
            assert (grade.score, grade.full_credit, grade.error) == (0.0, False, None)


def test_empty_answers_and_states_get_no_credit() -> None:
    task = FAMILY.task("train", 0)
    assert not FAMILY.grade(task, "").full_credit
    assert not FAMILY.grade(task, FAMILY.execute(task, EMPTY)).full_credit


def test_unknown_slot_value_and_split() -> None:
    task = FAMILY.task("train", 0)
    slot = task.goals[0].slot
    for goal in (
        Goal("x", "", "phase of the moon", "3"),
        Goal("x", "", slot, "some"),
        Goal("x", "", slot, None),
    ):
        with pytest.raises(GraderError):
            FAMILY.execute(task, IntentState((goal,)))
    with pytest.raises(UnknownName, match="heldout"):
        FAMILY.load(None, "held-out")


@settings(max_examples=300, deadline=None)
@given(st.text() | st.from_regex(r"[-$0-9.,/{}\\ a-z#]{0,40}"))
def test_any_answer_gets_a_grade(answer: str) -> None:
    task = FAMILY.task("heldout", 1)
    grade = FAMILY.grade(task, answer)
    assert grade.error is None
    assert grade.full_credit == (extract_number(answer) == parse_number(task.payload["answer"]))
