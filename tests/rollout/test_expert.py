from __future__ import annotations

import random
from itertools import islice

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from envs.dialogue import Dialogue, Turn, build
from envs.intent import EMPTY, Add, Delete, Edit, Goal, IntentState, Replace, Switch, apply
from envs.task import get_family
from rollout.expert import (
    edit_correct,
    expert_edit,
    goal_text,
    oracle_log_texts,
    same_edit,
    slip,
    slipped_prefix,
)
from rollout.match import match, stale_keys
from rollout.tracker import LogProtocol

LOG = LogProtocol()
BUDGET_40 = Goal("g1", "The budget is at most 40 dollars.", "budget", "at most 40 dollars")
BUDGET_50 = Goal("g1.v1", "The budget is at most 50 dollars.", "budget", "at most 50 dollars")
ADDRESS = Goal("g2", "Deliver to Brooklyn.", "delivery address", "Brooklyn")
ADDRESS_2 = Goal("g2.v1", "Deliver to Queens.", "delivery address", "Queens")
WRAP = Goal("d1", "Wrap it as a gift.", "gift wrap", "red paper")
EGGS_16 = Goal("g3", "Janet's ducks lay 16 eggs per day.")
EGGS_11 = Goal("g3.v1", "Janet's ducks lay 11 eggs per day.")


def dialogue(*turns: list[Edit]) -> Dialogue:
    state, shown = EMPTY, []
    for edits in turns:
        for edit in edits:
            state = apply(state, edit)
        shown.append(Turn("...", tuple(edits), state))
    return Dialogue("hand", "hand/0", "calls", "drift", 1, 0, tuple(shown))


TALK = dialogue(
    [Add(BUDGET_50)],
    [Add(ADDRESS_2), Add(WRAP)],
    [Replace(BUDGET_50, BUDGET_40)],
    [Delete(WRAP)],
    [Replace(ADDRESS_2, ADDRESS)],
    [],
)


def replay(texts: list[str]) -> dict[str, str]:
    log: dict[str, str] = {}
    for text in texts:
        log = LOG.apply(log, text).log
    return log


def test_oracle_log_of_a_whole_dialogue():
    assert oracle_log_texts(TALK) == [
        "SET budget: at most 50 dollars",
        "SET delivery address: Queens\nSET gift wrap: red paper",
        "SET budget: at most 40 dollars",
        "DEL gift wrap",
        "SET delivery address: Brooklyn",
        "KEEP",
    ]


@pytest.mark.parametrize(
    ("t", "log", "edit"),
    [
        # under the tracker's own name
        (2, {"max spend budget": "at most 50 dollars"}, "SET max spend budget: at most 40 dollars"),
        # where its name does not say the slot, the text does
        (2, {"money": "budget at most 50 dollars"}, "SET money: budget at most 40 dollars"),
        # a name in the goal's own words
        (4, {"deliver": "Queens"}, "SET deliver: Brooklyn"),
        # missed earlier: added now
        (2, {}, "SET budget: at most 40 dollars"),
        # garbled earlier: put right where it stands
        (2, {"budget": "fifty-ish"}, "SET budget: at most 40 dollars"),
        # already right
        (2, {"budget": "$40 at most", "x": "y"}, "SET budget: at most 40 dollars"),
        (2, {"Budget": "at most $40"}, "KEEP"),
        # both old and new are there: the old one goes
        (2, {"budget": "at most 40 dollars", "old budget": "at most 50 dollars"}, "DEL old budget"),
        # copies of the old one go too
        (
            2,
            {"budget": "at most 50 dollars", "new budget": "at most 50 dollars"},
            "SET budget: at most 40 dollars\nDEL new budget",
        ),
        (3, {"wrap": "red paper", "budget": "at most 40 dollars"}, "DEL wrap"),
        (3, {"budget": "at most 40 dollars"}, "KEEP"),
        # whatever else is wrong is not this turn's business
        (3, {"budget": "at most 50 dollars"}, "KEEP"),
        (5, {"budget": "at most 50 dollars"}, "KEEP"),
    ],
)
def test_the_edit_given_the_trackers_own_state(t: int, log: dict[str, str], edit: str):
    assert expert_edit(TALK, t, log) == edit


def test_free_text_goals_get_short_names_and_are_replaced_under_them():
    talk = dialogue([Add(EGGS_11)], [Replace(EGGS_11, EGGS_16)], [Delete(EGGS_16)])
    assert oracle_log_texts(talk)[1:] == [
        "SET janet s ducks: Janet's ducks lay 16 eggs per day.",
        "DEL janet s ducks",
    ]
    garbled = {"eggs": "Janet's ducks lay 12 eggs daily"}
    assert expert_edit(talk, 1, garbled) == "SET eggs: Janet's ducks lay 16 eggs per day."


def test_new_names_are_unique():
    first, second = Goal("a", "x", "filter", "price above 3"), Goal("b", "y", "filter", "city is Rome")
    texts = oracle_log_texts(dialogue([Add(first)], [Add(second)], [Delete(first)]))
    assert texts == ["SET filter: price above 3", "SET filter 2: city is Rome", "DEL filter"]


