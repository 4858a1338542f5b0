"""What tables and columns of a benchmark database are called: by SQL and by users."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envs.errors import DataError
from envs.sandbox_sql import ReadOnlyDatabase, Refused


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column: its SQL name, its name in words, and whether it holds numbers."""

    sql: str
    words: str
    number: bool


@dataclass(frozen=True, slots=True)
class TableName:
    sql: str
    words: str
    columns: Mapping[str, ColumnName] = field(hash=False)
    """By lower-case SQL name, in the order of the table."""


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """The tables of one database by lower-case SQL name."""

    tables: Mapping[str, TableName]

    def column(self, table: str | None, column: str) -> ColumnName | None:
        """Return the column, None if there is no such table or column."""
        known = self.tables.get((table or "").lower())
        return known.columns.get(column.lower()) if known else None


def in_words(name: str) -> str:
    """Return an SQL name as words: "Song_Name", "songName" and "song name" are "song name"."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").split()
    return " ".join(word if word.isupper() and 1 < len(word) < 5 else word.lower() for word in spaced)


def names_of(base: ReadOnlyDatabase, tables_file: Path | None, db_id: str) -> Names:
    """Return the names of a database: from `tables.json` where it lists the database, else from its schema.

    Only tables and columns that the database really has are named. Raises `DataError`.
    """
    described = _described(tables_file).get(db_id, {}) if tables_file is not None else {}
    tables: dict[str, TableName] = {}
    for table, column, kind in _from_ddl(base, db_id):
        words = described.get((table.lower(), None), (in_words(table), ""))[0]
        known = tables.setdefault(table.lower(), TableName(table, words, {}))
        said, declared = described.get((table.lower(), column.lower()), (in_words(column), kind))
        number = declared == "number" or bool(
            re.search(r"int|real|floa|doub|num|dec", declared, re.IGNORECASE)
        )
        known.columns[column.lower()] = ColumnName(column, said, number)  # type: ignore[index]
    if not tables:
        raise DataError(f"database {db_id!r} holds no table")
    return Names(tables)


def _from_ddl(base: ReadOnlyDatabase, db_id: str) -> list[tuple[str, str, str]]:
    """Return (table, column, type) read from the CREATE statements, since PRAGMA is not allowed."""
    from sqlglot import ParseError, exp, parse_one

    rows: list[tuple[str, str, str]] = []
    for table, ddl in statements(base, db_id):
        columns = _columns(base, table)
        kinds: dict[str, str] = {}
        try:
            for definition in parse_one(ddl, dialect="sqlite").find_all(exp.ColumnDef):
                kinds[definition.name.lower()] = (
                    definition.args["kind"].sql() if definition.args.get("kind") else ""
                )
        except ParseError:
            pass  # names alone will do
        rows += [(table, column, kinds.get(column.lower(), "")) for column in columns]
    return rows


def statements(base: ReadOnlyDatabase, db_id: str) -> list[tuple[str, str]]:
    """Return (table, CREATE statement) of the tables and views. Raises `DataError`."""
    found = base.run(
        "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%' "
        "AND sql IS NOT NULL ORDER BY rowid"
    )
    if isinstance(found, Refused):
        raise DataError(f"the schema of database {db_id!r} cannot be read: {found.reason}")
    return [(str(table), str(ddl)) for table, ddl in found]


def _columns(base: ReadOnlyDatabase, table: str) -> list[str]:
    quoted = table.replace('"', '""')
    return base.columns(f'SELECT * FROM "{quoted}" LIMIT 0')


@functools.lru_cache(maxsize=8)
def _described(path: Path) -> dict[str, dict[tuple[str, str | None], tuple[str, str]]]:
    """Return, by database, (table, column or None) -> (words, type) of a `tables.json`. Raises `DataError`."""
    found: dict[str, dict[tuple[str, str | None], tuple[str, str]]] = {}
    try:
        for record in json.loads(path.read_text(encoding="utf-8")):
            own: dict[tuple[str, str | None], tuple[str, str]] = {}
            tables = record["table_names_original"]
            for table, words in zip(tables, record["table_names"], strict=True):
                own[table.lower(), None] = (words, "")
            columns = zip(
                record["column_names_original"], record["column_names"], record["column_types"], strict=True
            )
            for (at, column), (_, words), kind in columns:
                if at >= 0:
                    own[tables[at].lower(), column.lower()] = (words, kind)
            found[record["db_id"]] = own
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"{path} is not shaped as a tables.json: {error!r}") from error
    return found
