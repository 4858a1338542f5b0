"""Sharded records: shards as goals, what links them to structure, and errors that name file and record."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from envs.dialogue import build
from envs.errors import DataError, GraderError, MissingFiles, UnknownName
from envs.families.bfcl import FAMILY as BFCL
from envs.families.gsm8k import FAMILY as GSM8K
from envs.intent import Add, Delete, Goal, Replace, fold
from envs.sharded import family_of, load_sharded, sharded_record
from envs.task import Quarantined, SourceTask, get_family
from recipes.shard import prompt_of

MATH = {
    "task": "math",
    "task_id": "sharded-GSM8K/0",
    "question": "Ana buys 30 pens for $4 each. She pays with 200 dollars. How much change does she get?",
    "answer": "30*4=<<30*4=120>>120\n200-120=<<200-120=80>>80\n#### 80",
    "shards": [
        {"shard_id": 1, "shard": "How much change does Ana get?"},
        {"shard_id": 2, "shard": "she buys 30 pens"},
        {"shard_id": 3, "shard": "each pen costs $4"},
        {"shard_id": 4, "shard": "she pays with 200 dollars"},
    ],
}
HISTOGRAM = {
    "name": "draw",
    "description": "",
    "parameters": {
        "type": "dict",
        "properties": {
            "data": {"type": "array", "items": {"type": "integer"}},
            "bins": {"type": "integer"},
            "title": {"type": "string"},
            "color": {"type": "string", "enum": ["red", "blue"]},
            "grid": {"type": "boolean"},
        },
        "required": ["data", "bins"],
    },
}
ACTIONS = {
    "task": "actions",
    "task_id": "sharded-BFCL/parallel_0",
    "function": [HISTOGRAM],
    "language": "Python",
    "test_category": "parallel",
    "reference_answer": [
        {"draw": {"data": [[1, 2, 3]], "bins": [5], "title": ["Rain", "Rain fall"], "color": ["red", ""]}},
        {"draw": {"data": [[7, 8]], "bins": [5], "title": ["Sun"]}},
    ],
    "shards": [
        {"shard_id": 1, "shard": "Draw two histograms"},
        {"shard_id": 2, "shard": "The first set is [1, 2, 3], called Rain fall"},
        {"shard_id": 3, "shard": "the second is 7, 8"},
        {"shard_id": 4, "shard": "each with 5 bins"},
        {"shard_id": 5, "shard": 'the second has the title "sun"'},
    ],
}


def write(folder: Path, *records: Any) -> Path:
    path = folder / "made.json"
    path.write_text(json.dumps(list(records)))
    return path


def load(folder: Path, record: Any) -> SourceTask:
    (task,) = load_sharded(write(folder, record))
    assert isinstance(task, SourceTask), task
    return task


def changed(record: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {key: value for key, value in (record | fields).items() if value is not ...}


def test_shards_become_the_goals_of_the_kinds_family(tmp_path: Path) -> None:
    math, actions = load_sharded(write(tmp_path, MATH, ACTIONS))
    assert isinstance(math, SourceTask) and isinstance(actions, SourceTask)
    assert (math.family, math.id, math.split) == ("gsm8k", "sharded/made/sharded-GSM8K/0", "sharded")
    assert (actions.family, actions.id) == ("bfcl", "sharded/made/sharded-BFCL/parallel_0")
    for task, record in ((math, MATH), (actions, ACTIONS)):
        assert [goal.text for goal in task.goals] == [shard["shard"] for shard in record["shards"]]
        assert all(goal.slot is None and goal.value is None for goal in task.goals)
        json.dumps(dict(task.payload))
    assert [task.family for task in load_sharded(tmp_path / "made.json", kinds=("actions",))] == ["bfcl"]  # type: ignore[union-attr]


def test_the_family_of_code_depends_on_its_source() -> None:
    assert family_of({"task": "code", "source": "humaneval"}) == "humaneval"
    assert family_of({"task": "code", "source": "lcb_easy"}) == "livecodebench"
    assert family_of({"task": "database"}) == "spider"


@pytest.mark.parametrize(("family", "record"), [(GSM8K, MATH), (BFCL, ACTIONS)])
def test_every_variant_and_decoy_flips_both_verdicts(family: Any, record: Any, tmp_path: Path) -> None:
    task = load(tmp_path, record)
    assert family.grade(task, family.execute(task, task.intent)).full_credit
    rng = random.Random(0)
    pairs = [(goal, new) for goal in task.goals for new in family.variants(task, goal, rng)]
    decoys = family.decoys(task, rng)
    assert len({goal for goal, _ in pairs}) >= 3 and decoys
    for edit in [*(Replace(goal, new) for goal, new in pairs), *map(Add, decoys)]:
        detail = family.grade(task, family.execute(task, fold(task.intent, [edit]))).detail
        assert not detail["strict"] and not detail["official"], edit
    dialogue = build(family, task, "drift", "hard", 1)
    assert dialogue.final == task.intent and len(dialogue.turns) > len(task.goals) + 1


def test_gsm8k_a_shards_number_runs_through_the_solution(tmp_path: Path) -> None:
    task = load(tmp_path, MATH)
    new = Goal("g3.v1", "each pen costs $5")
    assert GSM8K.execute(task, fold(task.intent, [Replace(task.goals[2], new)])) == "#### 50"
    assert GSM8K.variants(task, task.goals[0], random.Random(0)) == []
    with pytest.raises(GraderError, match="each pen costs"):
        GSM8K.execute(task, fold(task.intent, [Delete(task.goals[2])]))
    with pytest.raises(GraderError, match="what is asked"):
        GSM8K.execute(task, fold(task.intent, [Delete(task.goals[0])]))


def test_gsm8k_a_record_without_links_drifts_by_decoys_alone(tmp_path: Path) -> None:
    task = load(tmp_path, changed(MATH, answer="It is 80.\n#### 80"))
    assert all(GSM8K.variants(task, goal, random.Random(0)) == [] for goal in task.goals)
    decoy = GSM8K.decoys(task, random.Random(0))[0]
    assert not GSM8K.grade(task, GSM8K.execute(task, fold(task.intent, [Add(decoy)]))).full_credit
    with pytest.raises(GraderError, match="only G"):
        GSM8K.execute(task, fold(task.intent, [Delete(task.goals[1])]))


def test_bfcl_a_shards_value_is_linked_where_it_is_beyond_doubt(tmp_path: Path) -> None:
    task = load(tmp_path, ACTIONS)
    linked = {
        g: [(link["places"], link["value"]) for link in s["links"]] for g, s in task.payload["shards"].items()
    }
    assert linked == {
        "g1": [],
        "g2": [([[0, "data"]], [1, 2, 3]), ([[0, "title"]], "Rain")],
        "g3": [([[1, "data"]], [7, 8])],
        "g4": [([[0, "bins"], [1, "bins"]], 5)],
        "g5": [([[1, "title"]], "Sun")],
    }
    bins = BFCL.variants(task, task.goals[3], random.Random(0))[0]
    answer = BFCL.execute(task, fold(task.intent, [Replace(task.goals[3], bins)]))
    number = bins.text.split()[2]
    assert answer.count(f"bins={number}") == 2 and bins.text == f"each with {number} bins"
    # a variant of a text stands where the text stood, whichever accepted form that was
    titles = [v.text for v in BFCL.variants(task, task.goals[4], random.Random(0))]
    assert all(text.startswith('the second has the title "') and text.endswith('"') for text in titles)


def test_bfcl_a_value_that_occurs_twice_is_left_alone(tmp_path: Path) -> None:
    shards = [*ACTIONS["shards"], {"shard_id": 6, "shard": "5 bins, as I said"}]
    task = load(tmp_path, changed(ACTIONS, shards=shards))
    assert task.payload["shards"]["g4"]["links"] == []


def test_bfcl_missing_shards_and_decoys(tmp_path: Path) -> None:
    task = load(tmp_path, ACTIONS)
    without = BFCL.execute(task, fold(task.intent, [Delete(task.goals[3])]))
    assert "bins" not in without and not BFCL.grade(task, without).full_credit
    with pytest.raises(GraderError, match="Draw two histograms"):
        BFCL.execute(task, fold(task.intent, [Delete(task.goals[0])]))
    with pytest.raises(GraderError, match="no variant"):
        BFCL.execute(task, fold(task.intent, [Replace(task.goals[3], Goal("g4.v99", "each with 1 bins"))]))
    # the color of call 1 may be red, so a shard may well ask for it: no decoy may say blue
    slots = {decoy.slot for decoy in BFCL.decoys(task, random.Random(0))}
    assert "color of call 1" not in slots and "grid of call 1" in slots


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (3, "record 2: expected a JSON object, got int"),
        (changed(MATH, shards=...), "record 2 .*: no field 'shards'"),
        (changed(MATH, task="poem"), "unknown kind of sharded record 'poem'"),
        (changed(MATH, task_id=7), "task_id is no text"),
        (changed(MATH, shards=[]), "at least one shard"),
        (changed(MATH, shards=[{"shard": "a"}]), "distinct whole numbers as shard_id"),
        (changed(MATH, shards=[{"shard_id": 1}]), "shard 1 has no text"),
        (changed(MATH, shards=[{"shard_id": 1, "shard": " "}]), "shard 1 is empty"),
        (MATH, "record 2 .*: the task_id 'sharded-GSM8K/0' occurs twice"),
        (changed(MATH, task_id="x", answer=...), r"record 2 \(x\): no field 'answer'"),
        (changed(MATH, task_id="x", answer="none"), "no number after"),
        (changed(ACTIONS, reference_answer=[3]), "reference_answer is no"),
        (changed(ACTIONS, language="Java"), "not Java"),
        (changed(ACTIONS, function=...), "not shaped as a record of kind 'actions'"),
    ],
)
def test_a_bad_record_is_named_with_its_file(record: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, MATH, record)
    with pytest.raises(DataError, match=rf"made\.json, .*{message}"):
        list(load_sharded(path))


def test_bad_files_and_kinds(tmp_path: Path) -> None:
    with pytest.raises(MissingFiles, match="lost_in_conversation"):
        list(load_sharded(tmp_path / "none.json"))
    (tmp_path / "cut.json").write_text('[{"task"')
    with pytest.raises(DataError, match=r"cut\.json: not JSON"):
        list(load_sharded(tmp_path / "cut.json"))
    (tmp_path / "cut.json").write_text("{}")
    with pytest.raises(DataError, match="JSON array"):
        list(load_sharded(tmp_path / "cut.json"))
    with pytest.raises(UnknownName, match="Did you mean 'math'"):
        list(load_sharded(write(tmp_path, MATH), kinds=("maths",)))


def test_a_gold_that_its_grader_rejects_is_quarantined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GSM8K, "gold", lambda task: "#### 81", raising=True)
    (item,) = load_sharded(write(tmp_path, MATH))
    assert isinstance(item, Quarantined) and item.task_id == "sharded/made/sharded-GSM8K/0"
    assert "rejects the gold" in item.reason and "81" in item.reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"reference_answer": [{"draw": {"bins": [5]}}]}, "the required argument 'data' is missing"),
        ({"reference_answer": []}, "no accepted call"),
        ({"reference_answer": [{"paint": {}}]}, "no accepted call of a function"),
        (
            {
                "function": [
                    HISTOGRAM
                    | {
                        "parameters": {
                            "type": "dict",
                            "properties": {"data": {"type": "set"}, "bins": {"type": "set"}},
                            "required": [],
                        }
                    }
                ]
            },
            "the grader failed",
        ),
    ],
)
def test_a_record_that_cannot_be_graded_is_quarantined(fields: Any, reason: str, tmp_path: Path) -> None:
    (item,) = load_sharded(write(tmp_path, changed(ACTIONS, **fields)))
    assert isinstance(item, Quarantined) and reason in item.reason
    assert item.task_id == "sharded/made/sharded-BFCL/parallel_0"


def test_made_records_are_checked() -> None:
    made = sharded_record({"task": "math", "task_id": "a"}, ["x", "y"])
    assert made["shards"] == [{"shard_id": 1, "shard": "x"}, {"shard_id": 2, "shard": "y"}]
    with pytest.raises(DataError, match="shard 2 is empty"):
        sharded_record({"task": "math", "task_id": "a"}, ["x", ""])


def test_real_sharded_files(benchmark_data: Path) -> None:
    folder = benchmark_data / "sharded"
    if not folder.is_dir():
        pytest.skip(f"no sharded folder in {benchmark_data}")
    tasks = list(load_sharded(folder / "gsm8k_v1.json"))
    assert len(tasks) == 333 and all(isinstance(task, SourceTask) for task in tasks)
    assert sum(task.payload["linked"] for task in tasks if isinstance(task, SourceTask)) >= 200
    sample = list(load_sharded(folder / "lic_sample.json", kinds=("math", "actions"), source=benchmark_data))
    assert [task.family for task in sample if isinstance(task, SourceTask)] == ["bfcl"] * 3 + ["gsm8k"] * 3
    for task in [*tasks[::9], *sample]:
        assert isinstance(task, SourceTask)
        family = GSM8K if task.family == "gsm8k" else BFCL
        assert family.grade(task, family.execute(task, task.intent)).full_credit
        rng = random.Random(task.id)
        for goal in task.goals:
            for new in family.variants(task, goal, rng)[:3]:
                answer = family.execute(task, fold(task.intent, [Replace(goal, new)]))
                assert not family.grade(task, answer).full_credit, (task.id, new)


def test_real_records_of_code_and_databases(benchmark_data: Path) -> None:
    path = benchmark_data / "sharded" / "lic_sample.json"
    if not path.is_file():
        pytest.skip(f"no {path}")
    tasks = list(load_sharded(path, kinds=("code", "database"), source=benchmark_data))
    shown = {record["task_id"]: record for record in json.loads(path.read_text())}
    assert [getattr(task, "family", task) for task in tasks] == ["humaneval"] * 3 + ["spider"] * 3
    for task in tasks:
        assert isinstance(task, SourceTask)
        family, rng = get_family(task.family), random.Random(task.id)
        shards = shown[task.id.removeprefix("sharded/lic_sample/")]["shards"]
        assert [goal.text for goal in task.goals] == [" ".join(shard["shard"].split()) for shard in shards]
        assert family.grade(task, family.execute(task, task.intent)).full_credit
        assert all(family.variants(task, goal, rng) == [] for goal in task.goals)
        with pytest.raises(GraderError, match="lacks"):
            family.execute(task, fold(task.intent, [Delete(task.goals[0])]))
        decoys = family.decoys(task, rng)
        assert decoys
        flipped = 0
        for decoy in decoys[:3]:
            answer = family.execute(task, fold(task.intent, [Add(decoy)]))
            flipped += not family.grade(task, answer).full_credit
        assert flipped
    with pytest.raises(MissingFiles, match="HumanEval"):
        list(load_sharded(path, kinds=("code",), source=benchmark_data / "gsm8k"))


def test_a_contest_problem_comes_with_its_own_tests(tmp_path: Path) -> None:
    record = {
        "task": "code",
        "task_id": "sharded-lcb/1873_A",
        "source": "lcb_easy",
        "question_content": "Read a number. Print it doubled.",
        "public_test_cases": [{"input": "2\n", "output": "4\n", "testtype": "stdin"}],
        "metadata": {},
        "shards": [
            {"shard_id": 1, "shard": "Print a number doubled."},
            {"shard_id": 2, "shard": "It is read first."},
        ],
    }
    (task,) = load_sharded(write(tmp_path, record))
    assert isinstance(task, Quarantined) and "no reference solution" in task.reason
    folder = tmp_path / "livecodebench"
    folder.mkdir()
    solution = {"question_id": "1873_A", "code": "print(2 * int(input()))"}
    (folder / "solutions.jsonl").write_text(json.dumps(solution) + "\n")
    (task,) = load_sharded(write(tmp_path, record), source=tmp_path)
    assert isinstance(task, SourceTask) and task.family == "livecodebench"
    assert [goal.text for goal in task.goals] == ["Print a number doubled.", "It is read first."]
    assert not get_family("livecodebench").grade(task, "```python\nprint(int(input()))\n```").full_credit
    with pytest.raises(DataError, match="question_content"):
        list(load_sharded(write(tmp_path, changed(record, question_content=...)), source=tmp_path))


@pytest.mark.parametrize(("name", "split", "count"), [("humaneval", "test", 164), ("spider", "dev", 900)])
def test_records_of_a_family_can_be_split(
    benchmark_data: Path, tmp_path: Path, name: str, split: str, count: int
) -> None:
    if not (benchmark_data / name).is_dir():
        pytest.skip(f"no {name} below {benchmark_data}")
    records = list(get_family(name).records(benchmark_data, split))  # type: ignore[attr-defined]
    assert len(records) >= count and all(prompt_of(record).strip() for record in records)
    (task,) = load_sharded(
        write(tmp_path, sharded_record(records[0], ["one thing", "another"])), source=benchmark_data
    )
    assert isinstance(task, SourceTask) and [goal.text for goal in task.goals] == ["one thing", "another"]


def test_tables_and_summaries_come_as_their_families(tmp_path: Path) -> None:
    table = {
        "task": "data2text",
        "task_id": "t1",
        "table_html": "<table><tr><td>Riga</td></tr></table>",
        "references": ["The race was held in Riga in 2011.", "  "],
        "shards": [
            {"shard_id": 1, "shard": "Describe the table in one sentence."},
            {"shard_id": 2, "shard": "The city is marked."},
        ],
    }
    summary = {
        "task": "summary",
        "task_id": "s1",
        "topic": "a library",
        "query": "What changes?",
        "documents": [{"document_index": 4, "document_text": "It opens at nine."}],
        "insights": [{"insight_id": "i1", "insight_name": "hours", "insight": "The library opens at nine."}],
        "insightid2ref_citations": {"i1": [4, 9]},
        "shards": [{"shard_id": 0, "shard": "", "doc_idxs": [4]}],
    }
    totto, summhay = load_sharded(write(tmp_path, table, summary))
    assert isinstance(totto, SourceTask) and isinstance(summhay, SourceTask)
    assert (totto.family, summhay.family) == ("totto", "summhay")
    assert [goal.text for goal in totto.goals] == [shard["shard"] for shard in table["shards"]]
    family = get_family("totto")
    assert family.grade(totto, family.execute(totto, totto.intent)).full_credit
    assert not family.grade(totto, "The race was held in Oslo in 2011.").full_credit
    assert family.variants(totto, totto.goals[1], random.Random(0)) == []
    with pytest.raises(GraderError, match="whole intent"):
        family.execute(totto, fold(totto.intent, [Delete(totto.goals[1])]))
    assert [goal.value for goal in summhay.goals if goal.slot == "point 1"] == ["hours"]
    (empty,) = load_sharded(write(tmp_path, changed(table, references=[])))
    assert isinstance(empty, Quarantined) and "reference" in empty.reason
    with pytest.raises(DataError, match=r"record 1 \(t1\).*table_html"):
        list(load_sharded(write(tmp_path, changed(table, table_html=...))))
