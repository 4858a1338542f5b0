"""Sharded records: tasks whose prompt was cut into shards, as Lost in Conversation publishes them.

A file is one JSON array of `{"task": kind, "task_id": ..., "shards": [{"shard_id", "shard"}, ...], ...}`; what else
a record holds is the grader's side of its kind, and read by the family of that kind through its hook

    from_record(record) -> SourceTask | Quarantined        or        from_record(record, source=None) -> the same

where `source` is the folder of benchmark files, for a family that needs some (databases). A family raises `DataError`
for a record that is not shaped as it should be, without naming the file; the loader does. The shards become the
goals. They carry no slot and no value: a family gives variants only where it can link a shard to structure (a number
of a GSM8K shard, an argument's value in a BFCL shard), and decoys where its grader can vouch for them.
Layout: microsoft/lost_in_conversation, `data/sharded_instructions_600.json` (MIT).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.errors import ConfigError, DataError, FluxForgeError, GraderError, MissingFiles, unknown_name
from envs.intent import Goal
from envs.task import Family, Quarantined, SourceTask, check_gold, get_family

FAMILIES = {
    "code": "humaneval",  # or livecodebench, by the record's `source`
    "database": "spider",
    "actions": "bfcl",
    "math": "gsm8k",
    "data2text": "totto",
    "summary": "summhay",
}
"""Kind of a record -> the family that grades it."""
SPLIT = "sharded"
_LIVECODEBENCH = ("lcb", "livecodebench")


def load_sharded(
    path: Path, kinds: Collection[str] = tuple(FAMILIES), source: Path | None = None
) -> Iterator[SourceTask | Quarantined]:
    """Yield the tasks of a file in its order; a task whose gold its own grader rejects comes as `Quarantined`.

    `kinds` chooses among `FAMILIES`; records of other kinds are passed over. Ids are "sharded/<file>/<task_id>",
    because the same task_id means different tasks in different files.
    Raises `MissingFiles`, `DataError` with file and record (counted from 1), `UnknownName` for a kind.
    """
    for kind in kinds:
        if kind not in FAMILIES:
            raise unknown_name("kind of sharded record", kind, FAMILIES)
    seen: set[str] = set()
    for number, record in enumerate(read_records(path), 1):
        where = f"{path}, record {number}"
        try:
            check_record(record)
            if record["task_id"] in seen:
                raise DataError(f"the task_id {record['task_id']!r} occurs twice in the file")
            seen.add(record["task_id"])
            if record["task"] not in kinds:
                continue
            task = _build(get_family(family_of(record)), record, source)
        except GraderError as error:
            task = Quarantined(record["task_id"], f"the grader failed on the gold answer: {error}")
        except MissingFiles as error:
            raise MissingFiles(f"{where} ({record.get('task_id')}): {error}") from error
        except FluxForgeError as error:
            raise DataError(f"{where}{_named(record)}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DataError(
                f"{where}{_named(record)}: not shaped as a record of kind {record['task']!r} ({error!r})"
            ) from error
        id = f"sharded/{path.stem}/{record['task_id']}"
        if isinstance(task, Quarantined):
            yield Quarantined(id, task.reason)
        else:
            yield check_gold(get_family(task.family), dataclasses.replace(task, id=id, split=SPLIT))


def read_records(path: Path) -> list[Any]:
    """Return the records of a file, unchecked. Raises `MissingFiles`, `DataError`."""
    if not path.is_file():
        raise MissingFiles(
            f"{path} is not there. Get data/sharded_instructions_600.json of microsoft/lost_in_conversation, or make "
            "a file of shards with `fluxforge shard`, and give its path."
        )
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); is it cut short?") from None
    if not isinstance(records, list):
        raise DataError(f"{path}: expected a JSON array of records, got {type(records).__name__}")
    return records


def check_record(record: Any) -> None:
    """Raise `DataError` for what is no record of a known kind with sound shards."""
    if not isinstance(record, dict):
        raise DataError(f"expected a JSON object, got {type(record).__name__}")
    missing = [key for key in ("task", "task_id", "shards") if key not in record]
    if missing:
        raise DataError(f"no field {', '.join(map(repr, missing))}")
    if record["task"] not in FAMILIES:
        raise unknown_name("kind of sharded record", str(record["task"]), FAMILIES)
    if not isinstance(record["task_id"], str) or not record["task_id"]:
        raise DataError("task_id is no text")
    shards = record["shards"]
    if not isinstance(shards, list) or not shards:
        raise DataError("shards is no list with at least one shard")
    ids = [shard.get("shard_id") if isinstance(shard, dict) else None for shard in shards]
    if not all(type(id) is int for id in ids) or len(set(ids)) != len(ids):
        raise DataError(f"the shards need distinct whole numbers as shard_id, got {ids}")
    for shard in shards:
        if not isinstance(shard.get("shard"), str):
            raise DataError(f"shard {shard['shard_id']} has no text `shard`")
        # a summary's shard is a list of documents, and its text is empty
        if not shard["shard"].strip() and not (record["task"] == "summary" and shard.get("doc_idxs")):
            raise DataError(f"shard {shard['shard_id']} is empty")


def family_of(record: Mapping[str, Any]) -> str:
    """Return the name of the family that grades a record (code: by its `source`, "humaneval" or "lcb_...")."""
    made_from = str(record.get("source", "")).lower()
    if record["task"] == "code" and made_from.startswith(_LIVECODEBENCH):
        return "livecodebench"
    return FAMILIES[record["task"]]


def shard_goals(record: Mapping[str, Any]) -> tuple[Goal, ...]:
    """Return one goal a shard, in order: ids g1, g2, ..., the shard's text, no slot, no value."""
    texts = [" ".join(str(shard["shard"]).split()) for shard in record["shards"]]
    if not all(texts):
        raise DataError("a shard is empty")
    return tuple(Goal(f"g{n}", text) for n, text in enumerate(texts, 1))


def text_field(record: Mapping[str, Any], key: str) -> str:
    """Return a field that must be text. Raises `DataError`."""
    if not isinstance(record.get(key), str):
        raise DataError(f"no text {key!r}" if key in record else f"no field {key!r}")
    return record[key]


def sharded_record(record: Mapping[str, Any], shards: Sequence[str]) -> dict[str, Any]:
    """Return `record` with these texts as its shards, numbered from 1. Raises `DataError`."""
    made = {**record, "shards": [{"shard_id": n, "shard": text} for n, text in enumerate(shards, 1)]}
    check_record(made)
    return made


def _build(family: Family, record: Mapping[str, Any], source: Path | None) -> SourceTask | Quarantined:
    hook: Callable[..., SourceTask | Quarantined] | None = getattr(family, "from_record", None)
    if hook is None:
        raise ConfigError(f"family {family.name!r} reads no sharded records; leave this kind out")
    if "source" in inspect.signature(hook).parameters:
        return hook(record, source=source)
    return hook(record)


def _named(record: Any) -> str:
    return f" ({record['task_id']})" if isinstance(record, dict) and "task_id" in record else ""
