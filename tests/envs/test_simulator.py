"""Template wording: exactly the edits of the turn, verbatim values, unambiguous references, nothing else."""

from __future__ import annotations

import random
import re
import string
from itertools import islice

import pytest

from envs.dialogue import build
from envs.errors import UnknownName
from envs.intent import EMPTY, Add, Delete, Edit, Goal, IntentState, Replace, Switch
from envs.simulator import TemplateSimulator, mentions
from envs.task import Family, SourceTask, get_family
from envs.wording import HELDOUT, SETS, TRAIN

BROOKLYN = Goal("g1", "deliver to Brooklyn", "delivery address", "Brooklyn")
QUEENS = Goal("g1.v1", "deliver to Queens", "delivery address", "Queens")
WEDNESDAY = Goal("g2", "the party is on Wednesday", "party day", "Wednesday")
APPLES = Goal("g3", "Tom has 5 apples and eats 2 of them.", "s1")
PEARS = Goal("g3.v1", "Tom has 7 pears and eats 2 of them.", "s1")
QUESTION = Goal("g4", "How many are left?", "question")
HIDDEN = Goal("g5", "make it very hot", "spice level", "hot-3")

FIELDS = {
    "add_slot": {"do", "Do", "text", "sentence", "slot", "Slot", "value"},
    "add_text": {"text", "sentence"},
    "add_question": {"sentence"},
    "replace_slot": {"slot", "Slot", "old", "new"},
    "replace_old": {"old", "new"},
    "replace_text": {"old", "new"},
    "delete_slot": {"slot", "Slot"},
    "delete_text": {"text"},
    "switch": {"new"},
    "small_talk": set(),
    "final": set(),
    "list": set(),
}


def says(
    edits: list[Edit], live: IntentState = EMPTY, split: str = "train", turn: int = 1, total: int = 5
) -> set[str]:
    """Every wording that comes up in many draws."""
    simulator = TemplateSimulator(split)
    return {simulator.utter(edits, turn, total, "Hello.", random.Random(n), live) for n in range(300)}


@pytest.mark.parametrize("kind", FIELDS)
def test_there_are_enough_templates_of_a_kind_and_none_is_shared(kind: str) -> None:
    assert set(TRAIN) == set(HELDOUT) == set(FIELDS)
    train, heldout = set(TRAIN[kind]), set(HELDOUT[kind])
    assert len(train) == len(TRAIN[kind]) >= 8 and len(heldout) == len(HELDOUT[kind]) >= 4
    assert not train & heldout


@pytest.mark.parametrize("kind", FIELDS)
def test_templates_use_only_the_fields_of_their_kind_and_no_digits(kind: str) -> None:
    for split in SETS:
        for template in SETS[split][kind]:
            names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
            assert names <= FIELDS[kind], template
            assert not re.search(r"\d", template)
            if kind == "replace_slot":
                assert names & {"slot", "Slot"} and "new" in names, template
            if kind in ("replace_old", "replace_text"):
                assert names == {"old", "new"}, template


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("turn", [0, 1])
def test_at_least_eight_wordings_come_up_for_training(split: str, turn: int) -> None:
    least = 8 if split == "train" else 3
    live = IntentState((BROOKLYN, APPLES))
    for edits in ([Add(BROOKLYN)], [Add(APPLES)], [Replace(BROOKLYN, QUEENS)], [Replace(APPLES, PEARS)],
                  [Delete(BROOKLYN)], [Delete(APPLES)], [Switch("f", "book_table")], []):  # fmt: skip
        assert len(says(edits, live, split, turn)) >= least, edits
    assert len(says([], live, split, 4)) >= least


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_edits_are_realised_verbatim(split: str) -> None:
    for said in says([Add(BROOKLYN)], split=split):
        assert "Brooklyn" in said and ("deliver to" in said.lower() or "delivery address" in said)
    for said in says([Add(APPLES)], split=split):
        assert "Tom has 5 apples and eats 2 of them" in said and "s1" not in said
    for said in says([Add(QUESTION)], split=split):
        assert "How many are left?" in said
    for said in says([Replace(BROOKLYN, QUEENS)], IntentState((BROOKLYN,)), split):
        assert "Queens" in said and ("delivery address" in said or "Brooklyn" in said)
    for said in says([Replace(APPLES, PEARS)], IntentState((APPLES,)), split):
        assert "Tom has 5 apples and eats 2 of them" in said and "Tom has 7 pears and eats 2 of them" in said
    for said in says([Delete(BROOKLYN)], IntentState((BROOKLYN,)), split):
        assert "delivery address" in said or "deliver to Brooklyn" in said
    for said in says([Delete(APPLES)], IntentState((APPLES,)), split):
        assert "Tom has 5 apples and eats 2 of them" in said
    for said in says([Switch("order_meal", "book_table")], split=split):
        assert "book_table" in said and "order_meal" not in said


def test_replacing_comes_by_slot_and_by_old_value_alone() -> None:
    said = says([Replace(BROOKLYN, QUEENS)], IntentState((BROOKLYN, WEDNESDAY)))
    assert any("delivery address" in s and "Brooklyn" not in s for s in said)
    assert any("Brooklyn" in s and "delivery address" not in s for s in said)


def test_an_old_value_that_another_goal_shares_is_not_used_alone() -> None:
    pickup = Goal("g7", "pick it up in Brooklyn", "pickup place", "Brooklyn")
    for said in says([Replace(BROOKLYN, QUEENS)], IntentState((BROOKLYN, pickup))):
        assert "delivery address" in said
    # "Brooklynite" is another word, so it makes nothing ambiguous.
    local = Goal("g8", "ask for the Brooklynite", "guide", "Brooklynite")
    assert any(
        "delivery address" not in s for s in says([Replace(BROOKLYN, QUEENS)], IntentState((BROOKLYN, local)))
    )


