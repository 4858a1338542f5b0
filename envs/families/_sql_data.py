"""The databases of the `sql` family: built in memory from a schema and a seed, and read-only afterwards."""

from __future__ import annotations

import functools
import itertools
import operator
import random
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from envs.errors import GraderError
from envs.sandbox_sql import ReadOnlyDatabase, Refused, Row
from envs.sql_process import shared
from envs.vocab.sql_slots import schema_of
from envs.vocab.sql_words import Column, Schema

Condition = tuple[str, str, Any]  # column, role of the filter, operand

DATABASES = 5  # a schema
_ROWS, _PARENT_ROWS = 40, 8


class _Lookup:
    """Which rows of a column hold, begin with, or lie below a value, as bit sets of ids."""

    def __init__(self, column: Sequence[Any]) -> None:
        pairs = sorted((cell, id) for id, cell in enumerate(column) if id)
        self.cells = [cell for cell, _ in pairs]
        self.below = [0, *itertools.accumulate((1 << id for _, id in pairs), operator.or_)]
        """`below[n]`: the ids of the n least cells."""
        self.equal: dict[Any, int] = {}
        self.initial: dict[str, int] = {}
        for cell, id in pairs:
            self.equal[cell] = self.equal.get(cell, 0) | 1 << id
            if isinstance(cell, str):
                letter = cell[:1].upper()
                self.initial[letter] = self.initial.get(letter, 0) | 1 << id


class Database:
    """One database. `rows` holds the main table joined with its parent, by natural column name."""

    def __init__(self, schema: Schema, seed: str) -> None:
        rng = random.Random(seed)
        parents = _records(schema.parent_columns, _PARENT_ROWS, rng)
        records = _records(schema.columns, _ROWS, rng)
        links = [rng.randrange(_PARENT_ROWS) for _ in records]
        self.rows: list[dict[str, Any]] = [
            record | parents[link] for record, link in zip(records, links, strict=True)
        ]
        key = f", {schema.parent}_id INTEGER REFERENCES {schema.parent}(id)"
        script = [
            (_create(schema.parent, schema.parent_columns, ""), ()),
            (_insert(schema.parent, 1 + len(schema.parent_columns)), _rows(parents)),
            (_create(schema.table, schema.columns, key), ()),
            (
                _insert(schema.table, 2 + len(schema.columns)),
                [(*row, link + 1) for row, link in zip(_rows(records), links, strict=True)],
            ),
        ]
        self.database = ReadOnlyDatabase.in_memory(script)
        self._order = functools.cache(
            lambda sort: [
                row[0] for row in self.trusted(f"SELECT {schema.table}.id FROM {schema.table}{sort}")
            ]
        )
        names = self.rows[0].keys()
        self._columns = {name.replace(" ", "_"): [None, *(row[name] for row in self.rows)] for name in names}
        self._all = sum(1 << id for id in range(1, len(self.rows) + 1))
        self._lookup = functools.cache(lambda column: _Lookup(self._columns[column]))
        self._results = functools.lru_cache(maxsize=20_000)(self.database.run)

    def mask(self, condition: Condition | None) -> int:
        """Return the ids of the rows for which a condition holds (None: all rows), as a bit set."""
        if condition is None:
            return self._all
        column, role, operand = condition
        known = self._lookup(column)
        match role:
            case "equal":
                return known.equal.get(operand, 0)
            case "other":
                return self._all & ~known.equal.get(operand, 0)
            case "initial":
                return known.initial.get(operand.upper(), 0)
            case "least":
                return self._all & ~known.below[bisect_left(known.cells, operand)]
            case "most":
                return known.below[bisect_right(known.cells, operand)]
            case "between":
                return (
                    known.below[bisect_right(known.cells, operand[1])]
                    & ~known.below[bisect_left(known.cells, operand[0])]
                )
        raise GraderError(f"unknown filter {role!r}")

    def evaluate(self, shape: Mapping[str, str], mask: int) -> list[Row] | None:
        """Return what a query of this shape (role -> SQL) gives for the rows in `mask`, without running it.

        None where SQLite alone decides: all columns, DISTINCT with an order, an output beside a summary.
        Building dialogues checks some thirty values a task, hence this; the tests hold it against execution.
        """
        roles = shape.keys()
        if (
            ("output" in roles) == ("summary" in roles)
            or {"unique", "sort"} <= roles
            or ("group" in roles and "summary" not in roles)
        ):
            return None
        ids = [id for id in self._order(shape.get("sort", "")) if mask >> id & 1]
        if "summary" in roles:
            return (
                self._summarise(shape["summary"], shape.get("group"), ids)
                if roles <= {"summary", "group"}
                else None
            )
        columns = [self._columns[name] for name in shape["output"].split(", ")]
        rows = list(zip(*([column[id] for id in ids] for column in columns), strict=True))
        if "unique" in roles:
            rows = list(dict.fromkeys(rows))
        return rows[: int(shape["limit"].removeprefix(" LIMIT "))] if "limit" in roles else rows

    def _summarise(self, summary: str, group: str | None, ids: list[int]) -> list[Row]:
        function, _, column = summary.removesuffix(")").partition("(")
        if group is None:
            return [
                (
                    _aggregate(
                        function,
                        [1] * len(ids) if column == "*" else [self._columns[column][id] for id in ids],
                    ),
                )
            ]
        groups: dict[Any, list[int]] = {}
        for id in ids:
            groups.setdefault(self._columns[group][id], []).append(
                1 if column == "*" else self._columns[column][id]
            )
        return [(key, _aggregate(function, cells)) for key, cells in groups.items()]

    def apart(self, sql: str) -> list[Row] | Refused:
        """Return the rows of an untrusted query, run in the shared process for queries, or why there are none.

        Raises `GraderError` if no such process can be had.
        """
        if self.database.image is None:
            raise GraderError("this database has no image that another process could open")
        return shared().run(self.database.image, sql, **self.database.limits)

    def trusted(self, sql: str) -> list[Row]:
        """Return the rows of a query of ours, from memory where it ran before. Raises `GraderError`."""
        rows = self._results(sql)
        if isinstance(rows, Refused):
            raise GraderError(f"our own query failed ({rows.reason}): {sql}")
        return rows


