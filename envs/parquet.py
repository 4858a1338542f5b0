"""Dialogues in Parquet: a written, versioned schema with nested columns; atomic writes; strict reads.

One row a dialogue. Edits keep `old` and `new` goals (null where an edit has none) and, for a switch of
function, `old_function` and `new_function`. Pages carry checksums, which reads verify.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from envs.dialogue import CONDITIONS, Dialogue, Turn
from envs.errors import ConfigError, DataError, FluxForgeError, MissingFiles
from envs.intent import (
    EMPTY,
    edit_from_dict,
    edit_to_dict,
    fold,
    state_from_dict,
    state_to_dict,
)

SCHEMA_NAME = "fluxforge.dialogue"
SCHEMA_VERSION = "1"
ROWS_PER_GROUP = 512
_FORMAT_KEYS = frozenset({"schema", "schema_version", "ARROW:schema"})

_TEXT = pa.string()
_GOAL = pa.struct(
    [
        pa.field("id", _TEXT, nullable=False),
        pa.field("text", _TEXT, nullable=False),
        pa.field("slot", _TEXT),
        pa.field("value", _TEXT),
    ]
)
_EDIT = pa.struct(
    [
        pa.field("op", _TEXT, nullable=False),
        pa.field("old", _GOAL),
        pa.field("new", _GOAL),
        pa.field("old_function", _TEXT),
        pa.field("new_function", _TEXT),
    ]
)
_CONCLUSION = pa.struct(
    [
        pa.field("id", _TEXT, nullable=False),
        pa.field("text", _TEXT, nullable=False),
        pa.field("supports", pa.list_(_TEXT), nullable=False),
    ]
)
_STATE = pa.struct(
    [
        pa.field("goals", pa.list_(_GOAL), nullable=False),
        pa.field("function", _TEXT),
        pa.field("conclusions", pa.list_(_CONCLUSION), nullable=False),
    ]
)
_TURN = pa.struct(
    [
        pa.field("utterance", _TEXT, nullable=False),
        pa.field("edits", pa.list_(_EDIT), nullable=False),
        pa.field("state", _STATE, nullable=False),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("id", _TEXT, nullable=False),
        pa.field("task_id", _TEXT, nullable=False),
        pa.field("family", _TEXT, nullable=False),
        pa.field("condition", _TEXT, nullable=False),
        pa.field("budget", pa.int64(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("turns", pa.list_(_TURN), nullable=False),
    ],
    metadata={"schema": SCHEMA_NAME, "schema_version": SCHEMA_VERSION},
)


def write_dialogues(
    path: Path | str,
    dialogues: Iterable[Dialogue],
    rows_per_group: int = ROWS_PER_GROUP,
    notes: Callable[[], Mapping[str, str]] | None = None,
) -> int:
    """Write dialogues to a Parquet file, one row group at a time; return how many were written.

    `notes` is called after the last dialogue; what it returns is kept in the file's metadata (`read_notes`).
    Names that the format itself uses raise `ConfigError`.

    The file appears under its name only when it is complete and on disk; if anything fails, an older file of
    that name stays as it was. Raises what the iterable raises, and `OSError` of the file system.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = iter(dialogues)
    count = 0
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            with open_writer(file) as writer:
                while group := list(itertools.islice(rows, rows_per_group)):
                    writer.write_table(to_table(group))
                    count += len(group)
                if notes is not None:
                    writer.add_key_value_metadata(_checked_notes(notes()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return count


def to_table(dialogues: Iterable[Dialogue]) -> pa.Table:
    """Return dialogues as a table of `SCHEMA`, one row each."""
    return pa.Table.from_pylist([_to_row(dialogue) for dialogue in dialogues], schema=SCHEMA)


def open_writer(file: Any, schema: pa.Schema = SCHEMA) -> pq.ParquetWriter:
    """Return a writer of tables of `schema` with the settings of all our files; `file` is a path or a file."""
    return pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True)


def read_dialogues(path: Path | str) -> Iterator[Dialogue]:
    """Yield the dialogues of a file in order, reading one row group at a time.

    Raises `MissingFiles` if there is no file, and `DataError`, which names the file (and the row, from 0), if
    it is no Parquet, of another schema or version, cut short, corrupted, or if a row contradicts itself.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFiles(f"no dialogue file at {path}; write one with `write_dialogues` or name another")
    row = 0
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _check_schema(path, file.schema_arrow)
            for group in range(file.num_row_groups):
                for record in file.read_row_group(group).to_pylist():
                    yield _from_row(path, row, record)
                    row += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: cut short or corrupted, unreadable from row {row} on ({error}); make the file anew"
        ) from error


def read_notes(path: Path | str) -> dict[str, str]:
    """Return the notes that were written with a file's dialogues; none in a file without notes.

    Raises `MissingFiles` or `DataError` as `read_dialogues` does.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFiles(f"no dialogue file at {path}; write one with `write_dialogues` or name another")
    try:
        with pq.ParquetFile(path) as file:
            _check_schema(path, file.schema_arrow)
            written = file.metadata.metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cut short or corrupted ({error}); make the file anew") from error
    return {
        key.decode(): value.decode() for key, value in written.items() if key.decode() not in _FORMAT_KEYS
    }


def _checked_notes(notes: Mapping[str, str]) -> dict[str, str]:
    if taken := sorted(_FORMAT_KEYS & notes.keys()):
        raise ConfigError(f"notes of a dialogue file cannot be called {taken}: the format uses these names")
    return dict(notes)


def _check_schema(path: Path, schema: pa.Schema) -> None:
    """Raise `DataError` unless the file's schema is ours, in name, version and columns."""
    metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    name, version = metadata.get("schema"), metadata.get("schema_version")
    if (name, version) != (SCHEMA_NAME, SCHEMA_VERSION):
        raise DataError(
            f"{path}: row 0: holds schema {name!r} version {version!r}, not {SCHEMA_NAME!r} version "
            f"{SCHEMA_VERSION!r}; make the file anew with this version"
        )
    if not schema.equals(SCHEMA):
        raise DataError(f"{path}: row 0: its columns are not those of {SCHEMA_NAME!r}: {schema.names}")


def _to_row(dialogue: Dialogue) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    for turn in dialogue.turns:
        edits = [edit_to_dict(edit) for edit in turn.edits]
        for edit in edits:
            if edit["op"] == "switch":
                edit["old_function"], edit["new_function"] = edit.pop("old"), edit.pop("new")
        turns.append({"utterance": turn.utterance, "edits": edits, "state": state_to_dict(turn.state)})
    return {
        "id": dialogue.id,
        "task_id": dialogue.task_id,
        "family": dialogue.family,
        "condition": dialogue.condition,
        "budget": dialogue.budget,
        "seed": dialogue.seed,
        "turns": turns,
    }


def _from_row(path: Path, row: int, record: dict[str, Any]) -> Dialogue:
    """Return the dialogue of a record. Raises `DataError` if the record contradicts itself."""
    try:
        turns: list[Turn] = []
        before = EMPTY
        for data in record["turns"]:
            for edit in data["edits"]:
                if edit["op"] == "switch":
                    edit["old"], edit["new"] = edit["old_function"], edit["new_function"]
            edits = tuple(edit_from_dict(edit) for edit in data["edits"])
            state = state_from_dict(data["state"])
            after = fold(before, edits)
            if (set(after.goals), after.function) != (set(state.goals), state.function):
                raise DataError(f"the state of turn {len(turns)} is not what its edits lead to")
            turns.append(Turn(data["utterance"], edits, state))
            before = state
        if not turns:
            raise DataError("it has no turns")
        if record["condition"] not in CONDITIONS:
            raise DataError(f"unknown condition {record['condition']!r}; known: {', '.join(CONDITIONS)}")
    except (FluxForgeError, TypeError, KeyError) as error:
        raise DataError(f"{path}: row {row} ({record.get('id')!r}): {error}") from error
    fields = ("id", "task_id", "family", "condition", "budget", "seed")
    return Dialogue(*(record[name] for name in fields), turns=tuple(turns))


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
