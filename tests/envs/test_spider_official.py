"""Spider's verdict `official` against the official evaluator itself, on real golds and changed queries.

Needs taoyds/test-suite-sql-eval in the folder FLUXFORGE_SUITE_EVAL, and in FLUXFORGE_SUITE_PYTHON an
interpreter with its packages sqlparse and tqdm (default: the one that runs the tests).
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from envs.families.spider import FAMILY, Spider
from envs.intent import IntentState
from envs.task import SourceTask

DATA = Path(os.environ.get("FLUXFORGE_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
SUITE = Path(os.environ.get("FLUXFORGE_SUITE_EVAL", "nowhere"))
PYTHON = os.environ.get("FLUXFORGE_SUITE_PYTHON", sys.executable)

pytestmark = [
    pytest.mark.skipif(
        not (DATA / "spider" / "dev.json").is_file(),
        reason=f"no spider/dev.json below {DATA} (set FLUXFORGE_DATA)",
    ),
    pytest.mark.skipif(
        not (SUITE / "exec_eval.py").is_file(),
        reason="no official evaluator (set FLUXFORGE_SUITE_EVAL to a copy of taoyds/test-suite-sql-eval)",
    ),
    pytest.mark.skipif(
        sys.executable == PYTHON and importlib.util.find_spec("sqlparse") is None,
        reason="no sqlparse here (set FLUXFORGE_SUITE_PYTHON to a Python with sqlparse and tqdm)",
    ),
]

# Reads [db, answer, gold, keep_distinct] lists, prints 0, 1 or what it raised; a stuck search is cut off.
DRIVER = """
import json, signal, sys
sys.path.insert(0, sys.argv[1])
from exec_eval import eval_exec_match
def late(*_): raise TimeoutError
signal.signal(signal.SIGALRM, late)
verdicts = []
for db, answer, gold, keep in json.load(sys.stdin):
    signal.alarm(20)
    try:
        verdict = eval_exec_match(db, answer, gold, False, keep, False)
    except BaseException as error:
        verdict = type(error).__name__
    signal.alarm(0)
    verdicts.append(verdict)
json.dump(verdicts, open(sys.argv[2], "w"))
"""

# Where the two differ on purpose, by what the evaluator does.
EXPLAINED = {
    "TimeoutError": "its search for an order of the columns does not end",
    "AssertionError": "it raises on golds that fail; none does",
}


def dressed(sql: str, rng: random.Random) -> str:
    """The same or a slightly broken query in the ways models write it."""
    ways = (
        lambda s: s + ";",
        lambda s: s.lower(),
        lambda s: s.replace("SELECT ", "SELECT DISTINCT ", 1),
        lambda s: s.replace("DISTINCT ", ""),
        lambda s: s.replace(" >= ", " > = ").replace(" <= ", " < = ").replace(" > ", " > = "),
        lambda s: s.split(" ORDER BY ")[0],
        lambda s: s.split(" LIMIT ")[0],
        lambda s: s + " ORDER BY 1",
        lambda s: s.replace(" FROM ", " , 1 FROM ", 1),
        lambda s: s.replace("(", "( ", 1) + " -- as asked",
        lambda s: s.replace(" AND ", " OR "),
        lambda s: s[: len(s) * 3 // 4],
        lambda s: s + " LIMIT 0",
        lambda s: s + "; SELECT 1",
        lambda s: f"SELECT * FROM ({s.rstrip('; ')})",
        swapped,
    )
    return rng.choice(ways)(sql)


def swapped(sql: str) -> str:
    """The query with its first two outputs in the other order, where they are plain."""
    head, found, tail = sql.partition(" FROM ")
    outputs = head.removeprefix("SELECT ").split(",")
    if not found or len(outputs) < 2 or "(" in head or "DISTINCT" in head.upper():
        return sql
    return f"SELECT {', '.join([*outputs[1:], outputs[0]])} FROM {tail}"


def changed(tasks: list[SourceTask], count: int) -> list[tuple[SourceTask, str]]:
    """Queries that obey a variant or a decoy, and golds in another dress."""
    rng = random.Random(0)
    found: list[tuple[SourceTask, str]] = []
    while len(found) < count:
        task = rng.choice(tasks)
        draw = rng.random()
        if draw < 0.4:
            goal = rng.choice(task.goals)
            for variant in FAMILY.variants(task, goal, rng)[:1]:
                goals = tuple(variant if known == goal else known for known in task.goals)
                found.append((task, FAMILY.execute(task, IntentState(goals))))
        elif draw < 0.6:
            for decoy in FAMILY.decoys(task, rng)[:1]:
                found.append((task, FAMILY.execute(task, IntentState((*task.goals, decoy)))))
        else:
            sql = task.payload["sql"] if rng.random() < 0.5 else FAMILY.execute(task, task.intent)
            found.append((task, dressed(sql, rng)))
    return found


def official(folder: Path, cases: list[tuple[str, str, str, bool]]) -> list[Any]:
    """The evaluator's verdicts; (database, answer, gold, keep_distinct) each, on copies of the databases."""
    databases = folder / "database"
    if not databases.is_dir():
        shutil.copytree(DATA / "spider" / "database", databases)
    lines = [(str(databases / db / f"{db}.sqlite"), *rest) for db, *rest in cases]
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", DRIVER, str(SUITE.resolve()), str(folder / "verdicts.json")],
        input=json.dumps(lines),
        text=True,
        capture_output=True,
        timeout=3000,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "verdicts.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("suite")


