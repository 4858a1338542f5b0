"""What variants and decoys ask for, as code: each is a change around the reference solution.

An `Op` is some lines inside a wrapper around the reference; `wrap` puts the lines of several together. So the
answer that obeys a stale or withdrawn requirement can be run, and the tests say whether obeying it matters.
"""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import dataclass

from envs.families._humaneval_text import Example

# Where an op stands in the wrapper: what is computed, before its type, before its packaging.
CONTENT, TYPE, FORMAT, LAST = range(4)


@dataclass(frozen=True, slots=True)
class Op:
    """`lines` run with `result` (and `first`, the first argument); `before` runs ahead of the call."""

    lines: tuple[str, ...] = ()
    rank: int = CONTENT
    before: tuple[str, ...] = ()
    params: tuple[str, ...] | None = None
    """Parameters in place of the reference's own."""
    is_async: bool = False
    kinds: frozenset[str] | None = None
    """Results to which it applies; None: any."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A requirement and its op. `value` is set where `text` is "<words> <value>"."""

    text: str
    op: Op
    value: str | None = None
    slot: str = ""


def _to(expression: str, kinds: str = "", rank: int = CONTENT) -> Op:
    return Op((f"result = {expression}",), rank, kinds=frozenset(kinds.split()) if kinds else None)


_SEQUENCE, _NUMBER = "list tuple str", "int float"

# (clause, op): added to the sentence that says what to return.
_CLAUSES: tuple[tuple[str, Op], ...] = (
    ("in reverse order", _to("result[::-1]", "list tuple")),
    ("without the last element", _to("result[:-1]", "list tuple")),
    ("but at most the first two elements", _to("result[:2]", "list tuple")),
    ("with its length put in front", _to("[len(result), *result]", "list")),
    ("with every element written twice", _to("[item for item in result for _ in range(2)]", "list")),
    ("written backwards", _to("result[::-1]", "str")),
    ("all in upper case", _to("result.upper()", "str")),
    ("with an exclamation mark at the end", _to("result + '!'", "str")),
    ("without the first character", _to("result[1:]", "str")),
    ("in square brackets", _to("'[' + result + ']'", "str")),
    ("plus one", _to("result + 1", _NUMBER)),
    ("times two", _to("result * 2", _NUMBER)),
    ("minus one", _to("result - 1", _NUMBER)),
    ("with the opposite sign", _to("-result", _NUMBER)),
    ("squared", _to("result ** 2", _NUMBER)),
    ("with True and False the other way round", _to("not result", "bool")),
    ("as 1 for yes and -1 for no", _to("1 if result else -1", "bool")),
    ("as the word yes or the word no", _to("'yes' if result else 'no'", "bool")),
    ("with keys and values swapped", _to("{value: key for key, value in result.items()}", "dict")),
    ("as a list of pairs", _to("list(result.items())", "dict")),
)

# (pattern, what takes its place, op): a change inside a sentence.
_CHANGES: tuple[tuple[str, str, Op], ...] = (
    (r"\bascending order\b", "descending order", _to("result[::-1]", _SEQUENCE)),
    (r"\bsmallest to (largest|biggest)\b", r"\1 to smallest", _to("result[::-1]", _SEQUENCE)),
    (r"\bshortest to longest\b", "longest to shortest", _to("result[::-1]", "list")),
    (r"\b(return\w*) None\b", r"\1 -1", _to("-1 if result is None else result")),
    (r"\b(return\w*) None\b", r"\1 an empty string", _to("'' if result is None else result")),
    (r"\b(return\w*) (?:an empty list|\[\])", r"\1 None", _to("None if result == [] else result")),
    (r"\b(return\w*) an empty string\b", r"\1 None", _to("None if result == '' else result")),
    (r"\b(return\w*) -1\b", r"\1 None", _to("None if result == -1 else result")),
    (r"\b(return\w*) -1\b", r"\1 0", _to("0 if result == -1 else result")),
    (r"\b(return\w*) 0\b", r"\1 -1", _to("-1 if result == 0 else result", _NUMBER)),
    (r"\blower\s?case\b", "upper case", _to("result.upper()", "str")),
    (r"(['\"])Yes\1", r"\1true\1", _to("'true' if result == 'Yes' else result", "str")),
    (r"(['\"])YES\1", r"\1true\1", _to("'true' if result == 'YES' else result", "str")),
    (r"(['\"])No\1", r"\1false\1", _to("'false' if result == 'No' else result", "str")),
    (r"(['\"])NO\1", r"\1false\1", _to("'false' if result == 'NO' else result", "str")),
)

