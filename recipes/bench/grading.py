"""Answers graded a second, by family: calls, SQL, code, numbers. Half of the answers are right.

No rival: the official graders isolate other things or nothing, so a ratio would compare sandboxes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from envs.errors import DataError
from envs.intent import IntentState
from envs.task import Family, SourceTask, get_family
from recipes.sets import splits_of

FAMILIES = ("calls", "sql", "math")
TASKS = 60
"""Tasks whose answers are graded, again and again."""
EXTERNAL = frozenset({"sql", "spider", "bird", "humaneval", "livecodebench"})
"""Families whose grader waits for a process of its own, so that two answers at once take two cores."""


def answers(family: Family, tasks: list[SourceTask]) -> list[tuple[SourceTask, str]]:
    """Return for each task its gold, and what obeys one of its variants where the family offers one."""
    found: list[tuple[SourceTask, str]] = []
    for task in tasks:
        found.append((task, family.gold(task)))
        rng = random.Random(f"grading|{task.id}")
        variant = next(((g, v) for g in task.goals for v in family.variants(task, g, rng)[:1]), None)
        if family.structured and variant is not None:
            old, new = variant
            state = IntentState(tuple(new if goal is old else goal for goal in task.goals))
            found.append((task, family.execute(task, state)))
    return found


def measure(
    name: str, source: Path | None = None, seconds: float = 5.0, at_once: int = 1, tasks: int = TASKS
) -> dict[str, Any]:
    """Grade answers for about `seconds` by the clock, `at_once` in threads, and return the row.

    Reading files and making the answers do not count. The clock counts, not CPU time, since graders of SQL and code
    work in processes of their own. Raises `DataError` where there is nothing to grade, `MissingFiles` for files.
    """
    family = get_family(name)
    split = splits_of(family, "evaluation")[0]
    made = answers(family, list(itertools.islice(family.load(source, split), tasks)))
    if not made:
        raise DataError(f"family {name!r}, split {split!r}: no task, so nothing to grade")
    for task, answer in made[:4]:  # warm: databases opened, workers started
        family.grade(task, answer)
    count, right, ungraded = 0, 0, 0
    with ThreadPoolExecutor(at_once) as pool:
        cycle = itertools.cycle(made)
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            batch = list(itertools.islice(cycle, 8 * at_once))
            for grade in pool.map(lambda pair: family.grade(*pair), batch):
                count += 1
                right += grade.full_credit
                ungraded += grade.error is not None
        took = time.perf_counter() - started
    return {
        "row": f"graded answers/s, {name}, {at_once} at once",
        "ours": round(count / took, 1),
        "other": None,
        "ratio": None,
        "goal": None,
        "answers": count,
        "right": round(right / count, 3),
        "ungraded": ungraded,
    }


def rows() -> list[dict[str, Any]]:
    """Return one entry a procedural family, and for SQL one with two answers at once, for `make bench`."""
    return measured(FAMILIES)


def measured(
    families: tuple[str, ...], source: Path | None = None, seconds: float = 5.0
) -> list[dict[str, Any]]:
    return [
        measure(name, source, seconds, at_once)
        for name in families
        for at_once in ((1, 2) if name in EXTERNAL else (1,))
    ]


def main(argv: list[str] | None = None) -> int:
    """Command line of `python -m recipes.bench.grading`; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma-separated")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--data", type=Path, default=None, help="folder of benchmark files, for real families"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    found = measured(tuple(args.families.split(",")), args.data, args.seconds)
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    for row in found:
        print(f"{row['row']:<44} {row['ours']:>10.1f}   {row['right']:.2f} right, {row['ungraded']} ungraded")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
