"""Benchmark files of one JSON object a line: where they are, and errors that name the file and the row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envs.errors import DataError, MissingFiles


def benchmark_file(source: Path | None, folder: str, name: str, origin: str) -> Path:
    """Return `source/folder/name`, or `source/name` where `source` is the family's own folder.

    Raises `MissingFiles`, which says what to get (`origin`) and where to put it.
    """
    get = f"Get {origin} and put it at <data folder>/{folder}/{name}; then name that folder with DATA=."
    if source is None:
        raise MissingFiles(f"{folder} needs a data folder and none was given. {get}")
    for path in (Path(source) / folder / name, Path(source) / name):
        if path.is_file():
            return path
    raise MissingFiles(f"{Path(source) / folder / name} is not there. {get}")


def read_jsonl(path: Path, required: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row, record), rows counted from 0. Blank lines are passed over but counted.

    Raises `DataError` for a line that is no JSON object or lacks one of the `required` keys.
    """
    with path.open(encoding="utf-8") as file:
        for row, line in enumerate(file):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{path}, row {row + 1}: not JSON ({error.msg}, column {error.colno}); is it cut short?"
                ) from None
            if not isinstance(record, dict):
                raise DataError(f"{path}, row {row + 1}: expected a JSON object, got {type(record).__name__}")
            missing = [key for key in required if key not in record]
            if missing:
                raise DataError(f"{path}, row {row + 1}: no field {', '.join(map(repr, missing))}")
            yield row, record
