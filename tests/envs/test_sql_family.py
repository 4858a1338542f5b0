"""The `sql` family and its sandbox: sound golds, flips by execution, and queries that can do no harm."""

from __future__ import annotations

import itertools
import random
import sqlite3
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.errors import DataError, GraderError, MissingFiles, UnknownName
from envs.families.sql import FAMILY
from envs.intent import EMPTY, Goal, IntentState
from envs.sandbox_sql import ReadOnlyDatabase, Refused, extract_sql, same_rows
from envs.sql_process import shared
from envs.task import Quarantined, SourceTask, checked, get_family

SPLITS = ("train", "heldout")


def tasks(count: int) -> list[SourceTask]:
    return [FAMILY.task(split, index) for split in SPLITS for index in range(count)]


def small() -> ReadOnlyDatabase:
    rows = [(1, "ann", 2.5), (2, "bob", 4.0), (3, "cy; x", None)]
    return ReadOnlyDatabase.in_memory(
        [("CREATE TABLE t (id INTEGER, name TEXT, size REAL)", ()), ("INSERT INTO t VALUES (?, ?, ?)", rows)]
    )


@pytest.mark.parametrize("split", SPLITS)
def test_load_yields_the_numbered_tasks_and_every_gold_passes(split: str) -> None:
    assert get_family("sql") is FAMILY
    loaded = list(itertools.islice(checked(FAMILY, None, split), 150))
    assert not [item for item in loaded if isinstance(item, Quarantined)]
    assert loaded == [FAMILY.task(split, index) for index in range(150)]


def test_golds_have_rows_and_no_tie_at_a_cut() -> None:
    from envs.families._sql_data import database

    limits = 0
    for task in tasks(150):
        base = database(task.split, task.payload["table"], task.payload["database"])
        sql = task.payload["sql"]
        assert base.trusted(sql)
        if " LIMIT " in sql:
            limits += 1
            column = sql.split("ORDER BY ")[1].split()[0]
            keys = base.trusted(f"SELECT {column} FROM {task.payload['table']}")
            assert len(set(keys)) == len(keys)
    assert limits >= 10


def test_goals_are_few_named_and_said() -> None:
    sizes = []
    for task in tasks(150):
        sizes.append(len(task.goals))
        decoys = FAMILY.decoys(task, random.Random(1))
        assert len(decoys) >= 3
        slots = [goal.slot for goal in (*task.goals, *decoys)]
        assert len(set(slots)) == len(slots)
        for goal in (*task.goals, *decoys):
            assert goal.value and goal.slot and goal.value in goal.text
            assert len(goal.text.split()) <= 15
    assert 3.5 < sum(sizes) / len(sizes) < 4.5


def test_each_variant_and_decoy_flips_the_verdict() -> None:
    variants = decoys = 0
    for task in tasks(40):
        for goal in task.goals:
            for variant in FAMILY.variants(task, goal, random.Random(2)):
                state = IntentState(tuple(variant if g == goal else g for g in task.goals))
                assert not FAMILY.grade(task, FAMILY.execute(task, state)).full_credit, (task.goals, variant)
                variants += 1
        for decoy in FAMILY.decoys(task, random.Random(2)):
            answer = FAMILY.execute(task, IntentState((*task.goals, decoy)))
            assert not FAMILY.grade(task, answer).full_credit, (task.goals, decoy)
            decoys += 1
    assert variants / 80 > 4 * 4 and decoys / 80 > 4.5


def test_the_quick_evaluation_agrees_with_sqlite() -> None:
    from envs.families._sql_data import database
    from envs.families._sql_flip import pairs_of, split_state

    known = 0
    for task in tasks(150):
        base = database(task.split, task.payload["table"], task.payload["database"])
        rng = random.Random(task.id)
        extra = rng.sample(FAMILY.decoys(task, rng), 2) if rng.random() < 0.5 else []
        kept = [goal for goal in (*task.goals, *extra) if rng.random() < 0.8]
        shape, mask = split_state(task.split, task.payload["table"], base, pairs_of(kept))
        found = base.evaluate(shape, mask)
        if found is not None:
            known += 1
            executed = base.trusted(FAMILY.execute(task, IntentState(tuple(kept))))
            assert same_rows(executed, found, ordered="sort" in shape or "limit" in shape), kept
    assert known > 150


def test_a_value_is_left_out_of_the_variants_only_if_it_does_not_flip() -> None:
    from envs.vocab.sql_slots import slots_of

    left_out = 0
    for task in tasks(80):
        for goal in task.goals:
            values = slots_of(task.split, task.payload["table"])[goal.slot or ""].slot.pool.values
            kept = {variant.value for variant in FAMILY.variants(task, goal, random.Random(7))}
            if len(kept) == 6 or len(values) > 14:
                continue  # not all values were tried
            for value in set(values) - kept:
                changed = Goal("x", "", goal.slot, value)
                state = IntentState(tuple(changed if g == goal else g for g in task.goals))
                assert FAMILY.grade(task, FAMILY.execute(task, state)).full_credit
                left_out += value != goal.value
    assert left_out >= 5


def test_any_partial_state_runs_and_dropping_a_filter_changes_the_rows() -> None:
    for task in tasks(40):
        assert FAMILY.grade(task, FAMILY.execute(task, EMPTY)).error is None
        for goal in task.goals:
            state = IntentState(tuple(g for g in task.goals if g != goal))
            grade = FAMILY.grade(task, FAMILY.execute(task, state))
            assert grade.error is None
            if any(goal.slot and goal.slot.startswith(word) for word in ("minimum", "excluded", "smallest")):
                assert not grade.full_credit


