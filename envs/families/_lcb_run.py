"""LiveCodeBench verdicts: the strict one (real programs, real pipes) and the official one (lcb_runner `run_test`).

Codes as upstream: True passed, -1 no verdict in the time for all tests, -2 wrong, -3 too slow, -4 error.
Source of the rules: lcb_runner/evaluation/testing_util.py of LiveCodeBench/LiveCodeBench (MIT).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from envs.code_text import binds, method_class, parse
from envs.families._lcb_text import Case
from envs.sandbox_code import Limits, Run, Sandbox

_STARS = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing"),
)
PRELUDE = (
    "".join(f"from {name} import *\n" for name in _STARS)
    + "".join(f"import {name}\n" for name in _STARS[:16])
    + "sys.setrecursionlimit(50000)\n"
)
"""Names that upstream puts in front of every answer."""
_SHOWN = 200

# Runs where the tests are known, apart from the answer. It returns (code, test number, what came out).
_TESTS = """
import json
CASES = json.loads({cases!r})

def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value

def close(got, wanted):
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(map(close, got, wanted))
    if isinstance(got, float) or isinstance(wanted, float):
        if not isinstance(got, (int, float)) or not isinstance(wanted, (int, float)):
            return False
        return got == wanted or abs(got - wanted) <= 1e-6 * max(1.0, abs(got), abs(wanted))
    return got == wanted

def check(candidate):
    for number, (given, wanted) in enumerate(CASES):
        got = candidate(*[json.loads(line) for line in given.split("\\n")])
        if not close(plain(got), json.loads(wanted)):
            return (-2, number, repr(got)[:200])
    return (True, None, None)
"""

# Upstream's way with functions: result and expected value meet in the answer's own process.
_CALLED = """
import json
from types import ModuleType
CASES = json.loads({cases!r})
SOURCE = {source!r}
module = ModuleType("tmp_sol", "")
exec(SOURCE, module.__dict__)
solution = module.Solution() if "class Solution" in SOURCE else module
method = getattr(solution, {function!r})

def grade(number):
    given, wanted = CASES[number]
    got = method(*[json.loads(line) for line in given.split("\\n")])
    if isinstance(got, tuple):
        got = list(got)
    return bool(got == json.loads(wanted)), repr(got)[:200]
"""
_ONE_BY_ONE = """
def check(grade):
    for number in range({count}):
        same, shown = grade(number)
        if not same:
            return (-2, number, shown)
    return (True, None, None)
"""

# Upstream's way with standard input and output, each oddity kept: see docs/code.md.
_DRIVER = """
import ast, io, sys
from types import ModuleType
from unittest.mock import mock_open, patch

SOURCE = {source!r}
PRELUDE = {prelude!r}

class Buffer:
    def __init__(self, text):
        self.text = text.encode("utf-8")
    def read(self, *_):
        return self.text
    def readline(self, *_):
        return self.text.split(b"\\n")[0] + b"\\n"

class Stdin:
    def __init__(self, text):
        self.text, self.stream, self.buffer = text, io.StringIO(text), Buffer(text)
    def read(self, *_):
        return self.text
    def readline(self, *rest):
        return self.stream.readline(*rest)
    def readlines(self, *_):
        return self.text.split("\\n")
    def __getattr__(self, name):
        return getattr(self.stream, name)

def without_main(code):
    try:
        tree = ast.parse(code)
        last = tree.body[-1]
        if isinstance(last, ast.If) and ast.unparse(last.test).strip() == "__name__ == '__main__'":
            code = ast.unparse(tree.body[:-1]) + "\\n" + ast.unparse(last.body)
    except Exception:
        pass
    return code

def as_function(code):
    try:
        tree = ast.parse(code)
        kinds = (ast.Import, ast.ImportFrom)
        imports = [node for node in tree.body if isinstance(node, kinds)]
        rest = [node for node in tree.body if not isinstance(node, kinds)]
        none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        body = ast.FunctionDef(name="wrapped_function", args=none, body=rest, decorator_list=[], lineno=-1)
        return PRELUDE + "\\n" + ast.unparse(imports) + "\\n" + ast.unparse(body)
    except Exception:
        return code

