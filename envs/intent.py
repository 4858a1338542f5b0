"""Intent: goals, edits, the state they fold into, and the conclusions that rest on goals.

A state is an ordered set of goals. The order is the order of arrival and is kept for showing; two states
are equal when they hold the same goals, the same function and the same conclusions, since what a user
wants does not depend on the order in which they said it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from envs.errors import DataError, DuplicateGoal, UnknownGoal


@dataclass(frozen=True, slots=True)
class Goal:
    """One atomic requirement.

    `id` is unique within a source task and its variants and decoys ("g2", "g2.v1", "d1"). `text` is natural
    language. `slot` and `value` are set where the family is structured ("budget", "at most 40 dollars").
    """

    id: str
    text: str
    slot: str | None = None
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Add:
    goal: Goal


@dataclass(frozen=True, slots=True)
class Delete:
    goal: Goal


@dataclass(frozen=True, slots=True)
class Replace:
    old: Goal
    new: Goal


@dataclass(frozen=True, slots=True)
class Switch:
    """The user moves from one function (task) to another; goals that both share stay."""

    old: str | None
    new: str


Edit = Add | Delete | Replace | Switch


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Something derived. `supports` holds ids of goals or of other conclusions; it dies with any of them."""

    id: str
    text: str
    supports: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class IntentState:
    """The active intent: goals in order of arrival, the current function, and live conclusions."""

    goals: tuple[Goal, ...] = ()
    function: str | None = None
    conclusions: tuple[Conclusion, ...] = ()

    def __post_init__(self) -> None:
        # Supports name goals and conclusions alike, so one id must mean one thing.
        ids = [item.id for item in (*self.goals, *self.conclusions)]
        if len(set(ids)) != len(ids):
            raise DuplicateGoal(f"a state holds each id once, got {ids}")

    def _key(self) -> tuple[object, ...]:
        return frozenset(self.goals), self.function, frozenset(self.conclusions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntentState) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __contains__(self, goal: object) -> bool:
        return goal in self.goals

    def __len__(self) -> int:
        return len(self.goals)

    def conclude(self, conclusion: Conclusion) -> IntentState:
        """Return the state with one more conclusion. Raises `UnknownGoal` if a support is not live."""
        live = {goal.id for goal in self.goals} | {known.id for known in self.conclusions}
        missing = sorted(conclusion.supports - live)
        if missing:
            raise UnknownGoal(f"conclusion {conclusion.id!r} rests on {missing}, which are not in the state")
        if conclusion.id in live:
            raise DuplicateGoal(f"{conclusion.id!r} is already in the state")
        return replace(self, conclusions=(*self.conclusions, conclusion))


EMPTY = IntentState()


def apply(state: IntentState, edit: Edit) -> IntentState:
    """Apply one edit strictly. Raises `UnknownGoal` or `DuplicateGoal`."""
    goals = list(state.goals)
    match edit:
        case Add(goal):
            _refuse_present(goals, goal, edit)
            return IntentState((*goals, goal), state.function, state.conclusions)
        case Delete(goal):
            goals.pop(_index(goals, goal, edit))
            return _drop_conclusions(state, goals, goal.id)
        case Replace(old, new):
            at = _index(goals, old, edit)
            goals.pop(at)
            _refuse_present(goals, new, edit)
            goals.insert(at, new)
            return _drop_conclusions(state, goals, old.id)
        case Switch(old, new):
            if old != state.function:
                raise UnknownGoal(f"{edit} leaves {old!r}, but the current function is {state.function!r}")
            return replace(state, function=new)


def fold(state: IntentState, edits: Iterable[Edit]) -> IntentState:
    """Apply edits in order, strictly.

    Deleting or replacing a goal also drops every conclusion that rests on it, directly or through others.
    Raises `UnknownGoal` for an edit that names an absent goal, `DuplicateGoal` for one that adds a present
    one.
    """
    for edit in edits:
        state = apply(state, edit)
    return state


