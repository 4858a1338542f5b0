from __future__ import annotations

from itertools import islice
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.dialogue import Dialogue, Turn, build
from envs.intent import EMPTY, Add, Delete, Edit, Goal, Replace, apply
from envs.task import get_family
from rollout.expert import goal_text, oracle_log_texts
from rollout.match import TEXT_F1, match, stale_keys, token_f1, tokens
from rollout.score import METRICS, case_values, edit_correct, score_state, score_trajectory, summarize
from rollout.tracker import TASK_KEY, get_protocol
from rollout.trajectory import TrackedTurn, Trajectory

BUDGET = Goal("g1", "The budget is at most 40 dollars.", "budget", "at most 40 dollars")
BUDGET_50 = Goal("g1.v1", "The budget is at most 50 dollars.", "budget", "at most 50 dollars")
ADDRESS = Goal("g2", "Deliver to Brooklyn.", "delivery address", "Brooklyn")
WRAP = Goal("d1", "Wrap it in red paper.", "gift wrap", "red paper")
HOURS = Goal("g4", "plan 8 hours a week", "weekly hours", "8 hours")
EGGS = Goal("g3", "Janet's ducks lay 16 eggs per day.")
EGGS_11 = Goal("g3.v1", "Janet's ducks lay 11 eggs per day.")


def dialogue(*turns: list[Edit], name: str = "hand") -> Dialogue:
    state, shown = EMPTY, []
    for edits in turns:
        for edit in edits:
            state = apply(state, edit)
        shown.append(Turn("...", tuple(edits), state))
    return Dialogue(name, "hand/0", "calls", "drift", 1, 0, tuple(shown))


TALK = dialogue([Add(BUDGET_50)], [Add(ADDRESS), Add(WRAP)], [Replace(BUDGET_50, BUDGET)], [Delete(WRAP)], [])


def track(talk: Dialogue, texts: list[str], forced: int = 0, protocol: str = "log") -> Trajectory:
    """Return the trajectory of a tracker that writes `texts`; the first `forced` are given."""
    trajectory, log = Trajectory(talk), {}
    for t, text in enumerate(texts):
        done = get_protocol(protocol).apply(log, text)
        log = done.log
        trajectory.turns.append(
            TrackedTurn([], [], [], text, log, done.malformed, forced=t < forced, lines=done.lines)
        )
    return trajectory


@pytest.mark.parametrize(
    ("key", "text", "goal", "says"),
    [
        ("budget", "at most 40 dollars", BUDGET, True),
        ("Budget", "at most $40", BUDGET, True),
        ("budget", "the budget must be at most 40.00 dollars", BUDGET, True),
        ("plan", "8 hours a week", HOURS, True),  # the goal's own words around its value
        ("plan", "hours a week", HOURS, False),
        ("plan", "9 hours a week", HOURS, False),
        ("plan", "8 hours a day", HOURS, False),
        ("budget", "at most 400 dollars", BUDGET, False),
        ("budget", "at least 40 dollars", BUDGET, False),
        ("budget", "40 dollars at most", BUDGET, False),
        ("budget", "", BUDGET, False),
        ("max spend", "at most 40 dollars", BUDGET, False),
        ("most", "at most 40 dollars", BUDGET, True),
        ("max spend", "budget at most 40 dollars", BUDGET, True),
        ("address", "Brooklyn", ADDRESS, True),
        ("destination", "Brooklyn", ADDRESS, False),
        ("eggs", "Janet's ducks lay 16 eggs per day", EGGS, True),
        ("janet", "ducks lay 16 eggs per day", EGGS, True),
        ("eggs", "Janet's ducks lay sixteen eggs per day", EGGS, False),
        ("eggs", "Janet's ducks lay 11 eggs per day", EGGS, False),
        ("eggs", "Janet's ducks do not lay 16 eggs per day", EGGS, False),
        ("eggs", "16 eggs", EGGS, False),
        ("rows", "two", Goal("g", "t", "rows", "2"), True),
        ("population", "1,000", Goal("g", "t", "population", "1000"), True),
        ("offset", "3", Goal("g", "t", "offset", "-3"), False),
        ("list", "[1,2,3]", Goal("g", "t", "list", "[12, 3]"), False),
        ("grade", "B", Goal("g", "t", "grade", "A"), False),
        ("bound", "> 3", Goal("g", "t", "bound", "< 3"), False),
        ("symbol", "?", Goal("g", "t", "symbol", "?"), True),
        ("symbol", "&", Goal("g", "t", "symbol", "?"), False),
        ("party size", "5 people", Goal("g", "t", "party_size", "5"), True),
        ("color", "color", Goal("g", "t", "color", "color"), True),
        ("call 2 city", "Rome", Goal("g", "t", "call 2 city", "Rome"), True),
    ],
)
def test_when_an_item_says_a_goal(key: str, text: str, goal: Goal, says: bool):
    assert bool(match({key: text}, [goal])) is says


