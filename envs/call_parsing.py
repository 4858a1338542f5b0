"""Read function calls out of an answer, and match two lists of calls by structure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_FENCE = re.compile(r"```[a-zA-Z_]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_MAX_STARTS = 64  # brackets tried as the start of a JSON value
_MAX_TEXT = 100_000


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `arguments` holds plain JSON values."""

    name: str
    arguments: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "arguments": self.arguments}


def read_calls(answer: str) -> list[Call] | str:
    """Return the calls of an answer, or a sentence that says why there are none. Never raises.

    Understood are a JSON list of {"name", "arguments"} (or one such object) and Python calls, `f(x=1)` or
    `[f(x=1), g(y=2)]`. The last fenced block that holds calls wins, then the whole text, then the last JSON
    value in it.
    """
    if len(answer) > _MAX_TEXT:
        return f"the answer is longer than {_MAX_TEXT} characters"
    whole = answer.strip()
    blocks = [block.strip() for block in _FENCE.findall(answer)]
    for text in [*reversed(blocks), whole]:
        calls = _json_calls(text) or _python_calls(text)
        if calls:
            return calls
    calls = None
    for value in _json_values(whole):
        calls = _as_calls(value) or calls
    if calls:
        return calls
    # a call on a line of its own, after some words
    for line in reversed(whole.splitlines()[-20:]):
        calls = _python_calls(line.strip().strip("`"))
        if calls:
            return calls
    return "no call found: neither a JSON list of name and arguments nor name(argument=value)"


def type_matches(kind: str, value: Any) -> bool:
    """Return whether a JSON value has exactly the schema's type; an int is accepted where a number is due."""
    match kind:
        case "string":
            return type(value) is str
        case "integer":
            return type(value) is int
        case "number":
            return type(value) in (int, float)
        case "boolean":
            return type(value) is bool
        case "array":
            return type(value) is list and all(type(item) is str for item in value)
    return False


def match_calls(gold: Sequence[Call], found: Sequence[Call]) -> str | None:
    """Return None if the calls pair up one to one, in any order; else a sentence on what differs."""
    if len(gold) != len(found):
        return f"{len(found)} calls where {len(gold)} are due"
    owner: dict[int, int] = {}  # found index -> gold index

    def place(at: int, tried: set[int]) -> bool:
        for other, call in enumerate(found):
            if other not in tried and same_call(gold[at], call):
                tried.add(other)
                if other not in owner or place(owner[other], tried):
                    owner[other] = at
                    return True
        return False

    for at, call in enumerate(gold):
        if not place(at, set()):
            return _difference(call, found)
    return None


def same_call(a: Call, b: Call) -> bool:
    return (
        a.name == b.name
        and a.arguments.keys() == b.arguments.keys()
        and all(_same(value, b.arguments[arg]) for arg, value in a.arguments.items())
    )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, str) and isinstance(b, str):
        return a.strip() == b.strip()
    if isinstance(a, list) and isinstance(b, list):
        return sorted(item.strip() for item in a) == sorted(item.strip() for item in b)
    return type(a) in (int, float) and type(b) in (int, float) and a == b


def _difference(gold: Call, found: Sequence[Call]) -> str:
    rivals = [call for call in found if call.name == gold.name]
    if not rivals:
        return f"no call of {gold.name}"
    arguments = rivals[0].arguments
    missing = sorted(gold.arguments.keys() - arguments.keys())
    extra = sorted(arguments.keys() - gold.arguments.keys())
    wrong = sorted(
        arg
        for arg in gold.arguments.keys() & arguments.keys()
        if not _same(gold.arguments[arg], arguments[arg])
    )
    return f"{gold.name}: missing {missing}, extra {extra}, wrong {wrong}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("an argument is given twice")
    return data


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)


def _json_calls(text: str) -> list[Call] | None:
    if not text.startswith(("[", "{")):
        return None
    try:
        return _as_calls(_DECODER.decode(text))
    except (ValueError, RecursionError):  # not JSON: another reading may fit
        return None


def _json_values(text: str) -> Iterator[Any]:
    at = 0
    for _ in range(_MAX_STARTS):
        start = re.compile(r"[\[{]").search(text, at)
        if start is None:
            return
        try:
            value, at = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            at = start.end()
            continue
        yield value


def _as_calls(value: Any) -> list[Call] | None:
    """Return calls if `value` is a non-empty list of {"name", "arguments"}, or one such object."""
    items = [value] if isinstance(value, dict) else value
    if not isinstance(items, list) or not items:
        return None
    calls: list[Call] = []
    for item in items:
        if not isinstance(item, dict) or item.keys() != {"name", "arguments"}:
            return None
        if not isinstance(item["name"], str) or not isinstance(item["arguments"], dict):
            return None
        calls.append(Call(item["name"], item["arguments"]))
    return calls


def _python_calls(text: str) -> list[Call] | None:
    if not text.endswith((")", "]")):
        return None
    try:
        body = ast.parse(text, mode="eval").body
        nodes = body.elts if isinstance(body, ast.List | ast.Tuple) else [body]
        calls = [_python_call(node) for node in nodes]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):  # not Python calls
        return None
    return calls or None


def _python_call(node: ast.expr) -> Call:
    """Raises `ValueError` if the node is no call with keyword literals only."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with keyword arguments")
    pairs: list[tuple[str, Any]] = []
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("** is not understood")
        pairs.append((keyword.arg, ast.literal_eval(keyword.value)))
    return Call(ast.unparse(node.func), _unique(pairs))
