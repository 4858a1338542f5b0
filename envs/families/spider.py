"""Spider: questions over databases of many domains; graded as the official test suite does, or strictly.

Data: taoyds/spider (CC BY-SA 4.0): `spider/dev.json`, `spider/tables.json`, `spider/database/<db>/*.sqlite`.
Every `.sqlite` file in a database's folder takes part in the verdict, so a test suite laid there is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from envs.errors import DataError
from envs.families._sql_bench import Item, SqlBenchmark
from envs.families._sql_store import Store
from envs.jsonl import benchmark_file
from envs.sandbox_sql import Refused
from envs.sql_match import suite_match, suite_text

_FILES = {"dev": "dev.json"}
_ORIGIN = "the Spider release of taoyds/spider"
EXCLUDED: Mapping[int, str] = {}
"""Items of dev.json, from 0, whose gold is wrong though it runs."""


class Spider(SqlBenchmark):
    """`keep_distinct` is the official evaluator's flag of that name; its default, False, ignores DISTINCT."""

    name = "spider"
    splits = tuple(_FILES)
    errors: ClassVar[str] = "ignore"
    limits: ClassVar[Mapping[str, Any]] = {"deadline_s": 10.0, "max_rows": 20_000, "max_bytes": 10_000_000}
    permute: ClassVar[bool] = True
    get: ClassVar[str] = f"get {_ORIGIN} and put its folder `database` at <data folder>/spider/database"

    def __init__(self, verdict: str = "strict", keep_distinct: bool = False) -> None:
        super().__init__(verdict)
        self.keep_distinct = keep_distinct

    def with_verdict(self, verdict: str, keep_distinct: bool | None = None) -> Self:
        """Return this family with another verdict, and another `keep_distinct` if given."""
        other = super().with_verdict(verdict)
        other.keep_distinct = self.keep_distinct if keep_distinct is None else keep_distinct
        return other

    def items(self, source: Path | None, split: str) -> Iterator[Item]:
        path = benchmark_file(source, "spider", _FILES[split], _ORIGIN)
        for row, record in enumerate(_records(path, ("db_id", "query", "question"))):
            reason = EXCLUDED.get(row, "") if split == "dev" else ""
            id = f"spider/{split}/{row}"
            yield Item(id, record["db_id"], record["query"], record["question"], exclude=reason)

    def databases(self, source: Path | None) -> Path:
        return benchmark_file(source, "spider", _FILES["dev"], _ORIGIN).parent / "database"

    def tables_file(self, source: Path | None) -> Path | None:
        return benchmark_file(source, "spider", "tables.json", _ORIGIN)

    def official(self, base: Store, gold: str, sql: str, own: bool) -> bool:
        """Return the test-suite verdict (`eval_exec_match` with `plug_value=False`)."""
        gold, sql = suite_text(gold, self.keep_distinct), suite_text(sql, self.keep_distinct)
        ordered = "order by" in gold.lower()
        for at in range(len(base.paths)):
            wanted, rows = base.gold(gold, at), self.run(base, sql, own, at)
            if isinstance(rows, Refused) or not suite_match(wanted, rows, ordered):
                return False
        return True


def _records(path: Path, required: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSON array. Raises `DataError`, naming the record."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); is it cut short?") from None
    if not isinstance(records, list):
        raise DataError(f"{path}: expected a JSON array, got {type(records).__name__}")
    for row, record in enumerate(records):
        missing = [key for key in required if not isinstance(record, dict) or key not in record]
        if missing:
            raise DataError(f"{path}, item {row}: no field {', '.join(map(repr, missing))}")
        yield record


FAMILY = Spider()
