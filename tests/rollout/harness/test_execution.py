"""The executor: full credit with the exact state, and what a tracker's items become."""

from __future__ import annotations

import asyncio

import pytest

from envs.intent import Goal
from rollout.execution import known_goals, state_of_items
from rollout.playing import Players, play
from tests.rollout.scripted import ScriptedAgent, example, perfect_tracker


@pytest.mark.parametrize("family", ["calls", "sql", "math"])
@pytest.mark.parametrize("condition", ["clean", "drift", "turn_matched"])
def test_with_the_oracle_every_structured_procedural_family_gets_full_credit(
    family: str, condition: str
) -> None:
    base = ScriptedAgent()
    for index in range(6):
        found, task, dialogue = example(family, index, condition)
        done = asyncio.run(play(Players("executor", base), found, task, dialogue))
        assert found.grade(task, done.answer).full_credit, dialogue.id
    assert not base.asked, "no model is asked"


@pytest.mark.parametrize("family", ["calls", "sql", "math"])
def test_a_perfect_tracker_gets_full_credit_too(family: str) -> None:
    for index in range(6):
        found, task, dialogue = example(family, index)
        tracker = perfect_tracker(dialogue)
        done = asyncio.run(play(Players("executor", ScriptedAgent(), tracker), found, task, dialogue))
        assert found.grade(task, done.answer).full_credit, (dialogue.id, done.turns[-1].log)


def test_a_tracker_that_keeps_nothing_or_invents_is_wrong_with_the_reason_and_no_error() -> None:
    found, task, dialogue = example()
    nothing = asyncio.run(
        play(Players("executor", ScriptedAgent(), ScriptedAgent("KEEP")), found, task, dialogue)
    )
    assert nothing.error is None and not found.grade(task, nothing.answer).full_credit
    inventing = ScriptedAgent("SET mood: sing a song in the rain")
    made_up = asyncio.run(play(Players("executor", ScriptedAgent(), inventing), found, task, dialogue))
    assert made_up.error is None and made_up.answer == ""
    assert "sing a song" in str(made_up.detail["executor"])


def test_items_become_the_goals_they_say_in_their_order() -> None:
    budget = Goal("g1", "at most 40 dollars", "budget", "40 dollars")
    dearer = Goal("g1.v1", "at most 60 dollars", "budget", "60 dollars")
    color = Goal("g2", "make it red", "color", "red")
    known = [budget, dearer, color]
    state = state_of_items({"color": "red", "budget": "60 dollars"}, known)
    assert state.goals == (color, dearer)
    state = state_of_items({"color": "red", "the color": "red", "shape": "round"}, known)
    assert state.goals == (color, Goal("unknown 3", "shape: round")), (
        "said twice counts once, invented is kept"
    )
    assert state_of_items({}, known).goals == ()


def test_known_goals_are_all_that_were_ever_stated() -> None:
    _, task, dialogue = example(budget=5)
    known = set(known_goals(dialogue))
    assert set(task.goals) <= known
    assert set(dialogue.superseded(len(dialogue.turns) - 1)) <= known