def test_unknown_slot_value_and_split() -> None:
    task = FAMILY.task("train", 0)
    for slot, value in (
        ("phase of the moon", "full"),
        ("row limit", "many"),
        ("sort order", "title, sideways"),
    ):
        with pytest.raises(GraderError):
            FAMILY.execute(task, IntentState((Goal("x", "", slot, value),)))
    with pytest.raises(UnknownName, match="heldout"):
        FAMILY.load(None, "held-out")


@pytest.mark.parametrize(
    "dress", ["{}", "{};", "```sql\n{}\n```", "Here it is:\n{};\nHope that's fine.", "It is {}"]
)
def test_the_gold_in_other_dress_passes(dress: str) -> None:
    for task in tasks(20):
        assert FAMILY.grade(task, dress.format(FAMILY.gold(task))).full_credit


@pytest.mark.parametrize(
    "attack",
    [
        "DROP TABLE {t}",
        "DELETE FROM {t}",
        "UPDATE {t} SET id = 0",
        "INSERT INTO {t} DEFAULT VALUES",
        "ATTACH DATABASE ':memory:' AS other",
        "PRAGMA query_only = OFF",
        "VACUUM INTO 'copy.db'",
        "{gold}; DROP TABLE {t}",
        "DROP TABLE {t}; {gold}",
        "SELECT load_extension('x')",
        "SELECT zeroblob(900000000)",
        "SELECT random() FROM {t}",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
        "SELECT 1 FROM {t} a, {t} b, {t} c",
        "SELECT * FROM nowhere",
        "SELECT 1",
        "-- nothing",
        "SELECT ;",
        "",
    ],
)
def test_harmful_and_wrong_answers_score_zero_and_leave_the_data_alone(attack: str) -> None:
    task = FAMILY.task("train", 3)
    gold = FAMILY.gold(task)
    grade = FAMILY.grade(task, attack.format(t=task.payload["table"], gold=gold))
    assert (grade.score, grade.full_credit, grade.error) == (0.0, False, None)
    assert grade.detail["problem"]
    assert FAMILY.grade(task, gold).full_credit


def test_answers_run_in_a_process_of_their_own_and_without_one_are_ungraded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = FAMILY.task("train", 3)
    gold = FAMILY.gold(task)
    shared().close()
    monkeypatch.setattr("envs.sql_process.sys.executable", str(tmp_path / "no-python"))
    grade = FAMILY.grade(task, "SELECT 1")
    assert grade.error is not None and "no process" in grade.error and not grade.full_credit
    assert FAMILY.grade(task, gold).full_credit  # a gold is ours and needs none
    monkeypatch.undo()
    assert FAMILY.grade(task, "SELECT 1").error is None
    assert FAMILY.grade(task, f"{gold} -- in other dress").full_credit


def test_a_runaway_query_is_stopped_at_the_deadline() -> None:
    base = small()
    start = time.monotonic()
    found = base.run("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n")
    assert isinstance(found, Refused) and "stopped" in found.reason
    assert time.monotonic() - start < 5
    assert base.run("SELECT count(*) FROM t") == [(3,)]


@settings(max_examples=200, deadline=None)
@given(st.text() | st.text().map(lambda text: f"SELECT {text}"))
def test_any_answer_gets_a_grade(answer: str) -> None:
    grade = FAMILY.grade(FAMILY.task("heldout", 1), answer)
    assert grade.error is None and not grade.full_credit


def test_extraction_keeps_strings_and_second_statements() -> None:
    assert (
        extract_sql("SELECT name FROM t WHERE name = 'cy; x'; thanks")
        == "SELECT name FROM t WHERE name = 'cy; x'"
    )
    assert extract_sql("SELECT 1; SELECT 2") == "SELECT 1; SELECT 2"
    assert extract_sql("```sql\nSELECT 1\n```\nor rather\n```\nSELECT 2") == "SELECT 2"
    assert extract_sql("I would select nothing") is None


def test_comparison_minds_duplicates_order_and_columns() -> None:
    assert same_rows([(1,), (2,)], [(2,), (1,)], ordered=False)
    assert not same_rows([(1,), (2,)], [(2,), (1,)], ordered=True)
    assert not same_rows([(1,), (1,)], [(1,), (2,)], ordered=False)
    assert not same_rows([(1, 2)], [(2, 1)], ordered=False)
    assert not same_rows([("1",)], [(1,)], ordered=False)
    assert not same_rows([(1,)], [(1, 1)], ordered=False)
    assert same_rows([(1,), (0.1 + 0.2,)], [(0.3,), (1.0,)], ordered=False)
    assert same_rows([(None, b"x"), ("a", 1)], [("a", 1), (None, b"x")], ordered=False)


def test_database_files_open_read_only(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (7)")
    connection.close()
    base = ReadOnlyDatabase.open(path)
    assert base.run("SELECT x FROM t") == [(7,)]
    assert isinstance(base.run("INSERT INTO t VALUES (8)"), Refused)
    assert base.run("SELECT x FROM t") == [(7,)]
    with pytest.raises(MissingFiles, match="b[.]sqlite"):
        ReadOnlyDatabase.open(tmp_path / "b.sqlite")
    (tmp_path / "c.sqlite").write_bytes(b"no database at all, but long enough to look like one" * 50)
    with pytest.raises(DataError, match="c[.]sqlite"):
        ReadOnlyDatabase.open(tmp_path / "c.sqlite")
