"""SQL syntax trees in words: what a user would say for a column, a condition, a list within a query.

Every phrase says all that its SQL says, so that the query can be written from the words and the schema. What
has no phrase of its own is said as SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from envs.families._sql_names import Names

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")

_AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Avg: "average",
    exp.Sum: "total",
    exp.Min: "lowest",
    exp.Max: "highest",
}
_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "plus",
    exp.Sub: "minus",
    exp.Mul: "times",
    exp.Div: "divided by",
}
COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "",
    exp.NEQ: "not ",
    exp.GT: "more than ",
    exp.GTE: "at least ",
    exp.LT: "less than ",
    exp.LTE: "at most ",
}
_SETS: dict[type[exp.Expr], str] = {
    exp.Union: "together with",
    exp.Intersect: "that are also among",
    exp.Except: "but not",
}


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """The tables that one SELECT sees: alias -> SQL name of the table (None: a list within the query)."""

    tables: dict[str, str | None]
    outer: Scope | None = None


def scope_of(select: exp.Select, outer: Scope | None = None) -> Scope:
    """Return the tables of a SELECT's FROM and joins."""
    tables: dict[str, str | None] = {}
    for source in sources(select):
        named = source.name if isinstance(source, exp.Table) else None
        tables[(source.alias or source.name).lower()] = named
    return Scope(tables, outer)


def sources(select: exp.Select) -> list[exp.Expr]:
    """Return the tables and subqueries after FROM, in order."""
    start = select.args.get("from_")
    joins = select.args.get("joins") or []
    return [*([start.this] if start is not None else []), *(join.this for join in joins)]


