"""A gold query as goals: each clause, column and condition of its syntax tree is one part.

A part holds its SQL and its words. `_sql_rebuild.py` puts the SQL of parts together again, `_sql_changes.py`
makes other parts from a part's tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from envs.errors import DataError
from envs.families._sql_names import Names
from envs.families._sql_rebuild import HOLE
from envs.families._sql_words import ORDINALS, Scope, Words, limit_words, scope_of

_AFTER: dict[type[exp.Expr], tuple[str, str]] = {
    exp.Union: ("UNION", "the first list together with the second list: {}"),
    exp.Intersect: ("INTERSECT", "only what the first list shares with the second list: {}"),
    exp.Except: ("EXCEPT", "the first list without the second list: {}"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One goal of a query: where it stands, its SQL, its words, and the tree that both come from.

    `kind` is from, with, output, distinct, where, group, having, combine, order or limit. `core` numbers the
    SELECTs that set operations connect, from 0. `place` orders the parts of a kind.
    """

    kind: str
    core: int
    place: int
    sql: str
    slot: str
    value: str
    text: str
    node: exp.Expr | None = field(default=None, repr=False)
    scope: Scope | None = field(default=None, repr=False)

    def data(self) -> dict[str, Any]:
        """Return what is needed to rebuild the query, as plain JSON data."""
        return {"kind": self.kind, "core": self.core, "place": self.place, "sql": self.sql}


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A gold query taken apart. `tables` is the FROM of each core, for states that name none."""

    parts: Sequence[Part]
    tables: Sequence[str]
    root: exp.Expr
    words: Words
    """Trees as they are after `read_query`: quoted texts are literals."""

    @property
    def main(self) -> exp.Select:
        return cores(self.root)[0]


def cores(root: exp.Expr) -> list[exp.Select]:
    """Return the SELECTs that set operations connect, from left to right."""
    if isinstance(root, exp.SetOperation):
        return [*cores(root.this), *cores(root.expression)]
    if not isinstance(root, exp.Select):
        raise DataError(f"not a SELECT: {root.sql('sqlite')}")
    return [root]


def parse(sql: str, names: Names) -> exp.Expr:
    """Return the syntax tree of one SELECT. Raises `DataError`.

    SQLite takes a word in double quotation marks for text where no column has that name; so does this.
    """
    try:
        root = parse_one(sql.strip().rstrip(";"), dialect="sqlite")
    except SqlglotError as error:
        raise DataError(f"the query cannot be parsed: {str(error).splitlines()[0]}") from None
    if not isinstance(root, exp.Query):
        raise DataError(f"not a SELECT: {sql}")
    columns = {column for table in names.tables.values() for column in table.columns}
    aliases = {alias.alias.lower() for alias in root.find_all(exp.Alias)}
    for column in list(root.find_all(exp.Column)):
        name = column.this
        quoted = isinstance(name, exp.Identifier) and name.args.get("quoted") and not column.table
        if quoted and name.name.lower() not in columns | aliases:
            column.replace(exp.Literal.string(name.name))
    for like in list(root.find_all(exp.Like)):
        # One form of negation for all conditions; within ESCAPE the flag stays and is said as SQL.
        if like.args.get("negate") and not isinstance(like.parent, exp.Escape):
            plain = like.copy()
            plain.set("negate", None)
            like.replace(exp.Not(this=plain))
    return root


def read_query(sql: str, names: Names) -> Query:
    """Take a gold query apart. Raises `DataError` for what is no SELECT or cannot be parsed."""
    root = parse(sql, names)
    make = Maker(Words(names))
    return Query(make.parts(root), [tables_sql(core) for core in cores(root)], root, make.words)


def tables_sql(select: exp.Select) -> str:
    start = select.args.get("from_")
    joins = select.args.get("joins") or []
    pieces = [start.this.sql("sqlite")] if start is not None else []
    return " ".join([*pieces, *(join.sql("sqlite").strip() for join in joins)])


class Maker:
    """Makes parts from trees."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self._slots: dict[str, int] = {}

    def parts(self, root: exp.Expr) -> list[Part]:
        found: list[Part] = []
        selects = cores(root)
        main, scope = selects[0], scope_of(selects[0])
        found += self._helpers(root)
        outputs = main.expressions
        found += self._from(main, scope)
        found += [self.output(node, scope, at) for at, node in enumerate(outputs)]
        if main.args.get("distinct") is not None:
            found.append(self.distinct(True))
        found += [self.where(node, scope, 0, at) for at, node in enumerate(conjuncts(main, "where"))]
        if (group := main.args.get("group")) is not None:
            found.append(self.group(group, scope))
        found += [self.having(node, scope, at) for at, node in enumerate(conjuncts(main, "having"))]
        for at, select in enumerate(selects[1:], 1):
            found.append(self.combine(select.parent or select, select, at))
            second = scope_of(select)
            found += [self.where(node, second, at, k) for k, node in enumerate(conjuncts(select, "where"))]
        if (order := root.args.get("order")) is not None:
            found.append(self.order(order, scope))
        if (limit := root.args.get("limit")) is not None:
            found.append(self.limit(limit, root))
        return found

    def _slot(self, name: str) -> str:
        """Return a slot's name, told apart from an earlier one of the same name."""
        count = self._slots[name] = self._slots.get(name, 0) + 1
        return name if count == 1 else f"{ORDINALS[min(count, 10) - 1]} {name}"

    def _helpers(self, root: exp.Expr) -> list[Part]:
        found: list[Part] = []
        clause = root.args.get("with_")
        for at, helper in enumerate(clause.expressions if clause is not None else []):
            value = self.words.query(helper.this, None)
            slot, text = f"helper list {helper.alias}", f"take {helper.alias} for the list of {value}"
            found.append(Part("with", 0, at, helper.sql("sqlite"), slot, value, text))
        return found

    def _from(self, select: exp.Select, scope: Scope) -> list[Part]:
        sql = tables_sql(select)
        return [self.tables(sql, self.words.tables(select, scope))] if sql else []

    def tables(self, sql: str, value: str) -> Part:
        return Part("from", 0, 0, sql, "data source", value, f"take the data from {value}")

    def output(self, node: exp.Expr, scope: Scope, at: int) -> Part:
        value = self.words.value(node, scope)
        slot = "output" if at == 0 else f"{ORDINALS[min(at, 9)]} output"
        where = "" if at == 0 else f" as the {ORDINALS[min(at, 9)]} output"
        return Part("output", 0, at, node.sql("sqlite"), slot, value, f"show {value}{where}", node, scope)

    def distinct(self, on: bool) -> Part:
        value = "removed" if on else "kept"
        text = f"get duplicate rows {value}"
        return Part("distinct", 0, 0, "DISTINCT" if on else "", "duplicate rows", value, text)

    def where(self, node: exp.Expr, scope: Scope, core: int, at: int, slot: str | None = None) -> Part:
        subject, predicate = self.words.split(node, scope)
        there = f" in the {ORDINALS[core]} list" if core else ""
        slot = slot or self._slot(f"condition on {subject or subjects(node, scope, self.words)}{there}")
        said = f"{subject} is {predicate}" if subject else predicate
        sql = node.sql("sqlite")
        if isinstance(node, exp.Or):
            sql = f"({sql})"
        text = f"keep only rows where {said}{there}"
        return Part("where", core, at, sql, slot, predicate, text, node, scope)

    def group(self, group: exp.Group, scope: Scope) -> Part:
        value = ", ".join(self.words.value(node, scope) for node in group.expressions)
        sql = ", ".join(node.sql("sqlite") for node in group.expressions)
        return Part("group", 0, 0, sql, "grouping", value, f"group the rows by {value}", group, scope)

    def having(self, node: exp.Expr, scope: Scope, at: int, slot: str | None = None) -> Part:
        subject, predicate = self.words.split(node, scope)
        slot = slot or self._slot(f"group condition on {subject or subjects(node, scope, self.words)}")
        said = f"{subject} is {predicate}" if subject else predicate
        text = f"keep only groups where {said}"
        return Part("having", 0, at, node.sql("sqlite"), slot, predicate, text, node, scope)

    def combine(self, operation: exp.Expr, select: exp.Select, core: int) -> Part:
        """Return the part of a set operation: all of its right side but the conditions on rows."""
        word, said = _AFTER[type(operation)]
        if isinstance(operation, exp.Union) and operation.args.get("distinct") is False:
            word, said = "UNION ALL", said + ", duplicates kept"
        right = select.copy()
        right.set("where", None)
        sql = right.sql("sqlite")
        # Conditions come back right after the tables; `tables_sql` is how those are written.
        tables = tables_sql(right)
        head, found, tail = sql.partition(f"FROM {tables}")
        if not found:
            raise DataError(f"the tables of a second list were not found in {sql!r}")
        value = said.replace("second", ORDINALS[core]).format(self.words.query(right, None))
        slot = "combination" if core == 1 else f"{ORDINALS[core - 1]} combination"
        sql = f"{word} {head}{found}{HOLE}{tail}"
        return Part("combine", core, 0, sql, slot, value, f"return {value}", select, scope_of(select))

    def order(self, order: exp.Order, scope: Scope) -> Part:
        value = self.words.order(order, scope)
        sql = ", ".join(key.sql("sqlite") for key in order.expressions)
        return Part("order", 0, 0, sql, "sort order", value, f"sort the rows by {value}", order, scope)

    def limit(self, limit: exp.Limit, root: exp.Expr) -> Part:
        value = limit_words(root) or ""
        offset = root.args.get("offset")
        sql = limit.expression.sql("sqlite")
        sql += f" OFFSET {offset.expression.sql('sqlite')}" if offset is not None else ""
        return Part("limit", 0, 0, sql, "row limit", value, f"return only {value}", limit)

    def limited(self, count: int, offset: str = "") -> Part:
        root = parse_one(f"SELECT 1 LIMIT {count}{f' OFFSET {offset}' if offset else ''}", dialect="sqlite")
        return self.limit(root.args["limit"], root)


def conjuncts(select: exp.Select, clause: str) -> list[exp.Expr]:
    """Return the conditions that AND connects at the top of WHERE or HAVING."""
    found = select.args.get(clause)
    if found is None:
        return []
    return list(found.this.flatten()) if isinstance(found.this, exp.And) else [found.this]


def subjects(node: exp.Expr, scope: Scope, words: Words) -> str:
    """Return the columns that a condition of one piece speaks of."""
    named = dict.fromkeys(words.value(column, scope) for column in own_columns(node))
    return " or ".join(named) or "the rows"


def own_columns(node: exp.Expr) -> list[exp.Column]:
    """Return the columns in `node` that stand in no query within it."""
    return [
        column
        for column in node.find_all(exp.Column)
        if (query := column.find_ancestor(exp.Query)) is None or not within(query, node)
    ]


def within(node: exp.Expr, tree: exp.Expr) -> bool:
    """Return whether `node` is `tree` or stands in it."""
    above: exp.Expr | None = node
    while above is not None:
        if above is tree:
            return True
        above = above.parent
    return False
