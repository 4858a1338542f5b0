"""Wrong and almost right programs for differential tests: small seeded changes of a syntax tree."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.FloorDiv, ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip


def _sites(function: ast.AST) -> list[Callable[[], None]]:
    """Return one change for each place that can be changed; calling it changes the tree."""
    found: list[Callable[[], None]] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARE:
            found.append(lambda n=node: n.ops.__setitem__(0, _COMPARE[type(n.ops[0])]()))
        elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _BINARY:
            found.append(lambda n=node: setattr(n, "op", _BINARY[type(n.op)]()))
        elif isinstance(node, ast.BoolOp):
            found.append(
                lambda n=node: setattr(n, "op", ast.Or() if isinstance(n.op, ast.And) else ast.And())
            )
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            found += [lambda n=node, d=d: setattr(n, "value", n.value + d) for d in (1, -1)]
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            found.append(lambda n=node: setattr(n, "value", not n.value))
        elif isinstance(node, ast.Constant) and type(node.value) is str and len(node.value) < 20:
            found.append(lambda n=node: setattr(n, "value", n.value + "x"))
        elif isinstance(node, ast.Return) and node.value is not None:
            found.append(lambda n=node: setattr(n, "value", ast.List([n.value], ast.Load())))
            found.append(lambda n=node: setattr(n, "value", ast.UnaryOp(ast.Not(), n.value)))
        elif isinstance(node, ast.If):
            found.append(lambda n=node: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test)))
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            found.append(lambda n=node: n.args.reverse())
    return found


def mutants(source: str, entry: str, count: int, rng: random.Random) -> list[str]:
    """Return up to `count` different programs, each `source` with one or two changes inside function `entry`."""
    tree = ast.parse(source)
    found: dict[str, None] = {}
    for _ in range(count * 6):
        changed = copy.deepcopy(tree)
        function = next(n for n in changed.body if isinstance(n, ast.FunctionDef) and n.name == entry)
        function.body = [n for n in function.body if not isinstance(n, ast.Expr)] or function.body
        sites = _sites(ast.Module(function.body, []))
        for change in rng.sample(sites, min(len(sites), rng.choice((1, 1, 2)))):
            change()
        try:
            text = ast.unparse(ast.fix_missing_locations(changed))
            compile(text, "mutant", "exec")
        except (SyntaxError, ValueError):
            continue
        found[text] = None
        if len(found) == count:
            break
    return list(found)
