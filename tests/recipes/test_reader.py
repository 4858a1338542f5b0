"""The rule reader: templates read backwards, changes find what they name, and what it cannot read it says."""

from __future__ import annotations

import random

import pytest

from envs.dialogue import CONDITIONS, build
from envs.drift import BUDGETS
from envs.intent import EMPTY, Add, Delete, Edit, Goal, IntentState, Replace, fold
from envs.mix import TaskPool
from envs.simulator import TemplateSimulator
from envs.task import get_family
from envs.wording import SETS
from recipes.audit.reader import Reading, read
from recipes.audit.template_match import fixed, pairs_of, parse, plain, plain_slot, templates

CITY = Goal("g1", "deliver to Brooklyn", "delivery address", "Brooklyn")
QUEENS = Goal("g1.v1", "deliver to Queens", "delivery address", "Queens")
PRICE = Goal("g2", "the budget should be at most 40 dollars", "budget", "at most 40 dollars")
WRAP = Goal("d1", "I want yes as the gift wrap", "gift wrap", "yes")
FREE = Goal("g3", "Ana has 3 hats.")
FREE2 = Goal("g3.v1", "Ana has 5 hats.")


def holds(reading: Reading, goals: list[Goal], stated: list[Goal]) -> bool:
    return len(reading.items) == len(goals) and all(
        any(item.says(goal, stated) for item in reading.items) for goal in goals
    )


def test_a_template_is_cut_in_every_way() -> None:
    template = parse("replace_slot", "Change {slot} to {new}.")
    assert (template.kind, template.by, template.weight) == ("replace", "slot", 12)
    assert list(template.cuts("Change the way to the bus to slow.")) == [
        {"slot": "the way", "new": "the bus to slow"},
        {"slot": "the way to the bus", "new": "slow"},
    ]
    assert not list(template.cuts("Change the way to .")) and not list(template.cuts("Change."))
    assert list(parse("add_slot", "+{Do}, and {do}!").cuts("go, and go!")) == [{"text": "go"}]
    assert list(parse("add_slot", "{Do}, and {do}!").cuts("go, and stay!")) == []


def test_every_wording_reads_its_own_words_back() -> None:
    fields = {name: f"{name} words" for name in ("slot", "value", "old", "new", "text")}
    alias = {"Do": "text", "do": "text", "sentence": "text", "Slot": "slot"}
    count = 0
    for wordings in SETS.values():
        for kind, texts in wordings.items():
            for text in texts:
                said = text.removeprefix("+").format_map(
                    {**fields, **{name: fields[of] for name, of in alias.items()}}
                )
                template = parse(kind, text)
                assert {name: fields[name] for name in template.fields} in list(template.cuts(said)), text
                count += 1
    assert count == sum(len(texts) for wordings in SETS.values() for texts in wordings.values())
    assert len(templates()) <= count and fixed("final") and fixed("small") and fixed("list")


def test_plain_evens_out_how_a_sentence_writes_a_text() -> None:
    assert plain("  Deliver to\n Brooklyn. ") == "deliver to brooklyn"
    assert plain_slot("The budget") == plain_slot("budget") == "budget"


def test_goal_texts_tell_slot_and_value() -> None:
    task = TaskPool(get_family("calls"), "heldout").at(1)[0]
    for goal in task.goals:
        assert (plain_slot(goal.slot or ""), plain(goal.value or ""), True) in set(pairs_of(goal.text))
    assert ("base", "5", False) in set(pairs_of("set the base to 5"))


SCRIPTS: dict[str, list[list[Edit]]] = {
    "by slot": [[Add(QUEENS)], [Add(PRICE)], [Replace(QUEENS, CITY)], []],
    "decoy": [[Add(CITY)], [Add(WRAP)], [Add(PRICE)], [Delete(WRAP)], []],
    "free text": [[Add(FREE2)], [Add(CITY)], [Replace(FREE2, FREE)], []],
    "free decoy": [[Add(FREE)], [Add(FREE2)], [], [Delete(FREE2)], []],
    "clean": [[Add(CITY), Add(PRICE), Add(FREE)]],
    "clean, one goal": [[Add(CITY)]],
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("split", SETS)
def test_hand_made_scripts_are_read_in_many_wordings(script: str, split: str) -> None:
    turns, simulator, opening = SCRIPTS[script], TemplateSimulator(split), "I need one call of `order`."
    stated = [CITY, QUEENS, PRICE, WRAP, FREE, FREE2]
    kinds = [[type(edit).__name__.lower() for edit in edits] for edits in turns]
    for seed in range(60):
        rng, live, said = random.Random(seed), EMPTY, []
        for t, edits in enumerate(turns):
            said.append(simulator.utter(edits, t, len(turns), opening, rng, live))
            live = fold(live, edits)
        reading = read(said, opening)
        assert holds(reading, list(live.goals), stated), said
        assert reading.kinds == kinds and not reading.unread, said


@pytest.mark.parametrize("family", ["calls", "sql", "math"])
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_procedural_dialogues_are_recovered(family: str, split: str) -> None:
    found, good, total = get_family(family), 0, 0
    pool = TaskPool(found, split)
    for index in range(6):
        task = pool.at(index)[0]
        for condition in CONDITIONS:
            for budget in BUDGETS:
                dialogue = build(found, task, condition, budget, 1)
                stated = [
                    goal
                    for turn in dialogue.turns
                    for edit in turn.edits
                    for goal in ([edit.old, edit.new] if isinstance(edit, Replace) else [edit.goal])  # type: ignore[union-attr]
                ]
                reading = read([turn.utterance for turn in dialogue.turns], task.opening)
                good += holds(reading, list(task.goals), stated)
                total += 1
    assert good >= 0.95 * total, f"{good} of {total}"


def test_it_does_not_invent_what_nobody_said() -> None:
    reading = read(["Open. Deliver to Queens, please.", "Thanks so far.", "Fine. Do it."], "Open.")
    assert len(reading.items) == 1 and reading.kinds == [["add"], [], []]
    assert not reading.items[0].says(CITY, [CITY, QUEENS]) and reading.items[0].says(QUEENS, [CITY, QUEENS])


def test_a_change_of_something_else_does_not_pass_for_the_goal() -> None:
    said = ["Deliver to Queens, please.", "Set the budget to 3.", "Not 3, rather Brooklyn.", "Fine. Do it."]
    reading = read(said, "")
    assert reading.kinds == [["add"], ["add"], ["replace"], []]
    assert not any(item.says(CITY, [CITY, QUEENS, PRICE]) for item in reading.items)


def test_an_empty_state_reads_nothing_away() -> None:
    assert read(["Drop the gift wrap.", "Fine. Do it."], "").kinds[0] != ["delete"]
    assert IntentState() == EMPTY
