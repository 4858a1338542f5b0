"""Compare function calls with a set of accepted ones, as the Berkeley Function-Calling Leaderboard does.

Two modes. `official` gives the verdicts of the leaderboard's Python checker (ShishirPatil/gorilla,
Apache-2.0; its behaviour written anew, no code shared), leniencies included: strings are compared without
case and without ` ,./-_*^`, calls are matched greedily in order, positional arguments are dropped, `""` or
`[]` may stand for an optional argument. `strict` compares strings exactly but for outer blanks, finds the
best one-to-one matching, and refuses positional arguments. Truth is written as in BFCL, `[{function:
{argument: [accepted values]}}]`, where `""` among the values means that the argument may be left out.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.errors import ConfigError, GraderError

MODES = ("official", "strict")
_TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
_FENCE = re.compile(r"```[a-zA-Z_]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_FOLD = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_MAX_TEXT = 100_000
Norm = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call as it was written. `positional` counts arguments without a name; their values are lost."""

    name: str
    arguments: Mapping[str, Any] = field(hash=False)
    positional: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Why calls do not match: the leaderboard's kind of error ("unexpected_param"), and in words."""

    kind: str
    message: str
    argument: str | None = None


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


def match(
    functions: Sequence[Mapping[str, Any]],
    calls: Sequence[Call],
    truth: Sequence[Mapping[str, Mapping[str, Sequence[Any]]]],
    mode: str = "official",
) -> Fault | None:
    """Return None if `calls` are the accepted ones in any order, else what is wrong first.

    Raises `GraderError` for an item without truth or with a schema that cannot be read, `ConfigError` for an
    unknown mode.
    """
    if mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    if not truth:
        raise GraderError("the item holds no accepted call, so nothing can be graded")
    if len(calls) != len(truth):
        return Fault("wrong_count", f"{len(calls)} calls where {len(truth)} are due")
    schemas = {function["name"]: function["parameters"] for function in functions}
    faults: list[list[Fault | None]] = []
    for accepted in truth:
        ((name, arguments),) = accepted.items()
        if name not in schemas:
            raise GraderError(f"the truth names {name!r}, which is no function of the item")
        faults.append([_call_fault(name, schemas[name], call, arguments, mode) for call in calls])
    return _greedy(faults) if mode == "official" else _bipartite(faults)


def _greedy(faults: list[list[Fault | None]]) -> Fault | None:
    """Give each accepted call the first free call that fits it, without looking ahead."""
    free = list(range(len(faults)))
    for row in faults:
        fit = next((at for at in free if row[at] is None), None)
        if fit is None:
            return _nearest([row[at] for at in free])
        free.remove(fit)
    return None


def _bipartite(faults: list[list[Fault | None]]) -> Fault | None:
    """Find a perfect matching by augmenting paths."""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for at, fault in enumerate(faults[row]):
            if fault is None and at not in seen:
                seen.add(at)
                if at not in owner or place(owner[at], seen):
                    owner[at] = row
                    return True
        return False

    for row in range(len(faults)):
        if not place(row, set()):
            return _nearest([fault for fault in faults[row] if fault is not None]) or Fault(
                "cannot_find_match",
                f"another accepted call already takes the calls that fit number {row + 1}",
            )
    return None


def _nearest(faults: Sequence[Fault | None]) -> Fault | None:
    """Prefer a wrong value over a wrong shape: that call came closest."""
    known = [fault for fault in faults if fault is not None]
    return max(known, key=lambda fault: fault.kind.startswith("value_error"), default=None)


def _call_fault(
    name: str, schema: Mapping[str, Any], call: Call, accepted: Mapping[str, Sequence[Any]], mode: str
) -> Fault | None:
    if call.name != name:
        return Fault("wrong_func_name", f"the call is of {call.name!r}, not of {name!r}")
    if mode == "strict" and call.positional:
        return Fault("positional", f"{call.positional} arguments of {name} have no name")
    for argument in schema["required"]:
        if argument not in call.arguments:
            return Fault("missing_required", f"the required argument {argument!r} is missing", argument)
    for argument, value in call.arguments.items():
        if argument not in schema["properties"] or argument not in accepted:
            return Fault("unexpected_param", f"the argument {argument!r} was not asked for", argument)
        kind = _value_fault(value, accepted[argument], schema["properties"][argument], mode)
        if kind is not None:
            return Fault(kind, f"{argument}={value!r}, accepted: {list(accepted[argument])!r}", argument)
    for argument, values in accepted.items():
        if argument not in call.arguments and "" not in values:
            return Fault("missing_optional", f"the argument {argument!r} is missing", argument)
    return None