_TYPES: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "list": (
        "a list",
        (
            ("a tuple", "tuple(result)"),
            ("a string", "str(result)"),
            ("an iterator", "iter(result)"),
            ("a dictionary from position to element", "dict(enumerate(result))"),
        ),
    ),
    "str": (
        "a string",
        (
            ("a list of characters", "list(result)"),
            ("bytes", "result.encode()"),
            ("a tuple of characters", "tuple(result)"),
        ),
    ),
    "bool": ("a boolean", (("the string 'True' or 'False'", "str(result)"), ("a list with one boolean", "[result]"))),
    "int": (
        "an integer",
        (
            ("a string of digits", "str(result)"),
            ("a list with one integer", "[result]"),
            ("a tuple with one integer", "(result,)"),
        ),
    ),
    "float": (
        "a number",
        (
            ("a string with two decimals", "f'{result:.2f}'"),
            ("a list with one number", "[result]"),
            ("a number rounded to the next ten", "round(result, -1)"),
        ),
    ),
    "tuple": ("a tuple", (("a list", "list(result)"), ("a string", "str(result)"), ("a set", "set(result)"))),
    "dict": ("a dictionary", (("a list of keys", "list(result)"), ("a string", "str(result)"))),
}  # fmt: skip

_EXTRA = ("verbose", "limit", "default", "strict", "mode")

_DECOYS: tuple[tuple[str, tuple[str, ...], Op], ...] = (
    (
        "output format",
        ("Turn the result into a string at the end.", "Give the result back as text, with str()."),
        _to("str(result)", "list tuple int float bool dict", FORMAT),
    ),
    (
        "size report",
        ("Return a pair of the result and its length.", "Along with the result, return how long it is."),
        _to("(result, len(result))", "list tuple str dict", FORMAT),
    ),
    (
        "direction",
        ("Reverse the result before you return it.", "Turn the result around at the end."),
        _to("result[::-1]", _SEQUENCE, FORMAT),
    ),
    (
        "printing",
        ("Print the result instead of returning it.", "Do not return anything, just print the result."),
        Op(("print(result)", "result = None"), LAST),
    ),
    (
        "empty input",
        ("Raise a ValueError when the first argument is empty.", "Refuse an empty first argument, ValueError."),
        Op(before=("if hasattr(first, '__len__') and len(first) == 0:", "    raise ValueError('empty')")),
    ),
    (
        "negative input",
        ("Raise a ValueError when the first argument is negative.", "Refuse a negative first argument, ValueError."),
        Op(before=("if isinstance(first, (int, float)) and first < 0:", "    raise ValueError('negative')")),
    ),
    (
        "packaging",
        ("Put the result in a dictionary under the key 'result'.", "Wrap the result in a dict, the key is 'result'."),
        _to("{'result': result}", "", FORMAT),
    ),
    (
        "waiting",
        ("Make the function async.", "Write it as a coroutine, with async def."),
        Op(is_async=True),
    ),
    (
        "ceiling",
        ("Never return more than 3.", "Cap the result at 3."),
        _to("min(result, 3)", _NUMBER),
    ),
    (
        "rounding",
        ("Round the result to tens.", "Give the result rounded to the next ten."),
        _to("round(result, -1)", _NUMBER),
    ),
    (
        "nothing found",
        ("Return None where the result would be empty, zero or False.", "Empty, zero or False comes back as None."),
        _to("result or None", "", FORMAT),
    ),
    (
        "letter case",
        ("Put all letters of the result in upper case.", "Use capital letters only in the result."),
        _to("result.upper()", "str", FORMAT),
    ),
    (
        "repetitions",
        ("Remove repeated elements from the result.", "Each element may occur just once in the result."),
        _to("[item for at, item in enumerate(result) if item not in result[:at]]", "list"),
    ),
    (
        "sorting",
        ("Sort the result from high to low.", "Put the highest element of the result first, then go down."),
        _to("sorted(result, reverse=True)", "list"),
    ),
)  # fmt: skip


def signature_asks(entry: str, shown: str, params: tuple[str, ...], plain: bool) -> list[Ask]:
    """Return other signatures: parameters in another order, and one parameter more."""
    inside = shown[len(entry) + 1 : -1]
    parts = [ast.unparse(arg) for arg in ast.parse(f"def f({inside}): pass").body[0].args.args]  # type: ignore[attr-defined]
    if not plain or len(parts) != len(params):
        return []
    orders = [order for order in itertools.permutations(range(len(params))) if list(order) != sorted(order)]
    found = [([parts[n] for n in order], [params[n] for n in order]) for order in orders[:5]]
    extra = [name for name in _EXTRA if name not in params]
    found += [([*parts, name], [*params, name]) for name in extra[:4]]
    found += [([name, *parts], [name, *params]) for name in extra[4:]]
    return [
        Ask(signature_text(value := f"{entry}({', '.join(texts)})"), Op(params=tuple(names)), value)
        for texts, names in found
    ]