@pytest.fixture(scope="module")
def tasks() -> list[SourceTask]:
    return list(FAMILY.load(DATA, "dev"))


@pytest.mark.slow
@pytest.mark.parametrize("keep_distinct", [False, True])
def test_every_gold_gets_the_official_verdict(folder: Path, keep_distinct: bool) -> None:
    from envs.families._sql_store import store

    family = Spider("official", keep_distinct)
    items = [
        item for item in FAMILY.items(DATA, "dev") if (DATA / "spider" / "database" / item.db_id).is_dir()
    ]
    theirs = official(folder, [(item.db_id, item.sql, item.sql, keep_distinct) for item in items])
    assert len(items) == 972
    limits = tuple(sorted(family.limits.items()))
    differ: Counter[Any] = Counter()
    for item, verdict in zip(items, theirs, strict=True):
        base = store(DATA / "spider" / "database" / item.db_id, item.db_id, None, family.errors, limits)
        ours = family.official(base, item.sql, item.sql, own=True)
        if ours != verdict:
            differ[verdict] += 1
    print("golds that differ:", dict(differ))
    assert set(differ) <= set(EXPLAINED)


@pytest.mark.slow
@pytest.mark.parametrize("keep_distinct", [False, True])
def test_changed_queries_get_the_official_verdict(
    folder: Path, tasks: list[SourceTask], keep_distinct: bool
) -> None:
    family = Spider("official", keep_distinct)
    cases = changed(tasks, int(os.environ.get("FLUXFORGE_SUITE_CASES", "1500")))
    lines = [(task.payload["db_id"], sql, task.payload["sql"], keep_distinct) for task, sql in cases]
    theirs = official(folder, lines)
    differ: Counter[Any] = Counter()
    wrong = []
    passed = 0
    for (task, sql), verdict in zip(cases, theirs, strict=True):
        base = family._store(task)
        ours = family.official(base, task.payload["sql"], sql, own=False)
        passed += ours
        if ours != verdict:
            differ[verdict] += 1
            if verdict not in EXPLAINED:
                wrong.append((task.id, sql, ours, verdict))
    print(f"{len(cases)} changed queries, {passed} pass, those that differ:", dict(differ))
    assert not wrong, wrong[:10]
    assert 0.15 < passed / len(cases) < 0.85