def diff(a: IntentState, b: IntentState) -> list[Edit]:
    """Return a shortest edit list that turns the goals and function of `a` into those of `b`.

    One edit removes at most one goal and adds at most one, so max(removed, added) edits (and one for the
    function) is the least possible. Goals of the same slot are paired first, then the rest in order.
    Conclusions are not edited: `fold(a, diff(a, b)) == b` holds for states without conclusions.
    """
    removed = [goal for goal in a.goals if goal not in b.goals]
    added = [goal for goal in b.goals if goal not in a.goals]
    pairs: list[tuple[Goal, Goal]] = []
    # Ids must stay unique at every step, so a goal whose id is kept is paired with its namesake first.
    for same in (_same_id, _same_slot, _any):
        for old in list(removed):
            new = next((goal for goal in added if same(old, goal)), None)
            if new is not None:
                pairs.append((old, new))
                removed.remove(old)
                added.remove(new)
    edits: list[Edit] = []
    if a.function != b.function:
        if b.function is None:
            raise ValueError("no edit takes a function away: b.function is None")
        edits.append(Switch(a.function, b.function))
    edits += [Delete(goal) for goal in removed]
    edits += [Replace(old, new) for old, new in pairs]
    edits += [Add(goal) for goal in added]
    return edits


def goal_to_dict(goal: Goal) -> dict[str, Any]:
    return {"id": goal.id, "text": goal.text, "slot": goal.slot, "value": goal.value}


def goal_from_dict(data: dict[str, Any]) -> Goal:
    """Inverse of `goal_to_dict`. Raises `DataError` where id or text is missing or no text."""
    if not isinstance(data, dict) or not all(isinstance(data.get(name), str) for name in ("id", "text")):
        raise DataError(f"a goal needs the texts `id` and `text`, got {data!r}")
    return Goal(data["id"], data["text"], data.get("slot"), data.get("value"))


def edit_to_dict(edit: Edit) -> dict[str, Any]:
    """Return plain JSON data for an edit; `edit_from_dict` is its inverse."""
    match edit:
        case Add(goal):
            return {"op": "add", "new": goal_to_dict(goal)}
        case Delete(goal):
            return {"op": "delete", "old": goal_to_dict(goal)}
        case Replace(old, new):
            return {"op": "replace", "old": goal_to_dict(old), "new": goal_to_dict(new)}
        case Switch(old, new):
            return {"op": "switch", "old": old, "new": new}


def edit_from_dict(data: dict[str, Any]) -> Edit:
    """Inverse of `edit_to_dict`. Raises `DataError` for an unknown `op` or a goal that is missing."""
    match data.get("op"):
        case "add":
            return Add(goal_from_dict(data.get("new", {})))
        case "delete":
            return Delete(goal_from_dict(data.get("old", {})))
        case "replace":
            return Replace(goal_from_dict(data.get("old", {})), goal_from_dict(data.get("new", {})))
        case "switch" if isinstance(data.get("new"), str):
            return Switch(data.get("old"), data["new"])
        case "switch":
            raise DataError(f"a switch needs the name of the `new` function, got {data!r}")
        case op:
            raise DataError(f"unknown edit op {op!r}; known: add, delete, replace, switch")


def state_to_dict(state: IntentState) -> dict[str, Any]:
    conclusions = [{"id": c.id, "text": c.text, "supports": sorted(c.supports)} for c in state.conclusions]
    return {
        "goals": [goal_to_dict(goal) for goal in state.goals],
        "function": state.function,
        "conclusions": conclusions,
    }


def state_from_dict(data: dict[str, Any]) -> IntentState:
    return IntentState(
        tuple(goal_from_dict(goal) for goal in data["goals"]),
        data.get("function"),
        tuple(Conclusion(c["id"], c["text"], frozenset(c["supports"])) for c in data.get("conclusions", ())),
    )


def _same_id(old: Goal, new: Goal) -> bool:
    return old.id == new.id


def _same_slot(old: Goal, new: Goal) -> bool:
    return old.slot is not None and old.slot == new.slot


def _any(old: Goal, new: Goal) -> bool:
    return True


def _index(goals: list[Goal], goal: Goal, edit: Edit) -> int:
    try:
        return goals.index(goal)
    except ValueError:
        raise UnknownGoal(f"{edit} names a goal that is not in the state {[g.id for g in goals]}") from None


def _refuse_present(goals: list[Goal], goal: Goal, edit: Edit) -> None:
    for known in goals:
        if known.id == goal.id:
            raise DuplicateGoal(f"{edit} adds a goal whose id is already in the state")


def _drop_conclusions(state: IntentState, goals: list[Goal], gone_id: str) -> IntentState:
    gone = {gone_id}
    kept = list(state.conclusions)
    while dying := [c for c in kept if c.supports & gone]:
        gone |= {c.id for c in dying}
        kept = [c for c in kept if c.id not in gone]
    return IntentState(tuple(goals), state.function, tuple(kept))
