"""The bfcl family: tasks from the upstream layout, variants, decoys, flags, sharded records."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from envs.call_syntax import Call, parse_calls, render_calls
from envs.errors import DataError, GraderError, MissingFiles, UnknownName
from envs.families._bfcl_flags import flags_of
from envs.families.bfcl import FAMILY
from envs.intent import Add, Delete, Goal, Replace, fold
from envs.task import Quarantined, SourceTask, checked, get_family

DATA = Path(os.environ.get("FLUXFORGE_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
real = pytest.mark.skipif(
    not (DATA / "bfcl").is_dir(),
    reason=f"no bfcl folder below {DATA} (set FLUXFORGE_DATA to get these tests)",
)


def function(name: str = "f", required: tuple[str, ...] = (), **types: Any) -> dict[str, Any]:
    properties = {k: v if isinstance(v, dict) else {"type": v} for k, v in types.items()}
    return {
        "name": name,
        "description": "",
        "parameters": {"type": "dict", "properties": properties, "required": list(required)},
    }


ROOMS = function(
    "hotel.book",
    required=("city", "nights"),
    city={"type": "string", "description": "The city of the stay."},
    nights={"type": "integer", "description": "How many nights"},
    view={"type": "string", "enum": ["sea", "garden"], "description": "The view."},
    pets="boolean",
)
TRUTHS = [
    [{"hotel.book": {"city": ["Lima", "Lima, Peru"], "nights": [3], "view": ["sea", ""]}}],
    [
        {"hotel.book": {"city": ["Oslo"], "nights": [2], "pets": [True]}},
        {"hotel.book": {"city": ["Rome"], "nights": [5], "view": ["garden"]}},
    ],
]


def write(folder: Path, truths: list[Any] = TRUTHS) -> Path:
    (folder / "bfcl" / "possible_answer").mkdir(parents=True, exist_ok=True)
    for n, name in enumerate(["simple_python", "parallel"]):  # the other two categories stay empty
        question = {"id": f"{name}_0", "question": [[{"role": "user", "content": "?"}]], "function": [ROOMS]}
        answer = {"id": f"{name}_0", "ground_truth": truths[n]}
        (folder / "bfcl" / f"BFCL_v4_{name}.json").write_text(json.dumps(question) + "\n")
        (folder / "bfcl" / "possible_answer" / f"BFCL_v4_{name}.json").write_text(json.dumps(answer) + "\n")
    for name in ("multiple", "parallel_multiple"):
        for path in (f"BFCL_v4_{name}.json", f"possible_answer/BFCL_v4_{name}.json"):
            (folder / "bfcl" / path).write_text("")
    return folder


def test_every_argument_that_must_be_given_is_a_goal(tmp_path: Path) -> None:
    assert get_family("bfcl") is FAMILY
    simple, parallel = FAMILY.load(write(tmp_path), "test")
    assert [(goal.slot, goal.value) for goal in simple.goals] == [("city", "Lima"), ("nights", "3")]
    assert "the city of the stay" in simple.goals[0].text and "Lima" in simple.goals[0].text
    assert simple.opening == "I need one call of `hotel.book`."
    assert [goal.slot for goal in parallel.goals] == [
        "city of call 1",
        "nights of call 1",
        "pets of call 1",
        "city of call 2",
        "nights of call 2",
        "view of call 2",
    ]
    assert FAMILY.gold(parallel) == (
        "[hotel.book(city='Oslo', nights=2, pets=True), hotel.book(city='Rome', nights=5, view='garden')]"
    )
    for task in (simple, parallel):
        assert FAMILY.execute(task, task.intent) == FAMILY.gold(task)
        for mode in ("official", "strict"):
            grade = FAMILY.with_verdict(mode).grade(task, FAMILY.gold(task))
            assert grade.full_credit and grade.detail["official"] and grade.detail["strict"]
        json.dumps(dict(task.payload))


def assert_edits_flip(task: SourceTask) -> tuple[int, int]:
    rng = random.Random(task.id)
    pairs = [(goal, new) for goal in task.goals for new in FAMILY.variants(task, goal, rng)]
    decoys = FAMILY.decoys(task, rng)
    for edit in [*(Replace(goal, new) for goal, new in pairs), *map(Add, decoys)]:
        answer = FAMILY.execute(task, fold(task.intent, [edit]))
        grade = FAMILY.grade(task, answer)
        assert grade.error is None and not grade.full_credit, (task.id, edit, answer)
        assert not grade.detail["official"] and not grade.detail["strict"] and grade.detail["arguments"]
    for goal, new in pairs:
        assert new.slot == goal.slot and new.id.startswith(f"{goal.id}.v") and new.text != goal.text
    return len(pairs), len(decoys)


def test_variants_and_decoys_flip_the_verdict(tmp_path: Path) -> None:
    for task in FAMILY.load(write(tmp_path), "test"):
        variants, decoys = assert_edits_flip(task)
        assert variants >= 8 and decoys >= 4
        view = [
            decoy for decoy in FAMILY.decoys(task, random.Random(0)) if (decoy.slot or "").startswith("view")
        ]
        assert all(decoy.value in {"sea", "garden"} for decoy in view)
        again = [FAMILY.variants(task, task.goals[0], random.Random(4)) for _ in range(2)]
        assert again[0] == again[1]


def test_states_without_a_goal_or_with_a_foreign_one(tmp_path: Path) -> None:
    task = next(FAMILY.load(write(tmp_path), "simple_python"))
    short = FAMILY.execute(task, fold(task.intent, [Delete(task.goals[1])]))
    assert short == "[hotel.book(city='Lima')]"
    grade = FAMILY.grade(task, short)
    assert (grade.detail["kind"], grade.detail["argument"]) == ("missing_required", "nights")
    with pytest.raises(GraderError, match="no argument of this task"):
        FAMILY.execute(task, fold(task.intent, [Add(Goal("x1", "sing", "song", "loud"))]))
    with pytest.raises(GraderError, match="no value for 'nights'"):
        FAMILY.execute(
            task, fold(task.intent, [Replace(task.goals[1], Goal("g2.v9", "?", "nights", "many"))])
        )
    assert FAMILY.grade(task, "I cannot").detail["kind"] == "unparsable"


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(MissingFiles, match=r"gorilla.*bfcl/BFCL_v4_simple_python\.json"):
        list(FAMILY.load(tmp_path, "simple_python"))
    with pytest.raises(UnknownName, match="Did you mean 'parallel'"):
        list(FAMILY.load(tmp_path, "paralel"))
    folder = write(tmp_path)
    assert len(list(FAMILY.load(folder / "bfcl", "test"))) == 2
    answers = folder / "bfcl" / "possible_answer" / "BFCL_v4_parallel.json"
    answers.write_text('{"id": "other", "ground_truth": []}\n')
    with pytest.raises(DataError, match=r"row 1: 'parallel_0' has no answer"):
        list(FAMILY.load(folder, "parallel"))
    answers.write_text('{"id": "parallel_0", "ground_truth": [3]}\n')
    with pytest.raises(DataError, match=r"possible_answer.*row 1: ground_truth is no"):
        list(FAMILY.load(folder, "parallel"))
    answers.unlink()
    with pytest.raises(MissingFiles, match="possible_answer"):
        list(FAMILY.load(folder, "parallel"))
    (folder / "bfcl" / "BFCL_v4_simple_python.json").write_text('{"id": 1')
    with pytest.raises(DataError, match=r"BFCL_v4_simple_python\.json, row 1: not JSON"):
        list(FAMILY.load(folder, "simple_python"))


def test_items_that_cannot_be_graded_are_skipped_with_a_reason(tmp_path: Path) -> None:
    wrong = [{"hotel.book": {"city": ["Lima"], "nights": ["three", 3], "stars": [4]}}]
    folder = write(tmp_path, [wrong, []])
    assert list(FAMILY.load(folder, "test")) == []
    first, second = FAMILY.skipped(folder, "test")
    assert "rejects" in first.reason and "stars" in first.reason
    assert "no accepted call" in second.reason


@real
def test_real_golds_pass_and_spoiled_ones_fail() -> None:
    loaded = list(checked(FAMILY, DATA, "test"))
    assert len(loaded) + len(FAMILY.skipped(DATA, "test")) == 1000
    assert not [item for item in loaded if isinstance(item, Quarantined)]
    assert len(loaded) >= 990
    for task in loaded:
        assert isinstance(task, SourceTask)
        calls = parse_calls(FAMILY.gold(task)) or []
        assert FAMILY.execute(task, task.intent) == FAMILY.gold(task)
        assert len({goal.slot for goal in task.goals}) == len(task.goals)
        assert not FAMILY.grade(task, "").full_credit
        assert not FAMILY.grade(task, render_calls(calls[:-1])).full_credit
        first = dict(calls[0].arguments)
        schemas = {f["name"]: f["parameters"] for f in task.payload["functions"]}
        for name in schemas[calls[0].name]["required"]:
            less = Call(calls[0].name, {k: v for k, v in first.items() if k != name})
            assert not FAMILY.grade(task, render_calls([less, *calls[1:]])).full_credit


@real
def test_real_variants_and_decoys_flip() -> None:
    counts = [assert_edits_flip(task) for n, task in enumerate(FAMILY.load(DATA, "test")) if n % 20 == 0]
    assert all(variants > 0 for variants, _ in counts)
    assert sum(decoys > 0 for _, decoys in counts) >= 0.95 * len(counts)


@real
def test_golds_known_to_be_doubtful_are_flagged() -> None:
    flags = {task.id.removeprefix("bfcl/"): task.payload["flags"] for task in FAMILY.load(DATA, "test")}
    flagged = {id: " ".join(reasons) for id, reasons in flags.items() if reasons}
    assert flagged.keys() == {
        "simple_python_120",
        "parallel_84",
        "parallel_155",
        "parallel_multiple_12",
        "parallel_multiple_26",
        "parallel_multiple_75",
        "parallel_multiple_179",
    }
    assert "'permeability'" in flagged["parallel_multiple_12"] and "default" in flagged["parallel_84"]


def test_an_answer_from_before_upstreams_corrections_is_flagged() -> None:
    truth = [{"f": {"x": [1]}}]
    schemas = {"f": function("f", x="integer")["parameters"]}
    assert "not the corrected one" in flags_of("parallel_170", schemas, truth)[0]
    assert flags_of("parallel_171", schemas, truth) == []
    assert flags_of("parallel_171", schemas, [{"f": {"y": [1, ""]}}]) == [
        "the answer lists 'y', which f does not have",
        "the answer has no entry for 'x' of f, so giving it is rejected",
    ]


def test_records_come_in_the_sharded_layout(tmp_path: Path) -> None:
    simple, parallel = FAMILY.records(write(tmp_path), "test")
    assert (simple["task"], simple["task_id"]) == ("actions", "sharded-BFCL/simple_python_0")
    assert simple["function"] == [ROOMS] and parallel["reference_answer"] == TRUTHS[1]
    assert parallel["test_category"] == "parallel" and "shards" not in parallel
