"""BFCL: arguments as goals, and the leaderboard's verdicts (official) beside stricter ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from envs.ast_match import argument_faults, match
from envs.call_syntax import Call, NameMap, parse_calls, render_calls
from envs.errors import GraderError, UnknownName

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
