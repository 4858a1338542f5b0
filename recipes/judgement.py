"""What a wrong answer did wrong: whether it obeys a withdrawn goal, whether a new value stands at another slot.

Both are told by the family's own program: an answer is compared with what carrying out other states would answer.
For answers made of calls the arguments are compared one by one; for `math` and `sql` the whole answer is, with the
states that a single confusion leads to. What that does not explain stays None, as do families of free text.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envs.dialogue import Dialogue
from envs.errors import GraderError
from envs.intent import Delete, Goal, IntentState, Replace
from envs.numbers import extract_number
from envs.task import Family, Grade, SourceTask

MAX_STATES = 200
"""Most states that one answer is compared with."""

Place = tuple[int, str, str]
"""An argument of a call: how often the function came before, its name, the argument's name."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """See the fields of the same names in `recipes.cases.Case`."""

    deletes: int = 0
    delete_obeyed: bool | None = None
    replaces: int = 0
    misbound: bool | None = None


def judge(family: Family, task: SourceTask, dialogue: Dialogue, answer: str, grade: Grade) -> Judgement:
    """Return the judgement of a graded answer; never raises for an answer, whatever it holds."""
    gone, renewed, stale = withdrawn(dialogue), replaced(dialogue), superseded_values(dialogue)
    found = Judgement(len(gone), replaces=len(renewed))
    if grade.error is not None or not family.structured:
        return found
    if grade.full_credit:
        return replace(found, delete_obeyed=False if gone else None, misbound=False if renewed else None)
    view = _CallView(family, task) if _arguments(grade.detail) is not None else None
    if view is not None:
        said = _arguments(grade.detail) or {}
        return replace(
            found,
            delete_obeyed=view.obeys(said, gone) if gone else None,
            misbound=view.misbound(said, renewed) if renewed else None,
        )
    if family.name not in ("math", "sql"):
        return found
    whole = _WholeView(family, task, answer)
    return replace(
        found,
        delete_obeyed=whole.obeys(gone, stale) if gone else None,
        misbound=whole.misbound(renewed, gone) if renewed else None,
    )


def withdrawn(dialogue: Dialogue) -> list[Goal]:
    """Return the goals that were deleted and are not wanted at the end, in order."""
    deleted = [edit.goal for turn in dialogue.turns for edit in turn.edits if isinstance(edit, Delete)]
    return [goal for goal in dict.fromkeys(deleted) if goal not in dialogue.final.goals]


def replaced(dialogue: Dialogue) -> list[Goal]:
    """Return the goals of the final state that took the place of others."""
    new = {edit.new for turn in dialogue.turns for edit in turn.edits if isinstance(edit, Replace)}
    return [goal for goal in dialogue.final.goals if goal in new]


def superseded_values(dialogue: Dialogue) -> dict[str, list[Goal]]:
    """Return for each slot of the final state the other values that were stated for it."""
    found: dict[str, list[Goal]] = {}
    for turn in dialogue.turns:
        for edit in turn.edits:
            for goal in (edit.old, edit.new) if isinstance(edit, Replace) else ():
                if goal not in dialogue.final.goals and goal.slot and goal not in found.get(goal.slot, []):
                    found.setdefault(goal.slot, []).append(goal)
    return found


class _CallView:
    """Answers made of calls, argument by argument."""

    def __init__(self, family: Family, task: SourceTask) -> None:
        self.family = family
        self.task = task
        self.gold = self._carried_out(task.goals) or {}

    def obeys(self, said: Mapping[Place, str], gone: Sequence[Goal]) -> bool | None:
        """Say whether the answer has what some withdrawn goal would add or change."""
        effects = [self._effect((*self.task.goals, goal)) for goal in gone]
        known = [effect for effect in effects if effect]
        if any(all(said.get(place) == value for place, value in effect.items()) for effect in known):
            return True
        return False if known else None

    def misbound(self, said: Mapping[Place, str], renewed: Sequence[Goal]) -> bool | None:
        """Say whether some replaced goal's value is missing where it belongs and stands where it does not."""
        told = None
        for goal in renewed:
            without = self._carried_out(tuple(other for other in self.task.goals if other != goal))
            if without is None:
                continue
            told = bool(told)
            own = {place: value for place, value in self.gold.items() if without.get(place) != value}
            for place, value in own.items():
                elsewhere = any(
                    at != place and there == value and self.gold.get(at) != value
                    for at, there in said.items()
                )
                if said.get(place) != value and elsewhere:
                    return True
        return told

    def _effect(self, goals: tuple[Goal, ...]) -> dict[Place, str]:
        done = self._carried_out(goals) or {}
        return {place: value for place, value in done.items() if self.gold.get(place) != value}

    def _carried_out(self, goals: tuple[Goal, ...]) -> dict[Place, str] | None:
        try:
            answer = self.family.execute(self.task, IntentState(goals))
            return _arguments(self.family.grade(self.task, answer).detail)
        except GraderError:
            return None


