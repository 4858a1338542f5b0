"""Sampling and rates: Wilson intervals, an even and order-free sample, verdicts counted, no verdict kept apart."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from envs.dialogue import Dialogue, build
from envs.errors import ConfigError
from envs.fidelity_rates import Rate, fidelity_rates, sample_turns, wilson
from envs.intent import Add, Delete, Replace, Switch
from envs.judge import Judge, changes
from envs.task import SourceTask
from tests.envs.wording_toys import Model, Toy, goal

TOY = Toy()
DIALOGUES = [build(TOY, TOY.task("train", n), "drift", 3, 0) for n in range(20)]


def task_of(dialogue: Dialogue) -> SourceTask:
    return TOY.task("train", int(dialogue.task_id.rsplit("/", 1)[1]))


@given(st.integers(1, 400), st.floats(0, 1), st.sampled_from((0.8, 0.95, 0.99)))
def test_wilson_is_scipy_s(n: int, share: float, confidence: float) -> None:
    hits = round(share * n)
    wanted = binomtest(hits, n).proportion_ci(confidence, method="wilson")
    assert wilson(hits, n, confidence) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_rates_at_the_edges() -> None:
    assert wilson(95, 100) == pytest.approx((0.8882, 0.9785), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0) and wilson(0, 5)[0] == 0.0 and wilson(5, 5)[1] == 1.0
    assert math.isnan(Rate(0, 0).rate) and str(Rate(0, 0)) == "none judged"
    assert str(Rate(19, 20)) == "0.950 [0.764, 0.991] (19 of 20)"
    assert json.loads(json.dumps(Rate(0, 0).to_dict()))["rate"] is None
    for hits, n, confidence in ((3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0)):
        with pytest.raises(ConfigError):
            wilson(hits, n, confidence)


def test_a_sample_does_not_depend_on_the_order_and_nests() -> None:
    drawn = [(s.dialogue.id, s.turn) for s in sample_turns(DIALOGUES, 40, seed=1)]
    assert drawn == [(s.dialogue.id, s.turn) for s in sample_turns(reversed(DIALOGUES), 40, seed=1)]
    assert drawn[:10] == [(s.dialogue.id, s.turn) for s in sample_turns(iter(DIALOGUES), 10, seed=1)]
    assert len(set(drawn)) == 40 and drawn != [
        (s.dialogue.id, s.turn) for s in sample_turns(DIALOGUES, 40, seed=2)
    ]
    total = sum(len(dialogue.turns) for dialogue in DIALOGUES)
    assert len(sample_turns(DIALOGUES, 10_000)) == total


def test_templates_pass_and_a_spoilt_message_is_listed() -> None:
    sample = sample_turns(DIALOGUES, 60)
    report = fidelity_rates(sample, task_of)
    assert report.rules == Rate(60, 60) and not report.misses and report.fidelity is report.coherence is None
    first = sample[0]
    turns = list(first.dialogue.turns)
    turns[first.turn] = dataclasses.replace(turns[first.turn], utterance="Make that 4711.")
    spoilt = dataclasses.replace(first, dialogue=dataclasses.replace(first.dialogue, turns=tuple(turns)))
    report = fidelity_rates([spoilt, *sample[1:]], task_of)
    assert report.rules == Rate(59, 60) and report.faults["stray_number"] == 1
    (miss,) = report.misses
    assert (miss["id"], miss["turn"], miss["utterance"]) == (first.dialogue.id, first.turn, "Make that 4711.")
    assert json.loads(json.dumps(report.to_dict()))["rules"]["hits"] == 59


def test_the_judge_s_rates_leave_out_what_it_could_not_judge() -> None:
    sample = sample_turns(DIALOGUES, 60)
    replies = {}
    for n, item in enumerate(sample):
        good = {"reason": f"n{n}", "conveys": n % 4 != 0, "adds": n % 5 == 0, "coherent": n % 3 != 0}
        replies[item.dialogue.turns[item.turn].utterance] = "?" if n % 10 == 9 else json.dumps(good)

    model = Model(lambda messages, seed: replies[messages[1]["content"].rsplit("The message:\n", 1)[1]])
    judge = Judge(model, temperature=0.0, seed=3)
    report = fidelity_rates(sample, task_of, judge)
    texts = [item.dialogue.turns[item.turn].utterance for item in sample]
    judged = [json.loads(replies[text]) for text in texts if replies[text] != "?"]
    faithful = sum(v["conveys"] and not v["adds"] for v in judged)
    assert report.fidelity == Rate(faithful, len(judged)) and 0 < faithful < len(judged)
    assert report.coherence == Rate(sum(v["coherent"] for v in judged), len(judged))
    assert report.ungraded == len(sample) - len(judged) > 0
    assert all(miss["reasons"][0].startswith("judge: n") for miss in report.misses)
    # Twice where there was no verdict; the second time with another seed.
    assert len(model.asked) == len(judged) + 2 * report.ungraded
    for first, second in zip(model.asked, model.asked[1:]):
        if first["messages"] == second["messages"]:
            assert second["seed"] == first["seed"] + 1
    assert judge.settings["model"] == "stub-1" and len(judge.settings["prompts"]) == 16


def test_the_judge_sees_change_state_and_history() -> None:
    model = Model(
        lambda messages, seed: json.dumps({"reason": "", "conveys": True, "adds": False, "coherent": True})
    )
    dialogue = DIALOGUES[3]
    fidelity_rates([s for s in sample_turns([dialogue], 99) if s.turn in (2, len(dialogue.turns) - 1)], task_of,
                   Judge(model))  # fmt: skip
    texts = {a["messages"][1]["content"] for a in model.asked}
    (middle,) = [text for text in texts if text.endswith(dialogue.turns[2].utterance)]
    assert all(goal.text in middle for goal in dialogue.turns[1].state.goals)
    assert dialogue.turns[0].utterance in middle and dialogue.turns[1].utterance in middle
    assert changes(dialogue.turns[2].edits, False)[0] in middle
    (last,) = texts - {middle}
    assert "please give the answer now" in last


def test_changes_in_words() -> None:
    a, b = goal("pickup day"), goal("pickup day", 1, ".v")
    assert changes([Add(a), Delete(b), Replace(a, b), Switch(None, "f")], True) == [
        "new wish: pick it up on Wednesday",
        "withdrawn: pick it up on Thursday",
        'instead of "pick it up on Wednesday" now: pick it up on Thursday',
        "do another thing from now on: f",
        "please give the answer now (no wish is named)",
    ]
    assert changes([], False) == ["nothing: small talk, without any wish"]
