"""Spider and BIRD on small databases: goals, rebuilt queries, proven variants and decoys, both verdicts."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import sys
from collections import Counter
from pathlib import Path

import pytest

from envs.dialogue import build
from envs.errors import DataError, GraderError, MissingFiles, UnknownName
from envs.families._sql_bench import SqlBenchmark
from envs.families.bird import FAMILY as BIRD
from envs.families.spider import FAMILY as SPIDER
from envs.intent import EMPTY, Goal, IntentState
from envs.simulator import mentions
from envs.sql_process import shared
from envs.task import Quarantined, SourceTask, checked, get_family

sys.path.insert(0, str(Path(__file__).parent))
from sqlfiles import BAKERS, GOLDS, GUILDS, make_bird, make_database, make_spider

SPLITS = {"spider": "dev", "bird": "mini_dev"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sql")
    return make_bird(make_spider(folder))


def tasks(family: SqlBenchmark, folder: Path) -> list[SourceTask]:
    return list(family.load(folder, SPLITS[family.name]))


def task_of(family: SqlBenchmark, folder: Path, gold: int) -> SourceTask:
    return next(task for task in tasks(family, folder) if task.payload["sql"] == GOLDS[gold])


def with_goal(task: SourceTask, old: Goal, new: Goal) -> IntentState:
    return IntentState(tuple(new if goal == old else goal for goal in task.goals))


both = pytest.mark.parametrize("family", [SPIDER, BIRD], ids=lambda family: family.name)


@both
def test_load_keeps_sound_items_and_gives_reasons_for_the_others(family: SqlBenchmark, folder: Path) -> None:
    assert get_family(family.name) is family
    found = list(checked(family, folder, SPLITS[family.name]))
    assert not [item for item in found if isinstance(item, Quarantined)]
    assert [task.payload["sql"] for task in found if isinstance(task, SourceTask)] == list(GOLDS[:-2])
    reasons = [item.reason for item in family.skipped(folder, SPLITS[family.name])]
    assert "no row" in reasons[0] and "no such column" in reasons[1]
    assert len(reasons) == (3 if family is SPIDER else 2)
    if family is SPIDER:
        assert reasons[2] == "its database is missing: gone"


@both
def test_goals_say_slot_and_value_and_rebuild_the_gold(family: SqlBenchmark, folder: Path) -> None:
    for task in tasks(family, folder):
        slots = [goal.slot for goal in task.goals]
        assert len(set(slots)) == len(slots)
        assert all(goal.value and goal.value in goal.text for goal in task.goals)
        grade = family.grade(task, family.execute(task, task.intent))
        assert grade.full_credit and grade.detail["official"] and grade.detail["strict"], grade
        shuffled = IntentState(tuple(random.Random(1).sample(task.goals, len(task.goals))))
        assert family.execute(task, shuffled) == family.execute(task, task.intent)
        assert not any(mentions(task.opening, goal.value or "") for goal in task.goals)
        assert "CREATE TABLE" in task.context and "bakery" in task.opening


def test_the_words_of_a_query(folder: Path) -> None:
    said = {
        gold: [goal.text for goal in task_of(SPIDER, folder, gold).goals] for gold in range(len(GOLDS) - 2)
    }
    assert said[0] == ["take the data from baker", "show name", "keep only rows where age is more than 30"]
    assert said[4] == [
        "take the data from baker joined with guild by guild id",
        "show guild name of the guild",
        "show number of rows as the second output",
        "group the rows by guild id",
        "keep only groups where average baker hourly wage is more than 19",
    ]
    assert said[6][-1] == (
        "keep only rows where baker id is not among (baker id of loaf where kind is 'rye')"
    )
    assert said[7][2:] == [
        "keep only rows where founded is less than 1920",
        "return only what the first list shares with the second list: town of guild",
        "keep only rows where founded is more than 1920 in the second list",
    ]
    assert said[8][-1] == "keep only rows where town is 'Ulm'"  # text in double quotes
    assert said[9][-2:] == ["sort the rows by hourly wage, descending", "return only the first 2 rows"]
    assert said[10][-1] == "keep only rows where kind is like '%e%' or weight is less than 350"
    assert said[12][2] == "keep only rows where loaf kind is not like '%y%'"
    assert said[13][1] == "show sold on"


@both
@pytest.mark.parametrize("verdict", ["strict", "official"])
def test_each_variant_and_decoy_loses_full_credit(family: SqlBenchmark, folder: Path, verdict: str) -> None:
    family = family.with_verdict(verdict)
    seen: Counter[str] = Counter()
    goals = 0
    for task in tasks(family, folder):
        for goal in task.goals:
            goals += 1
            variants = family.variants(task, goal, random.Random(3))
            assert len({variant.value for variant in variants} - {goal.value}) == len(variants)
            assert {variant.slot for variant in variants} <= {goal.slot}
            for variant in variants:
                answer = family.execute(task, with_goal(task, goal, variant))
                grade = family.grade(task, answer)
                assert grade.error is None and not grade.full_credit, (answer, variant)
                assert "problem" not in grade.detail or "other rows" in grade.detail["problem"]
                assert variant.value and variant.value in variant.text
                seen[task.payload["parts"][goal.id]["kind"]] += 1
        slots = [goal.slot for goal in task.goals]
        decoys = family.decoys(task, random.Random(3))
        assert len({decoy.slot for decoy in decoys}) == len(decoys)
        for decoy in decoys:
            assert decoy.slot not in slots
            answer = family.execute(task, IntentState((*task.goals, decoy)))
            grade = family.grade(task, answer)
            assert grade.error is None and not grade.full_credit, (answer, decoy)
            seen["decoy"] += 1
    assert {"output", "where", "having", "order", "limit", "combine", "from"} <= set(seen)
    assert sum(seen.values()) - seen["decoy"] > 1.5 * goals and seen["decoy"] > 35


def test_variants_change_every_kind_of_thing(folder: Path) -> None:
    def values(gold: int, slot: str) -> set[str]:
        task = task_of(SPIDER, folder, gold)
        goal = next(goal for goal in task.goals if goal.slot == slot)
        return {str(variant.value) for variant in SPIDER.variants(task, goal, random.Random(0))}

    assert {"less than 30"} <= values(0, "condition on age")  # the comparison
    assert any(value.startswith("more than ") for value in values(0, "condition on age"))  # the literal
    assert {"age", "hourly wage"} & values(0, "output") == set()  # text columns have none of their kind
    assert "lowest weight" in values(10, "output") or "average weight" in values(10, "output")  # aggregate
    assert "hourly wage, ascending" in values(9, "sort order")  # the direction
    assert "the first 3 rows" in values(9, "row limit")
    assert values(3, "duplicate rows") == {"kept"}
    assert any("without" in value for value in values(7, "combination"))
    assert "more than (highest hourly wage of baker)" in values(5, "condition on hourly wage") | {
        "more than (highest hourly wage of baker)"
    }
    assert "number of different kind values" in values(1, "output") or "guild" in values(1, "data source")


@both
def test_the_same_seed_gives_the_same_dialogue(family: SqlBenchmark, folder: Path) -> None:
    fresh = family.with_verdict("strict")  # no caches
    for task in tasks(family, folder):
        one = build(family, task, "drift", "hard", 7)
        assert one == build(fresh, task, "drift", "hard", 7)
        assert one.final == task.intent
        assert len(build(family, task, "turn_matched", "hard", 7).turns) == len(one.turns)


@both
def test_any_partial_state_makes_a_query(family: SqlBenchmark, folder: Path) -> None:
    for task in tasks(family, folder):
        assert family.grade(task, family.execute(task, EMPTY)).error is None
        for goal in task.goals:
            state = IntentState(tuple(other for other in task.goals if other != goal))
            assert family.grade(task, family.execute(task, state)).error is None


@both
def test_foreign_goals_and_names_are_refused(family: SqlBenchmark, folder: Path) -> None:
    task = task_of(family, folder, 0)
    for goal in (
        Goal("g9", "show age", "output", "age"),
        Goal("g1", "take the data from loaf", "data source", "loaf"),
        Goal("g3.v77", "keep", "condition on age", "more than 1"),
        Goal("d1", "keep", "condition on wage", "nothing"),
        Goal("dx", "", None, None),
    ):
        with pytest.raises(GraderError, match=goal.id):
            family.execute(task, IntentState((goal,)))
    with pytest.raises(UnknownName, match=SPLITS[family.name]):
        list(family.load(folder, "test"))
    with pytest.raises(UnknownName, match="strict"):
        family.with_verdict("lenient")


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(MissingFiles, match="dev.json"):
        list(SPIDER.load(tmp_path, "dev"))
    with pytest.raises(MissingFiles, match="mini_dev.json"):
        list(BIRD.load(tmp_path, "mini_dev"))
    make_bird(make_spider(tmp_path))
    shutil.rmtree(tmp_path / "bird" / "dev_databases")
    with pytest.raises(MissingFiles, match="dev_databases"):
        list(BIRD.load(tmp_path, "mini_dev"))
    shutil.rmtree(tmp_path / "spider" / "database")
    with pytest.raises(MissingFiles, match="spider/database"):
        list(SPIDER.load(tmp_path, "dev"))
    (tmp_path / "spider" / "dev.json").write_text('[{"db_id": "bakery", "question": "?"}]')
    with pytest.raises(DataError, match="item 0.*query"):
        list(SPIDER.load(tmp_path, "dev"))
    (tmp_path / "spider" / "dev.json").write_text('[{"db_id": "bak')
    with pytest.raises(DataError, match="cut short"):
        list(SPIDER.load(tmp_path, "dev"))
    make_database(tmp_path / "spider" / "database", "bakery")
    make_spider_record = [{"db_id": "bakery", "query": GOLDS[0], "question": "?"}]
    (tmp_path / "spider" / "dev.json").write_text(json.dumps(make_spider_record))
    (tmp_path / "spider" / "tables.json").write_text('[{"db_id": "bakery"}]')
    with pytest.raises(DataError, match="tables.json"):
        list(SPIDER.load(tmp_path, "dev"))


def test_bird_evidence_is_context_and_ids_are_unique(folder: Path, tmp_path: Path) -> None:
    found = tasks(BIRD, folder)
    assert "Hint: evidence 1" in found[1].context and "Hint" not in found[0].context
    make_bird(tmp_path)
    path = tmp_path / "bird" / "mini_dev.json"
    records = json.loads(path.read_text())[:2]
    records[1]["question_id"] = records[0]["question_id"]
    path.write_text(json.dumps(records))
    assert [item.reason for item in BIRD.skipped(tmp_path, "mini_dev")] == ["an earlier item has this id"]
    path.rename(path.with_name("mini_dev_sqlite.json"))
    assert len(tasks(BIRD, tmp_path)) == 1


@pytest.mark.parametrize(
    ("gold", "answer", "strict", "official"),
    [
        (0, "SELECT name FROM baker WHERE age >= 31 ORDER BY name", True, True),
        (3, "SELECT kind FROM loaf WHERE weight >= 400", False, True),  # DISTINCT is not looked at
        (2, "SELECT age, name FROM baker ORDER BY age DESC, name", True, True),  # columns in another order
        (2, "SELECT name, age FROM baker ORDER BY name", False, False),
        (9, "SELECT name FROM baker ORDER BY wage DESC LIMIT 3", False, False),
        (9, "SELECT name FROM baker WHERE wage > = 22 ORDER BY wage DESC", False, True),  # a slip it forgives
        (1, "SELECT 24.0", True, True),
        (1, "SELECT '24'", False, False),
        (1, "SELECT 23.9999999999", True, False),
        (5, "SELECT 'Cyd' UNION ALL SELECT 'Eli'", True, True),
        (5, "SELECT name FROM nowhere", False, False),
        (0, "no query at all", False, False),
    ],
)
def test_spider_verdicts(folder: Path, gold: int, answer: str, strict: bool, official: bool) -> None:
    task = task_of(SPIDER, folder, gold)
    grade = SPIDER.grade(task, answer)
    assert grade.error is None
    assert (grade.detail["strict"], grade.detail["official"]) == (strict, official), grade
    assert grade.full_credit == strict
    assert SPIDER.with_verdict("official").grade(task, answer).full_credit == official


def test_keep_distinct_makes_the_official_verdict_see_it(folder: Path) -> None:
    task = task_of(SPIDER, folder, 3)
    answer = "SELECT kind FROM loaf WHERE weight >= 400"
    assert not SPIDER.with_verdict("official", keep_distinct=True).grade(task, answer).full_credit
    goal = next(goal for goal in task.goals if goal.slot == "duplicate rows")
    assert SPIDER.variants(task, goal, random.Random(0))
    assert not SPIDER.with_verdict("official").variants(task, goal, random.Random(0))


@pytest.mark.parametrize(
    ("gold", "answer", "strict", "official"),
    [
        (0, "SELECT DISTINCT name FROM baker WHERE age > 30", False, True),  # duplicates do not count
        (2, "SELECT name, age FROM baker", False, True),  # nor does order
        (2, "SELECT age, name FROM baker ORDER BY age DESC, name", False, False),  # columns do
        (0, "SELECT name FROM baker WHERE age > 30 ORDER BY name DESC", True, True),
        (1, "SELECT 24.0", True, True),
        (1, "SELECT 25", False, False),
        (1, "PRAGMA table_info(loaf)", False, False),
    ],
)
def test_bird_verdicts(folder: Path, gold: int, answer: str, strict: bool, official: bool) -> None:
    grade = BIRD.grade(task_of(BIRD, folder, gold), answer)
    assert grade.error is None
    assert (grade.detail["strict"], grade.detail["official"]) == (strict, official), grade


def test_tied_rows_are_all_right_and_the_task_is_flagged(tmp_path: Path) -> None:
    golds = (
        "SELECT guild_name FROM guild ORDER BY founded DESC LIMIT 1",
        "SELECT name FROM baker ORDER BY age DESC",
        "SELECT name FROM baker ORDER BY age LIMIT 2 OFFSET 3",
        "SELECT name FROM baker LIMIT 2",
    )
    make_spider(tmp_path, golds)
    tied, sorted_only, offset, unsorted = tasks(SPIDER, tmp_path)
    assert "tie" in tied.payload["flags"][0] and not sorted_only.payload["flags"]
    for name in ("Old Oven", "Night Crust"):
        assert SPIDER.grade(tied, f"SELECT '{name}'").full_credit
    assert not SPIDER.grade(tied, "SELECT 'Rye Hands'").full_credit
    by_age = sorted(BAKERS, key=lambda row: -row[2])
    for swap in (False, True):
        names = [row[1] for row in by_age]
        if swap:
            names[1], names[2] = names[2], names[1]  # Ben and Dov are of one age
        answer = " UNION ALL ".join(f"SELECT '{name}'" for name in names)
        grade = SPIDER.grade(sorted_only, answer)
        assert grade.detail["strict"], names
        assert grade.detail["official"] != swap
    names[0], names[1] = names[1], names[0]
    assert not SPIDER.grade(sorted_only, " UNION ALL ".join(f"SELECT '{n}'" for n in names)).full_credit
    for pair, right in ((("Ben", "Dov"), True), (("Dov", "Ben"), True), (("Ben", "Eli"), False)):
        answer = f"SELECT '{pair[0]}' UNION ALL SELECT '{pair[1]}'"
        assert SPIDER.grade(offset, answer).detail["strict"] == right
    assert SPIDER.grade(unsorted, "SELECT 'Eli' UNION ALL SELECT 'Dov'").detail["strict"]
    assert not SPIDER.grade(unsorted, "SELECT 'Eli' UNION ALL SELECT 'Eli'").detail["strict"]


def test_every_database_of_a_test_suite_counts(tmp_path: Path) -> None:
    make_spider(tmp_path, GOLDS[:2])
    task = tasks(SPIDER, tmp_path)[1]
    assert SPIDER.grade(task, "SELECT 24").full_credit
    other = make_database(tmp_path / "spider" / "database", "other", GUILDS[:1])
    with sqlite3.connect(other) as connection:
        connection.execute("DELETE FROM loaf WHERE loaf_id > 3")
    connection.close()
    second = tmp_path / "two"
    shutil.copytree(tmp_path / "spider", second / "spider")
    shutil.copy(other, second / "spider" / "database" / "bakery" / "bakery_v2.sqlite")
    task = tasks(SPIDER, second)[1]
    grade = SPIDER.grade(task, "SELECT 24")
    assert not grade.detail["strict"] and not grade.detail["official"]
    assert SPIDER.grade(task, SPIDER.gold(task)).full_credit


def test_a_database_that_goes_missing_leaves_answers_ungraded(tmp_path: Path) -> None:
    make_spider(tmp_path, GOLDS[:1])
    (task,) = tasks(SPIDER, tmp_path)
    shutil.rmtree(tmp_path / "spider" / "database")
    shared().close()
    grade = SPIDER.grade(task, "SELECT name, 'x' FROM baker")
    assert grade.error is not None and "bakery" in grade.error
