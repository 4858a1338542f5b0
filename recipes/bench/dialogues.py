"""Dialogues built a second on one core, by family, template wording. Goal: 2,000 for procedural families."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from envs.dialogue import build
from envs.mix import TaskPool
from envs.task import get_family

FAMILIES = ("calls", "sql", "math")
GOAL = 2000.0


def measure(
    family: str,
    split: str = "train",
    budget: int | str = "easy",
    seconds: float = 3.0,
    source: Path | None = None,
) -> dict[str, Any]:
    """Build drift dialogues for about `seconds` on this thread; return the rate and the mean number of turns.

    Making the task and checking its gold count; reading a real family's files does not. CPU time is counted,
    so that a busy machine does not look like a slow builder.
    """
    found = get_family(family)
    pool = TaskPool(found, split, source)
    for index in range(50):  # warm caches
        build(found, pool.at(index)[0], "drift", budget, 0)
    count, turns = 0, 0
    started = time.process_time()
    while time.process_time() - started < seconds:
        task, past = pool.at(50 + count)
        turns += len(build(found, task, "drift", budget, past).turns)
        count += 1
    rate = count / (time.process_time() - started)
    goal = (
        GOAL if hasattr(found, "task") else None
    )  # real tasks are read, and the files' own costs are theirs
    return {
        "row": f"dialogues/s a core, {family}, budget {budget}",
        "ours": round(rate, 1),
        "other": None,
        "ratio": round(rate / goal, 3) if goal else None,
        "goal": goal,
        "dialogues": count,
        "turns": round(turns / count, 2),
        "quarantined": len(pool.quarantined),
    }


def rows() -> list[dict[str, Any]]:
    """Return one entry a procedural family, for `make bench`."""
    return [measure(name) for name in FAMILIES]


def main(argv: list[str] | None = None) -> int:
    """Command line of `python -m recipes.bench.dialogues`; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma-separated")
    parser.add_argument("--split", default="train")
    parser.add_argument("--budget", default="easy")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--data", type=Path, default=None, help="folder of benchmark files, for real families"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    budget = int(args.budget) if args.budget.isdigit() else args.budget
    rows = [measure(name, args.split, budget, args.seconds, args.data) for name in args.families.split(",")]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        print(f"{row['row']:<42} {row['ours']:>9.1f}   goal {row['goal']}   {row['turns']} turns each")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
