"""Untrusted SQL in a process of its own: whatever a query tries, the verdict is clean and the next is right."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
import threading
import time
from pathlib import Path

import pytest

from envs.errors import GraderError
from envs.families.spider import Spider
from envs.sandbox_sql import ReadOnlyDatabase, Refused
from envs.sql_process import SqlProcess, shared
from envs.task import SourceTask

sys.path.insert(0, str(Path(__file__).parent))
from sqlfiles import GOLDS, make_database, make_spider

LIMITS = {"max_rows": 5000, "max_bytes": 100_000, "max_total": 2_000_000}
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT {} FROM n"
ATTACKS = [
    ("DROP TABLE baker", "authorized"),
    ("DELETE FROM baker", "authorized"),
    ("UPDATE baker SET age = 0", "authorized"),
    ("INSERT INTO baker DEFAULT VALUES", "authorized"),
    ("CREATE TABLE x (y)", "authorized"),
    ("CREATE TEMP TABLE x AS SELECT * FROM baker", "authorized"),
    ("ALTER TABLE baker RENAME TO b", "authorized"),
    ("ATTACH DATABASE '/tmp/fluxforge-attached.db' AS other", "authorized"),
    ("VACUUM INTO 'copy.db'", "denied"),
    ("PRAGMA query_only = OFF", "authorized"),
    ("PRAGMA writable_schema = ON", "authorized"),
    ("SELECT * FROM pragma_database_list", "authorized"),
    ("BEGIN EXCLUSIVE", "authorized"),
    ("SAVEPOINT a", "authorized"),
    ("REINDEX baker", ""),
    ("EXPLAIN SELECT 1; SELECT 2", "one statement"),
    ("SELECT 1; DROP TABLE baker", "one statement"),
    ("DROP TABLE baker; SELECT 1", "authorized"),
    ("SELECT load_extension('x')", "authorized"),
    ("SELECT fts3_tokenizer('x')", "fts3_tokenizer"),
    ("SELECT writefile('x', 'y')", "no such function"),
    ("SELECT readfile('/etc/hosts')", "no such function"),
    ("SELECT random()", "authorized"),
    ("SELECT zeroblob(900000000)", "too big"),
    ("SELECT replace(hex(zeroblob(40000)), '0', hex(zeroblob(4000)))", "too big"),
    (ENDLESS.format("count(*)"), "stopped after"),
    (ENDLESS.format("x"), "more than 5000 rows"),
    (ENDLESS.format("hex(zeroblob(30000))"), "more than 2000000 bytes"),
    ("SELECT * FROM loaf a, loaf b, loaf c, loaf d", "more than 5000 rows"),
    ("SELECT count(*) FROM loaf a, loaf b, loaf c, loaf d, loaf e, loaf f, loaf g", "stopped after"),
    ("SELECT " + "(" * 5000 + "1" + ")" * 5000, ""),
    ("SELECT " + "+".join(["1"] * 5000), "depth"),
    (" UNION ALL ".join(["SELECT 1"] * 600), "too many terms"),
    ("SELECT 'a' LIKE '" + "%a" * 5000 + "'", "too complex"),
    ("SELECT '" + "x" * 200_000 + "'", "too large"),
    ("SELECT '\x00'", ""),
    ("SELECT '\ud800'", ""),
    ("SELEC", "syntax"),
    ("", "no statement"),
    ("-- nothing", "no statement"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_database(tmp_path_factory.mktemp("bases"), "bakery")


@pytest.fixture(scope="module")
def process() -> SqlProcess:
    return SqlProcess()


def run(process: SqlProcess, path: Path | bytes, sql: str, deadline_s: float = 0.3) -> object:
    return process.run(path, sql, deadline_s=deadline_s, **LIMITS)


@pytest.mark.parametrize(("sql", "reason"), ATTACKS, ids=[f"{at}" for at in range(len(ATTACKS))])
def test_an_attack_is_refused_and_the_next_query_is_right(
    process: SqlProcess, path: Path, sql: str, reason: str
) -> None:
    before = path.read_bytes()
    found = run(process, path, sql)
    assert isinstance(found, Refused) and reason in found.reason, found
    assert run(process, path, "SELECT count(*) FROM baker") == [(6,)]
    assert path.read_bytes() == before and sorted(os.listdir(path.parent)) == ["bakery.sqlite"]
    assert not Path("/tmp/fluxforge-attached.db").exists()


def test_a_query_that_never_looks_at_the_clock_loses_its_process(path: Path) -> None:
    process = SqlProcess()
    assert run(process, path, "SELECT 1") == [(1,)]
    first = process._process
    assert first is not None
    # A search is a single step of SQLite's machine, so its progress handler never runs: minutes of comparing zeros.
    search = "instr(hex(zeroblob(400000)), hex(zeroblob(200000)) || '1')"
    endless = f"SELECT {' + '.join([search] * 20)}"
    start = time.monotonic()
    found = process.run(path, endless, deadline_s=0.05, max_bytes=1_000_000)
    assert isinstance(found, Refused) and "process was killed" in found.reason, found
    assert time.monotonic() - start < 60
    assert run(process, path, "SELECT count(*) FROM baker") == [(6,)]
    process.close()


def test_memory_is_limited(path: Path) -> None:
    process = SqlProcess()
    wide = (
        "SELECT group_concat(x, '') OVER () FROM ("
        + ENDLESS.format("hex(zeroblob(40000)) AS x")
        + " LIMIT 60000)"
    )
    found = process.run(
        path, wide, deadline_s=30.0, max_rows=100_000, max_bytes=1_000_000_000, max_total=1 << 40
    )
    assert isinstance(found, Refused), found
    assert run(process, path, "SELECT count(*) FROM baker") == [(6,)]
    process.close()


def test_a_killed_process_is_replaced_and_the_query_asked_again(path: Path) -> None:
    process = SqlProcess()
    assert run(process, path, "SELECT count(*) FROM baker") == [(6,)]
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()
    assert run(process, path, "SELECT count(*) FROM loaf") == [(24,)]
    first = process._process
    process._left = 0  # the batch is over
    assert run(process, path, "SELECT count(*) FROM loaf") == [(24,)]
    assert process._process is not first
    process.close()


def test_a_query_that_ends_its_process_each_time_is_refused(path: Path) -> None:
    process = SqlProcess()
    assert run(process, path, "SELECT 1") == [(1,)]
    stop = threading.Event()

    def killer() -> None:
        while not stop.is_set():
            child = process._process
            if child is not None and process._left < 5000:
                os.kill(child.pid, signal.SIGKILL)
            time.sleep(0.01)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        found = run(process, path, ENDLESS.format("count(*)"), deadline_s=20.0)
    finally:
        stop.set()
        thread.join()
    assert isinstance(found, Refused) and "ended its process" in found.reason
    assert run(process, path, "SELECT count(*) FROM baker") == [(6,)]
    process.close()


def test_cells_of_every_type_come_back_as_they_are(process: SqlProcess, path: Path) -> None:
    sql = "SELECT 1, 2.5, 'a \u20ac \"', x'00ff', NULL, 1e999, -9223372036854775808"
    assert run(process, path, sql) == [(1, 2.5, 'a \u20ac "', b"\x00\xff", None, float("inf"), -(2**63))]


def test_the_image_of_a_database_in_memory(process: SqlProcess) -> None:
    base = ReadOnlyDatabase.in_memory(
        [("CREATE TABLE t (x)", ()), ("INSERT INTO t VALUES (?)", [(1,), (2,)])]
    )
    assert base.image is not None
    assert run(process, base.image, "SELECT sum(x) FROM t") == [(3,)]
    assert isinstance(run(process, base.image, "DELETE FROM t"), Refused)
    process.close()
    assert run(process, base.image, "SELECT sum(x) FROM t") == [(3,)]
    assert ReadOnlyDatabase.from_image(base.image).run("SELECT x FROM t") == [(1,), (2,)]
    with pytest.raises(GraderError, match="not the image"):
        run(process, b"no database, but long enough to look like one" * 100, "SELECT 1")


def test_the_child_sees_no_environment_and_holds_no_files(path: Path) -> None:
    process = SqlProcess()
    os.environ["FLUXFORGE_SECRET"] = "42"
    try:
        assert run(process, path, "SELECT 1") == [(1,)]
        assert process._process is not None
        proc = Path(f"/proc/{process._process.pid}")
        if not proc.is_dir():
            pytest.skip("no /proc on this system")
        assert b"FLUXFORGE_SECRET" not in (proc / "environ").read_bytes()
        limits = (proc / "limits").read_text()
        assert all(
            line.split()[-3:-1] == ["0", "0"]
            for line in limits.splitlines()
            if line.startswith(("Max core", "Max file size"))
        ), limits
        held = {os.readlink(link) for link in (proc / "fd").iterdir()}
        assert {name for name in held if name.startswith("/") and name != "/dev/null"} == {
            str(path.resolve())
        }
        assert os.getpgid(process._process.pid) != os.getpgid(0)
    finally:
        del os.environ["FLUXFORGE_SECRET"]
        process.close()


def test_bytes_that_are_no_text(tmp_path: Path, process: SqlProcess) -> None:
    path = tmp_path / "odd.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x TEXT)")
        connection.execute("INSERT INTO t VALUES (CAST(x'61ff62' AS TEXT))")
    connection.close()
    assert process.run(path, "SELECT x FROM t", errors="ignore") == [("ab",)]
    assert process.run(path, "SELECT x FROM t", errors="replace") == [("a\ufffdb",)]
    assert isinstance(process.run(path, "SELECT x FROM t", errors="strict"), Refused)


def test_threads_take_turns(path: Path) -> None:
    found: dict[int, object] = {}

    def ask(number: int) -> None:
        for _ in range(20):
            found[number] = shared().run(path, f"SELECT {number}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [(number,)] for number in range(4)}


def test_no_process_means_ungraded_and_not_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_spider(tmp_path, GOLDS[:1])
    family = Spider()
    task = next(task for task in family.load(tmp_path, "dev") if isinstance(task, SourceTask))
    shared().close()
    monkeypatch.setattr("envs.sql_process.sys.executable", str(tmp_path / "no-python"))
    grade = family.grade(task, "SELECT age FROM baker")
    assert grade.error is not None and "no process" in grade.error and not grade.full_credit
    monkeypatch.undo()
    assert family.grade(task, "SELECT age FROM baker").error is None
    assert family.grade(task, "SELECT name FROM baker WHERE age > 30 -- a").full_credit


@pytest.mark.parametrize(("sql", "_"), ATTACKS[:3] + ATTACKS[7:9] + ATTACKS[16:19] + ATTACKS[26:28])
def test_the_family_gives_clean_verdicts(tmp_path: Path, sql: str, _: str) -> None:
    make_spider(tmp_path, GOLDS[:2])
    family = Spider()
    first, second = family.load(tmp_path, "dev")
    grade = family.grade(first, sql)
    assert (grade.score, grade.full_credit, grade.error) == (0.0, False, None) and grade.detail["problem"]
    assert family.grade(second, "SELECT 24").full_credit
    shutil.rmtree(tmp_path / "spider")
