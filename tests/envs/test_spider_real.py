"""Spider's own dev split: every gold is rebuilt from its goals, and what is left out is counted."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from envs.dialogue import build
from envs.families.spider import FAMILY
from envs.intent import IntentState
from envs.task import Quarantined, SourceTask, checked


def test_dev_golds_goals_and_flips(benchmark_data: Path) -> None:
    if not (benchmark_data / "spider" / "database").is_dir():
        pytest.skip(f"no spider/database below {benchmark_data}")
    found = list(checked(FAMILY, benchmark_data, "dev"))
    tasks = [task for task in found if isinstance(task, SourceTask)]
    assert not [item for item in found if isinstance(item, Quarantined)]
    reasons = Counter(item.reason.split(":")[0] for item in FAMILY.skipped(benchmark_data, "dev"))
    assert len(tasks) == 903 and len({task.id for task in tasks}) == 903
    assert dict(reasons) == {
        "its database is missing": 62,
        "the gold returns no row, so that wrong queries pass": 49,
        "excluded by review": 20,
    }
    assert sum(any("tie" in flag for flag in task.payload["flags"]) for task in tasks) > 30
    for task in tasks:
        grade = FAMILY.grade(task, FAMILY.execute(task, task.intent))
        assert grade.detail["strict"] and grade.detail["official"], task.id
    flips = 0
    for task in random.Random(0).sample(tasks, 60):
        for goal in task.goals:
            for variant in FAMILY.variants(task, goal, random.Random(1)):
                state = IntentState(tuple(variant if known == goal else known for known in task.goals))
                assert not FAMILY.grade(task, FAMILY.execute(task, state)).full_credit
                flips += 1
        assert build(FAMILY, task, "drift", "medium", 1).final == task.intent
    assert flips > 250