def test_two_slots_with_the_same_value_are_told_apart():
    arrival, departure = Goal("a", "x", "arrival city", "Rome"), Goal("b", "y", "departure city", "Rome")
    both = [arrival, departure]
    assert match({"departure city": "Rome"}, both) == [("departure city", departure)]
    assert match({"departure city": "Rome", "arrival city": "Rome"}, both) == [
        ("arrival city", arrival),
        ("departure city", departure),
    ]
    assert match({"city": "Rome"}, both) != [], "a vague name may be either"
    assert len(match({"city": "Rome"}, both)) == 1


def test_pairs_are_one_to_one():
    assert len(match({"budget": "at most 40 dollars", "budget 2": "at most 40 dollars"}, [BUDGET])) == 1
    near = Goal("e", "Janet's red ducks lay 16 eggs per day.")
    log = {"a": EGGS.text, "b": near.text}
    assert dict(match(log, [near, EGGS])) == {"a": EGGS, "b": near}
    assert dict(match({"a": EGGS.text}, [near, EGGS])) == {"a": EGGS}


def test_an_item_closer_to_what_is_gone_does_not_say_the_goal():
    old, new = (
        Goal("x", "Tom gives all the ripe apples to Ann."),
        Goal("y", "Tom gives all the ripe apples to Bob."),
    )
    assert token_f1(old.text, new.text) >= TEXT_F1
    assert match({"a": old.text}, [new]) != []
    assert match({"a": old.text}, [new], [old]) == []
    assert stale_keys({"a": old.text, "b": new.text}, [new], [old]) == ["a"]


def test_tokens():
    assert tokens("Twelve  $1,000.50 café-x2 -3 10-12") == (
        "12",
        "1000.5",
        "dollars",
        "café",
        "x",
        "2",
        "-3",
        "10",
        "12",
    )


@pytest.mark.parametrize(
    ("log", "goals", "gone", "precision", "recall", "f1", "exact", "leak"),
    [
        ({}, [], [BUDGET], 1.0, 1.0, 1.0, True, False),
        ({}, [BUDGET], [BUDGET_50], 0.0, 0.0, 0.0, False, False),
        ({"x": "y"}, [], [], 0.0, 0.0, 0.0, False, False),
        ({"budget": "at most 40 dollars"}, [BUDGET, ADDRESS], [], 1.0, 0.5, 2 / 3, False, False),
        ({"budget": "at most 50 dollars"}, [BUDGET], [BUDGET_50], 0.0, 0.0, 0.0, False, True),
        (
            {"budget": "at most 40 dollars", "wrap": "red paper"},
            [BUDGET],
            [WRAP],
            0.5,
            1.0,
            2 / 3,
            False,
            True,
        ),
        (
            {"budget": "at most 40 dollars", "b budget": "at most $40"},
            [BUDGET],
            [],
            0.5,
            1.0,
            2 / 3,
            False,
            False,
        ),
        ({"budget": "at most 40 dollars", TASK_KEY: "shop"}, [BUDGET], [], 1.0, 1.0, 1.0, True, False),
        ({"eggs": EGGS_11.text}, [EGGS], [EGGS_11], 0.0, 0.0, 0.0, False, True),
    ],
)
def test_state_scores(log, goals, gone, precision, recall, f1, exact, leak):
    score = score_state(log, goals, gone)
    assert (score.precision, score.recall, score.f1) == pytest.approx((precision, recall, f1))
    assert (score.exact, score.leak) == (exact, leak)