def test_a_slot_that_another_goal_shares_is_not_used_alone() -> None:
    second = Goal("g9", "deliver to Harlem", "delivery address", "Harlem")
    live = IntentState((BROOKLYN, second))
    assert all(
        "Brooklyn" in s for s in says([Replace(BROOKLYN, QUEENS)], live) | says([Delete(BROOKLYN)], live)
    )


def test_a_text_that_hides_its_value_gives_way_to_slot_and_value() -> None:
    assert all("hot-3" in s and "spice level" in s for s in says([Add(HIDDEN)]))
    clean = TemplateSimulator().utter(
        [Add(HIDDEN), Add(BROOKLYN), Add(APPLES)], 0, 1, "Hi.", random.Random(0)
    )
    assert "- spice level: hot-3\n- deliver to Brooklyn\n- Tom has 5" in clean


def test_sentences_are_not_pressed_into_commands() -> None:
    assert not any(
        re.search(r"(please|you to|sure to|you) the party", s, re.I) for s in says([Add(WEDNESDAY)])
    )
    assert "Please deliver to Brooklyn." in says([Add(BROOKLYN)])
    for said in says([Add(QUESTION)]) | says([Add(APPLES)]) | says([Add(WEDNESDAY)]):
        assert not re.search(r"[.?!][.?]|\s\s|[{}]", said)


def test_a_value_that_ends_in_a_full_stop_gets_no_second_one() -> None:
    company = Goal("g6", "buy from Apple Inc.", "company", "Apple Inc.")
    for said in says([Add(company)]) | says([Replace(BROOKLYN, company)], IntentState((BROOKLYN,))):
        assert "Apple Inc." in said and ".." not in said


def test_first_turn_has_the_opening_and_no_word_that_follows_something() -> None:
    for said in says([Add(BROOKLYN)], turn=0):
        assert said.startswith("Hello. ") and not re.search(r"\b(also|next|and please)\b", said, re.I)
    assert not any("Hello." in said for said in says([Add(BROOKLYN)]))


def test_wording_is_deterministic() -> None:
    one, two = (TemplateSimulator().utter([Add(BROOKLYN)], 1, 3, "", random.Random(5)) for _ in range(2))
    assert one == two


def test_unknown_split_is_refused() -> None:
    with pytest.raises(UnknownName, match="train"):
        TemplateSimulator("trian")


PROCEDURAL = ("calls", "sql", "math")


def procedural(name: str) -> Family:
    try:
        return get_family(name)
    except UnknownName:
        pytest.skip(f"family {name} is not there")


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("name", PROCEDURAL)
def test_nothing_leaks(name: str, split: str) -> None:
    """No utterance names a value that its turn does not edit; the final request names nothing at all."""
    family = procedural(name)
    for task in islice(family.load(None, split), 40):
        for condition in ("drift", "turn_matched"):
            dialogue = build(family, task, condition, 3, 0)
            everything = {g for turn in dialogue.turns for edit in turn.edits for g in goals_of(edit)}
            for t, turn in enumerate(dialogue.turns):
                said = turn.utterance.removeprefix(task.opening) if t == 0 else turn.utterance
                edited = [goal for edit in turn.edits for goal in goals_of(edit)]
                # Words that the edit itself brings along are no leak.
                allowed = " ".join(f"{g.text} {g.slot} {g.value}" for g in edited)
                for goal in everything:
                    short = goal.value is not None and len(goal.value) <= 3
                    if goal in edited or mentions(allowed, (goal.slot if short else goal.value) or ""):
                        continue
                    assert not leaks(said, goal), (said, goal)


def goals_of(edit: Edit) -> list[Goal]:
    return [edit.old, edit.new] if isinstance(edit, Replace) else [edit.goal]  # type: ignore[union-attr]


def leaks(said: str, goal: Goal) -> bool:
    # "no", "I" or "a" stand in wordings by themselves; such a value leaks only together with its slot.
    assert goal.value is not None and goal.slot is not None
    if len(goal.value) <= 3:
        return mentions(said, goal.value) and mentions(said, goal.slot)
    return mentions(said, goal.value)


@pytest.mark.parametrize("name", PROCEDURAL)
def test_each_edit_is_found_in_its_utterance(name: str) -> None:
    family = procedural(name)
    for split in family.splits:
        for task in islice(family.load(None, split), 40):
            for turn in build(family, task, "drift", 3, 1).turns:
                for edit in turn.edits:
                    check_realised(edit, turn.utterance)


def check_realised(edit: Edit, said: str) -> None:
    match edit:
        case Add(goal):
            assert (goal.value or goal.text.rstrip(".")) in said
        case Replace(old, new) if new.value is not None:
            assert new.value in said and ((new.slot or "") in said or (old.value or "") in said)
        case Replace(old, new):
            assert new.text.rstrip(".") in said and old.text.rstrip(".") in said
        case Delete(goal):
            assert (goal.slot or "\0") in said or goal.text.rstrip(".") in said


def test_a_task_of_one_goal_reads_well_in_one_turn() -> None:
    task = SourceTask("toy/train/0", "toy", "train", "I want a delivery.", "", (BROOKLYN,), {})
    said = build(procedural("calls"), task, "clean", 1, 0).turns[0].utterance
    assert said.startswith("I want a delivery. ") and "Brooklyn" in said and "\n" not in said
