"""Made-up graded cases with the shape of real ones: several rows, conditions, budgets and families, some ungraded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from recipes.cases import Case, CaseTurn

ROWS = {
    "bare": 0.35,
    "recap-prompt": 0.4,
    "recap-state": 0.5,
    "summary": 0.42,
    "compact": 0.38,
    "stateforge (untrained)": 0.3,
    "stateforge (trained)": 0.65,
    "executor": 0.7,
    "oracle": 0.8,
}
"""Each row's chance of full credit under drift at the middle budget."""
FAMILIES = ("calls", "sql", "math")
WITH_TRACKER = ("stateforge", "executor")
SLOTS = ("city", "budget", "date", "guests", "cuisine", "table", "music")
VALUES = (
    "Oslo",
    "40 dollars",
    "12 March",
    "six",
    "Thai",
    "by the window",
    "quiet jazz",
    "Bergen",
    "55 dollars",
)


def made_cases(
    tasks: int = 10,
    *,
    seed: int = 0,
    rows: Sequence[str] = tuple(ROWS),
    conditions: Sequence[str] = ("clean", "drift", "turn_matched"),
    budgets: Sequence[int] = (1, 3, 5),
    ungraded: float = 0.03,
    turns: int = 4,
) -> list[Case]:
    """Return cases of `tasks` tasks, their order shuffled; the same arguments give the same cases."""
    rng = random.Random(seed)
    ease = [rng.gauss(0, 0.25) for _ in range(tasks)]
    cases = [
        _case(rng, f"{FAMILIES[k % len(FAMILIES)]}/{k:03d}", ease[k], row, condition, budget, ungraded, turns)
        for k in range(tasks)
        for budget in budgets
        for condition in conditions
        for row in rows
    ]
    rng.shuffle(cases)
    return cases


def made_case(**changes: Any) -> Case:
    """Return one plain case, with `changes`."""
    plain: dict[str, Any] = {
        "harness": "bare",
        "task_id": "calls/000",
        "family": "calls",
        "condition": "drift",
        "budget": 1,
        "seed": 0,
        "score": 1.0,
        "full_credit": True,
        "turns": 3,
    }
    plain |= changes
    plain.setdefault("case", f"{plain['task_id']}|b{plain['budget']}|s{plain['seed']}")
    return Case(**plain)


def _case(
    rng: random.Random,
    task: str,
    ease: float,
    row: str,
    condition: str,
    budget: int,
    ungraded: float,
    turns: int,
) -> Case:
    drifting, tracked = condition == "drift", row.startswith(WITH_TRACKER)
    level = ROWS.get(row, 0.5) - 0.05 * (budget - 3)
    chance = {"drift": level, "turn_matched": max(level, 0.75), "clean": 0.9}[condition] + ease
    full = rng.random() < chance
    failed = rng.random() < ungraded
    slips = drifting and not full
    length = 1 if condition == "clean" else turns + budget
    history = _history(rng, length, drifting, slips, tracked)
    return Case(
        harness=row,
        case=f"{task}|b{budget}|s0",
        task_id=task,
        family=task.split("/")[0],
        condition=condition,  # type: ignore[arg-type]
        budget=budget,  # type: ignore[arg-type]
        seed=0,
        score=None if failed else 1.0 if full else rng.choice((0.0, 0.0, 0.25, 0.5)),
        full_credit=None if failed else full,
        error="EngineTimeout: no answer within 60 s" if failed else None,
        answer=f"book({', '.join(history[-1].oracle)})",
        detail={"expected": list(history[-1].oracle), "wrong": [] if full else [rng.choice(SLOTS)]},
        deletes=budget if drifting else 0,
        delete_obeyed=(slips and rng.random() < 0.4) if drifting and not failed else None,
        replaces=budget if drifting else 0,
        misbound=(slips and rng.random() < 0.3) if drifting and not failed else None,
        stale_leak=(slips and rng.random() < 0.5) if tracked else None,
        state_exact=(not slips) if tracked else None,
        turns=length,
        prompt_tokens=length * rng.randint(200, 600),
        cached_tokens=length * rng.randint(100, 200),
        output_tokens=length * rng.randint(20, 60),
        tracker_tokens=length * rng.randint(40, 90) if tracked else 0,
        seconds=length * rng.uniform(0.4, 0.9),
        engine_seconds=length * rng.uniform(0.3, 0.4),
        retries=int(rng.random() < 0.05),
        history=history,
    )


def _history(
    rng: random.Random, length: int, drifting: bool, slips: bool, tracked: bool
) -> tuple[CaseTurn, ...]:
    oracle: dict[str, str] = {}
    tracker: dict[str, str] = {}
    turns, wrong = [], rng.randrange(length) if slips else -1
    for turn in range(length):
        last = turn == length - 1 and length > 1
        slot, value = rng.choice(SLOTS), rng.choice(VALUES)
        edits: tuple[str, ...] = ()
        if not last:
            drop = drifting and slot in oracle and rng.random() < 0.3
            edits = (f"Delete {slot}",) if drop else (f"Set {slot}: {value}",)
            if drop:
                del oracle[slot]
            else:
                oracle[slot] = value
            if turn != wrong:
                tracker = {k: v for k, v in tracker.items() if not (drop and k == slot)}
                tracker |= {} if drop else {slot: value}
        state = tuple(f"{k}: {v}" for k, v in oracle.items())
        held = tuple(f"{k}: {v}" for k, v in tracker.items())
        turns.append(
            CaseTurn(
                utterance="Please go ahead." if last else f"About the {slot}: make it {value}, would you?",
                edits=edits,
                oracle=state,
                tracker=held if tracked else None,
                derived=("the plan fits the budget",) if tracked and turn > 2 else (),
                slip=tracked and held != state,
                shown="\n".join(("Active requirements:", *held)) if tracked else None,
                reply="Done." if last else "Noted, anything else?",
            )
        )
    return tuple(turns)
