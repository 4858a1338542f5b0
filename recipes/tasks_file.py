"""Source tasks in Parquet beside their dialogues: what an agent is shown and what the grader needs.

With it a built set can be played and graded without the benchmark's files (but for databases). The payload is
JSON. Paths into the data folder are kept as "$DATA/...", so that the bytes do not depend on where it lies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from envs.errors import DataError
from envs.intent import goal_from_dict, goal_to_dict
from envs.parquet import open_writer
from envs.task import Family, SourceTask

DATA_MARK = "$DATA"
_TEXT = pa.string()
_GOAL = pa.struct(
    [
        pa.field("id", _TEXT, nullable=False),
        pa.field("text", _TEXT, nullable=False),
        pa.field("slot", _TEXT),
        pa.field("value", _TEXT),
    ]
)
SCHEMA = pa.schema(
    [
        *(pa.field(name, _TEXT, nullable=False) for name in ("id", "family", "split", "opening", "context")),
        pa.field("goals", pa.list_(_GOAL), nullable=False),
        pa.field("payload", _TEXT, nullable=False),
        pa.field("gold", _TEXT, nullable=False),
    ],
    metadata={"schema": "fluxforge.task", "schema_version": "1"},
)


def write_tasks(
    path: Path, family: Family, batches: Iterable[Sequence[SourceTask]], data: Path | None
) -> None:
    """Write tasks with their gold answers, one row group a batch. Raises `DataError` for a payload that is no
    JSON.
    """
    with open_writer(path, SCHEMA) as writer:
        for batch in batches:
            rows = [_row(family, task, data) for task in batch]
            writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))


def read_tasks(path: Path, data: Path | None) -> Iterator[SourceTask]:
    """Yield the tasks of a file; "$DATA" becomes `data` where that is given. Raises `DataError`."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if not file.schema_arrow.equals(SCHEMA):
                raise DataError(f"{path}: its columns are not those of a tasks file; build the set anew")
            for group in range(file.num_row_groups):
                for row in file.read_row_group(group).to_pylist():
                    payload = json.loads(row["payload"])
                    if data is not None:
                        payload = _swap(payload, DATA_MARK, str(data))
                    goals = tuple(goal_from_dict(goal) for goal in row["goals"])
                    texts = {name: row[name] for name in ("id", "family", "split", "opening", "context")}
                    yield SourceTask(**texts, goals=goals, payload=payload)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read ({error}); build the set anew") from error


def _row(family: Family, task: SourceTask, data: Path | None) -> dict[str, Any]:
    payload: Any = task.payload
    if data is not None:
        payload = _swap(payload, str(data), DATA_MARK)
    try:
        text = json.dumps(payload, ensure_ascii=False, sort_keys=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"task {task.id!r}: its payload is no plain JSON data ({error})") from error
    return {
        "id": task.id,
        "family": task.family,
        "split": task.split,
        "opening": task.opening,
        "context": task.context,
        "goals": [goal_to_dict(goal) for goal in task.goals],
        "payload": text,
        "gold": family.gold(task),
    }


def _swap(value: Any, old: str, new: str) -> Any:
    """Return plain data with `old` at the start of a text replaced by `new`, if a path may begin so."""
    if isinstance(value, str):
        return new + value[len(old) :] if value == old or value.startswith(f"{old}/") else value
    if isinstance(value, Mapping):
        return {key: _swap(one, old, new) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_swap(one, old, new) for one in value]
    return value
