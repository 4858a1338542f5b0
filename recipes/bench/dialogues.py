"""Dialogues built a second on one core, by family, template wording. Goal: 2,000 for procedural families."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
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


def by_the_clock(
    family: str,
    jobs: int,
    split: str = "train",
    budget: int | str = "easy",
    seconds: float = 5.0,
    source: Path | None = None,
) -> dict[str, Any]:
    """Build drift dialogues in `jobs` processes at once, each its own tasks, and return the rate by the clock.

    Each process builds for `seconds` once all of them are warm, and the slowest one's clock counts, so what they take
    from each other shows.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(jobs)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_share, initargs=(barrier,)) as pool:
        work = [
            pool.submit(_build_for, family, split, budget, seconds, source, at, jobs) for at in range(jobs)
        ]
        counted = [one.result() for one in work]
    rate = sum(count for count, _ in counted) / max(took for _, took in counted)
    return {
        "row": f"dialogues/s by the clock, {jobs} processes, {family}, budget {budget}",
        "ours": round(rate, 1),
        "other": None,
        "ratio": None,
        "goal": None,
        "dialogues": sum(count for count, _ in counted),
    }


_barrier: Any = None


def _share(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _build_for(
    family: str, split: str, budget: int | str, seconds: float, source: Path | None, first: int, step: int
) -> tuple[int, float]:
    """Build every `step`-th dialogue from number `first` on; return how many, and the seconds they took."""
    found = get_family(family)
    pool = TaskPool(found, split, source)
    for index in range(50):
        build(found, pool.at(index)[0], "drift", budget, 0)
    _barrier.wait(timeout=600)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        task, past = pool.at(50 + first + count * step)
        build(found, task, "drift", budget, past)
        count += 1
    return count, time.perf_counter() - started


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
    parser.add_argument(
        "--jobs",
        type=int,
        default=None,
        help="processes at once, measured by the clock; default: one thread by CPU time",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    budget = int(args.budget) if args.budget.isdigit() else args.budget
    names = args.families.split(",")
    if args.jobs is None:
        rows = [measure(name, args.split, budget, args.seconds, args.data) for name in names]
    else:
        rows = [by_the_clock(name, args.jobs, args.split, budget, args.seconds, args.data) for name in names]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        print(f"{row['row']:<56} {row['ours']:>9.1f}   goal {row['goal']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
