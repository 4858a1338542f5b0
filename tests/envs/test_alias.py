"""Made-up slot names change what things are called and nothing else."""

from __future__ import annotations

import random

import pytest

from envs.alias import Aliased
from envs.dialogue import build
from envs.mix import DialogueStream, alias_words
from envs.task import get_family

WORDS = alias_words("train")


@pytest.mark.parametrize("name", ["calls", "sql", "math"])
def test_an_aliased_task_is_executed_and_graded_as_the_original(name: str) -> None:
    family = get_family(name)
    for index in range(20):
        task = family.task("train", index)  # type: ignore[attr-defined]
        aliased = Aliased(family, task, WORDS, seed=0)
        assert {goal.slot for goal in aliased.task.goals}.isdisjoint({goal.slot for goal in task.goals})
        answer = aliased.execute(aliased.task, aliased.task.intent)
        assert answer == family.execute(task, task.intent)
        assert aliased.grade(aliased.task, answer).full_credit
        dialogue = build(aliased, aliased.task, "drift", 3, index)
        assert dialogue.final == aliased.task.intent


def test_values_of_a_slot_stay_apart_and_alike() -> None:
    family = get_family("calls")
    made = 0
    for index in range(40):
        task = family.task("train", index)  # type: ignore[attr-defined]
        aliased = Aliased(family, task, WORDS, seed=0)
        for goal in aliased.task.goals:
            variants = aliased.variants(aliased.task, goal, random.Random(index))[:6]
            values = [goal.value, *(one.value for one in variants)]
            assert len(set(values)) == len(values)
            assert {one.slot for one in variants} <= {goal.slot}
            assert all(one.value and one.value in one.text for one in [goal, *variants])
        own = {goal.value for goal in task.goals}
        made += sum(goal.value not in own for goal in aliased.task.goals)
    assert made > 20


def test_the_share_of_aliased_dialogues_is_that_asked_for_and_repeats() -> None:
    plain = DialogueStream(("calls",), "train", 0, 1)
    aliased = DialogueStream(("calls",), "train", 0, 1, alias_share=0.5)
    changed = [plain.dialogue_at(i) != aliased.dialogue_at(i) for i in range(100)]
    assert 35 <= sum(changed) <= 65
    again = DialogueStream(("calls",), "train", 0, 1, alias_share=0.5)
    assert all(aliased.dialogue_at(i) == again.dialogue_at(i) for i in range(20))


def test_made_up_names_hold_no_heldout_word() -> None:
    assert not set(WORDS) & set(alias_words("heldout"))
