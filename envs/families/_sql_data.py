"""The databases of the `sql` family: built in memory from a schema and a seed, and read-only afterwards."""

from __future__ import annotations

import functools
import random
from typing import Any

from envs.errors import GraderError
from envs.sandbox_sql import ReadOnlyDatabase, Refused, Row
from envs.vocab.sql_slots import schema_of
from envs.vocab.sql_words import Column, Schema

DATABASES = 5  # a schema
_ROWS, _PARENT_ROWS = 40, 8


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
        self._join = (
            f"{schema.table} JOIN {schema.parent} ON {schema.table}.{schema.parent}_id = {schema.parent}.id"
        )
        self._id = f"{schema.table}.id"
        self.mask = functools.lru_cache(maxsize=20_000)(self._mask)
        self._results = functools.lru_cache(maxsize=20_000)(self.database.run)

    def _mask(self, condition: str) -> int:
        """Return the rows of the main table for which a condition holds, as a bit set."""
        rows = self.trusted(f"SELECT {self._id} FROM {self._join} WHERE {condition}")
        return sum(1 << row[0] for row in rows)

    def trusted(self, sql: str) -> list[Row]:
        """Return the rows of one of our own queries, from memory where it ran before. Raises `GraderError`."""
        rows = self._results(sql)
        if isinstance(rows, Refused):
            raise GraderError(f"our own query failed ({rows.reason}): {sql}")
        return rows


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
