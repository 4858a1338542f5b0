"""A benchmark's databases: opened read-only once, their names, some of their values, and rows of our queries."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.errors import GraderError
from envs.families._sql_goals import Query, read_query
from envs.families._sql_names import Names, names_of, statements
from envs.sandbox_sql import ReadOnlyDatabase, Refused, Row
from envs.sql_match import Wanted, wanted, wanted_by_keys
from envs.sql_process import shared

_ROWS_OF_A_COLUMN = 500
_KEPT = 4096  # results a file


class Store:
    """The files of one database: `<db>.sqlite`, and beside it the other databases of a test suite.

    `limits` are those of `ReadOnlyDatabase`, `errors` is what becomes of bytes that are no UTF-8.
    """

    def __init__(
        self, folder: Path, db_id: str, tables_file: Path | None, errors: str, **limits: Any
    ) -> None:
        main = folder / f"{db_id}.sqlite"
        others = sorted(path for path in folder.glob("*.sqlite") if path != main and path.name[0] != ".")
        self.paths = (main, *others)
        self.errors, self.limits = errors, limits
        self.bases = [ReadOnlyDatabase.open(path, errors=errors, **limits) for path in self.paths]
        self.names: Names = names_of(self.bases[0], tables_file, db_id)
        self.ddl = ";\n".join(sql for _, sql in statements(self.bases[0], db_id)) + ";"
        self.rows = functools.lru_cache(maxsize=_KEPT)(self._rows)
        self.query = functools.lru_cache(maxsize=_KEPT)(self._query)
        self.wanted = functools.lru_cache(maxsize=_KEPT)(self._wanted)
        self.cells = functools.cache(self._cells)

    def _rows(self, sql: str, at: int = 0) -> list[Row] | Refused:
        """Return what a query of ours gives on file `at`; run in this process and kept."""
        return self.bases[at].run(sql)

    def fresh(self, sql: str, at: int = 0) -> list[Row] | Refused:
        """Return what a query of ours gives now."""
        return self.bases[at].run(sql)

    def untrusted(self, sql: str, at: int) -> list[Row] | Refused:
        """Return what anybody's query gives on file `at`, from a process of its own. Raises `GraderError`."""
        return shared().run(self.paths[at], sql, errors=self.errors, **self.limits)

    def gold(self, sql: str, at: int) -> list[Row]:
        """Return the rows of a gold query. Raises `GraderError` if it fails."""
        rows = self.rows(sql, at)
        if isinstance(rows, Refused):
            raise GraderError(f"the gold query fails on {self.paths[at]} ({rows.reason}): {sql}")
        return rows

    def _query(self, sql: str) -> Query:
        return read_query(sql, self.names)

    def _wanted(self, sql: str, ordered: bool, keyed: str | None, keys: int, offset: int, at: int) -> Wanted:
        """Return what a gold asks for on file `at`; `keyed` is its query with sort keys (see `sort_keys`)."""
        rows = self.gold(sql, at)
        if keyed is not None:
            found = self.bases[at].run(keyed)
            if not isinstance(found, Refused):
                by_keys = wanted_by_keys(rows, found, keys, offset)
                if by_keys is not None:
                    return by_keys
        return wanted(rows, ordered)

    def _cells(self, table: str, column: str) -> Sequence[Any]:
        """Return some different values of a column, in the order of the table, none missing."""
        named = self.names.column(table, column)
        if named is None:
            return ()
        name, source = (text.replace('"', '""') for text in (named.sql, table))
        sql = f'SELECT "{name}" FROM "{source}"'
        rows = self.bases[0].run(f"{sql} ORDER BY rowid LIMIT {_ROWS_OF_A_COLUMN}")
        if isinstance(rows, Refused):  # a view, or a table without rowid
            rows = self.bases[0].run(f"{sql} LIMIT {_ROWS_OF_A_COLUMN}")
        cells = [] if isinstance(rows, Refused) else [row[0] for row in rows]
        return tuple(
            dict.fromkeys(cell for cell in cells if cell is not None and not isinstance(cell, bytes))
        )


@functools.lru_cache(maxsize=256)
def store(
    folder: Path, db_id: str, tables_file: Path | None, errors: str, limits: tuple[tuple[str, Any], ...]
) -> Store:
    """Return the store of a database, opened once. Raises `MissingFiles` or `DataError`."""
    return Store(folder, db_id, tables_file, errors, **dict(limits))