def test_a_goal_that_came_back_is_no_leak():
    talk = dialogue([Add(BUDGET)], [Replace(BUDGET, BUDGET_50)], [Replace(BUDGET_50, BUDGET)])
    values = score_trajectory(track(talk, oracle_log_texts(talk))).values()
    assert (values["stale_leaks"], values["final_exact"]) == (0.0, 1.0)


def test_an_edit_is_right_by_goal_and_leaves_the_rest_alone():
    prior = {"budget": "at most 50 dollars", "delivery address": "Brooklyn", "junk": "x"}
    right = {"junk": "x", "delivery address": "Brooklyn", "max budget": "at most $40"}
    assert edit_correct(TALK, 2, prior, right)
    assert not edit_correct(TALK, 2, prior, prior)
    assert not edit_correct(TALK, 2, prior, right | {"junk": "z"})
    assert not edit_correct(TALK, 2, prior, {key: right[key] for key in ("junk", "max budget")})
    assert not edit_correct(TALK, 2, prior, right | {"more": "1"})


def test_scores_of_a_tracker_that_misses_one_edit():
    texts = oracle_log_texts(TALK)
    texts[2] = "KEEP"
    values = score_trajectory(track(TALK, texts)).values()
    assert values == {
        "edit_accuracy": 4 / 5,
        "state_precision": pytest.approx(fmean([1, 1, 2 / 3, 1 / 2, 1 / 2])),
        "state_recall": pytest.approx(fmean([1, 1, 2 / 3, 1 / 2, 1 / 2])),
        "state_f1": pytest.approx(fmean([1, 1, 2 / 3, 1 / 2, 1 / 2])),
        "final_exact": 0.0,
        "stale_leaks": 1.0,
        "stale_leaks_all": 3 / 5,
        "recovery": 1.0,
        "malformed": 0.0,
        "truncated": 0.0,
    }


def test_words_that_are_no_edit_are_not_a_right_keep():
    texts = oracle_log_texts(TALK)
    texts[4] = "Sure, here you go!"
    turn = score_trajectory(track(TALK, texts)).turns[4]
    assert (turn.edit_correct, turn.malformed, turn.state.exact) == (False, 1, True)


def test_recovery_counts_turns_that_begin_wrong_and_forced_turns_are_not_scored():
    slipped = ["SET budget: at most 50 dollars", "SET delivery address: Brooklyn"]
    healed = track(TALK, [*slipped, "SET budget: at most 40 dollars", "KEEP", "KEEP"], forced=2)
    lost = track(TALK, [*slipped, "KEEP", "KEEP", "KEEP"], forced=2)
    assert len(score_trajectory(healed).scored) == 3
    assert score_trajectory(healed).values()["recovery"] == 1.0
    # the wrong state at turn 3 makes that edit wrong; deleting what was never there needs no edit
    assert score_trajectory(lost).values()["recovery"] == pytest.approx(2 / 3)
    assert score_trajectory(healed).values()["final_exact"] == 1.0


def test_unfinished_dialogues_count_as_wrong_and_as_errors():
    cut = track(TALK, oracle_log_texts(TALK)[:2])
    cut.error = "EngineDied: gone"
    whole = track(TALK, oracle_log_texts(TALK))
    summary = summarize([whole, cut])
    assert (summary["n"], summary["turns"], summary["errors"]) == (2, 10, 1)
    assert summary["edit_accuracy"] == pytest.approx((1 + 2 / 5) / 2)
    assert summary["final_exact"] == 0.5


def test_truncated_outputs_are_counted():
    trajectory = track(TALK, oracle_log_texts(TALK))
    trajectory.turns[0].finish_reason = "length"
    assert summarize([trajectory])["truncated"] == 1 / 5


def test_no_dialogues_have_no_means():
    summary = summarize([])
    assert all(summary[metric] is None for metric in METRICS)
    assert (summary["n"], summary["errors"]) == (0, 0)


