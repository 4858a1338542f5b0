"""From a tracker's items to an answer: items become goals of the dialogue, and the family carries them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envs.dialogue import Dialogue
from envs.errors import GraderError
from envs.intent import Add, Delete, Goal, IntentState, Replace
from envs.task import Family, SourceTask
from rollout.harness.base import Execute, Executed
from rollout.match import match, similarity
from rollout.tracker import TASK_KEY


def known_goals(dialogue: Dialogue) -> list[Goal]:
    """Return every goal that the dialogue ever states, in order: true ones, variants and decoys."""
    found: dict[Goal, None] = {}
    for turn in dialogue.turns:
        for edit in turn.edits:
            match edit:
                case Add(goal) | Delete(goal):
                    found[goal] = None
                case Replace(old, new):
                    found[old] = found[new] = None
    return list(found)


def state_of_items(log: Mapping[str, str], known: Sequence[Goal]) -> IntentState:
    """Return the state that a tracker's items say, in their order.

    An item is the goal among `known` that it says (`rollout/match.py`, one to one; a second item that says a goal
    adds nothing). One that says none is kept as a goal without slot and value, which no family can carry out: an
    invented item spoils the answer, as it would spoil a model's.
    """
    said = dict(match(log, known))
    goals: dict[str, Goal] = {}
    for number, (key, text) in enumerate(log.items(), 1):
        if key == TASK_KEY:
            continue
        goal = said.get(key) or max(known, key=lambda one: similarity(key, text, one), default=None)
        if goal is None or (key not in said and not similarity(key, text, goal)):
            goal = Goal(f"unknown {number}", f"{key}: {text}")
        goals.setdefault(goal.id, goal)
    return IntentState(tuple(goals.values()))


def executor_of(family: Family, task: SourceTask, dialogue: Dialogue) -> Execute:
    """Return what answers a tracker's items, or an exact state, by `family.execute`.

    A state that cannot be carried out gives an empty answer and the reason: that is a wrong answer of the tracker,
    not an error of the run.
    """
    known = known_goals(dialogue)

    def execute(log: Mapping[str, str], exact: IntentState | None) -> Executed:
        state = state_of_items(log, known) if exact is None else exact
        unknown = [goal.text for goal in state.goals if goal.id.startswith("unknown ")]
        if unknown:
            return Executed("", f"the state holds what was never said: {'; '.join(unknown)}")
        try:
            return Executed(family.execute(task, state))
        except GraderError as error:
            if exact is not None:
                raise
            return Executed("", str(error))

    return execute
