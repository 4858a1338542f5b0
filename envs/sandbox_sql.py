"""Run untrusted SQL read-only: one SELECT, with a deadline, a row cap and no way to write, attach or load.

What a query does wrong is a `Refused`, never an exception; an exception from here is our own fault.
`envs/sql_process.py` puts this into a process of its own, with limits that the operating system keeps.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import DataError, GraderError, MissingFiles

Row = tuple[Any, ...]

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_DENIED_FUNCTIONS = {
    "load_extension",
    "fts3_tokenizer",
    "random",
    "randomblob",
}  # the last two: same query, same rows
_STEPS = 1000  # virtual machine steps between two looks at the clock
_CHUNK = 256  # rows fetched between two looks at the size of the result
WALL_PER_CPU = 4.0
"""The deadline counts CPU time, so that a busy machine fails no query; so much wall clock ends it anyway."""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 250_000,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_KEYWORD = (
    "SELECT|WITH|VALUES|DROP|DELETE|INSERT|UPDATE|REPLACE|CREATE|ALTER|ATTACH|DETACH|PRAGMA|VACUUM|BEGIN|COMMIT"
    "|REINDEX|ANALYZE|EXPLAIN|SAVEPOINT|RELEASE|ROLLBACK|END"
)
_LINE_START = re.compile(rf"^\s*(?:{_KEYWORD})\b", re.IGNORECASE | re.MULTILINE)
_ANYWHERE = re.compile(rf"\b(?:{_KEYWORD})\b")  # inside prose only upper case counts
_STATEMENT = re.compile(rf"\s*(?:{_KEYWORD})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a query gave no rows: a syntax error, a forbidden action, the deadline, too many rows."""

    reason: str