def condition_sql(condition: Condition) -> str:
    """Return a condition as SQL."""
    column, role, operand = condition
    quoted = operand if not isinstance(operand, str) else "'" + operand.replace("'", "''") + "'"
    match role:
        case "equal":
            return f"{column} = {quoted}"
        case "other":
            return f"{column} <> {quoted}"
        case "initial":
            return f"upper(substr({column}, 1, 1)) = upper({quoted})"
        case "least":
            return f"{column} >= {quoted}"
        case "most":
            return f"{column} <= {quoted}"
        case "between":
            return f"{column} BETWEEN {operand[0]} AND {operand[1]}"
    raise GraderError(f"unknown filter {role!r}")


@functools.cache
def database(split: str, table: str, number: int) -> Database:
    """Return database `number` of a schema, the same on every machine."""
    return Database(schema_of(split, table), f"sql/{split}/{table}/{number}")


@functools.cache
def ddl(split: str, table: str) -> str:
    schema = schema_of(split, table)
    key = f", {schema.parent}_id INTEGER REFERENCES {schema.parent}(id)"
    return (
        f"{_create(schema.parent, schema.parent_columns, '')};\n{_create(schema.table, schema.columns, key)};"
    )


def _aggregate(function: str, cells: list[int]) -> int | float | None:
    if function == "COUNT":
        return len(cells)
    if not cells:
        return None
    match function:
        case "AVG":
            return sum(cells) / len(cells)
        case "SUM":
            return sum(cells)
        case "MAX":
            return max(cells)
        case "MIN":
            return min(cells)
    raise GraderError(f"unknown aggregate {function!r}")


def _records(columns: tuple[Column, ...], count: int, rng: random.Random) -> list[dict[str, Any]]:
    """Draw records; labels and numbers are unique within a table, categories all occur where they fit."""
    drawn: dict[str, list[Any]] = {}
    for column in columns:
        if column.kind == "number":
            drawn[column.name] = rng.sample(range(column.low, column.high + 1), count)
            continue
        assert column.values is not None
        values = column.values.values
        if column.kind == "label":
            drawn[column.name] = rng.sample(values, count)
        else:
            drawn[column.name] = rng.sample([*values, *rng.choices(values, k=count)][:count], count)
    return [dict(zip(drawn, cells, strict=True)) for cells in zip(*drawn.values(), strict=True)]


def _create(table: str, columns: tuple[Column, ...], key: str) -> str:
    kinds = {"label": "TEXT", "category": "TEXT", "number": "INTEGER"}
    fields = ", ".join(f"{column.sql} {kinds[column.kind]}" for column in columns)
    return f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, {fields}{key})"


def _insert(table: str, width: int) -> str:
    return f"INSERT INTO {table} VALUES ({', '.join('?' * width)})"


def _rows(records: list[dict[str, Any]]) -> list[Row]:
    return [(number, *record.values()) for number, record in enumerate(records, 1)]
