"""BIRD's verdict `official` against the official evaluator itself, on databases made here.

Needs `evaluation_ex.py` and `evaluation_utils.py` of bird-bench/mini_dev in the folder FLUXFORGE_BIRD_EVAL. What
they import beside SQLite (clients of other databases, func_timeout) is stood in for.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from envs.families._sql_bench import SqlBenchmark
from envs.families.bird import FAMILY
from envs.intent import IntentState
from envs.task import SourceTask

sys.path.insert(0, str(Path(__file__).parent))
from sqlfiles import make_bird

EVAL = Path(os.environ.get("FLUXFORGE_BIRD_EVAL", "nowhere"))
pytestmark = pytest.mark.skipif(
    not (EVAL / "evaluation_ex.py").is_file(),
    reason="no official evaluator (set FLUXFORGE_BIRD_EVAL to the folder evaluation/ of bird-bench/mini_dev)",
)

DRIVER = """
import json, sys, types
for name in ("psycopg2", "pymysql"):
    sys.modules[name] = types.ModuleType(name)
timed = types.ModuleType("func_timeout")
timed.func_timeout = lambda seconds, function, args=(): function(*args)
timed.FunctionTimedOut = type("FunctionTimedOut", (Exception,), {})
sys.modules["func_timeout"] = timed
sys.path.insert(0, sys.argv[1])
from evaluation_ex import execute_model
cases = json.load(sys.stdin)
found = [execute_model(answer, gold, db, n, 30.0, "SQLite")["res"] for n, (db, answer, gold) in enumerate(cases)]
json.dump(found, open(sys.argv[2], "w"))
"""


def dressed(sql: str, rng: random.Random) -> str:
    ways = (
        lambda s: s + ";",
        lambda s: s.lower(),
        lambda s: s.replace("SELECT ", "SELECT DISTINCT ", 1),
        lambda s: s.replace("DISTINCT ", ""),
        lambda s: s.split(" ORDER BY ")[0],
        lambda s: s.split(" LIMIT ")[0],
        lambda s: s + " ORDER BY 1",
        lambda s: s.replace(" FROM ", ", 1 FROM ", 1),
        lambda s: s + " UNION ALL " + s,
        lambda s: s.replace(" AND ", " OR "),
        lambda s: s[: len(s) * 3 // 4],
        lambda s: s + " LIMIT 0",
        lambda s: s + "; SELECT 1",
        lambda s: s.replace(">", ">="),
        lambda s: f"SELECT * FROM ({s})",
        lambda s: f"SELECT 0.1 + 0.2, * FROM ({s})",
    )
    return rng.choice(ways)(sql)


def changed(family: SqlBenchmark, tasks: list[SourceTask], count: int) -> list[tuple[SourceTask, str]]:
    rng = random.Random(0)
    found: list[tuple[SourceTask, str]] = []
    while len(found) < count:
        task = rng.choice(tasks)
        draw = rng.random()
        if draw < 0.4:
            goal = rng.choice(task.goals)
            for variant in family.variants(task, goal, rng)[:1]:
                goals = tuple(variant if known == goal else known for known in task.goals)
                found.append((task, family.execute(task, IntentState(goals))))
        elif draw < 0.55:
            for decoy in family.decoys(task, rng)[:1]:
                found.append((task, family.execute(task, IntentState((*task.goals, decoy)))))
        else:
            sql = task.payload["sql"] if rng.random() < 0.5 else family.execute(task, task.intent)
            found.append((task, dressed(dressed(sql, rng) if rng.random() < 0.3 else sql, rng)))
    return found


def test_golds_and_changed_queries_get_the_official_verdict(tmp_path: Path) -> None:
    make_bird(tmp_path)
    tasks = list(FAMILY.load(tmp_path, "mini_dev"))
    cases = [(task, task.payload["sql"]) for task in tasks] + changed(FAMILY, tasks, 1500)
    cases += [(tasks[0], sql) for sql in ("PRAGMA table_info(baker)", "EXPLAIN SELECT 1", "VALUES (1)", "")]
    lines = [
        (f"{task.payload['database']}/{task.payload['db_id']}.sqlite", sql, task.payload["sql"])
        for task, sql in cases
    ]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(EVAL.resolve()), str(tmp_path / "verdicts.json")],
        input=json.dumps(lines),
        text=True,
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads((tmp_path / "verdicts.json").read_text())
    differ: Counter[int] = Counter()
    for (task, sql), verdict in zip(cases, theirs, strict=True):
        ours = FAMILY.official(FAMILY._store(task), task.payload["sql"], sql, own=False)
        if ours != verdict:
            differ[verdict] += 1
            print(task.payload["sql"], "|", sql, "|", ours, verdict)
    passed = sum(theirs)
    print(f"{len(cases)} queries, {passed} pass, {sum(differ.values())} differ")
    assert not differ
    assert theirs[: len(tasks)] == [1] * len(tasks)
    assert 0.15 < passed / len(cases) < 0.85