module = ModuleType("tmp_sol", "")
text = as_function(without_main(SOURCE))
exec(text, module.__dict__)
solution = module.Solution() if "class Solution" in text else module
wrapped = solution.wrapped_function

def run(given):
    lines = iter(given.split("\\n"))
    caught, before = io.StringIO(), sys.stdout
    caught.close = lambda: 1
    sys.stdout = caught
    try:
        with patch("sys.stdin.read", lambda *_: given), \\
             patch("sys.stdin.readlines", lambda *_: given.split("\\n")), \\
             patch("sys.stdin.readline", lambda *_: next(lines)), \\
             patch("sys.stdin", Stdin(given)), \\
             patch("builtins.open", mock_open(read_data=given)):
            try:
                wrapped()
            except SystemExit:
                pass
    finally:
        sys.stdout = before
    return caught.getvalue()
"""

# The tests of the driver above, apart from the answer.
_LINES = """
import json
from decimal import Decimal
CASES = json.loads({cases!r})

def lines(text):
    return [line.strip() for line in text.strip().split("\\n")]

def numbers(line):
    try:
        return [Decimal(part) for part in line.split()]
    except Exception:
        return None

def check(candidate):
    for number, (given, wanted) in enumerate(CASES):
        said = candidate(given)
        got, right = lines(said), lines(wanted)
        if len(got) != len(right):
            return (-2, number, said[:200])
        for a, b in zip(got, right):
            if a == b:
                continue
            x, y = numbers(a), numbers(b)
            if x is None or y is None or x != y:
                return (-2, number, said[:200])
    return (True, None, None)
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`code` as upstream; `test` is the number of the first test that failed, from 0."""

    code: int | bool
    reason: str = ""
    test: int | None = None
    shown: str = ""

    @property
    def passed(self) -> bool:
        return self.code is True


def strict(box: Sandbox, code: str, cases: Sequence[Case], function: str | None, timeout_s: float) -> Verdict:
    """Grade as a judge would: a program is run for each test, numbers agree within 1e-6, tests stay outside."""
    if function is not None:
        return _called(box, code, cases, function, timeout_s)
    limits = Limits(wall_s=3 * timeout_s, cpu_s=max(1, round(timeout_s)), output_bytes=16 << 20, patience=1)
    whole = _after_future(PRELUDE, code)
    for number, case in enumerate(cases):
        run = box.script(whole, case.input, limits)
        if run.status != "ok":
            return _broken(run, number)
        if not same_output(run.out, case.output):
            return Verdict(-2, "other output", number, run.out[:_SHOWN])
    return Verdict(True)


def official(
    box: Sandbox, code: str, cases: Sequence[Case], function: str | None, timeout_s: float
) -> Verdict:
    """Grade as `run_test` does, patched standard input and exact comparison included."""
    if function is not None:
        driver = _CALLED.format(cases=_as_json(cases), source=f"{PRELUDE}\n\n{code}", function=function)
        tests = _ONE_BY_ONE.format(count=len(cases))
        return _verdict(box.check(driver, "grade", tests, _limits(cases, timeout_s, 1)))
    driver = _DRIVER.format(source=code, prelude=PRELUDE)
    tests = _LINES.format(cases=_as_json(cases))
    return _verdict(box.check(driver, "run", tests, _limits(cases, timeout_s, 1)))


def _called(box: Sandbox, code: str, cases: Sequence[Case], function: str, timeout_s: float) -> Verdict:
    tree = parse(code) or ast.Module([], [])
    owner = None if binds(tree, function) else method_class(tree, function)
    entry = f"{owner}().{function}" if owner else function
    tests = _TESTS.format(cases=_as_json(cases))
    whole = _after_future(PRELUDE, code)
    return _verdict(box.check(whole, entry, tests, _limits(cases, timeout_s, 3)))


def _limits(cases: Sequence[Case], timeout_s: float, slack: int) -> Limits:
    total = (timeout_s + 1) * len(cases) + 5
    return Limits(
        wall_s=slack * total,
        call_s=slack * timeout_s,
        cpu_s=int(total) + 1,
        output_bytes=16 << 20,
        memory_mb=4096,
        patience=int(slack > 1),
    )


def _as_json(cases: Sequence[Case]) -> str:
    return json.dumps([[case.input, case.output] for case in cases])


def _verdict(run: Run) -> Verdict:
    if run.status != "passed":
        return _broken(run, max(0, run.calls - 1))
    code, number, shown = run.value
    return Verdict(code, "" if code is True else "other result", number, shown or "")


def _broken(run: Run, number: int) -> Verdict:
    code = -3 if run.status == "timeout" else -4
    last = run.err.strip().splitlines()[-1:] if run.status == "died" else []
    return Verdict(code, " ".join([f"{run.status}: {run.reason}", *last])[:300], number, run.out[:_SHOWN])


def _after_future(before: str, code: str) -> str:
    lines = code.splitlines(keepends=True)
    future = [line for line in lines if line.startswith("from __future__ import")]
    return "".join([*future, before, "\n", *[line for line in lines if line not in future]])


def same_output(got: str, wanted: str) -> bool:
    """Compare line by line, white space at the ends dropped; numbers within 1e-6 where one is no integer."""
    a, b = _stripped(got), _stripped(wanted)
    return len(a) == len(b) and all(map(_same_line, a, b))


def _stripped(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(got: str, wanted: str) -> bool:
    if got == wanted:
        return True
    a, b = _numbers(got), _numbers(wanted)
    return a is not None and b is not None and len(a) == len(b) and all(map(_same_number, a, b))


def _numbers(line: str) -> list[Decimal] | None:
    try:
        found = [Decimal(part) for part in line.split()]
    except InvalidOperation:
        return None
    return found if all(number.is_finite() for number in found) else None


def _same_number(a: Decimal, b: Decimal) -> bool:
    if a == b:
        return True
    if a == a.to_integral_value() and b == b.to_integral_value():
        return False
    return abs(a - b) <= Decimal("1e-6") * max(Decimal(1), abs(a), abs(b))


def obeying(code: str, function: str | None, expression: str) -> str:
    """Return `code` changed so that its result (`result`, for programs the whole output) is `expression`."""
    if function is None:
        return (
            "import contextlib, io\n_caught = io.StringIO()\n"
            "with contextlib.redirect_stdout(_caught):\n"
            f"    exec(compile({code!r}, 'answer.py', 'exec'), dict(globals(), __name__='__main__'))\n"
            f"result = _caught.getvalue()\nprint({expression}, end='')\n"
        )
    tree = parse(code) or ast.Module([], [])
    owner = None if binds(tree, function) else method_class(tree, function)
    if owner is None:
        return (
            f"{code}\n\n_reference = {function}\n\n\ndef {function}(*arguments):\n"
            f"    result = _reference(*arguments)\n    return {expression}\n"
        )
    return (
        f"{code}\n\n_Reference = {owner}\n\n\nclass {owner}:\n    def {function}(self, *arguments):\n"
        f"        result = _Reference().{function}(*arguments)\n        return {expression}\n"
    )


def is_program(tree: ast.Module) -> bool:
    """Say whether code reads standard input or writes output, so that it can stand as a program."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return bool(names & {"input", "stdin", "print", "stdout", "open"})


def defines(tree: ast.Module, function: str | None) -> bool:
    """Say whether code can be graded: it defines `function` (in a class or not), or is a program."""
    if function is None:
        return is_program(tree)
    return binds(tree, function) or method_class(tree, function) is not None


def summary(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data for `Grade.detail`."""
    return {"code": verdict.code, "reason": verdict.reason, "test": verdict.test, "shown": verdict.shown}
