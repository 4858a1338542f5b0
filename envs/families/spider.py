"""Spider: questions over databases of many domains; graded as the official test suite does, or strictly.

Data: taoyds/spider (CC BY-SA 4.0): `spider/dev.json`, `spider/tables.json`, `spider/database/<db>/*.sqlite`.
Every `.sqlite` file in a database's folder takes part in the verdict, so a test suite laid there is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from envs.families._sql_bench import Item, SqlBenchmark, read_records
from envs.families._sql_store import Store
from envs.jsonl import benchmark_file
from envs.sandbox_sql import Refused
from envs.sharded import shard_goals, text_field
from envs.sql_match import suite_match, suite_text
from envs.task import Quarantined, SourceTask

_FILES = {"dev": "dev.json"}
_ORIGIN = "the Spider release of taoyds/spider"
_AS_TEXT = "it compares MPG or horsepower, which car_1 holds as text, 'null' among it"
_MPG_ROWS = (95, 96, 117, 118, 125, 126, *range(131, 137), 159, 160, *range(165, 171))
EXCLUDED: Mapping[int, str] = dict.fromkeys(_MPG_ROWS, _AS_TEXT)
"""Items of dev.json, from 0, whose gold gives other rows once these columns hold numbers and NULL."""


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
        for row, record in enumerate(read_records(path, ("db_id", "query", "question"))):
            reason = EXCLUDED.get(row, "") if split == "dev" else ""
            id = f"spider/{split}/{row}"
            yield Item(id, record["db_id"], record["query"], record["question"], exclude=reason)

    def from_record(self, record: Mapping[str, Any], source: Path | None = None) -> SourceTask | Quarantined:
        """Return the task of a sharded record: its shards are the goals; database and schema are read below `source`.

        A shard is tied to no part of the query, so it has no variants; decoys are those of the query. Raises
        `MissingFiles`, `DataError`.
        """
        id, db_id = text_field(record, "task_id"), text_field(record, "db_id")
        folder = self.databases(source) / db_id
        if not (folder / f"{db_id}.sqlite").is_file():
            return Quarantined(id, f"its database is missing: {db_id}")
        item = Item(
            id, db_id, text_field(record, "reference_sql"), text_field(record, "fully_specified_question")
        )
        task = self._task(item, "sharded", folder, self.tables_file(source))
        if isinstance(task, Quarantined):
            return task
        # Under other names, so that no shard is taken for a part of the query.
        parts = {f"part {name}": part for name, part in task.payload["parts"].items()}
        payload = {**task.payload, "parts": parts, "sharded": True}
        return replace(task, goals=shard_goals(record), payload=payload)

    def records(self, source: Path | None, split: str) -> Iterator[dict[str, Any]]:
        """Yield records without shards, for `fluxforge shard`: the question is what is to be split."""
        for item in self.items(source, split):
            if not item.exclude:
                yield {
                    "task": "database",
                    "task_id": f"sharded-{item.id}",
                    "fully_specified_question": item.question,
                    "reference_sql": item.sql,
                    "db_id": item.db_id,
                }

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


FAMILY = Spider()
