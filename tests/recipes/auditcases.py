"""Dialogues for the tests of the audit, and ways to break them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from envs.dialogue import Turn, build
from envs.drift import BUDGETS
from envs.intent import Goal, Replace
from envs.mix import TaskPool
from envs.task import get_family
from recipes.audit import Material
from recipes.audit.findings import Check, Finding
from recipes.audit.material import Case

CALLS = get_family("calls")
CONDITIONS = ("clean", "drift", "turn_matched")


def cases(family: str = "calls", count: int = 6, conditions: Iterable[str] = CONDITIONS) -> list[Case]:
    found = get_family(family)
    pool = TaskPool(found, "heldout")
    return [
        Case(build(found, pool.at(index)[0], condition, budget, 0), found, pool.at(index)[0])
        for index in range(count)
        for condition in conditions
        for budget in (BUDGETS if condition != "clean" else ("easy",))
    ]


def run(check: Check, seen: Iterable[Case]) -> Finding:
    for case in seen:
        check.see(case)
    check.whole(Material(Path("none")))
    return check.finish()


def with_turns(case: Case, turns: Iterable[Turn]) -> Case:
    return replace(case, dialogue=replace(case.dialogue, turns=tuple(turns)))


def saying(case: Case, t: int, change: Callable[[str], str]) -> Case:
    turns = list(case.dialogue.turns)
    turns[t] = replace(turns[t], utterance=change(turns[t].utterance))
    return with_turns(case, turns)


def drift(count: int = 4) -> list[Case]:
    return cases(count=count, conditions=("drift",))


def other_goal(case: Case, t: int) -> Goal:
    """A goal that is live in turn `t` and that the turn's edits are not about."""
    turn = case.dialogue.turns[t]
    named = {g.id for e in turn.edits for g in ([e.old, e.new] if isinstance(e, Replace) else [e.goal])}  # type: ignore[union-attr]
    return next(goal for goal in turn.state.goals if goal.id not in named)


def late(case: Case) -> int:
    return len(case.dialogue.turns) - 2
