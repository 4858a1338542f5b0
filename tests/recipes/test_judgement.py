"""Withdrawn goals that are obeyed, and new values at another slot, told by carrying out other states."""

from __future__ import annotations

import json
import random

import pytest

from envs.dialogue import Dialogue, Turn, build
from envs.intent import EMPTY, Add, Delete, Goal, IntentState, Replace, fold
from envs.task import Family, Grade, SourceTask, get_family
from recipes.judgement import Judgement, judge, replaced, withdrawn


def scripted(family: Family, task: SourceTask, edits: list) -> Dialogue:
    """A dialogue of one edit a turn, and the request at the end."""
    turns, state = [], EMPTY
    for edit in edits:
        state = fold(state, [edit])
        turns.append(Turn("...", (edit,), state))
    turns.append(Turn("go", (), state))
    return Dialogue("d", task.id, family.name, "drift", 1, 0, tuple(turns))


def case(name: str, index: int = 0) -> tuple[Family, SourceTask, Dialogue, Goal, Goal, Goal]:
    """A task whose first goal replaced a variant and from which one decoy was withdrawn."""
    family = get_family(name)
    task: SourceTask = family.task("heldout", index)  # type: ignore[attr-defined]
    first, *rest = task.goals
    variant = family.variants(task, first, random.Random(0))[0]
    decoy = family.decoys(task, random.Random(0))[0]
    edits = [Add(variant), Add(decoy), *map(Add, rest), Replace(variant, first), Delete(decoy)]
    return family, task, scripted(family, task, edits), first, variant, decoy


def judged(family: Family, task: SourceTask, dialogue: Dialogue, answer: str) -> Judgement:
    return judge(family, task, dialogue, answer, family.grade(task, answer))


@pytest.mark.parametrize("name", ["calls", "sql", "math"])
@pytest.mark.parametrize("index", range(4))
def test_right_stale_and_obeying_answers_are_told_apart(name: str, index: int) -> None:
    family, task, dialogue, first, variant, decoy = case(name, index)
    assert withdrawn(dialogue) == [decoy] and replaced(dialogue) == [first]
    right = judged(family, task, dialogue, family.gold(task))
    assert right == Judgement(1, False, 1, False)

    obeying = family.execute(task, IntentState((*task.goals, decoy)))
    if not family.grade(task, obeying).full_credit:
        assert judged(family, task, dialogue, obeying).delete_obeyed is True
    both = family.execute(task, IntentState((variant, *task.goals[1:], decoy)))
    if not family.grade(task, both).full_credit:
        assert judged(family, task, dialogue, both).delete_obeyed is True
    stale = family.execute(task, IntentState((variant, *task.goals[1:])))
    assert judged(family, task, dialogue, stale).delete_obeyed is False


def test_a_new_value_at_another_argument_is_misbound() -> None:
    family, task, dialogue, first, _, _ = case("calls")
    effect = next(c for c in json.loads(family.execute(task, IntentState((first,)))) if c["arguments"])
    ((argument, value),) = effect["arguments"].items()
    wrong = json.loads(family.gold(task))
    call = next(call for call in wrong if call["name"] == effect["name"])
    del call["arguments"][argument]
    assert judged(family, task, dialogue, json.dumps(wrong)).misbound is False, "missing is not misbound"
    other = next(call for call in wrong if call["arguments"])
    other["arguments"][next(iter(other["arguments"]))] = value
    assert judged(family, task, dialogue, json.dumps(wrong)).misbound is True


def test_a_swapped_number_is_misbound_in_a_story() -> None:
    family, task, dialogue, first, _, _ = case("math")
    other = task.goals[1]
    swapped = tuple(Goal(g.id, g.text, g.slot, first.value if g is other else g.value) for g in task.goals)
    answer = family.execute(task, IntentState(swapped))
    if not family.grade(task, answer).full_credit:
        assert judged(family, task, dialogue, answer).misbound is True


@pytest.mark.parametrize("answer", ["", "I do not know.", "The answer is 123456789."])
def test_an_answer_that_nothing_explains_is_not_judged(answer: str) -> None:
    family, task, dialogue, *_ = case("math")
    assert judged(family, task, dialogue, answer) == Judgement(1, None, 1, None)


def test_nothing_is_judged_without_a_grade_or_without_such_edits() -> None:
    family, task, dialogue, *_ = case("calls")
    assert judge(family, task, dialogue, "x", Grade(0.0, False, error="crash")) == Judgement(1, None, 1, None)
    clean = build(family, task, "clean", 1, 0)
    assert judged(family, task, clean, family.gold(task)) == Judgement(0, None, 0, None)
