from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.dialogue import Dialogue, Turn
from envs.errors import UnknownName
from envs.intent import EMPTY
from rollout.tracker import TASK_KEY, Derived, LogProtocol, TemplateReplies, get_protocol

LOG = LogProtocol()
FULL = get_protocol("full")
names = st.sampled_from(["budget", "Budget", "delivery  address", "delivery address", "gift wrap", "plan"])
lines = st.one_of(
    st.builds("SET {}: {}".format, names, st.sampled_from(["40", "Brooklyn", "a: b"])),
    st.builds("DEL {}".format, names),
    st.just("KEEP"),
    st.builds("DERIVE {} <- {}, {}: so".format, st.sampled_from(["total", "fit"]), names, names),
    st.text(max_size=20),
)


def test_set_adds_in_order_and_replaces_in_place():
    log = LOG.apply({}, "SET budget: at most 40 dollars\nSET address: Brooklyn").log
    after = LOG.apply(log, "SET budget: at most 50 dollars").log
    assert list(after.items()) == [("budget", "at most 50 dollars"), ("address", "Brooklyn")]
    assert log["budget"] == "at most 40 dollars", "the old log is not changed"


def test_names_are_compared_without_case_and_spacing():
    after = LOG.apply({"delivery address": "Brooklyn"}, "SET Delivery  Address: Queens").log
    assert after == {"delivery address": "Queens"}
    assert LOG.apply(after, "DEL DELIVERY ADDRESS").log == {}


def test_text_after_the_first_colon_is_kept_whole():
    assert LOG.apply({}, "SET time: 10:45 am").log == {"time": "10:45 am"}


def test_deleting_something_absent_is_a_missed_line_not_a_malformed_one():
    done = LOG.apply({"budget": "40"}, "DEL gift wrap")
    assert (done.log, done.malformed, done.missed, done.lines) == ({"budget": "40"}, 0, 1, 1)


@pytest.mark.parametrize(
    "bad", ["budget is 40", "SET budget", "SET : 40", "SET budget:", "DEL", "KEEP it", "DERIVE a: b"]
)
def test_a_line_that_does_not_parse_changes_nothing_and_spares_the_others(bad: str):
    done = LOG.apply({"budget": "40"}, f"{bad}\nSET address: Brooklyn")
    assert done.log == {"budget": "40", "address": "Brooklyn"}
    assert (done.malformed, done.lines) == (1, 1)


@pytest.mark.parametrize("nothing", ["", "  \n "])
def test_saying_nothing_is_not_keep(nothing: str):
    assert (LOG.apply({}, nothing).malformed, LOG.apply({}, nothing).lines) == (1, 0)
    assert (LOG.apply({}, "KEEP").malformed, LOG.apply({}, "KEEP").lines) == (0, 1)


def test_reading_forgives_list_marks_and_case():
    done = LOG.apply({}, "- set budget: 40\n2. Keep.\n* DEL budget")
    assert (done.log, done.malformed) == ({}, 0)


def test_a_conclusion_dies_with_its_supports_and_takes_others_along():
    first = LOG.apply(
        {},
        "SET budget: 40\nSET city: Rome\n"
        "DERIVE courses <- budget, city: two fit\nDERIVE menu <- courses: fish",
    )
    assert first.derived == {
        "courses": Derived("two fit", ("budget", "city")),
        "menu": Derived("fish", ("courses",)),
    }
    assert LOG.apply(first.log, "SET city: Rome", first.derived).derived == first.derived, "nothing changed"
    assert LOG.apply(first.log, "SET city: Oslo", first.derived).derived == {}
    assert LOG.apply(first.log, "DEL budget", first.derived).derived == {}
    assert LOG.apply(first.log, "DEL menu", first.derived).derived.keys() == {"courses"}


def test_a_conclusion_needs_live_supports_and_never_overwrites_a_requirement():
    log = {"budget": "40"}
    dangling = LOG.apply(log, "DERIVE courses <- budget, city: two fit")
    assert (dangling.derived, dangling.missed, dangling.malformed) == ({}, 1, 0)
    clash = LOG.apply(log, "DERIVE budget <- budget: 50")
    assert (clash.log, clash.derived, clash.malformed) == (log, {}, 1)


def test_task_lines_go_under_their_own_key():
    assert LOG.apply({"task": "x"}, "TASK book_flight: fly").log == {
        "task": "x",
        TASK_KEY: "book_flight: fly",
    }


def test_full_protocol_replaces_the_state_and_keeps_it_when_nothing_parses():
    assert FULL.apply({"a": "1", "b": "2"}, "b: 3\nc: 4").log == {"b": "3", "c": "4"}
    assert FULL.apply({"a": "1"}, "NONE").log == {}
    kept = FULL.apply({"a": "1"}, "I do not know")
    assert (kept.log, kept.malformed, kept.lines) == ({"a": "1"}, 1, 0)


@given(log=st.dictionaries(st.sampled_from(["budget", "city"]), st.sampled_from(["40", "Rome: north"])))
def test_full_target_reads_back_as_the_state_after_the_edit(log: dict[str, str]):
    edit = "SET city: Oslo\nDEL budget\nSET time: 10:45"
    after = LOG.apply(log, edit).log
    assert FULL.apply(log, FULL.target(log, edit)).log == after
    assert FULL.apply(log, FULL.target({}, "KEEP")).log == {}


@pytest.mark.parametrize("protocol", ["log", "full"])
def test_messages_put_the_reply_before_and_the_hint_after(protocol: str):
    message = get_protocol(protocol).user_message
    assert message("Make it 50.") == "Make it 50."
    shown = message("Make it 50.", reply="Noted.", hint="SET budget: 50")
    assert shown.index("Noted.") < shown.index("Make it 50.") < shown.index("SET budget: 50")


def test_unknown_protocol_names_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'log'"):
        get_protocol("lgo")


def test_template_replies_are_a_function_of_seed_dialogue_and_turn():
    dialogue = Dialogue("calls/0|drift|b1|s0", "calls/0", "calls", "drift", 1, 0, (Turn("hi", (), EMPTY),))
    said = [TemplateReplies(0)(dialogue, t) for t in range(20)]
    assert said == [TemplateReplies(0)(dialogue, t) for t in range(20)]
    assert said != [TemplateReplies(1)(dialogue, t) for t in range(20)]
    assert len(set(said)) > 2


@given(outputs=st.lists(st.lists(lines, max_size=4).map("\n".join), max_size=6))
def test_any_output_leaves_a_sound_state(outputs: list[str]):
    log: dict[str, str] = {}
    derived: dict[str, Derived] = {}
    for text in outputs:
        done = LOG.apply(log, text, derived)
        shown = [line for line in text.splitlines() if line.strip()]
        assert done.malformed + done.lines >= min(1, len(shown))
        log, derived = done.log, done.derived
        folded = [" ".join(key.split()).casefold() for key in (*log, *derived)]
        assert len(set(folded)) == len(folded), "one name, one item"
        for item in derived.values():
            assert all(support in log or support in derived for support in item.supports)


@given(first=st.lists(lines, max_size=4), second=st.lists(lines, max_size=4))
def test_the_log_folds_line_by_line(first: list[str], second: list[str]):
    one = LOG.apply({}, "\n".join(first))
    two = LOG.apply(one.log, "\n".join(second), one.derived)
    both = LOG.apply({}, "\n".join([*first, *second]))
    assert (two.log, two.derived) == (both.log, both.derived)
