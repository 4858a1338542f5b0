"""From a played dialogue to a graded case."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from envs.dialogue import Dialogue
from envs.intent import Add, Delete, Edit, Replace
from envs.task import Grade
from recipes.cases import Case, CaseTurn
from recipes.eval_inputs import Play
from recipes.judgement import Judgement, judge, replaced, withdrawn
from rollout.playing import Played
from rollout.score import StateScore, score_state

GRADE_TRIES = 2


async def graded_case(play: Play, played: Played, graders: asyncio.Semaphore) -> Case:
    """Grade a played dialogue and return its case: ungraded where the agents or, twice, the grader failed."""
    if played.error is not None:
        return case_of(play, played, None, Judgement())
    async with graders:
        grade, judgement = await asyncio.to_thread(_grade, play, played)
    return case_of(play, played, grade, judgement)


def _grade(play: Play, played: Played) -> tuple[Grade, Judgement]:
    shown = play.shown
    grade = Grade(0.0, False, error="never graded")
    for _ in range(GRADE_TRIES):
        try:
            grade = shown.family.grade(shown.task, played.answer)
        except Exception as error:  # the grader boundary: a crash leaves the case ungraded, never wrong
            grade = Grade(0.0, False, error=f"the grader crashed: {error!r}")
        if grade.error is None:
            judgement = judge(shown.family, shown.task, played.dialogue, played.answer, grade)
            return grade, judgement
    return grade, Judgement()


def case_of(play: Play, played: Played, grade: Grade | None, judgement: Judgement) -> Case:
    """Return the record of a dialogue; `grade` None: there is no answer, `played.error` says why."""
    shown, dialogue = play.shown, played.dialogue
    error = played.error if grade is None else (f"grader: {grade.error}" if grade.error is not None else None)
    scores = _state_scores(played)
    last = scores[-1] if len(scores) == len(dialogue.turns) else None
    return Case(
        harness=play.row.name,
        case=shown.case,
        task_id=shown.task.id,
        family=shown.family.name,
        condition=shown.condition,  # type: ignore[arg-type]  # the schema has checked both
        budget=shown.budget,  # type: ignore[arg-type]
        seed=shown.seed,
        score=None if grade is None or error is not None else grade.score,
        full_credit=None if grade is None or error is not None else grade.full_credit,
        error=error,
        answer=played.answer,
        detail=_plain({**({} if grade is None else grade.detail), **played.detail}),
        deletes=len(withdrawn(dialogue)),
        delete_obeyed=judgement.delete_obeyed,
        replaces=len(replaced(dialogue)),
        misbound=judgement.misbound,
        stale_leak=None if last is None else last.leak,
        state_exact=None if last is None else last.exact,
        turns=len(dialogue.turns),
        prompt_tokens=played.base.prompt_tokens,
        cached_tokens=played.base.cached_tokens,
        output_tokens=played.base.output_tokens,
        tracker_tokens=played.tracker_tokens,
        seconds=round(played.seconds, 4),
        engine_seconds=round(played.engine_seconds, 4),
        retries=played.base.retries + sum(meter.retries for meter in played.tracking),
        history=_history(played, scores),
    )


def broken_case(play: Play, error: str) -> Case:
    """Return the record of a case whose dialogue could not even be built."""
    shown = play.shown
    return Case(
        harness=play.row.name, case=shown.case, task_id=shown.task.id, family=shown.family.name,
        condition=shown.condition, budget=shown.budget, seed=shown.seed,  # type: ignore[arg-type]
        score=None, full_credit=None, error=error, turns=0,
    )  # fmt: skip


def edit_words(edit: Edit) -> str:
    """Return an edit in words."""
    match edit:
        case Add(goal):
            return f"add: {goal.text}"
        case Delete(goal):
            return f"delete: {goal.text}"
        case Replace(old, new):
            return f"replace: {old.text} -> {new.text}"
        case _:
            return f"switch: {edit.old} -> {edit.new}"


def _state_scores(played: Played) -> list[StateScore]:
    """Return the tracker's state score after each finished turn; none where nothing tracks."""
    dialogue: Dialogue = played.dialogue
    return [
        score_state(turn.log, dialogue.turns[t].state.goals, dialogue.superseded(t))
        for t, turn in enumerate(played.turns)
        if turn.log is not None
    ]


def _history(played: Played, scores: list[StateScore]) -> tuple[CaseTurn, ...]:
    found = []
    for t, turn in enumerate(played.dialogue.turns):
        done = played.turns[t] if t < len(played.turns) else None
        found.append(
            CaseTurn(
                utterance=turn.utterance,
                edits=tuple(map(edit_words, turn.edits)),
                oracle=tuple(goal.text for goal in turn.state.goals),
                tracker=None if done is None else done.items,
                derived=() if done is None else done.derived,
                slip=t < len(scores) and not scores[t].exact,
                shown=None if done is None else done.shown,
                reply="" if done is None else done.reply,
            )
        )
    return tuple(found)


def _plain(detail: dict[str, Any]) -> dict[str, object]:
    """Return plain JSON data; what JSON does not know is written as text."""
    return json.loads(json.dumps(detail, default=str))
