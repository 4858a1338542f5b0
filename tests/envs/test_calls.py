"""The `calls` family: deterministic tasks, any state executed, variants and decoys that flip, safe grades."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.call_parsing import Call, match_calls, read_calls
from envs.errors import GraderError, UnknownName
from envs.families.calls import FAMILY
from envs.intent import EMPTY, Goal, IntentState
from envs.task import Quarantined, SourceTask, checked, get_family

SPLITS = ("train", "heldout")


def tasks(count: int) -> list[SourceTask]:
    return [FAMILY.task(split, index) for split in SPLITS for index in range(count)]


def with_goal(task: SourceTask, old: Goal, new: Goal) -> IntentState:
    return IntentState(tuple(new if goal == old else goal for goal in task.goals))


def test_registered() -> None:
    assert get_family("calls") is FAMILY


@pytest.mark.parametrize("split", SPLITS)
def test_load_yields_the_numbered_tasks_and_every_gold_passes(split: str) -> None:
    loaded = list(itertools.islice(checked(FAMILY, None, split), 200))
    assert not [item for item in loaded if isinstance(item, Quarantined)]
    assert loaded == [FAMILY.task(split, index) for index in range(200)]
    assert [item.id for item in loaded if isinstance(item, SourceTask)][7] == f"calls/{split}/7"


def test_known_task_is_the_same_on_every_machine() -> None:
    task = FAMILY.task("train", 0)
    assert task == FAMILY.task("train", 0)
    assert json.loads(FAMILY.gold(task)) == task.payload["calls"]
    assert json.loads(json.dumps(dict(task.payload))) == task.payload


def test_goals_are_few_named_and_said() -> None:
    sizes = []
    for task in tasks(300):
        sizes.append(len(task.goals))
        slots = [goal.slot for goal in task.goals]
        decoys = FAMILY.decoys(task, random.Random(1))
        assert len(decoys) >= 5
        slots += [decoy.slot for decoy in decoys]
        assert len(set(slots)) == len(slots)
        for goal in (*task.goals, *decoys):
            assert goal.value and goal.slot and goal.value in goal.text
            assert len(goal.text.split()) <= 12
            assert goal.text not in task.opening
    assert set(sizes) == {3, 4, 5, 6}
    assert 3.5 < sum(sizes) / len(sizes) < 4.5


def test_each_variant_flips_the_verdict() -> None:
    for task in tasks(60):
        for goal in task.goals:
            variants = FAMILY.variants(task, goal, random.Random(3))
            kind = "yes" if goal.value in ("yes", "no") else "many"
            assert len(variants) == 1 if kind == "yes" else len(variants) >= 5
            assert len({variant.id for variant in variants}) == len(variants)
            for variant in variants:
                assert variant.slot == goal.slot and variant.value != goal.value
                answer = FAMILY.execute(task, with_goal(task, goal, variant))
                assert not FAMILY.grade(task, answer).full_credit


def test_each_decoy_flips_the_verdict() -> None:
    for task in tasks(60):
        for decoy in FAMILY.decoys(task, random.Random(5)):
            answer = FAMILY.execute(task, IntentState((*task.goals, decoy)))
            assert not FAMILY.grade(task, answer).full_credit


def test_same_seed_same_draws() -> None:
    task = FAMILY.task("heldout", 4)
    for draw in (lambda r: FAMILY.decoys(task, r), lambda r: FAMILY.variants(task, task.goals[0], r)):
        assert draw(random.Random(9)) == draw(random.Random(9))


def test_a_partial_state_leaves_arguments_out() -> None:
    task = FAMILY.task("train", 2)
    dropped = task.goals[0]
    answer = FAMILY.execute(task, IntentState(task.goals[1:]))
    gold = {(c["name"], a) for c in task.payload["calls"] for a in c["arguments"]}
    left = {(c["name"], a) for c in json.loads(answer) for a in c["arguments"]}
    assert len(gold - left) == 1 and left < gold
    assert dropped.slot is not None
    assert not FAMILY.grade(task, answer).full_credit
    assert not FAMILY.grade(task, FAMILY.execute(task, EMPTY)).full_credit


def test_unknown_slot_or_value_is_a_grader_error() -> None:
    task = FAMILY.task("train", 0)
    with pytest.raises(GraderError, match="phase of the moon"):
        FAMILY.execute(task, IntentState((Goal("x", "", "phase of the moon", "full"),)))
    number = next(
        (task, goal)
        for task in tasks(30)
        for goal in task.goals
        if goal.slot in ("quantity", "party size", "song count")
    )
    with pytest.raises(GraderError, match="integer"):
        FAMILY.execute(number[0], IntentState((Goal("x", "", number[1].slot, "many"),)))


def test_unknown_split() -> None:
    with pytest.raises(UnknownName, match="heldout"):
        FAMILY.load(None, "held-out")


def python_form(answer: str) -> str:
    calls = [
        f"{call['name']}({', '.join(f'{arg}={value!r}' for arg, value in call['arguments'].items())})"
        for call in json.loads(answer)
    ]
    return f"[{', '.join(calls)}]"


def test_the_gold_in_other_dress_passes_and_a_mutation_does_not() -> None:
    mutations = 0
    for task in tasks(150):
        gold = FAMILY.gold(task)
        calls = json.loads(gold)
        for dress in (
            json.dumps(list(reversed(calls)), indent=2),
            f"Here you are:\n```json\n{gold}\n```\nDone.",
            f"Sure. {gold} Anything else?",
            python_form(gold),
            f"```python\n{python_form(gold)}\n```",
        ):
            assert FAMILY.grade(task, dress).full_credit, dress
        for at, call in enumerate(calls):
            for arg, value in call["arguments"].items():
                for wrong in (_other(value), [value], None, f"{value} "[:-1] + "x"):
                    changed = json.loads(gold)
                    changed[at]["arguments"][arg] = wrong
                    assert not FAMILY.grade(task, json.dumps(changed)).full_credit
                    mutations += 1
    assert mutations >= 1000


def _other(value: object) -> object:
    match value:
        case bool():
            return int(value)
        case int() | float():
            return str(value)
        case str():
            return value.upper() if value.upper() != value else value + "1"
        case _:
            return list(value)[1:] if isinstance(value, list) else 0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "[]",
        "{}",
        "null",
        "order_meal",
        '[{"name": "order_meal"}]',
        '[{"name": 3, "arguments": {}}]',
        "f(1)",
    ],
)
def test_no_calls_is_no_credit(answer: str) -> None:
    grade = FAMILY.grade(FAMILY.task("train", 0), answer)
    assert (grade.score, grade.full_credit, grade.error) == (0.0, False, None)
    assert grade.detail["problem"]


@settings(max_examples=300, deadline=None)
@given(st.text() | st.from_regex(r"[\[\]{}(),:=\"'a-z0-9 \n`]{0,60}"))
def test_any_answer_gets_a_grade(answer: str) -> None:
    grade = FAMILY.grade(FAMILY.task("train", 1), answer)
    assert grade.error is None and not grade.full_credit


def test_nesting_and_length_bombs_are_wrong_answers() -> None:
    task = FAMILY.task("train", 1)
    for bomb in ("[" * 50_000, "f(" * 20_000 + ")", "x" * 200_000, "(" * 200 + ")" * 200):
        assert FAMILY.grade(task, bomb).score == 0.0


def test_duplicate_argument_is_refused() -> None:
    assert isinstance(read_calls('[{"name": "f", "arguments": {"x": 1, "x": 2}}]'), str)


def test_matching_is_not_greedy_and_minds_types() -> None:
    one, two = Call("f", {"x": 1}), Call("f", {"x": 2})
    assert match_calls([one, two], [two, one]) is None
    assert match_calls([one, one], [one, two])
    assert match_calls([one], [one, one])
    assert match_calls([Call("f", {"x": True})], [one])
    assert match_calls([Call("f", {"x": 1.0})], [one]) is None
    assert match_calls([Call("f", {"x": "1"})], [one])
    assert match_calls([Call("f", {"x": "-5"})], [Call("f", {"x": "5"})])