class _WholeView:
    """Answers that are one thing: equal to what a state would give, or not."""

    def __init__(self, family: Family, task: SourceTask, answer: str) -> None:
        self.family = family
        self.task = task
        self.answer = answer

    def obeys(self, gone: Sequence[Goal], stale: Mapping[str, Sequence[Goal]]) -> bool | None:
        """Say whether the answer is that of a state with withdrawn goals, at most one other value beside."""
        bases = [self.task.goals, *self._with_one_stale(stale)]
        subsets = [c for n in range(1, len(gone) + 1) for c in itertools.combinations(gone, n)]
        obeying = ((*base, *extra) for base in bases for extra in subsets)
        if any(map(self._is_that_of, itertools.islice(obeying, MAX_STATES))):
            return True
        return False if any(map(self._is_that_of, bases[1:MAX_STATES])) else None

    def misbound(self, renewed: Sequence[Goal], gone: Sequence[Goal]) -> bool | None:
        """Say whether the answer is that of a state in which another slot holds a replaced goal's value."""
        swapped = (
            tuple(replace(goal, value=new.value) if goal is other else goal for goal in self.task.goals)
            for new in renewed
            for other in self.task.goals
            if other != new and other.value != new.value
        )
        if any(map(self._is_that_of, itertools.islice(swapped, MAX_STATES))):
            return True
        others = [tuple(g for g in self.task.goals if g != goal) for goal in self.task.goals]
        others += [(*self.task.goals, goal) for goal in gone]
        return False if any(map(self._is_that_of, others)) else None

    def _with_one_stale(self, stale: Mapping[str, Sequence[Goal]]) -> Iterator[tuple[Goal, ...]]:
        for at, goal in enumerate(self.task.goals):
            for old in stale.get(goal.slot or "", ()):
                yield (*self.task.goals[:at], old, *self.task.goals[at + 1 :])

    def _is_that_of(self, goals: tuple[Goal, ...]) -> bool:
        try:
            gold = self.family.execute(self.task, IntentState(goals))
            grade = self.family.grade(self._with_gold(gold), self.answer)
        except GraderError:
            return False
        return grade.error is None and grade.full_credit

    def _with_gold(self, gold: str) -> SourceTask:
        """Return the task as if `gold` were its reference answer."""
        if self.family.name == "math":
            return replace(self.task, payload={**self.task.payload, "answer": str(extract_number(gold))})
        ordered = "order by" in gold.casefold()
        return replace(self.task, payload={**self.task.payload, "sql": gold, "ordered": ordered})


def _arguments(detail: Mapping[str, Any]) -> dict[Place, str] | None:
    """Return the arguments of a graded answer's calls; None where it is not made of calls."""
    calls = detail.get("calls")
    if calls is None and detail.get("extracted") is not None:
        calls = [{"name": name, "arguments": arguments} for name, arguments in detail["extracted"]]
    if calls is None:
        return None
    found: dict[Place, str] = {}
    seen: dict[str, int] = {}
    for call in calls:
        number = seen[call["name"]] = seen.get(call["name"], -1) + 1
        for name, value in call["arguments"].items():
            found[number, call["name"], name] = _canonical(value)
    return found


def _canonical(value: Any) -> str:
    if isinstance(value, str):
        value = " ".join(value.split()).casefold()
    if isinstance(value, list):
        return json.dumps(sorted(map(_canonical, value)))
    return json.dumps(value, sort_keys=True, default=str)
