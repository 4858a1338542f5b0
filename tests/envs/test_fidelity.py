"""Fidelity rules: template wordings pass, and each way to say too little, too much or the wrong thing is found."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.dialogue import build
from envs.errors import MissingFiles
from envs.fidelity import KINDS, check_utterance
from envs.intent import EMPTY, Add, Delete, Edit, Goal, IntentState, Replace, Switch
from envs.task import SourceTask, get_family
from tests.envs.wording_toys import OPENING, Toy, goal

ADDRESS, QUEENS = goal("delivery address"), goal("delivery address", 1, ".v1")
WEIGHT, LIGHTER = goal("parcel weight"), goal("parcel weight", 1, ".v1")
VALUE = goal("insured value")
APPLES = Goal("t1", "Tom has 5 apples and eats two of them in the garden.")
PEARS = Goal("t1.v1", "Tom has 7 apples and eats two of them in the garden.")
GIRLS = Goal("t2", "Anna sells cookies to 12 neighbours every Sunday morning.")
DAY = goal("pickup day")
TASK = SourceTask("toy/train/0", "toy", "train", OPENING, "", (ADDRESS, WEIGHT, VALUE, APPLES), {})
LIVE = IntentState((ADDRESS, WEIGHT, GIRLS))


def kinds(edits: list[Edit], said: str, live: IntentState = LIVE, strict: bool = True) -> set[str]:
    found = check_utterance(edits, said, live, TASK, strict=strict)
    assert all(fault.kind in KINDS and fault.detail for fault in found)
    return {fault.kind for fault in found}


GOOD: list[tuple[list[Edit], str]] = [
    ([Add(DAY)], "Pick it up on Wednesday."),
    ([Add(DAY)], "I'd go for Wednesday as the pickup day."),
    ([Add(VALUE)], "Please get it insured for $1,250.50."),
    ([Add(APPLES)], "So Tom has five apples, and in the garden he eats 2 of them."),
    ([Replace(ADDRESS, QUEENS)], "Send it to Queens instead of Brooklyn."),
    ([Replace(ADDRESS, QUEENS)], "The delivery address is Queens now."),
    ([Replace(ADDRESS, QUEENS)], "Have it delivered to Queens after all."),
    ([Replace(WEIGHT, LIGHTER)], "It weighs 15 kilos, not 12 kilos."),
    ([Replace(APPLES, PEARS)], "Wait, Tom has 7 apples, not 5, of which he eats two in the garden."),
    ([Delete(ADDRESS)], "Forget the delivery address."),
    ([Delete(ADDRESS)], "No need to deliver it to Brooklyn any more."),
    ([Delete(GIRLS)], "That thing about Anna who sells cookies to her neighbours on Sunday? Drop it."),
    ([Switch("f", "send_parcel")], "Let's send parcel instead."),
    ([Replace(ADDRESS, QUEENS), Add(DAY)], "Queens, not Brooklyn. Pickup day: Wednesday."),
    ([], "Please go ahead."),
    ([], "One second, let me think."),
]

BAD: list[tuple[list[Edit], str, str]] = [
    ([Add(DAY)], "Pick it up soon.", "missing_value"),
    ([Add(DAY)], "pick it up on wednesday", "missing_value"),
    ([Add(DAY)], "Wednesday.", "unnamed_slot"),
    ([Add(VALUE)], "Insure it for $1250.50.", "missing_value"),
    ([Add(APPLES)], "Tom has 5 apples and eats some of them in the garden.", "missing_number"),
    ([Add(APPLES)], "It is 5, of which 2 are gone.", "missing_text"),
    ([Replace(ADDRESS, QUEENS)], "I want something else than Brooklyn.", "missing_value"),
    ([Replace(ADDRESS, QUEENS)], "Queens, please.", "unmarked_old"),
    ([Replace(ADDRESS, QUEENS)], "Send it to Brooklyn, not Queens, I mean the address.", "reversed"),
    ([Replace(ADDRESS, QUEENS)], "Change the delivery address from Queens to Brooklyn.", "reversed"),
    ([Delete(ADDRESS)], "I don't want that any more.", "unnamed_goal"),
    ([Delete(ADDRESS)], "The delivery address, please.", "no_withdrawal"),
    ([Switch("f", "book_table")], "Let's do another thing.", "missing_function"),
    ([Add(DAY)], "Pick it up on Wednesday, and deliver it to Brooklyn.", "other_goal"),
    ([Add(DAY)], "Pick it up on Wednesday. Anna sells cookies to her neighbours each Sunday morning.", "other_goal"),
    ([Add(DAY)], "Pick it up on Wednesday, insured for $1,250.50.", "leaks_final"),
    ([Add(DAY)], "Pick it up on Wednesday at 9.", "stray_number"),
    ([Add(DAY)], "Pick it up on Wednesday, that makes twenty-two of them.", "stray_number"),
    ([], "Please deliver it to Brooklyn now.", "names_goal"),
    ([], "The delivery address is fine, please go ahead.", "names_goal"),
    ([], "All three points are said.", "stray_number"),
    ([], f"{OPENING} ", "empty"),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "said"), GOOD, ids=[said for _, said in GOOD])
def test_good_messages_pass(edits: list[Edit], said: str) -> None:
    live = LIVE if not any(goal in (APPLES,) for e in edits for goal in ([e.old] if isinstance(e, Replace) else [])) \
        else IntentState((*LIVE.goals, APPLES))  # fmt: skip
    assert not check_utterance(edits, said, live, TASK, strict=True)
    assert not check_utterance(edits, f"{OPENING} {said}", live, TASK, strict=True)


@pytest.mark.parametrize(("edits", "said", "kind"), BAD, ids=[f"{k}: {s}" for _, s, k in BAD])
def test_bad_messages_are_named(edits: list[Edit], said: str, kind: str) -> None:
    assert kind in kinds(edits, said)


def test_a_goal_of_the_same_value_is_found_by_its_text() -> None:
    copies = Goal("c", "send the copy to Brooklyn too", "address of the copy", "Brooklyn")
    live = IntentState((copies,))
    assert not kinds([Add(ADDRESS)], "Deliver it to Brooklyn.", live)
    assert kinds([Add(ADDRESS)], "Deliver it to Brooklyn. And send the copy to Brooklyn too.", live) == {
        "other_goal"
    }


def test_every_kind_but_ambiguous_has_a_bad_message() -> None:
    assert {kind for _, _, kind in BAD} == set(KINDS) - {"ambiguous"}


def test_a_reference_that_fits_two_goals_is_ambiguous_unless_it_is_quoted() -> None:
    pickup = Goal("p", "pick it up in Brooklyn", "pickup place", "Brooklyn")
    second = Goal("q", "drop a copy in Harlem", "delivery address", "Harlem")
    by_value = IntentState((ADDRESS, pickup))
    assert kinds([Replace(ADDRESS, QUEENS)], "Not Brooklyn but Queens.", by_value) == {"ambiguous"}
    assert not kinds([Replace(ADDRESS, QUEENS)], "The delivery address is Queens now.", by_value)
    both = IntentState((ADDRESS, second))
    assert kinds([Delete(ADDRESS)], "Forget the delivery address.", both) == {"ambiguous"}
    assert not kinds([Delete(ADDRESS)], 'Forget "deliver it to Brooklyn".', both)
    assert not kinds([Delete(ADDRESS)], "Forget the delivery address Brooklyn.", both)


def test_a_short_old_value_inside_the_new_one_is_no_reference() -> None:
    soup, better = Goal("s", "soup", "dish", "soup"), Goal("s.v", "tomato soup", "dish", "tomato soup")
    live = IntentState((soup,))
    assert kinds([Replace(soup, better)], "Make that tomato soup.", live) == {"unmarked_old"}
    assert not kinds([Replace(soup, better)], "Tomato soup, not soup.", live, strict=False) - {
        "missing_value"
    }
    five, half = Goal("n", "n is 5.5", "n", "5.5"), Goal("n.v", "n is 5", "n", "5")
    assert not kinds([Replace(five, half)], "Make it 5 instead of 5.5.", IntentState((five,)))
    assert kinds([Replace(five, half)], "No longer 5.5, please.", IntentState((five,))) == {"missing_value"}


def test_what_is_said_about_another_goal_is_kept_off_the_advice() -> None:
    (fault,) = check_utterance([Add(DAY)], "Pick it up on Wednesday in Brooklyn.", LIVE, TASK)
    assert fault.about == ADDRESS.text and "Brooklyn" not in fault.detail


FAMILIES = [("calls", "train"), ("calls", "heldout"), ("sql", "train"), ("sql", "heldout"), ("math", "train"),
            ("math", "heldout"), ("gsm8k", "test"), ("bfcl", "test")]  # fmt: skip


@pytest.mark.parametrize(("name", "split"), FAMILIES)
def test_template_wordings_pass(name: str, split: str, request: pytest.FixtureRequest) -> None:
    family = get_family(name)
    source: Path | None = request.getfixturevalue("benchmark_data") if name in ("gsm8k", "bfcl") else None
    try:
        tasks = list(islice(family.load(source, split), 12))
    except MissingFiles as error:
        pytest.skip(str(error))
    for task in tasks:
        for condition in ("clean", "drift", "turn_matched"):
            live = EMPTY
            for turn in build(family, task, condition, 3, 0).turns:
                assert not check_utterance(turn.edits, turn.utterance, live, task), turn.utterance
                live = turn.state


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 400), st.integers(0, 20), st.data())
def test_a_template_of_another_turn_never_passes(index: int, seed: int, data: st.DataObject) -> None:
    """Messages swapped between turns of one dialogue are found, as long as they say other edits."""
    family = Toy()
    task = family.task("train", index)
    turns = build(family, task, "drift", 3, seed).turns
    t, other = data.draw(st.tuples(*[st.integers(0, len(turns) - 1)] * 2))
    if turns[t].edits == turns[other].edits or not (turns[t].edits or turns[other].edits):
        return
    live = turns[t - 1].state if t else EMPTY
    said = turns[other].utterance.removeprefix(OPENING)
    faults = check_utterance(turns[t].edits, said, live, task)
    if turns[t].edits:
        assert faults or _same_words(turns[t].edits[0], turns[other].edits), (turns[t].edits, said)


def _same_words(wanted: Edit, said: tuple[Edit, ...]) -> bool:
    """Whether a message of `said` may say `wanted` too: a rule cannot tell "forget X" from "X is now Y"."""
    new = {
        g.value
        for e in said
        if isinstance(e, (Add, Replace))
        for g in [e.goal if isinstance(e, Add) else e.new]
    }
    slots = {g.slot for e in said for g in _goals(e)}
    match wanted:
        case Delete(goal):
            return goal.slot in slots
        case Add(goal):
            return goal.value in {g.value for e in said for g in _goals(e)}
        case Replace(_, fresh):
            return fresh.value in new or fresh.value in {g.value for e in said for g in _goals(e)}
    return False


def _goals(edit: Edit) -> list[Goal]:
    return [edit.old, edit.new] if isinstance(edit, Replace) else [edit.goal]  # type: ignore[union-attr]
