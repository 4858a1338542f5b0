"""Other values for the goals of a query, and goals beyond them: candidates, to be proven by execution.

A variant changes one literal, comparison, column, aggregate, direction, limit, negation or set operation; a
decoy adds a condition, an output, a limit, an order, or takes duplicates away. Literals come from the
database where it has others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from sqlglot import exp, parse_one
from sqlglot.dialects.sqlite import SQLite

from envs.families._sql_goals import Maker, Part, Query, conjuncts, own_columns, within
from envs.families._sql_words import Scope, Words, scope_of, sources

Cells = Callable[[str, str], Sequence[Any]]
"""(table, column) -> some different values of the column, none missing."""

CANDIDATES = 16  # a goal
_MOST_TEXT = 60  # longer texts are no values that users say

_OTHER_COMPARISONS: dict[type[exp.Expr], tuple[type[exp.Expr], ...]] = {
    exp.GT: (exp.LT, exp.GTE),
    exp.LT: (exp.GT, exp.LTE),
    exp.GTE: (exp.LTE, exp.GT),
    exp.LTE: (exp.GTE, exp.LT),
    exp.EQ: (exp.NEQ,),
    exp.NEQ: (exp.EQ,),
}
_OTHER_AGGREGATES: dict[type[exp.Expr], tuple[type[exp.Expr], ...]] = {
    exp.Avg: (exp.Max, exp.Min, exp.Sum),
    exp.Sum: (exp.Avg, exp.Max, exp.Min),
    exp.Max: (exp.Min, exp.Avg),
    exp.Min: (exp.Max, exp.Avg),
}


class Changes:
    """Candidates for one query; the same for the same `seed`."""

    def __init__(self, query: Query, cells: Cells, seed: str) -> None:
        self.query = query
        self.words: Words = query.words
        self.cells = cells
        self.seed = seed

    def variants(self, part: Part) -> list[Part]:
        """Return other parts for the place of `part`, at most `CANDIDATES`, those that differ most in kind first."""
        rng = random.Random(f"{self.seed}|{part.kind}|{part.core}|{part.place}")
        made = getattr(self, f"_{part.kind}", lambda *_: [])(part, rng)
        found: dict[str, Part] = {}
        for other in made:
            if other.sql != part.sql and other.value != part.value:
                found.setdefault(other.value, other)
            if len(found) == CANDIDATES:
                break
        return list(found.values())

    def decoys(self) -> list[Part]:
        """Return parts that the query does not have, each for a slot of its own."""
        rng = random.Random(f"{self.seed}|decoys")
        taken = {part.slot for part in self.query.parts}
        kinds = {part.kind for part in self.query.parts}
        groups: list[list[Part]] = [self._more_conditions(rng), self._more_outputs(rng)]
        make = Maker(self.words)
        rest: list[Part] = []
        if "limit" not in kinds:
            rest.append(make.limited(rng.choice((1, 2, 3, 5))))
        if "distinct" not in kinds:
            rest.append(make.distinct(True))
        if "group" in kinds and "having" not in kinds:
            condition = parse_one(f"COUNT(*) > {rng.randint(1, 3)}", dialect="sqlite")
            rest.append(make.having(condition, scope_of(self.query.main), 0))
        if "limit" in kinds and "order" not in kinds:
            rest += self._orders(None, rng)[:1]
        rng.shuffle(rest)
        mixed = [part for row in zip_longest(groups[0], rest, groups[1]) for part in row if part is not None]
        found: dict[str, Part] = {}
        for part in mixed:
            if part.slot not in taken:
                found.setdefault(part.slot, part)
        return list(found.values())[:CANDIDATES]

    # Variants, by kind of part.

    def _output(self, part: Part, rng: random.Random) -> list[Part]:
        assert part.node is not None and part.scope is not None
        shown = {node.sql("sqlite") for node in self.query.main.expressions}
        trees = [*self._trees(part.node, part.scope, rng), *self._counts(part.node, part.scope, rng)]
        parts = [Maker(self.words).output(tree, part.scope, part.place) for tree in trees]
        return [other for other in parts if other.sql not in shown]

    def _counts(self, node: exp.Expr, scope: Scope, rng: random.Random) -> list[exp.Expr]:
        """Return counts of different values in the place of a count of rows."""
        rows = [count for count in node.find_all(exp.Count) if isinstance(count.this, exp.Star)]
        columns = self._columns(scope, rng)[:4] if rows else []
        counts = [exp.Count(this=exp.Distinct(expressions=[column])) for column in columns]
        return [_replaced(node, rows[0], count) for count in counts]

    def _where(self, part: Part, rng: random.Random) -> list[Part]:
        return self._conditions(part, Maker(self.words).where, rng)

    def _having(self, part: Part, rng: random.Random) -> list[Part]:
        assert part.node is not None and part.scope is not None
        trees = self._trees(part.node, part.scope, rng, columns=False)
        make = Maker(self.words)
        return [
            make.having(tree, part.scope, part.place, part.slot) for tree in trees if self._says(part, tree)
        ]

    def _conditions(self, part: Part, make: Callable[..., Part], rng: random.Random) -> list[Part]:
        assert part.node is not None and part.scope is not None
        trees = self._trees(part.node, part.scope, rng, columns=False)
        kept = [tree for tree in trees if self._says(part, tree)]
        return [make(tree, part.scope, part.core, part.place, part.slot) for tree in kept]

    def _says(self, part: Part, tree: exp.Expr) -> bool:
        """Return whether a condition speaks of the same thing: another subject is another slot."""
        assert part.node is not None and part.scope is not None
        return self.words.split(tree, part.scope)[0] == self.words.split(part.node, part.scope)[0]

    def _distinct(self, part: Part, rng: random.Random) -> list[Part]:
        return [Maker(self.words).distinct(not part.sql)]

    def _group(self, part: Part, rng: random.Random) -> list[Part]:
        assert part.node is not None and part.scope is not None
        trees = self._trees(part.node, part.scope, rng)
        return [Maker(self.words).group(tree, part.scope) for tree in trees if isinstance(tree, exp.Group)]

    def _order(self, part: Part, rng: random.Random) -> list[Part]:
        return self._orders(part, rng)

    def _orders(self, part: Part | None, rng: random.Random) -> list[Part]:
        make, scope = Maker(self.words), scope_of(self.query.main)
        orders: list[exp.Expr] = []
        if part is not None and part.node is not None:
            turned = part.node.copy()
            for key in turned.expressions:
                key.set("desc", not key.args.get("desc"))
                key.set("nulls_first", None)
            orders = [turned, *self._trees(part.node, scope, rng)]
        columns = self._columns(scope, rng)[:4] if not self.query.main.args.get("group") else []
        for column in columns:
            key = exp.Ordered(this=column, desc=rng.random() < 0.5)
            orders.append(exp.Order(expressions=[key]))
        return [make.order(order, scope) for order in orders if isinstance(order, exp.Order)]

    def _limit(self, part: Part, rng: random.Random) -> list[Part]:
        count, _, offset = part.sql.partition(" OFFSET ")
        if not count.isdigit():
            return []
        known = int(count)
        others = [n for n in dict.fromkeys((known + 1, known + 2, known - 1, known + 4, 2 * known)) if n > 0]
        rng.shuffle(others)
        return [Maker(self.words).limited(n, offset) for n in others if n != known]

    def _combine(self, part: Part, rng: random.Random) -> list[Part]:
        assert part.node is not None and part.scope is not None
        operation = _operation_of(self.query.root, part.core)
        make = Maker(self.words)
        others = [kind for kind in (exp.Except, exp.Intersect, exp.Union) if not isinstance(operation, kind)]
        assert isinstance(part.node, exp.Select)
        parts = [make.combine(kind(), part.node, part.core) for kind in others]
        bare = part.node.copy()
        bare.set("where", None)
        for tree in self._literals(bare, part.scope, rng):
            tree.set("where", part.node.args["where"].copy() if part.node.args.get("where") else None)
            assert isinstance(tree, exp.Select)
            parts.append(make.combine(operation, tree, part.core))
        return parts

    def _from(self, part: Part, rng: random.Random) -> list[Part]:
        """Return other tables, where the query names no column: counts of rows, lists of all columns."""
        main = self.query.main
        if any(True for _ in self.query.root.find_all(exp.Column)) or len(sources(main)) != 1:
            return []
        tables = [table for table in self.words.names.tables.values() if table.sql != sources(main)[0].name]
        rng.shuffle(tables)
        return [Maker(self.words).tables(_column(t.sql, None).sql("sqlite"), t.words) for t in tables]

    # Changed trees.

    def _trees(
        self, node: exp.Expr, scope: Scope, rng: random.Random, columns: bool = True
    ) -> list[exp.Expr]:
        """Return changed copies of `node`, the kinds of change in turn."""
        groups = [
            list(self._literals(node, scope, rng)),
            [*self._comparisons(node), *self._aggregates(node)],
            list(self._other_columns(node, scope, rng)) if columns else [],
            list(self._negations(node)),
        ]
        return [tree for row in zip_longest(*groups) for tree in row if tree is not None]

    def _literals(self, node: exp.Expr, scope: Scope, rng: random.Random) -> Iterator[exp.Expr]:
        places = [literal for literal in node.find_all(exp.Literal) if not literal.find_ancestor(exp.Limit)]
        rows = [
            [_replaced(node, literal, other) for other in self._others(literal, scope, rng)]
            for literal in places
        ]
        yield from (tree for row in zip_longest(*rows) for tree in row if tree is not None)

    def _others(self, literal: exp.Literal, scope: Scope, rng: random.Random) -> Sequence[exp.Expr]:
        """Return other literals for the place of one, from the column that it is compared with first."""
        cells = list(self._compared(literal, scope))
        rng.shuffle(cells)
        text = str(literal.this)
        if literal.is_string:
            if "%" in text:
                bare = text.strip("%")
                words = [word for cell in cells if isinstance(cell, str) for word in cell.split()[:1]]
                texts = [text.replace(bare, word) for word in words if bare and "%" not in word]
            else:
                texts = [str(cell) for cell in cells if _sayable(cell)]
            return [exp.Literal.string(t) for t in dict.fromkeys(texts) if t.lower() != text.lower()][:8]
        try:
            number = float(text)
        except ValueError:
            return []
        numbers = [cell for cell in cells if type(cell) in (int, float)][:3]
        if number.is_integer() and "." not in text:
            step = max(1, int(abs(number)) // 10)
            numbers += [int(number) + step, int(number) - step, int(number) * 2]
            numbers = [n for n in numbers if float(n).is_integer()]
        else:
            numbers += [round(number * factor, 4) for factor in (1.1, 0.9, 1.5)]
        kept = [n for n in dict.fromkeys(numbers) if n != number and n >= 0]
        return [exp.Literal.number(int(n) if float(n).is_integer() else n) for n in kept]

    def _compared(self, literal: exp.Literal, scope: Scope) -> Sequence[Any]:
        above = literal.parent
        while isinstance(above, exp.Paren | exp.Neg):
            above = above.parent
        if not isinstance(above, exp.Condition):
            return ()
        for column in own_columns(above):
            select = column.find_ancestor(exp.Select)
            inner = scope_of(select, scope) if select is not None and within(literal, select) else scope
            _, table, _ = self.words.table_of(column, inner)
            if table is not None and self.words.names.column(table, column.name) is not None:
                return self.cells(table, column.name)
        return ()

    def _comparisons(self, node: exp.Expr) -> Iterator[exp.Expr]:
        yield from _swapped(node, _OTHER_COMPARISONS)

    def _aggregates(self, node: exp.Expr) -> Iterator[exp.Expr]:
        yield from _swapped(node, _OTHER_AGGREGATES)
        for count in node.find_all(exp.Count):
            if isinstance(count.this, exp.Distinct) and len(count.this.expressions) == 1:
                yield _replaced(node, count, exp.Count(this=count.this.expressions[0].copy()))
            elif isinstance(count.this, exp.Column):
                yield _replaced(node, count, exp.Count(this=exp.Distinct(expressions=[count.this.copy()])))

    def _other_columns(self, node: exp.Expr, scope: Scope, rng: random.Random) -> Iterator[exp.Expr]:
        for column in own_columns(node):
            alias, table, found = self.words.table_of(column, scope)
            if table is None or found is not scope or isinstance(column.this, exp.Star):
                continue
            known = self.words.names.column(table, column.name)
            others = [
                other
                for other in self.words.names.tables[table.lower()].columns.values()
                if known is not None and other.number == known.number and other is not known
            ]
            for other in rng.sample(others, min(4, len(others))):
                yield _replaced(node, column, _column(other.sql, alias if column.table else None))

    def _negations(self, node: exp.Expr) -> Iterator[exp.Expr]:
        """Return the top condition with its NOT taken away or put there."""
        if isinstance(node, exp.Not):
            yield node.this.copy()
        elif isinstance(node, exp.In | exp.Like | exp.Between | exp.Is | exp.Exists):
            yield exp.Not(this=node.copy())

    # Parts that the query does not have.

    def _columns(self, scope: Scope, rng: random.Random) -> list[exp.Column]:
        """Return the columns in scope, shuffled, named as the query has to name them."""
        found: list[exp.Column] = []
        for alias, table in scope.tables.items():
            known = self.words.names.tables.get((table or "").lower())
            for column in known.columns.values() if known else ():
                found.append(_column(column.sql, alias if len(scope.tables) > 1 else None))
        rng.shuffle(found)
        return found

    def _more_conditions(self, rng: random.Random) -> list[Part]:
        main = self.query.main
        scope = scope_of(main)
        held = {column.name.lower() for node in conjuncts(main, "where") for column in own_columns(node)}
        place = len(conjuncts(main, "where"))
        found: list[Part] = []
        for column in self._columns(scope, rng):
            if column.name.lower() in held or len(found) >= 6:
                continue
            _, table, _ = self.words.table_of(column, scope)
            cells = [cell for cell in self.cells(table or "", column.name) if _sayable(cell)]
            if len(cells) < 2:
                continue
            cell = rng.choice(cells)
            if isinstance(cell, str):
                kind, literal = rng.choice((exp.EQ, exp.EQ, exp.NEQ)), exp.Literal.string(cell)
            else:
                kind, literal = rng.choice((exp.GT, exp.LT)), exp.Literal.number(cell)
            held.add(column.name.lower())
            node = kind(this=column, expression=literal)
            found.append(Maker(self.words).where(node, scope, 0, place + len(found)))
        return found

    def _more_outputs(self, rng: random.Random) -> list[Part]:
        main = self.query.main
        scope, at = scope_of(main), len(main.expressions)
        if main.find(exp.Star) and not main.find(exp.Count):
            return []
        shown = {node.sql("sqlite").lower() for node in main.expressions}
        free: list[exp.Expr] = [
            column for column in self._columns(scope, rng) if column.sql("sqlite").lower() not in shown
        ]
        if main.find(exp.AggFunc) and not main.args.get("group"):  # a bare column would be any row's
            free = [rng.choice((exp.Min, exp.Max))(this=column) for column in free]
        return [Maker(self.words).output(column, scope, at) for column in free[:1]]


def _column(name: str, alias: str | None) -> exp.Column:
    plain = name.isidentifier() and name.upper() not in SQLite.Tokenizer.KEYWORDS
    return exp.column(exp.to_identifier(name, quoted=not plain), table=alias)


def _operation_of(root: exp.Expr, core: int) -> exp.Expr:
    """Return the set operation whose right side is SELECT number `core`."""
    operations: list[exp.Expr] = []

    def walk(node: exp.Expr) -> None:
        if isinstance(node, exp.SetOperation):
            walk(node.this)
            operations.append(node)
            walk(node.expression)

    walk(root)
    return operations[core - 1]


def _swapped(node: exp.Expr, table: dict[type[exp.Expr], tuple[type[exp.Expr], ...]]) -> Iterator[exp.Expr]:
    for old in node.find_all(*table):
        if isinstance(old.find_ancestor(exp.Join), exp.Join):
            continue
        for kind in table[type(old)]:
            yield _replaced(node, old, kind(**{name: _copy(value) for name, value in old.args.items()}))


def _copy(value: Any) -> Any:
    if isinstance(value, exp.Expr):
        return value.copy()
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _replaced(node: exp.Expr, old: exp.Expr, new: exp.Expr) -> exp.Expr:
    """Return a copy of `node` with `new` in the place of `old`."""
    if old is node:
        return new
    at = next(k for k, one in enumerate(node.walk()) if one is old)
    copied = node.copy()
    next(one for k, one in enumerate(copied.walk()) if k == at).replace(new.copy())
    return copied


def _sayable(cell: Any) -> bool:
    if isinstance(cell, str):
        return 0 < len(cell) <= _MOST_TEXT and cell.isprintable() and cell == cell.strip()
    return type(cell) in (int, float)
