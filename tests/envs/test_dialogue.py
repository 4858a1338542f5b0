"""Dialogues of the three conditions share task and final intent; the environment plays and grades them."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.dialogue import CONDITIONS, Dialogue, Env, build
from envs.errors import ConfigError, FluxForgeError, UnknownName
from envs.intent import EMPTY, Add, Delete, Goal, IntentState, Replace, fold
from envs.simulator import TemplateSimulator
from envs.task import Grade, SourceTask, get_family
from envs.wording import HELDOUT, TRAIN

CALLS = get_family("calls")
DATA = Path(os.environ.get("FLUXFORGE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def calls_task(split: str, index: int) -> SourceTask:
    return CALLS.task(split, index)  # type: ignore[attr-defined]


@settings(deadline=None)
@given(
    st.integers(0, 300),
    st.sampled_from(("easy", "medium", "hard")),
    st.integers(0, 9),
    st.sampled_from((0, 20)),
)
def test_conditions_share_task_and_intent(index: int, budget: str, seed: int, longer: int) -> None:
    task = calls_task("heldout", index)
    shown = {c: build(CALLS, task, c, budget, seed, turns_at_least=longer) for c in CONDITIONS}
    assert {d.task_id for d in shown.values()} == {task.id}
    assert {d.final for d in shown.values()} == {task.intent}
    assert len({d.id for d in shown.values()}) == 3
    assert len(shown["clean"].turns) == 1
    assert len(shown["drift"].turns) == len(shown["turn_matched"].turns) >= longer
    for dialogue in shown.values():
        assert dialogue == build(CALLS, task, dialogue.condition, budget, seed, turns_at_least=longer)
        assert fold(EMPTY, [e for turn in dialogue.turns for e in turn.edits]) == task.intent
        assert dialogue.turns[0].utterance.startswith(task.opening)
        assert all(turn.utterance for turn in dialogue.turns)


def test_clean_shows_every_goal() -> None:
    task = calls_task("train", 3)
    said = build(CALLS, task, "clean", 1, 0).turns[0].utterance
    assert all((goal.value or "") in said for goal in task.goals)


def test_a_dialogue_is_the_same_in_another_process() -> None:
    code = (
        "from envs.task import get_family; from envs.dialogue import build\n"
        "f = get_family('calls'); print(build(f, f.task('train', 7), 'drift', 3, 5))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
        )
        for hash_seed in ("1", "2")
    ]
    here = f"{build(CALLS, calls_task('train', 7), 'drift', 3, 5)}\n"
    assert runs[0].stdout == runs[1].stdout == here


def test_ids_are_readable() -> None:
    task = calls_task("heldout", 12)
    assert build(CALLS, task, "drift", "easy", 0).id == "calls/heldout/12|drift|b1|s0"
    assert build(CALLS, task, "drift", 1, 0, turns_at_least=30).id == "calls/heldout/12|drift|b1|s0|t30"


def test_held_out_tasks_get_held_out_wordings() -> None:
    finals = {
        split: {build(CALLS, calls_task(split, i), "drift", 1, 0).turns[-1].utterance for i in range(600)}
        for split in CALLS.splits
    }
    assert finals["train"] == set(TRAIN["final"]) and finals["heldout"] == set(HELDOUT["final"])
    own = build(CALLS, calls_task("heldout", 0), "drift", 1, 0, TemplateSimulator("train"))
    assert own.turns[-1].utterance in TRAIN["final"]


def test_unknown_conditions_and_budgets_name_the_nearest() -> None:
    task = calls_task("train", 0)
    with pytest.raises(UnknownName, match="'turn_matched'"):
        build(CALLS, task, "turn_match", 1, 0)
    with pytest.raises(UnknownName, match="'hard'"):
        build(CALLS, task, "drift", "hrad", 0)


def test_superseded_are_the_goals_that_were_stated_and_are_gone() -> None:
    a, b, d = Goal("a", "a"), Goal("b", "b"), Goal("d", "d")
    task = calls_task("train", 0)
    base = build(CALLS, task, "clean", 1, 0)
    steps = [(Add(a),), (Add(d),), (Replace(a, b),), (Delete(d),), (Replace(b, a),)]
    turns, state = [], EMPTY
    for edits in steps:
        state = fold(state, edits)
        turns.append(type(base.turns[0])("x", edits, state))
    dialogue = Dialogue("x", "x", "calls", "drift", 1, 0, tuple(turns))
    assert [dialogue.superseded(t) for t in range(5)] == [[], [], [a], [a, d], [d, b]]


def test_env_plays_to_the_grade() -> None:
    task = calls_task("train", 4)
    dialogue = build(CALLS, task, "drift", 1, 0)
    env = Env(dialogue, CALLS, task)
    messages = env.reset()
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[0]["content"] == task.context
    for t, turn in enumerate(dialogue.turns[:-1]):
        assert messages[-1] == {"role": "user", "content": turn.utterance}
        step = env.step(f"reply {t}")
        assert isinstance(step, list) and step[-2] == {"role": "assistant", "content": f"reply {t}"}
        messages = step
    right = env.step(CALLS.gold(task))
    assert isinstance(right, Grade) and right.full_credit and right.score == 1.0
    with pytest.raises(FluxForgeError, match="reset"):
        env.step("more")
    assert len(env.reset()) == 2  # and again from the start


def test_env_grades_a_stale_answer_as_wrong() -> None:
    task = calls_task("train", 4)
    env = Env(build(CALLS, task, "clean", 1, 0), CALLS, task)
    env.reset()
    grade = env.step(CALLS.execute(task, IntentState(task.goals[1:])))
    assert isinstance(grade, Grade) and not grade.full_credit and grade.error is None


def test_env_messages_are_copies() -> None:
    task = calls_task("train", 4)
    env = Env(build(CALLS, task, "turn_matched", 1, 0), CALLS, task)
    first = env.reset()
    first[0]["content"] = "tampered"
    step = env.step("ok")
    assert isinstance(step, list) and step[0]["content"] == task.context


def test_env_refuses_what_does_not_belong_together_and_steps_before_reset() -> None:
    task, other = calls_task("train", 0), calls_task("train", 1)
    dialogue = build(CALLS, task, "clean", 1, 0)
    with pytest.raises(ConfigError, match="calls/train/1"):
        Env(dialogue, CALLS, other)
    with pytest.raises(FluxForgeError, match="reset"):
        Env(dialogue, CALLS, task).step("hello")


def test_a_crashing_grader_leaves_the_case_ungraded() -> None:
    class Crashing(type(CALLS)):
        def grade(self, task: SourceTask, answer: str) -> Grade:
            raise OSError("no database")

    task = calls_task("train", 0)
    env = Env(build(CALLS, task, "clean", 1, 0), Crashing(), task)
    env.reset()
    grade = env.step("answer")
    assert isinstance(grade, Grade) and grade.error is not None and "no database" in grade.error
    assert grade.score == 0.0 and not grade.full_credit


@pytest.mark.parametrize(
    ("name", "split"), [("gsm8k", "test"), ("bfcl", "simple_python"), ("bfcl", "parallel")]
)
def test_real_tasks_make_dialogues_of_all_conditions(name: str, split: str) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"no {name} files: set FLUXFORGE_DATA to a folder that holds {name}/")
    family = get_family(name)
    drifted = 0
    for task in islice(family.load(DATA, split), 40):
        shown = {c: build(family, task, c, 3, 0) for c in CONDITIONS}
        assert {d.final for d in shown.values()} == {task.intent}
        assert len(shown["drift"].turns) == len(shown["turn_matched"].turns)
        for turn in shown["drift"].turns:
            drifted += any(not isinstance(edit, Add) for edit in turn.edits)
            for edit in turn.edits:
                goal = edit.new if isinstance(edit, Replace) else edit.goal  # type: ignore[union-attr]
                said = {goal.text.removesuffix("."), goal.value or goal.text, goal.slot or goal.text}
                assert any(words in turn.utterance for words in said)
        env = Env(shown["clean"], family, task)
        env.reset()
        grade = env.step(family.gold(task))
        assert isinstance(grade, Grade) and grade.full_credit
    assert drifted > 40