def _value_fault(value: Any, accepted: Sequence[Any], spec: Mapping[str, Any], mode: str) -> str | None:
    """Return the kind of error of one argument, or None. Types are compared exactly: True is no int."""
    try:
        outer = _TYPES[spec["type"]]
        inner = _TYPES[spec["items"]["type"]] if spec["type"] in ("array", "tuple") else None
    except KeyError as error:
        raise GraderError(f"the schema's type {spec.get('type')!r} cannot be read ({error})") from None
    if spec["type"] == "tuple" and type(value) is tuple:
        value = list(value)
    if outer is float and type(value) is int:
        value = float(value)
    norm = _squash
    if mode == "strict":
        norm = _exact
        accepted = [item for item in accepted if item != ""]  # it means "left out", and is no value
    truth_type = _first_type(accepted)
    # The truth may be of another type than the schema says: a variable, compared as it stands.
    variable = truth_type is not None and truth_type is not outer
    if type(value) is outer:
        if inner is not None and not any(_elements_fit(value, item, inner) for item in accepted):
            return "type_error:nested"
    elif truth_type is not None and type(value) is truth_type:
        variable = True
    else:
        return "type_error:simple"
    if variable:
        return None if value in accepted else "value_error:others"
    if outer is dict:
        return None if any(_dict_fits(value, item, norm) for item in accepted) else "value_error:dict"
    if inner is dict:
        return None if any(_dicts_fit(value, item, norm) for item in accepted) else "value_error:list_dict"
    if outer is str:
        known = [norm(item) for item in accepted if type(item) is str]
        return None if norm(value) in known else "value_error:string"
    if outer is list:
        lists = [[norm(part) for part in item] for item in accepted]
        return None if [norm(part) for part in value] in lists else "value_error:list/tuple"
    return None if value in accepted else "value_error:others"


def _first_type(values: Sequence[Any]) -> type | None:
    return next((type(value) for value in values if value != ""), None)


def _elements_fit(value: list[Any], item: Any, inner: type) -> bool:
    """Whether each element has the schema's inner type or the type of the accepted list's first element."""
    if type(item) is not list:
        return True  # `""`, for an optional list, lets any elements through; the values are compared later
    truth = _first_type(item)
    return all(type(part) is inner or (truth is not None and type(part) is truth) for part in value)


def _squash(value: Any) -> Any:
    """Standardise a string as the leaderboard does; other values stay."""
    if type(value) is not str:
        return value
    return re.sub(r"[ ,./\-_*^]", "", value).lower().replace("'", '"')


def _exact(value: Any) -> Any:
    return value.strip() if type(value) is str else value


def _dict_fits(value: Any, accepted: Any, norm: Norm) -> bool:
    """`accepted` maps each key to its accepted values; `""` among them makes the key optional."""
    if not isinstance(value, dict) or not isinstance(accepted, Mapping):
        return False
    for key, part in value.items():
        if key not in accepted or norm(part) not in [norm(item) for item in accepted[key]]:
            return False
    return all(key in value or "" in items for key, items in accepted.items())


def _dicts_fit(value: Sequence[Any], accepted: Any, norm: Norm) -> bool:
    return len(value) == len(accepted) and all(map(lambda v, a: _dict_fits(v, a, norm), value, accepted))


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
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # no Python
        return None
    nodes = body.elts if isinstance(body, ast.List | ast.Tuple) else [body]
    if not all(isinstance(node, ast.Call) for node in nodes):
        return None
    calls = []
    for node in nodes:
        assert isinstance(node, ast.Call)
        arguments = {
            keyword.arg: _literal(keyword.value) for keyword in node.keywords if keyword.arg is not None
        }
        calls.append(Call(ast.unparse(node.func), arguments, len(node.args)))
    return calls


def _literal(node: ast.expr) -> Any:
    """Return the value of an argument; a name, or whatever is no literal, stands as its own text."""
    match node:
        case ast.Constant(value=value):
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
