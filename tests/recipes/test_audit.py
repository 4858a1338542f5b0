"""`fluxforge audit`: sound data passes every check, and each check fails on data that is broken in its way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envs.dialogue import Dialogue, Turn
from envs.fidelity_rates import wilson
from envs.intent import Add, Delete, Goal, IntentState, Replace
from envs.task import Grade, SourceTask
from recipes.audit.fidelity import Fidelity, Sample, Verdict
from recipes.audit.findings import Check
from recipes.audit.grading_checks import Flips, Gold, OracleAnswer, OracleState
from recipes.audit.material import Case
from recipes.audit.set_checks import Ids, Realised, Twins
from recipes.audit.wording_checks import NeutralRequest, NoLeak, NoRestating, Recoverable
from recipes.realised import decoys_of, variants_of

sys.path.insert(0, str(Path(__file__).parent))
from auditcases import CALLS, CONDITIONS, cases, drift, late, other_goal, run, saying, with_turns

PER_DIALOGUE: tuple[Callable[[], Check], ...] = (
    Ids, Gold, Flips, OracleState, OracleAnswer, NoRestating, NoLeak, NeutralRequest, Twins, Recoverable, Realised,
    lambda: Fidelity(100),
)  # fmt: skip


@pytest.mark.parametrize("family", ["calls", "sql", "math"])
def test_sound_dialogues_pass_every_check(family: str) -> None:
    seen = cases(family)
    for make in PER_DIALOGUE:
        finding = run(make(), seen)
        assert finding.status == "pass" and finding.checked, (finding.name, finding.examples)
        assert finding.failed == 0 or finding.name == "recoverable"


RESTATINGS: dict[str, Callable[[Goal], str]] = {
    "text": lambda goal: f"Remember: {goal.text}.",
    "slot and value": lambda goal: f"The {goal.slot} stays {goal.value}.",
    "value": lambda goal: f"{goal.value}, as I said.",
}


@pytest.mark.parametrize("how", RESTATINGS)
def test_a_message_that_restates_another_goal_is_found(how: str) -> None:
    found = 0
    for case in drift():
        goal = other_goal(case, late(case))
        if goal.value in ("yes", "no"):  # words of the templates themselves name nothing
            continue
        again = RESTATINGS[how](goal)
        finding = run(NoRestating(), [saying(case, late(case), lambda said: f"{said} {again}")])  # noqa: B023
        assert finding.status == "fail" and finding.failed == 1, goal
        assert case.dialogue.id in finding.examples[0]
        found += 1
    assert found >= 8


def test_an_opening_that_states_a_goal_is_found() -> None:
    case = drift(1)[0]
    assert case.task is not None
    told = replace(case.task, opening=f"I need a call. {case.task.goals[0].text}.")
    assert run(NoRestating(), [replace(case, task=told)]).status == "fail"


def test_half_of_a_long_text_is_a_restating() -> None:
    text = "Ana walks from the old mill to the harbour and carries 3 baskets of red apples for her aunt"
    goals = (Goal("g1", text), Goal("g2", "Bo has 5 hats"))
    states = (IntentState(goals[:1]), IntentState(goals), IntentState(goals))
    messages = (text, "Bo has 5 hats", "Go on.")
    edits = ((Add(goals[0]),), (Add(goals[1]),), ())
    turns = [Turn(*turn) for turn in zip(messages, edits, states)]
    case = with_turns(drift(1)[0], turns)
    assert run(NoRestating(), [replace(case, task=None)]).status == "pass"
    half = saying(
        case, 1, lambda said: f"{said}, and she walks from the old mill to the harbour and carries 3 baskets"
    )
    assert run(NoRestating(), [replace(half, task=None)]).status == "fail"


def test_a_message_with_the_whole_final_state_is_found() -> None:
    for case in drift(2):
        whole = "; ".join(goal.text for goal in case.dialogue.final.goals)
        assert run(NoLeak(), [case]).status == "pass"
        finding = run(NoLeak(), [saying(case, 1, lambda said: f"{said} So: {whole}.")])  # noqa: B023
        assert finding.status == "fail" and "turn 1" in finding.examples[0]
    assert run(NoLeak(), cases(conditions=("clean",))).status == "not run"


@pytest.mark.parametrize("part", ["text", "value", "slot"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_request_that_names_a_goal_is_found(part: str, condition: str) -> None:
    found = 0
    for case in cases(conditions=(condition,)):
        words = [getattr(goal, part) for goal in case.dialogue.final.goals]
        word = next((word for word in words if word not in ("yes", "no")), None)
        broken = saying(case, -1, lambda said: f"{said}\nGo ahead with {word}.")  # noqa: B023
        assert run(NeutralRequest(), [broken]).status == "fail", word
        found += 1
    assert found >= 6


def test_a_last_turn_with_edits_or_without_words_is_no_request() -> None:
    case = drift(1)[0]
    turns = case.dialogue.turns
    assert run(NeutralRequest(), [with_turns(case, turns[:-1])]).status == "fail"
    assert run(NeutralRequest(), [saying(case, -1, lambda _: " ")]).status == "fail"


def test_an_intent_that_is_not_the_task_s_is_found() -> None:
    case = drift(1)[0]
    assert case.task is not None
    fewer = replace(case.task, goals=case.task.goals[:-1])
    finding = run(OracleState(), [replace(case, task=fewer)])
    assert finding.status == "fail" and repr(case.task.goals[-1].text) in finding.examples[0]


def test_states_that_do_not_follow_from_the_edits_are_found() -> None:
    case = drift(1)[0]
    turns = list(case.dialogue.turns)
    turns[2] = replace(turns[2], state=turns[1].state)
    assert "turn 2: its state" in run(OracleState(), [with_turns(case, turns)]).examples[0]
    turns = list(case.dialogue.turns)
    turns[0] = replace(turns[0], edits=(Delete(Goal("g9", "nothing")),))
    assert "cannot be applied" in run(OracleState(), [with_turns(case, turns)]).examples[0]


def test_a_last_state_that_loses_credit_is_found() -> None:
    case = drift(1)[0]
    assert case.task is not None
    turns = list(case.dialogue.turns)
    stale = CALLS.variants(case.task, case.task.goals[0], __import__("random").Random(0))[0]
    goals = tuple(stale if goal == case.task.goals[0] else goal for goal in case.task.goals)
    turns[-1] = replace(turns[-1], state=IntentState(goals))
    assert run(OracleAnswer(), [with_turns(case, turns)]).status == "fail"


class _Lenient:
    """Calls whose grader takes everything, nothing, or breaks down."""

    def __init__(self, verdict: Grade | Exception) -> None:
        self.verdict = verdict
        self.name, self.structured = CALLS.name, True
        self.gold, self.execute = CALLS.gold, CALLS.execute

    def grade(self, task: SourceTask, answer: str) -> Grade:
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


def as_family(case: Case, family: Any) -> Case:
    return replace(case, family=family)


def test_a_grader_that_forgives_stale_values_is_found() -> None:
    seen = [as_family(case, _Lenient(Grade(1.0, True))) for case in drift(3)]
    finding = run(Flips(), seen)
    drifting = sum(len(variants_of(c.dialogue)) + len(decoys_of(c.dialogue)) for c in seen)
    assert finding.status == "fail" and finding.failed == finding.checked == drifting > 10
    assert {"variants executed", "decoys executed"} <= set(finding.info)
    assert "keeps full credit" in finding.examples[0]
    crashed = run(Flips(), [as_family(case, _Lenient(RuntimeError("boom"))) for case in drift(2)])
    assert crashed.status == "fail" and "boom" in crashed.examples[0]
    ungraded = run(
        Flips(), [as_family(case, _Lenient(Grade(0.0, False, error="no db"))) for case in drift(2)]
    )
    assert ungraded.status == "fail" and "no db" in ungraded.examples[0]


def test_a_variant_that_is_no_other_value_is_found() -> None:
    """The true value, stated first under another id, is no variant: obeying it is right."""
    case = next(c for c in drift() if variants_of(c.dialogue))
    stale, true = next(iter(variants_of(case.dialogue).items()))
    same = replace(stale, text=true.text, value=true.value)

    def swap(goal: Goal) -> Goal:
        return same if goal == stale else goal

    turns = [
        Turn(
            turn.utterance,
            tuple(
                Replace(swap(e.old), swap(e.new)) if isinstance(e, Replace) else type(e)(swap(e.goal))  # type: ignore[union-attr]
                for e in turn.edits
            ),
            IntentState(tuple(map(swap, turn.state.goals))),
        )
        for turn in case.dialogue.turns
    ]
    broken = with_turns(case, turns)
    assert run(OracleState(), [broken]).status == "pass"
    assert run(Flips(), [broken]).failed == 1


def test_what_nothing_can_obey_is_counted_and_a_model_may_show_it() -> None:
    class Unstructured(_Lenient):
        def __init__(self) -> None:
            super().__init__(Grade(0.0, False))
            self.structured = False

    class Model:
        def answer(self, task: SourceTask, state: IntentState) -> str:
            return "something"

    seen = [as_family(case, Unstructured()) for case in drift(2)]
    finding = run(Flips(), seen)
    assert finding.status == "not run" and finding.info["variants that nothing here can obey (calls)"] > 0
    shown = run(Flips(Model()), seen)
    assert shown.status == "pass" and shown.info["variants by a model's answer"] > 0


def test_a_gold_that_is_rejected_is_found() -> None:
    seen = cases(count=2)
    finding = run(Gold(), [as_family(case, _Lenient(Grade(0.0, False))) for case in seen])
    assert (finding.status, finding.checked, finding.failed) == ("fail", 2, 2)
    assert run(Gold(), [replace(seen[0], task=None)]).status == "fail"


def test_twins_that_differ_are_found() -> None:
    seen = cases(count=2)
    matched = next(at for at, case in enumerate(seen) if case.dialogue.condition == "turn_matched")
    turns = seen[matched].dialogue.turns
    shorter = [*seen[:matched], with_turns(seen[matched], turns[1:]), *seen[matched + 1 :]]
    assert "numbers of turns differ" in run(Twins(), shorter).examples[0]
    assert "without its twin" in run(Twins(), [*seen[:matched], *seen[matched + 1 :]]).examples[0]
    last = turns[-1]
    other = replace(last, state=IntentState(last.state.goals[1:]))
    differs = [*seen[:matched], with_turns(seen[matched], [*turns[:-1], other]), *seen[matched + 1 :]]
    assert "another intent" in run(Twins(), differs).examples[0]


def test_ids_that_repeat_or_lie_are_found() -> None:
    seen = cases(count=1)
    assert "more than once" in run(Ids(), [*seen, seen[0]]).examples[0]
    lying = replace(seen[1], dialogue=replace(seen[1].dialogue, seed=9))
    assert "s9" in run(Ids(), [lying]).examples[0]


def test_utterances_that_do_not_tell_the_edits_are_not_recovered() -> None:
    """Small talk in place of one change a dialogue: G* cannot come out of the words any more."""
    broken = []
    for case in drift(6):
        t = max(t for t, turn in enumerate(case.dialogue.turns) if turn.edits)
        broken.append(saying(case, t, lambda _: "Bear with me, please."))
    finding = run(Recoverable(), broken)
    assert finding.status == "fail" and finding.failed == finding.checked == 18
    assert finding.info["rate"] == 0 and len(finding.examples) == 10
    unread = run(Recoverable(), [saying(broken[0], 1, lambda _: "")])
    assert unread.status == "fail"


def test_no_drift_and_drift_in_the_wrong_place_are_found() -> None:
    calm = [
        replace(c, dialogue=replace(c.dialogue, condition="drift"))
        for c in cases(conditions=("turn_matched",))
    ]
    assert "no dialogue of a structured family" in run(Realised(), calm).examples[0]
    wild = [replace(c, dialogue=replace(c.dialogue, condition="turn_matched")) for c in drift()]
    assert "where nothing may drift" in run(Realised(), wild).examples[0]


def test_realised_counts_are_those_of_the_script() -> None:
    old, new, decoy = Goal("g1.v1", "a"), Goal("g1", "b"), Goal("d1", "c")
    edits = [Add(old), Add(decoy), Replace(old, new), Delete(decoy), Replace(new, old), Replace(old, new), Add(decoy),
             Delete(decoy)]  # fmt: skip
    state, turns = IntentState(), []
    from envs.intent import apply

    for edit in edits:
        state = apply(state, edit)
        turns.append(Turn("one, two", (edit,), state))
    dialogue = Dialogue("x", "t", "calls", "drift", 1, 0, tuple(turns))
    assert variants_of(dialogue) == {old: new} and decoys_of(dialogue) == [decoy]
    check = Realised()
    check.see(Case(dialogue, CALLS, None))
    row = check.finish().info["strata"][0]
    assert (row["variants_per_goal"], row["decoys"], row["turns"], row["tokens"]) == (1, 1, 8, 24)


BROKEN = {
    "fidelity": (
        lambda said: "Bear with me, please.",
        lambda said: f"{said} And 4711 of it.",
    ),
    "coherence": (
        lambda said: f"{said} and {{slot}}.",
        lambda said: f"{said} Yes yes .",
        lambda said: said.rstrip(".?!") + ",",
        lambda said: f'{said} "Oh.',
        lambda said: "",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_messages_that_are_wrong_or_broken_are_judged_so(kind: str) -> None:
    for change in BROKEN[kind]:
        seen = []
        for case in drift(2):
            for t, turn in enumerate(case.dialogue.turns):
                if (kind == "coherence" and t) or (
                    bool(turn.edits) == (change("x.") == "Bear with me, please.")
                ):
                    case = saying(case, t, change)
            seen.append(case)
        finding = run(Fidelity(200), seen)
        assert finding.status == "fail" and finding.info[kind]["rate"] < 0.95, change("Text.")
        low, high = finding.info[kind]["ci95"]
        assert low < finding.info[kind]["rate"] < high or finding.info[kind]["rate"] == low == 0


def test_the_sample_is_of_the_data_alone_and_another_judge_may_take_over() -> None:
    class Harsh:
        name = "harsh"

        def __init__(self) -> None:
            self.seen: set[str] = set()

        def judge(self, sample: Sample) -> Verdict:
            self.seen.add(f"{sample.case.dialogue.id} {sample.t}")
            return Verdict("no", None)

    forth, back = Harsh(), Harsh()
    finding = run(Fidelity(20, forth), drift())
    run(Fidelity(20, back), reversed(drift()))
    assert forth.seen == back.seen and len(forth.seen) == 20
    assert finding.status == "fail" and finding.info["judge"] == "harsh"
    assert finding.info["fidelity"]["rate"] == 0 and finding.info["coherence"]["rate"] == 1


def test_wilson_intervals_are_the_known_ones() -> None:
    assert [round(bound, 4) for bound in wilson(81, 263)] == [0.2553, 0.3662]  # Newcombe 1998, table I
    assert [round(bound, 4) for bound in wilson(15, 148)] == [0.0624, 0.1605]
    assert [round(bound, 4) for bound in wilson(0, 20)] == [0.0, 0.1611]
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_message_without_its_value_is_named_with_the_fault_of_the_shared_rules() -> None:
    case = drift(1)[0]
    at = next(
        t for t, turn in enumerate(case.dialogue.turns) if any(isinstance(e, Replace) for e in turn.edits)
    )
    finding = run(Fidelity(200), [saying(case, at, lambda said: "Bear with me, please.")])
    assert any(f"{case.dialogue.id}|{at}: missing_value" in example for example in finding.examples)