class ReadOnlyDatabase:
    """A SQLite database that nothing run here can change. Safe to share between threads: queries take turns.

    `deadline_s` bounds one query in CPU seconds (and `WALL_PER_CPU` times as many of wall clock), `max_rows`
    its rows, `max_bytes` any one text or blob, `max_total` the text and blob bytes of a whole result. Of a
    database made in memory, `image` holds its file, so that another process can open it too.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        deadline_s: float = 1.0,
        max_rows: int = 5000,
        max_bytes: int = 100_000,
        max_total: int = 50_000_000,
        image: bytes | None = None,
    ) -> None:
        self._connection = connection
        self._deadline_s, self._max_rows = deadline_s, max_rows
        self._max_bytes, self._max_total = max_bytes, max_total
        self._lock = threading.Lock()
        self._stop_cpu = self._stop_wall = 0.0
        self.image = image
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA temp_store = MEMORY")  # no sorter spills into a file
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_bytes)
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(self._late, _STEPS)

    @classmethod
    def in_memory(cls, script: Sequence[tuple[str, Sequence[Row]]], **limits: Any) -> ReadOnlyDatabase:
        """Build a database from trusted statements, each with the rows to run it for (none: once)."""
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        for statement, rows in script:
            if rows:
                connection.executemany(statement, rows)
            else:
                connection.execute(statement)
        connection.commit()
        return cls(connection, image=connection.serialize(), **limits)

    @classmethod
    def from_image(cls, image: bytes, **limits: Any) -> ReadOnlyDatabase:
        """Open the `image` of another database. Raises `DataError`."""
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            connection.deserialize(image)
            connection.execute("SELECT count(*) FROM sqlite_master")
            return cls(connection, image=image, **limits)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise DataError(f"not the image of a SQLite database ({len(image)} bytes): {error}") from error

    @classmethod
    def open(cls, path: Path, errors: str = "replace", **limits: Any) -> ReadOnlyDatabase:
        """Open a database file read-only. Raises `MissingFiles` or `DataError`.

        `errors` says what becomes of bytes that are no UTF-8: "replace", "ignore", or "strict", which fails
        the query.
        """
        if not path.is_file():
            raise MissingFiles(f"no database file {path}: put the benchmark's database folder there")
        uri = f"{path.resolve().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        connection.text_factory = lambda data: data.decode("utf-8", errors=errors)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
            return cls(connection, **limits)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise DataError(f"{path} is no readable SQLite database: {error}") from error

    @property
    def limits(self) -> dict[str, Any]:
        """Return the limits by name, to open the same database elsewhere."""
        return {
            "deadline_s": self._deadline_s,
            "max_rows": self._max_rows,
            "max_bytes": self._max_bytes,
            "max_total": self._max_total,
        }

    def run(self, sql: str) -> list[Row] | Refused:
        """Return the rows of one SELECT, or why there are none. Any text is safe."""
        with self._lock:
            self._stop_cpu = time.thread_time() + self._deadline_s
            self._stop_wall = time.monotonic() + WALL_PER_CPU * self._deadline_s
            try:
                cursor = self._connection.execute(sql)
                try:
                    rows = self._fetch(cursor)
                finally:
                    cursor.close()
            except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
                return Refused(f"stopped after {self._deadline_s} s" if self._late() else _say(error))
        if not isinstance(rows, Refused) and cursor.description is None:  # a comment or nothing at all
            return Refused("no statement")
        return rows

    def columns(self, sql: str) -> list[str]:
        """Return the names of the columns that a query of ours gives. Raises `GraderError` if it fails."""
        with self._lock:
            self._stop_cpu, self._stop_wall = time.thread_time() + 60.0, time.monotonic() + 60.0
            try:
                cursor = self._connection.execute(sql)
            except sqlite3.Error as error:
                raise GraderError(f"our own query failed ({error}): {sql}") from error
            names = [name for name, *_ in cursor.description]
            cursor.close()
        return names

    def _fetch(self, cursor: sqlite3.Cursor) -> list[Row] | Refused:
        rows: list[Row] = []
        total = 0
        while chunk := cursor.fetchmany(_CHUNK):
            rows += chunk
            if len(rows) > self._max_rows:
                return Refused(f"more than {self._max_rows} rows")
            # Only a long result can be a huge one that the limit on single cells lets through.
            if len(rows) * len(chunk[0]) * self._max_bytes > self._max_total:
                total += sum(len(cell) for row in chunk for cell in row if isinstance(cell, str | bytes))
                if total > self._max_total:
                    return Refused(f"more than {self._max_total} bytes")
            if len(chunk) < _CHUNK:
                break
        return rows

    def _late(self) -> int:
        return int(time.thread_time() >= self._stop_cpu or time.monotonic() >= self._stop_wall)


def _say(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _authorize(action: int, arg1: str | None, arg2: str | None, _db: str | None, _trigger: str | None) -> int:
    if action not in _ALLOWED or (
        action == sqlite3.SQLITE_FUNCTION and (arg2 or "").lower() in _DENIED_FUNCTIONS
    ):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def extract_sql(answer: str) -> str | None:
    """Return the SQL of an answer, or None: the last fenced block, else from the first statement on.

    Prose after the semicolon is cut; a second statement is kept, so that it is refused.
    """
    blocks = [block for block in _FENCE.findall(answer) if block.strip()]
    text = blocks[-1] if blocks else answer
    start = _LINE_START.search(text) or _ANYWHERE.search(text)
    if start is None:
        return None
    sql = text[start.start() :].strip()
    for semicolon in itertools.islice(re.finditer(";", sql), 100):
        if sqlite3.complete_statement(sql[: semicolon.end()]):  # this one is in no string or comment
            return sql if _STATEMENT.match(sql, semicolon.end()) else sql[: semicolon.start()].strip()
    return sql


def same_rows(gold: Sequence[Row], found: Sequence[Row], ordered: bool, tolerance: float = 1e-6) -> bool:
    """Compare as lists if `ordered`, else as multisets; column order counts, numbers within tolerance."""
    if len(gold) != len(found) or gold == found:
        return len(gold) == len(found)
    if not any(type(cell) is float for row in itertools.chain(gold, found) for cell in row):
        return not ordered and Counter(gold) == Counter(found)
    if not ordered:
        gold, found = sorted(gold, key=_sort_key), sorted(found, key=_sort_key)
    return all(_same_row(a, b, tolerance) for a, b in zip(gold, found, strict=True))


def _sort_key(row: Row) -> tuple[tuple[str, Any], ...]:
    return tuple(_cell_key(cell) for cell in row)


def _cell_key(cell: Any) -> tuple[str, Any]:
    if cell is None:
        return "", 0
    if isinstance(cell, int | float):
        return "number", round(cell, 4)  # near-equal floats sort alike
    return type(cell).__name__, cell


def _same_row(a: Row, b: Row, tolerance: float) -> bool:
    return len(a) == len(b) and all(_same_cell(x, y, tolerance) for x, y in zip(a, b, strict=True))


def _same_cell(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b or abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))
    return type(a) is type(b) and a == b
