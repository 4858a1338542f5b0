"""The parts of a HumanEval prompt: what is given, the signature, and the docstring as sentences and examples."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from envs.errors import DataError

# Examples that contradict the reference and the tests: they are left out, the task stays.
WRONG_EXAMPLES = {
    "HumanEval/47": ("median([-10, 4, 6, 1000, 10, 20])",),
    "HumanEval/116": ("sort_array([1, 5, 2, 3, 4])", "sort_array([-2, -3, -4, -5, -6])"),
    "HumanEval/148": ('bf("Earth", "Mercury")',),
}
# Lines that look like examples and define a sequence: they stay as they are, without variants.
DEFINITIONS = {"HumanEval/130": ("tri(1)", "tri(4)")}

_BULLET = re.compile(r"^(?:[-*•]|\d+[.)])\s+(?=\S)")
_HEADER = re.compile(
    r"^(?:for\s+)?(?:some\s+)?(?:example|e\.g|note|constraint|constrain|variable|rule|hint)s?\s*\d*\s*[.:]*$",
    re.IGNORECASE,
)
_LABEL = re.compile(r"^inputs?\s*:", re.IGNORECASE)
_GIVES = re.compile(r"^\s*\)?\s*(?:➞|=+>|-+>|→|==?|[Rr]eturns?|should return|#\s*=>)\s*(.+)$", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(`]?[A-Z])")


@dataclass(frozen=True, slots=True)
class Example:
    """One example of the docstring; `args` and `value` are set where both are literals."""

    call: str
    shown: str
    args: tuple[Any, ...] | None = None
    value: Any = None

    @property
    def text(self) -> str:
        return f"`{self.call}` gives `{self.shown}`"


@dataclass(frozen=True, slots=True)
class Prompt:
    """`given` is the code before the function (imports, helpers); `parts` sentences and examples in order."""

    given: str
    signature: str
    params: tuple[str, ...]
    plain: bool
    """Whether all parameters are positional and without default."""
    returns: str | None
    parts: tuple[str | Example, ...]


def read_prompt(task_id: str, prompt: str, entry: str) -> Prompt:
    """Split a prompt. Raises `DataError` where it does not define `entry`."""
    try:
        tree = ast.parse(prompt)
    except SyntaxError:
        try:
            tree = ast.parse(prompt + "\n    pass\n")
        except SyntaxError as error:
            raise DataError(
                f"{task_id}: the prompt is no Python ({error.msg}, line {error.lineno})"
            ) from None
    node = next((n for n in reversed(tree.body) if isinstance(n, ast.FunctionDef) and n.name == entry), None)
    if node is None:
        raise DataError(f"{task_id}: the prompt does not define {entry!r}")
    before = [n for n in tree.body if n is not node]
    arguments = node.args
    plain = not (arguments.defaults or arguments.vararg or arguments.kwonlyargs or arguments.kwarg)
    params = tuple(arg.arg for arg in (*arguments.posonlyargs, *arguments.args))
    returns = ast.unparse(node.returns) if node.returns is not None else None
    parts = tuple(_parts(task_id, _docstring(prompt, node), entry))
    signature = f"{entry}({ast.unparse(arguments)})"
    return Prompt("\n".join(map(ast.unparse, before)), signature, params, plain, returns, parts)


def _docstring(prompt: str, node: ast.FunctionDef) -> str:
    """Return the docstring as it is written, so that a line break inside an example stays an escape."""
    for part in node.body:
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
            text = ast.get_source_segment(prompt, part.value) or ""
            return text[3:-3].strip().removeprefix('"').strip()  # one prompt opens with four marks
    return ""


def _parts(task_id: str, text: str, entry: str) -> list[str | Example]:
    """Return sentences and examples in the order of the docstring; headings ("Examples:") are dropped."""
    lines = [line.strip() for line in text.splitlines()]
    found: list[str | Example] = []
    prose: list[str] = []

    def flush() -> None:
        joined = " ".join(prose)
        prose.clear()
        found.extend(piece for piece in map(str.strip, _SENTENCE.split(joined)) if re.search(r"\w", piece))

    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.startswith(">>>"):
            flush()
            shown: list[str] = []
            while at < len(lines) and lines[at] and not lines[at].startswith(">>>"):
                if _inline(lines[at], entry) is not None:
                    break
                shown.append(lines[at])
                at += 1
            found.append(_doctest(line[3:].strip(), shown, entry))
        elif not line or _HEADER.match(line):
            flush()
        elif (example := _inline(line, entry)) is not None:
            flush()
            found.append(example)
        elif _BULLET.match(line) or line.startswith("#"):
            flush()
            prose.append(_BULLET.sub("", line).lstrip("# "))
        elif _LABEL.match(line):
            flush()
            prose.append(line)
        else:
            prose.append(line)
    flush()
    wrong, defined = WRONG_EXAMPLES.get(task_id, ()), DEFINITIONS.get(task_id, ())
    kept: dict[str, str | Example] = {}
    for part in found:
        if isinstance(part, str):
            kept.setdefault(part, part)
        elif part.call not in wrong:
            part = Example(part.call, part.shown) if part.call in defined else part
            kept.setdefault(part.text, part)
    return list(kept.values())


def _doctest(code: str, shown: list[str], entry: str) -> Example:
    whole = _inline(code, entry) if not shown else None
    if whole is not None:
        return whole
    output = " ".join(shown) if shown else "None"
    return _example(code.partition("  #")[0].strip() if "#" in code else code, output, entry)


def _inline(line: str, entry: str) -> Example | None:
    """Read `f(1, 2) == 3`, `f(1) ➞ 2`, `f(1) # => 2` and the like, with or without a bullet or "for"."""
    body = re.sub(r"^(?:[-*•]\s+|for\s+|assert\s+)", "", line)
    if not body.startswith(entry + "("):
        return None
    end = _closing(body, len(entry))
    if end is None:
        return None
    match = _GIVES.match(body[end + 1 :])
    return None if match is None else _example(body[: end + 1], match.group(1).strip(), entry)


def _closing(text: str, start: int) -> int | None:
    """Return where the bracket at `start` is closed, strings passed over."""
    depth, quote = 0, ""
    for at in range(start, len(text)):
        char = text[at]
        if quote:
            if char == quote and text[at - 1] != "\\":
                quote = ""
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                return at
    return None


def _example(call: str, shown: str, entry: str) -> Example:
    try:
        tree = ast.parse(call, mode="eval").body
        bare = shown.strip().rstrip(".;")
        value = ast.literal_eval({"true": "True", "false": "False"}.get(bare, bare))
        if isinstance(tree, ast.Call) and ast.unparse(tree.func) == entry and not tree.keywords:
            args = tuple(ast.literal_eval(arg) for arg in tree.args)
            return Example(call, repr(value), args, value)
    except (ValueError, SyntaxError, TypeError, MemoryError):
        pass
    return Example(call, shown)


def kind_of(returns: str | None, examples: list[Example], test: str) -> str | None:
    """Return what the function gives back ("list", "int", ...): by annotation, examples or tests; None if mixed."""
    known = {
        "List": "list",
        "list": "list",
        "str": "str",
        "int": "int",
        "float": "float",
        "bool": "bool",
        "Tuple": "tuple",
    }
    if returns is not None:
        return known.get(returns.split("[")[0])
    shown = {type(example.value).__name__ for example in examples if example.args is not None}
    tested = {type(value).__name__ for value in _expected(test)}
    kinds = tested or shown
    if kinds == {"int", "float"}:
        return "float"
    return kinds.pop() if len(kinds) == 1 and kinds != {"NoneType"} else None


def _expected(test: str) -> list[Any]:
    """Return the literals with which the tests compare the candidate's results."""
    found: list[Any] = []
    for node in ast.walk(ast.parse(test)):
        if not (isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)):
            continue
        if isinstance(node.left, ast.Call) and ast.unparse(node.left.func) == "candidate":
            try:
                found.append(ast.literal_eval(node.comparators[0]))
            except (ValueError, TypeError):
                continue
    return found
