"""Find the Python in an answer. Pure text work: nothing is run.

The last fenced block that parses and holds what is wanted counts, not the last pair of fences: models like to
close with a summary in a block of its own. An unclosed block runs to the end of the text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n`]*$")
_PYTHON = frozenset({"python", "py", "python3", "python2", "py3"})
_CODE_LINE = re.compile(r"^(?:async def |def |class |import |from \w|@\w)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language tag in lower case ("" if none) and its text."""

    tag: str
    text: str


def blocks(answer: str) -> list[Block]:
    """Return the fenced blocks of an answer in order; a closing fence is as long as its opening one."""
    found: list[Block] = []
    lines: list[str] | None = None
    tag = fence = ""
    for line in answer.splitlines():
        match = _FENCE.match(line)
        if lines is None:
            if match is not None:
                lines, fence, tag = [], match.group(1), match.group(2).lower()
        elif match is not None and match.group(1).startswith(fence) and not match.group(2):
            found.append(Block(tag, "\n".join(lines)))
            lines = None
        else:
            lines.append(line)
    if lines is not None:
        found.append(Block(tag, "\n".join(lines)))
    return found


def parse(code: str) -> ast.Module | None:
    """Return the syntax tree, or None where there is none (null bytes and deep nesting included)."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def extract(answer: str, wanted: Callable[[ast.Module], bool]) -> str | None:
    """Return the code of an answer, or None.

    In this order: the last Python block that parses and is `wanted`; the last other block that is; the last
    Python block that parses; the whole answer, or what follows its prose, where that parses as code.
    """
    fenced = blocks(answer)
    tagged = [block.text for block in reversed(fenced) if block.tag in _PYTHON]
    others = [block.text for block in reversed(fenced) if block.tag not in _PYTHON]
    found = _first(tagged, wanted) or _first(others, wanted) or _first(tagged, _anything)
    if found is not None or fenced:
        return found if found is not None else _first(others, _anything)
    bare = [answer]
    start = _CODE_LINE.search(answer)
    if start is not None:
        bare.append(answer[start.start() :])
    return _first(bare, wanted) or _first(bare, _code)


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions at the top level by name, the last of each name, in order of definition."""
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.pop(node.name, None)
            found[node.name] = node
    return found


def binds(tree: ast.Module, name: str) -> bool:
    """Return whether the top level defines, assigns or imports `name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == name and node in tree.body:
                return True
        elif isinstance(node, ast.alias):
            if (node.asname or node.name) == name:
                return True
        elif isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
    return False


def takes(function: ast.FunctionDef | ast.AsyncFunctionDef, count: int) -> bool:
    """Return whether a function can be called with `count` positional arguments."""
    arguments = function.args
    most = len(arguments.posonlyargs) + len(arguments.args)
    required = any(default is None for default in arguments.kw_defaults)
    fits = most - len(arguments.defaults) <= count and (count <= most or arguments.vararg is not None)
    return fits and not required


def method_class(tree: ast.Module, name: str) -> str | None:
    """Return the class at the top level that has a method `name`, the last one; None if there is none."""
    for node in reversed(tree.body):
        if not isinstance(node, ast.ClassDef):
            continue
        if any(isinstance(part, ast.FunctionDef) and part.name == name for part in node.body):
            return node.name
    return None


def _first(codes: Iterable[str], wanted: Callable[[ast.Module], bool]) -> str | None:
    for code in codes:
        tree = parse(code)
        if tree is not None and tree.body and wanted(tree):
            return code
    return None


def _anything(_tree: ast.Module) -> bool:
    return True


def _code(tree: ast.Module) -> bool:
    """Tell a program from a word or two of prose that happen to parse."""
    return not all(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Name | ast.Constant) for node in tree.body
    )