def signature_text(value: str) -> str:
    return f"write the function {value}"


def type_word(kind: str | None, returns: str | None) -> str | None:
    """Return how the type of the result is named; None where it is not clear."""
    if kind not in _TYPES:
        return None
    return f"a value of type {returns}" if returns else _TYPES[kind][0]


def type_asks(kind: str | None) -> list[Ask]:
    """Return other types for the result."""
    if kind not in _TYPES:
        return []
    return [Ask(type_text(value), _to(expression, "", TYPE), value) for value, expression in _TYPES[kind][1]]


def type_text(value: str) -> str:
    return f"return {value}"


def sentence_asks(text: str, kind: str | None, main: bool) -> list[Ask]:
    """Return the sentence with a change inside, and, if it says what to return (`main`), with a clause more."""
    found: list[Ask] = []
    for pattern, new, op in _CHANGES:
        changed = re.sub(pattern, new, text, flags=re.IGNORECASE if pattern.startswith(r"\b") else 0)
        if changed != text and _fits(op, kind):
            found.append(Ask(changed, op))
    if kind == "bool" and re.search(r"\btrue\b", text, re.IGNORECASE):
        swapped = re.sub(r"\b(true|false)\b", _swap, text, flags=re.IGNORECASE)
        found.append(Ask(swapped, _to("not result")))
    if main:
        body = text.rstrip(" .:")
        found += [Ask(f"{body}, {clause}.", op) for clause, op in _CLAUSES if kind and _fits(op, kind)]
    return found


def _swap(match: re.Match[str]) -> str:
    word = {"true": "false", "false": "true"}[match.group(0).lower()]
    return word.capitalize() if match.group(0)[0].isupper() else word


def example_asks(example: Example) -> list[Ask]:
    """Return the example with other results, close to the true one."""
    if example.args is None:
        return []
    found = []
    for value in _near(example.value):
        other = Example(example.call, repr(value), example.args, value)
        same = f"arguments == {example.args!r}"
        found.append(Ask(other.text, _to(f"{value!r} if {same} else result")))
    return found


def _near(value: object) -> list[object]:
    match value:
        case bool():
            return [not value, None]
        case int() | float():
            return [value + 1, value - 1, value + 2, value * 10]
        case str() if value:
            return [value + value[-1], value[:-1], value[::-1], value + value]
        case list() | tuple() if value:
            return [value[::-1], value[:-1], type(value)([*value, value[-1]]), value[1:]]
        case list():
            return [None, [0]]
        case None:
            return [0, []]
    return []


def decoy_asks(kind: str | None) -> list[list[Ask]]:
    """Return, per slot, the wordings of one extra requirement that can apply to such a result."""
    return [
        [Ask(text, op, slot=slot) for text in wordings] for slot, wordings, op in _DECOYS if _fits(op, kind)
    ]


def _fits(op: Op, kind: str | None) -> bool:
    return op.kinds is None or kind in op.kinds


def wrap(reference: str, entry: str, params: tuple[str, ...], ops: list[Op]) -> str:
    """Return `reference` (which defines `entry`) inside a function that obeys `ops`, in the order of ranks.

    An op that expects another kind of result than an earlier one left raises when the answer runs.
    """
    if not ops:
        return reference
    outer = next((op.params for op in reversed(ops) if op.params is not None), params)
    head = "async def" if any(op.is_async for op in ops) else "def"
    lines = [f"{head} {entry}({', '.join(outer)}):", f"    arguments = ({', '.join(params)},)"]
    if params:
        lines.append(f"    first = {params[0]}")
    for op in ops:
        lines += [f"    {line}" for line in op.before]
    lines.append(f"    result = _reference({', '.join(params)})")
    for op in sorted(ops, key=lambda op: op.rank):
        lines += [f"    {line}" for line in op.lines]
    lines.append("    return result")
    return f"{_renamed(reference, entry)}\n\n\n" + "\n".join(lines) + "\n"


def _renamed(reference: str, entry: str) -> str:
    """Rename `entry` to `_reference`, calls to itself included, so that only the outermost call is wrapped."""
    tree = ast.parse(reference)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == entry:
            node.name = "_reference"
        elif isinstance(node, ast.Name) and node.id == entry:
            node.id = "_reference"
    return ast.unparse(tree)
