"""BIRD: questions over large databases, with evidence; graded by execution accuracy, or strictly.

Data: bird-bench/mini_dev (CC BY-SA 4.0): `bird/mini_dev.json` (upstream's `mini_dev_sqlite.json` will do) and
`bird/dev_databases/<db>/<db>.sqlite`; `bird/dev_tables.json` gives tables and columns their names in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from envs.errors import MissingFiles
from envs.families._sql_bench import Item, SqlBenchmark, read_records
from envs.families._sql_store import Store
from envs.jsonl import benchmark_file
from envs.sandbox_sql import Refused
from envs.sql_match import bird_match

_FILES = ("mini_dev.json", "mini_dev_sqlite.json")
_ORIGIN = "BIRD mini-dev of bird-bench/mini_dev"


class Bird(SqlBenchmark):
    """The strict verdict counts duplicates, and order where the gold sorts; the official one compares sets."""

    name = "bird"
    splits = ("mini_dev",)
    errors: ClassVar[str] = "strict"  # as the official evaluator's connection: undecodable text is an error
    limits: ClassVar[Mapping[str, Any]] = {"deadline_s": 30.0, "max_rows": 200_000, "max_bytes": 10_000_000}
    permute: ClassVar[bool] = False
    get: ClassVar[str] = (
        f"get {_ORIGIN} and put its databases at <data folder>/bird/dev_databases/<db>/<db>.sqlite"
    )

    def items(self, source: Path | None, split: str) -> Iterator[Item]:
        for record in read_records(_file(source), ("question_id", "db_id", "SQL", "question")):
            id = f"bird/{split}/{record['question_id']}"
            hint = str(record.get("evidence") or "").strip()
            yield Item(id, record["db_id"], record["SQL"], record["question"], hint)

    def databases(self, source: Path | None) -> Path:
        return _file(source).parent / "dev_databases"

    def tables_file(self, source: Path | None) -> Path | None:
        path = _file(source).parent / "dev_tables.json"
        return path if path.is_file() else None

    def official(self, base: Store, gold: str, sql: str, own: bool) -> bool:
        """Return BIRD's execution accuracy: equal sets of rows."""
        rows = self.run(base, sql, own, 0)
        return not isinstance(rows, Refused) and bird_match(base.gold(gold, 0), rows)


def _file(source: Path | None) -> Path:
    for name in _FILES[1:]:  # the error names the first
        try:
            return benchmark_file(source, "bird", name, _ORIGIN)
        except MissingFiles:
            pass
    return benchmark_file(source, "bird", _FILES[0], _ORIGIN)


FAMILY = Bird()
