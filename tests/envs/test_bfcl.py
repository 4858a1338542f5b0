"""BFCL: arguments as goals, and the leaderboard's verdicts (official) beside stricter ones."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from envs.ast_match import argument_faults, match
from envs.call_syntax import Call, NameMap, parse_calls, render_calls
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


FLOATS = {"type": "array", "items": {"type": "float"}}
STRINGS = {"type": "array", "items": {"type": "string"}}
DICTS = {"type": "array", "items": {"type": "dict"}}


def kind(spec: Any, accepted: list[Any], value: Any, mode: str = "official") -> str | None:
    fault = match([function(x=spec)], [Call("f", {"x": value})], [{"f": {"x": accepted}}], mode)
    return None if fault is None else fault.kind


@pytest.mark.parametrize(
    ("spec", "accepted", "value", "expected"),
    [
        ("integer", [5], 5, None),
        ("integer", [5], "5", "type_error:simple"),
        ("integer", [1], True, "type_error:simple"),
        ("integer", [5], 5.0, "type_error:simple"),
        ("integer", [5], 6, "value_error:others"),
        ("float", [5.0], 5, None),  # an int may stand for a float
        ("float", [0.5], "0.5", "type_error:simple"),
        ("boolean", [True], 1, "type_error:simple"),
        ("string", ["New York, NY"], "new york ny", None),
        ("string", ["-5"], "5", None),  # punctuation is dropped
        ("string", ["it's"], 'it"s', None),
        ("string", ["A"], "B", "value_error:string"),
        ("integer", ["n"], "n", None),  # a variable in the truth
        ("integer", ["n"], "N", "value_error:others"),  # and it is compared as it stands
        (FLOATS, [[1.0, 2.0]], [1, 2], "type_error:nested"),  # no int inside a list of floats
        (FLOATS, [[1.0, 2.0]], [1.0, 2.0], None),
        (FLOATS, [[1.0, 2.0]], [2.0, 1.0], "value_error:list/tuple"),
        (STRINGS, [["A B", "c"]], ["a-b", "C"], None),
        (STRINGS, [["a"], ""], [], None),  # an optional list may be empty
        ("string", ["a", ""], "- .", None),  # and an optional string may be blank
        ({"type": "tuple", "items": {"type": "float"}}, [[1.0, 2.0]], (1.0, 2.0), None),
        (FLOATS, [[1.0]], (1.0,), "type_error:simple"),
        ("dict", [{"a": ["X y"], "b": [1, ""]}], {"a": "xy"}, None),
        ("dict", [{"a": ["x"], "b": [1]}], {"a": "x"}, "value_error:dict"),
        ("dict", [{"a": ["x"]}], {"a": "x", "c": 1}, "value_error:dict"),
        (DICTS, [[{"a": ["x"]}, {"a": ["y"]}]], [{"a": "x"}, {"a": "y"}], None),
        (DICTS, [[{"a": ["x"]}, {"a": ["y"]}]], [{"a": "y"}, {"a": "x"}], "value_error:list_dict"),
        (DICTS, [[{"a": ["x"]}]], [], "value_error:list_dict"),
        ("any", ["x"], "x", None),
    ],
)
def test_official_verdict_on_one_argument(
    spec: Any, accepted: list[Any], value: Any, expected: str | None
) -> None:
    assert kind(spec, accepted, value) == expected


@pytest.mark.parametrize(
    ("spec", "accepted", "value"),
    [
        ("string", ["-5"], "5"),
        ("string", ["1.5"], "15"),
        ("string", ["A-B"], "AB"),
        ("string", ["1,5"], "15"),
        ("string", ["new york"], "newyork"),
        ("string", ["a", ""], ""),
        (STRINGS, [["a"], ""], []),
        (STRINGS, [["A-B"]], ["AB"]),
        ("dict", [{"a": ["X y"]}], {"a": "xy"}),
        ("dict", [{"a": [1]}], {"a": True}),
    ],
)
def test_strict_sees_what_official_forgives(spec: Any, accepted: list[Any], value: Any) -> None:
    assert kind(spec, accepted, value) is None
    assert kind(spec, accepted, value, "strict") is not None


@pytest.mark.parametrize(
    ("spec", "accepted", "value"),
    [
        ("string", ["New York, NY"], "new york NY"),
        ("string", ["Dec. 5, 2024."], " Dec. 5, 2024"),
        ("string", ["it's"], 'It"s'),
        ("float", [5.0], 5),
        ("dict", [{"a": ["X y", ""], "b": [[1, 2]]}], {"b": [1, 2]}),
        (DICTS, [[{"a": ["x", "z"]}]], [{"a": "Z"}]),
        ("integer", ["n"], "n"),
        ({"type": "tuple", "items": {"type": "float"}}, [[1.0, 2.0]], (1.0, 2.0)),
    ],
)
def test_strict_forgives_mere_form(spec: Any, accepted: list[Any], value: Any) -> None:
    assert kind(spec, accepted, value) is None
    assert kind(spec, accepted, value, "strict") is None


def test_strict_takes_whole_numbers_for_floats_inside_lists_too() -> None:
    assert kind(FLOATS, [[1.0, 2.5]], [1, 2.5]) == "type_error:nested"
    assert kind(FLOATS, [[1.0, 2.5]], [1, 2.5], "strict") is None
    assert kind(FLOATS, [[1.0, 2.5]], [1, 2], "strict") is not None
    assert kind("integer", [5], 5.0, "strict") == "type_error:simple"


def test_strict_knows_the_schemas_default_and_refuses_positional_arguments() -> None:
    spec = {"type": "integer", "default": 10}
    functions = [function(x="integer", n=spec)]
    free, demanded = [{"f": {"x": [1]}}], [{"f": {"x": [1], "n": [10]}}]
    written, left_out = [Call("f", {"x": 1, "n": 10})], [Call("f", {"x": 1})]
    assert match(functions, written, free, "official") and not match(functions, written, free, "strict")
    assert match(functions, left_out, demanded, "official") and not match(functions, left_out, demanded)
    assert match(functions, [Call("f", {"x": 1, "n": 9})], free) is not None
    assert match(functions, [Call("f", {"x": 1}, positional=1)], free, "official") is None
    assert match(functions, [Call("f", {"x": 1}, positional=1)], free) is not None


def test_dotted_names_map_both_ways_without_collision() -> None:
    names = NameMap(["math.factorial", "math_factorial", "a.b", "a_b_2", "x" * 70 + ".a", "x" * 70 + ".b"])
    offered = [names.offered(name) for name in ("math.factorial", "math_factorial", "a.b")]
    assert offered == ["math_factorial_2", "math_factorial", "a_b"]
    long = [names.offered("x" * 70 + tail) for tail in (".a", ".b")]
    assert len(set(long)) == 2 and all(len(name) <= 64 for name in long)
    assert all(names.real(names.offered(name)) == name for name in ("math.factorial", "a.b", "x" * 70 + ".b"))
    assert names.real("other") == "other"
    with pytest.raises(ValueError, match="distinct"):
        NameMap(["f", "f"])
    functions, truth = [function("math.f", x="integer")], [{"math.f": {"x": [1]}}]
    assert match(functions, [Call("math_f", {"x": 1})], truth) is None
    assert match(functions, [Call("math_f", {"x": 1})], truth, "official") is not None


def test_faults_are_told_by_argument_and_name_the_right_slot() -> None:
    functions = [function(a="string", b="string", n="integer")]
    truth = [{"f": {"a": ["x"], "b": ["y"], "n": [1]}}, {"f": {"a": ["p"], "b": ["q"], "n": [2]}}]
    calls = [Call("f", {"a": "p", "b": "x", "n": 3}), Call("f", {"a": "y", "b": "x", "n": 1})]
    found = argument_faults(functions, calls, truth)
    assert [(e["call"], e["argument"], e["given"], e["belongs_to"]) for e in found] == [
        (0, "a", "y", ["b"]),
        (0, "b", "x", ["a"]),
        (1, "b", "x", ["a of call 1"]),
        (1, "n", 3, []),
    ]
    assert (
        argument_faults(functions, [Call("f", {"a": "x", "b": "y", "n": 1})], truth)[-1]["kind"]
        == "missing_call"
    )
    three = [Call("f", {"a": "x", "b": "y", "n": 1}), Call("f", {"a": "p", "b": "q", "n": 2}), Call("g", {})]
    assert [e["kind"] for e in argument_faults(functions, three, truth)] == ["extra_call"]


def test_arguments_that_are_missing_or_too_many() -> None:
    functions = [function(required=("a",), a="integer", b="integer", c="integer", d="integer")]
    truth = [{"f": {"a": [1], "b": [2, ""], "c": [3]}}]

    def verdict(**arguments: Any) -> str | None:
        fault = match(functions, [Call("f", arguments)], truth, "official")
        return None if fault is None else fault.kind

    assert verdict(a=1, c=3) is None
    assert verdict(a=1, b=2, c=3) is None
    assert verdict(c=3) == "missing_required"
    assert verdict(a=1) == "missing_optional"
    assert verdict(a=1, c=3, d=4) == "unexpected_param"  # in the schema, not in the truth
    assert verdict(a=1, c=3, z=4) == "unexpected_param"
    assert match(functions, [Call("g", {"a": 1, "c": 3})], truth) is not None


def test_official_matching_is_greedy_and_strict_is_not() -> None:
    functions = [function(x="integer")]
    outputs = [Call("f", {"x": 1}), Call("f", {"x": 2})]
    early, late = {"f": {"x": [1, 2]}}, {"f": {"x": [1]}}
    assert match(functions, outputs, [late, early], "official") is None
    assert match(functions, outputs, [early, late], "official") is not None
    assert match(functions, outputs, [early, late], "strict") is None
    assert match(functions, outputs, [late, late], "strict") is not None
    fault = match(functions, outputs[:1], [early, late], "official")
    assert fault is not None and fault.kind == "wrong_count"
    assert (
        match(functions, outputs[:1] * 2, [late, late], "official") is None
    )  # identical calls are a multiset


def test_bad_items_and_modes_are_no_verdicts() -> None:
    with pytest.raises(GraderError, match="no accepted call"):
        match([function()], [], [])
    with pytest.raises(GraderError, match="no function"):
        match([function()], [Call("g", {})], [{"g": {}}])
    with pytest.raises(GraderError, match="type 'colour'"):
        match([function(x="colour")], [Call("f", {"x": 1})], [{"f": {"x": [1]}}])
    with pytest.raises(UnknownName, match="lenient"):
        match([function()], [Call("f", {})], [{"f": {}}], "lenient")


@pytest.mark.parametrize(
    "text",
    [
        "[a.f(x=-1, y='b')]",
        "a.f(x=-1, y='b')",
        "```python\n[a.f(x=-1, y='b')]\n```",
        "Sure! Here it is:\n[a.f(x=-1, y='b')]\nDone.",
        "Here:\na.f(x=-1, y='b')",
        '[{"name": "a.f", "arguments": {"x": -1, "y": "b"}}]',
        '{"name": "a.f", "arguments": "{\\"x\\": -1, \\"y\\": \\"b\\"}"}',
        '[{"a.f": {"x": -1, "y": "b"}}]',
        '```json\n{"a.f": {"x": -1, "y": "b"}}\n```',
    ],
)
def test_calls_are_read_from_many_shapes(text: str) -> None:
    assert parse_calls(text) == [Call("a.f", {"x": -1, "y": "b"})]


@pytest.mark.parametrize(
    "text", ["", "no call", "f(", "[1, 2]", '{"a": 1}', "x" * 200_000, "(" * 5000, "f(a=" + "-" * 3000 + "1)"]
)
def test_no_call_is_none(text: str) -> None:
    assert parse_calls(text) is None


def test_values_in_python_syntax() -> None:
    (call,) = parse_calls("f(1, a=true, b=[1, (2.5, 'x')], c={'k': None}, d=2*3, e=g(1), h=1/0)") or []
    assert call.positional == 1
    assert call.arguments == {
        "a": "true",
        "b": [1, (2.5, "x")],
        "c": {"k": None},
        "d": 6,
        "e": "g(1)",
        "h": "1 / 0",
    }


def test_absurd_numbers_are_wrong_answers_not_crashes() -> None:
    huge = "9" * 400
    assert parse_calls(f"f(x={huge}/3)") is None
    (call,) = parse_calls(f"f(x={huge}, y=..., z=b'a', w=9**9**9)") or []
    assert call.arguments == {"x": int(huge), "y": "...", "z": "b'a'", "w": "9 ** 9 ** 9"}
    assert (
        kind("float", [1.0], int(huge)) == kind("float", [1.0], int(huge), "strict") == "value_error:others"
    )


def test_calls_with_odd_names_are_written_as_json_and_read_back() -> None:
    for calls in (
        [Call("f", {"from": 1, "x": "it's"})],
        [Call("a.b", {"x": [1.5, "\n"], "y": {"k": True}})],
        [],
    ):
        assert (parse_calls(render_calls(calls)) or []) == calls


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