def test_case_values_pair_up_and_average_to_the_summary():
    bad = oracle_log_texts(TALK)
    bad[1] = "DEL budget"
    cases = case_values([track(TALK, oracle_log_texts(TALK)), track(TALK, bad)])
    summary = summarize([track(TALK, oracle_log_texts(TALK)), track(TALK, bad)])
    assert "recovery" not in cases, "the first dialogue was never wrong"
    assert cases["edit_accuracy"] == [1.0, 4 / 5]
    assert {metric: fmean(values) for metric, values in cases.items()} == pytest.approx(
        {metric: summary[metric] for metric in cases}
    )


@pytest.mark.parametrize("family", ["calls", "sql", "math", "gsm8k", "bfcl"])
@pytest.mark.parametrize("protocol", ["log", "full"])
def test_a_perfect_tracker_scores_perfectly_in_every_family(family: str, protocol: str, data_folder):
    source = get_family(family)
    split, folder = ("test", data_folder(family)) if family in ("gsm8k", "bfcl") else ("heldout", None)
    trajectories = []
    for task in islice(source.load(folder, split), 12):
        for condition in ("drift", "clean", "turn_matched"):
            talk = build(source, task, condition, 3, 0)
            texts, log = [], {}
            for edit in oracle_log_texts(talk):
                texts.append(get_protocol(protocol).target(log, edit))
                log = get_protocol(protocol).apply(log, texts[-1]).log
            trajectories.append(track(talk, texts, protocol=protocol))
    summary = summarize(trajectories)
    assert summary["recovery"] is None, "no state was ever wrong"
    for metric in ("edit_accuracy", "state_precision", "state_recall", "state_f1", "final_exact"):
        assert summary[metric] == 1.0, metric
    for metric in ("stale_leaks", "stale_leaks_all", "malformed", "truncated", "errors"):
        assert summary[metric] == 0, metric


@pytest.fixture
def data_folder():
    """Return a function from a family to its folder of benchmark files; it skips where there is none."""
    import os
    from pathlib import Path

    root = Path(os.environ.get("FLUXFORGE_DATA") or Path(__file__).parents[3] / "shared" / "data")

    def find(family: str) -> Path:
        if not (root / family).is_dir():
            pytest.skip(f"no {family} files in {root}; set FLUXFORGE_DATA to a folder that holds them")
        return root / family

    return find


goals = st.lists(
    st.sampled_from([BUDGET, BUDGET_50, ADDRESS, WRAP, EGGS, EGGS_11]),
    unique_by=lambda goal: goal.id,
    max_size=6,
)
logs = st.dictionaries(
    st.sampled_from(["budget", "address", "wrap", "eggs", "x"]),
    st.sampled_from([goal_text(goal) for goal in (BUDGET, BUDGET_50, ADDRESS, WRAP, EGGS, EGGS_11)] + ["z"]),
)


@given(log=logs, wanted=goals, gone=goals)
def test_scores_are_consistent(log: dict[str, str], wanted: list[Goal], gone: list[Goal]):
    score = score_state(log, wanted, gone)
    assert 0 <= score.f1 <= 1 and 0 <= score.precision <= 1 and 0 <= score.recall <= 1
    assert score.exact == (score.f1 == 1.0) == (score.precision == score.recall == 1.0)
    assert not (score.exact and score.leak), "an exact state holds nothing else"
    pairs = match(log, wanted, gone)
    assert len({key for key, _ in pairs}) == len({goal for _, goal in pairs}) == len(pairs)
    assert not {key for key, _ in pairs} & set(stale_keys(log, wanted, gone))
    assert match(dict(reversed(log.items())), wanted, gone) == pairs or len(set(log.values())) < len(log)


@given(wanted=goals)
def test_saying_every_goal_is_exact(wanted: list[Goal]):
    log = {goal.slot or f"fact {goal.id}": goal_text(goal) for goal in wanted if goal is not BUDGET_50}
    rest = [goal for goal in wanted if goal is not BUDGET_50]
    assert score_state(log, rest).exact


def test_a_name_taken_from_the_first_value_stays_good_for_the_next() -> None:
    old = Goal("g5.v1", "show the crew", "output columns", "crew")
    new = Goal("g5", "list the tonnage", "output columns", "tonnage")
    assert match({"show": "crew"}, [old]) == [("show", old)]
    assert match({"show": "tonnage"}, [new], [old]) == [("show", new)]
    assert match({"show": "tonnage"}, [new]) == []  # no message ever said "show"