class Words:
    """Says syntax trees of one database in words."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def table_of(self, column: exp.Column, scope: Scope) -> tuple[str | None, str | None, Scope]:
        """Return (alias, SQL table, scope) of a column; the first two None where it is no known table's."""
        here: Scope | None = scope
        while here is not None:
            for alias, table in here.tables.items():
                if column.table:
                    if column.table.lower() == alias:
                        return alias, table, here
                elif table is not None and self.names.column(table, column.name) is not None:
                    return alias, table, here
            here = here.outer
        return None, None, scope

    def column(self, column: exp.Column, scope: Scope) -> str:
        """Return a column in words, with its table where the query sees several."""
        if isinstance(column.this, exp.Star):
            return f"all columns of {self._alias(column.table.lower(), scope)}"
        alias, table, found = self.table_of(column, scope)
        known = self.names.column(table, column.name)
        if known is None or alias is None or table is None:
            return column.sql("sqlite")
        if len(found.tables) == 1 and found is scope:
            return known.words
        said = self._alias(alias, found)
        return known.words if f"{known.words} ".startswith(f"{said} ") else f"{said} {known.words}"

    def _alias(self, alias: str, scope: Scope) -> str:
        table = scope.tables.get(alias)
        if table is None or table.lower() not in self.names.tables:
            return alias
        words = self.names.tables[table.lower()].words
        same = [other for other, named in scope.tables.items() if (named or "").lower() == table.lower()]
        return f"{ORDINALS[same.index(alias) % 10]} {words}" if len(same) > 1 else words

    def value(self, node: exp.Expr, scope: Scope) -> str:
        """Return an expression in words."""
        match node:
            case exp.Column():
                return self.column(node, scope)
            case exp.Alias():
                return self.value(node.this, scope)
            case exp.Paren():
                return f"({self.value(node.this, scope)})"
            case exp.Star():
                return "all columns"
            case exp.Literal():
                return quoted(node)
            case exp.Neg():
                return f"-{self.value(node.this, scope)}"
            case exp.Count():
                return self._count(node, scope)
            case exp.Cast():
                return f"{self.value(node.this, scope)} as {node.to.sql('sqlite').lower()}"
            case exp.Subquery():
                return f"({self.query(node.this, scope)})"
            case exp.Select() | exp.SetOperation():
                return f"({self.query(node, scope)})"
            case exp.Case() if node.this is None:
                arms = [
                    f"{self.value(arm.args['true'], scope)} where {self.condition(arm.this, scope)}"
                    for arm in node.args["ifs"]
                ]
                return self._choice(arms, node.args.get("default"), scope)
            case exp.If():
                arm = f"{self.value(node.args['true'], scope)} where {self.condition(node.this, scope)}"
                return self._choice([arm], node.args.get("false"), scope)
        kind = type(node)
        if kind in _AGGREGATES and not node.args.get("expressions"):
            inner = node.this
            if isinstance(inner, exp.Distinct):
                return f"{_AGGREGATES[kind]} of the different {self._list(inner.expressions, scope)}"
            return f"{_AGGREGATES[kind]} {self.value(inner, scope)}"
        if kind in _ARITHMETIC:
            left, right = self.value(node.left, scope), self.value(node.right, scope)  # type: ignore[attr-defined]
            return f"{left} {_ARITHMETIC[kind]} {right}"
        if kind in COMPARISONS or isinstance(node, exp.Predicate | exp.Not | exp.Connector):
            return f"({self.condition(node, scope)})"
        return self._as_sql(node, scope)

    def _as_sql(self, node: exp.Expr, scope: Scope) -> str:
        """Return what has no phrase of its own as SQL, its columns in words: users know no aliases."""
        said = exp.Paren(this=node.copy())
        for column in list(said.find_all(exp.Column)):
            if column.find_ancestor(exp.Query) is None:
                column.replace(exp.Var(this=self.column(column, scope)))
        return said.this.sql("sqlite")

    def _count(self, node: exp.Count, scope: Scope) -> str:
        if isinstance(node.this, exp.Star):
            return "number of rows"
        if isinstance(node.this, exp.Distinct):
            return f"number of different {self._list(node.this.expressions, scope)} values"
        return f"number of {self.value(node.this, scope)} values"

    def _choice(self, arms: list[str], default: exp.Expr | None, scope: Scope) -> str:
        rest = f", else {self.value(default, scope)}" if default is not None else ""
        return f"({', '.join(arms)}{rest})"

    def _list(self, nodes: Sequence[exp.Expr], scope: Scope) -> str:
        return ", ".join(self.value(node, scope) for node in nodes)

    def condition(self, node: exp.Expr, scope: Scope) -> str:
        """Return a condition in words, as a clause: "age is more than 20"."""
        subject, predicate = self.split(node, scope)
        return f"{subject} is {predicate}" if subject else predicate

    def split(self, node: exp.Expr, scope: Scope) -> tuple[str, str]:
        """Return (subject, predicate) of a condition, the subject "" where the clause is one piece."""
        kind = type(node)
        negated = isinstance(node, exp.Not)
        inner = node.this if negated else node
        no = "not " if negated else ""
        match inner:
            case exp.Paren() if not negated:
                return "", f"({self.condition(inner.this, scope)})"
            case exp.And() | exp.Or() if not negated:
                word = "and" if isinstance(inner, exp.And) else "or"
                sides = [self.condition(side, scope) for side in inner.flatten()]
                return "", f" {word} ".join(sides)
            case exp.Between():
                low, high = self.value(inner.args["low"], scope), self.value(inner.args["high"], scope)
                return self.value(inner.this, scope), f"{no}between {low} and {high}"
            case exp.Like() if not inner.args.get("escape"):
                return self.value(inner.this, scope), f"{no}like {self.value(inner.expression, scope)}"
            case exp.In():
                query = inner.args.get("query")
                if query is not None:
                    return self.value(inner.this, scope), f"{no}among {self.value(query, scope)}"
                return self.value(inner.this, scope), f"{no}one of {self._list(inner.expressions, scope)}"
            case exp.Is() if isinstance(inner.expression, exp.Null):
                return self.value(inner.this, scope), f"{no}missing"
            case exp.Exists():
                return "", f"there is {'no' if negated else 'a'} row in ({self.query(inner.this, scope)})"
        if kind in COMPARISONS:
            left, right = self.value(node.left, scope), self.value(node.right, scope)  # type: ignore[attr-defined]
            return left, COMPARISONS[kind] + right
        if negated:
            return "", f"it is not so that {self.condition(inner, scope)}"
        said = self._as_sql(node, scope) if isinstance(node, exp.Predicate) else self.value(node, scope)
        return "", f"{said} holds"

    def order(self, order: exp.Order, scope: Scope) -> str:
        keys = [
            f"{self.value(key.this, scope)}, {'descending' if key.args.get('desc') else 'ascending'}"
            for key in order.expressions
        ]
        return " then ".join(keys)

    def tables(self, select: exp.Select, scope: Scope) -> str:
        """Return what a SELECT reads from: "concert joined with stadium by stadium id"."""
        said = ""
        start = select.args.get("from_")
        if start is not None:
            said = self._source(start.this, scope)
        for join in select.args.get("joins") or []:
            side = f"{join.side.lower()} " if join.side else ""
            said += f" {side}joined with {self._source(join.this, scope)}"
            on, using = join.args.get("on"), join.args.get("using")
            if on is not None:
                said += f" {self._on(on, scope)}"
            elif using:
                said += f" by {', '.join(column.name for column in using)}"
            else:
                said += " in every combination"
        return said

    def _on(self, on: exp.Expr, scope: Scope) -> str:
        if isinstance(on, exp.EQ) and isinstance(on.left, exp.Column) and isinstance(on.right, exp.Column):
            left, right = (
                self.names.column(self.table_of(side, scope)[1], side.name) for side in (on.left, on.right)
            )
            if left is not None and right is not None and left.words == right.words:
                return f"by {left.words}"
        return f"where {self.condition(on, scope)}"

    def _source(self, source: exp.Expr, scope: Scope) -> str:
        if isinstance(source, exp.Table):
            return self._alias((source.alias or source.name).lower(), scope)
        alias = f" as {source.alias}" if source.alias else ""
        return f"({self.query(source.this, None)}){alias}"

    def query(self, query: exp.Expr, outer: Scope | None) -> str:
        """Return a list within a query in words: "average age of singer where country is 'France'"."""
        if isinstance(query, exp.SetOperation):
            left, right = self.query(query.this, outer), self.query(query.expression, outer)
            said = f"{left} {_SETS[type(query)]} {right}"
            scope = scope_of(next(query.find_all(exp.Select)), outer)
        elif isinstance(query, exp.Select):
            scope = scope_of(query, outer)
            said = f"{self._list(query.expressions, scope)} of {self.tables(query, scope)}"
            if query.args.get("distinct"):
                said = f"different {said}"
            if (where := query.args.get("where")) is not None:
                said += f" where {self.condition(where.this, scope)}"
            if (group := query.args.get("group")) is not None:
                said += f" for each {self._list(group.expressions, scope)}"
            if (having := query.args.get("having")) is not None:
                said += f" having {self.condition(having.this, scope)}"
        else:
            return query.sql("sqlite")
        if (order := query.args.get("order")) is not None:
            said += f", sorted by {self.order(order, scope)}"
        if (limit := limit_words(query)) is not None:
            said += f", {limit} only"
        return said


def limit_words(query: exp.Expr) -> str | None:
    """Return the limit of a query in words, "the first 3 rows"; None without one."""
    limit, offset = query.args.get("limit"), query.args.get("offset")
    if limit is None:
        return None
    count = limit.expression.sql("sqlite")
    start = offset.expression.sql("sqlite") if offset is not None else "0"
    after = f" after skipping {start}" if start != "0" else ""
    return f"the first {count if count != '1' else ''}{' rows' if count != '1' else 'row'}{after}"


def quoted(literal: exp.Literal) -> str:
    """Return a literal as users say it here: numbers bare, text in quotation marks."""
    if not literal.is_string:
        return str(literal.this)
    text = str(literal.this)
    return f"'{text}'" if "'" not in text else f'"{text}"'