def test_a_slot_that_looks_like_a_line_is_tamed():
    goal = Goal("a", "x", "time:\n start", "10:45\nsharp")
    assert oracle_log_texts(dialogue([Add(goal)])) == ["SET time start: 10:45 sharp"]


def test_a_name_that_belongs_to_another_slot_is_not_taken():
    arrival = Goal("a", "x", "arrival city", "Rome")
    departure = Goal("b", "y", "departure city", "Rome")
    oslo = Goal("b.v1", "y", "departure city", "Oslo")
    talk = dialogue([Add(arrival), Add(departure)], [Replace(departure, oslo)])
    assert expert_edit(talk, 1, {"arrival city": "Rome"}) == "SET departure city: Oslo"


def test_switch_is_a_task_line():
    talk = dialogue([Switch(None, "book_flight"), Add(BUDGET_40)], [Switch("book_flight", "book_train")])
    assert oracle_log_texts(talk) == ["TASK book_flight\nSET budget: at most 40 dollars", "TASK book_train"]


@pytest.mark.parametrize("t", range(len(TALK.turns)))
def test_slips_are_wrong_and_readable(t: int):
    log = replay(oracle_log_texts(TALK)[:t])
    texts = {slip(TALK, t, log, random.Random(seed)) for seed in range(40)}
    for text in texts:
        assert not same_edit(TALK, t, log, text)
        assert LOG.apply(log, text).malformed == 0
    assert len(texts) > 1 or t == 0


def test_slipped_prefix_ends_in_the_only_slip_and_leaves_turns_to_go():
    for seed in range(30):
        texts = slipped_prefix(TALK, random.Random(seed))
        assert 1 <= len(texts) < len(TALK.turns)
        *right, wrong = texts
        assert right == oracle_log_texts(TALK)[: len(right)]
        assert not same_edit(TALK, len(right), replay(right), wrong)
    assert slipped_prefix(TALK, random.Random(3)) == slipped_prefix(TALK, random.Random(3))
    assert slipped_prefix(dialogue([Add(BUDGET_40)]), random.Random(0)) == []


def procedural() -> list[Dialogue]:
    made = []
    for name, condition in [("calls", "drift"), ("math", "drift"), ("sql", "drift"), ("calls", "clean")]:
        family = get_family(name)
        made += [build(family, task, condition, 3, 0) for task in islice(family.load(None, "heldout"), 4)]
    return made


DIALOGUES = [TALK, dialogue([Add(EGGS_11), Add(BUDGET_50)], [Replace(EGGS_11, EGGS_16)], [Delete(EGGS_16)])]


@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_whatever_the_tracker_holds_the_expert_puts_the_turns_goals_right(data: st.DataObject):
    dialogues = DIALOGUES + _cached()
    talk = data.draw(st.sampled_from(dialogues))
    t = data.draw(st.integers(0, len(talk.turns) - 1))
    goals = [goal for turn in talk.turns for goal in turn.state.goals]
    names = st.sampled_from([goal.slot or "note" for goal in goals] + ["thing", "other thing", "city"])
    says = st.sampled_from([goal_text(goal) for goal in goals] + ["something else", "12"])
    log = data.draw(st.dictionaries(names, says, max_size=6)) | (
        replay(oracle_log_texts(talk)[:t]) if data.draw(st.booleans()) else {}
    )
    before = talk.turns[t - 1].state.goals if t else ()
    state, gone = talk.turns[t].state, talk.superseded(t)
    assume(len({(goal.slot, goal.value or goal.text) for goal in state.goals}) == len(state.goals))

    text = expert_edit(talk, t, log)
    done = LOG.apply(log, text)
    assert (done.malformed, done.missed) == (0, 0)
    assert edit_correct(talk, t, log, done.log)
    said = [goal for _, goal in match(done.log, state.goals, gone)]
    added = [goal for goal in state.goals if goal not in before]
    removed = [goal for goal in before if goal not in state.goals]
    assert all(goal in said for goal in added), "what the turn adds is there"
    assert not stale_keys(done.log, state.goals, removed), "what it takes away is gone"
    kept = [goal for _, goal in match(log, state.goals, gone) if goal in before]
    assert all(goal in said for goal in kept), "what was right and is not touched stays"
    if text == "KEEP":
        assert done.log == log


_made: list[Dialogue] = []


def _cached() -> list[Dialogue]:
    if not _made:
        _made.extend(procedural())
    return _made


def test_a_slot_that_the_message_does_not_say_gets_a_name_that_it_does_say():
    hives = Goal("g1", "the hives hold 12 beehives", "hive tally", "12 beehives")
    state = IntentState((hives,))
    unnamed = Dialogue(
        "d",
        "d/0",
        "math",
        "drift",
        1,
        0,
        (Turn("On top, the hives hold 12 beehives.", (Add(hives),), state),),
    )
    named = Dialogue(
        "d", "d/0", "math", "drift", 1, 0, (Turn("The hive tally: 12 beehives.", (Add(hives),), state),)
    )
    heard = oracle_log_texts(unnamed)[0]
    assert heard.startswith("SET ") and "tally" not in heard
    assert oracle_log_texts(named) == ["SET hive tally: 12 beehives"]
