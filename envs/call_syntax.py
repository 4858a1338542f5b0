"""Function calls as text: read out of an answer, written back, and their names where dots are not allowed."""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_FENCE = re.compile(r"```[a-zA-Z_]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_FOLD = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_MAX_TEXT = 100_000
_MAX_NAME = 64  # of a tool in the chat interfaces, whose names match [a-zA-Z0-9_-]{1,64}


@dataclass(frozen=True, slots=True)
class Call:
    """A call as it was written. `positional` counts arguments without a name; their values are lost."""

    name: str
    arguments: Mapping[str, Any] = field(hash=False)
    positional: int = 0


class NameMap:
    """Function names as chat interfaces take them (`math_factorial`), and back (`math.factorial`).

    One to one: a name that would collide with another gets a number. Raises `ValueError` for a name given twice.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._offered: dict[str, str] = {}
        self._real: dict[str, str] = {}
        real_names = list(names)
        if len(set(real_names)) != len(real_names):
            raise ValueError(f"function names must be distinct, got {real_names}")
        # Names that need no change keep their own, whatever the order.
        for name in sorted(real_names, key=lambda name: _sound_name(name) != name):
            offered, number = _sound_name(name), 2
            while offered in self._real:
                ending = f"_{number}"
                offered, number = _sound_name(name)[: _MAX_NAME - len(ending)] + ending, number + 1
            self._offered[name], self._real[offered] = offered, name

    def offered(self, name: str) -> str:
        """Return the name to offer to a model. Raises `KeyError` for an unknown one."""
        return self._offered[name]

    def real(self, name: str) -> str:
        """Return the function that a model means; a name that is not known stays as it is."""
        return name if name in self._offered else self._real.get(name, name)


def _sound_name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:_MAX_NAME]


def parse_calls(text: str) -> list[Call] | None:
    """Return the calls of an answer, or None. Python syntax (`[f(a=1), g(b="x")]`) and JSON are understood.

    JSON is a list of `{"name", "arguments"}` or of `{function: {argument: value}}`. A fenced block is looked
    at before the whole text, and that before the widest bracketed part of it.
    """
    if len(text) > _MAX_TEXT:
        return None
    parts = [*reversed(_FENCE.findall(text)), text]
    widest = re.search(r"\[.*\]", text, re.DOTALL)
    parts += [widest.group()] if widest else []
    parts += reversed(text.splitlines())
    for part in parts:
        cleaned = part.strip().strip("`").strip()
        calls = _json_calls(cleaned) or _python_calls(cleaned)
        if calls is not None:
            return calls
    return None


def render_calls(calls: Sequence[Call]) -> str:
    """Return calls in Python syntax, or as JSON where a name is no Python name."""
    names = [name for call in calls for name in (*call.name.split("."), *call.arguments)]
    if all(_plain_name(name) for name in names):
        shown = (f"{c.name}({', '.join(f'{k}={v!r}' for k, v in c.arguments.items())})" for c in calls)
        return f"[{', '.join(shown)}]"
    return json.dumps([{"name": call.name, "arguments": dict(call.arguments)} for call in calls])


def _plain_name(name: str) -> bool:
    try:
        return isinstance(ast.parse(name, mode="eval").body, ast.Name)
    except SyntaxError:
        return False


def _json_calls(text: str) -> list[Call] | None:
    if not text.startswith(("[", "{")):
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):  # not JSON: it may be Python
        return None
    calls: list[Call] = []
    for item in data if isinstance(data, list) else [data]:
        if not isinstance(item, dict):
            return None
        if "name" in item and set(item) <= {"name", "arguments", "parameters"}:
            name, arguments = item["name"], item.get("arguments", item.get("parameters", {}))
            if isinstance(arguments, str):
                try:
                    arguments = json.loads(arguments)
                except ValueError:
                    return None
        elif len(item) == 1:
            ((name, arguments),) = item.items()
        else:
            return None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        calls.append(Call(name, arguments))
    return calls


def _python_calls(text: str) -> list[Call] | None:
    try:
        body = ast.parse(text, mode="eval").body
        nodes = body.elts if isinstance(body, ast.List | ast.Tuple) else [body]
        return [_call(node) for node in nodes]
    except (
        SyntaxError,
        ValueError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ):  # no calls that can be read
        return None


def _call(node: ast.expr) -> Call:
    """Raises `ValueError` for what is no call."""
    if not isinstance(node, ast.Call):
        raise ValueError("no call")
    arguments = {keyword.arg: _literal(keyword.value) for keyword in node.keywords if keyword.arg is not None}
    return Call(ast.unparse(node.func), arguments, len(node.args))


def _literal(node: ast.expr) -> Any:
    """Return the value of an argument; a name, or whatever is no literal, stands as its own text."""
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.List(elts=items):
            return [_literal(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_literal(item) for item in items)
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_literal(key) if key else "**": _literal(value) for key, value in pairs}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _FOLD:
            a, b = _literal(left), _literal(right)
            if (
                type(a) in (int, float)
                and type(b) in (int, float)
                and not (b == 0 and isinstance(op, ast.Div))
            ):
                return _FOLD[type(op)](a, b)
    return ast.unparse(node)
