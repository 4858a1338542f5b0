"""A few dialogues of a run, from its `dialogues.parquet` (columns: recipes/transcripts.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import DataError

_KEY = ("step", "phase", "index", "sample", "dialogue_id")
_MOST = 6


@dataclass(frozen=True, slots=True)
class Said:
    """One turn: the user's words, what the tracker wrote (None: nothing), and whether its edit was right."""

    turn: int
    utterance: str
    tracker: str | None
    correct: bool | None


@dataclass(frozen=True, slots=True)
class Sample:
    title: str
    turns: list[Said]
    wanted: list[str]
    """The oracle's goals after the last turn."""
    held: list[str] | None
    """The tracker's state then; None where it did not speak."""
    exact: bool | None


def sample_dialogues(path: Path) -> tuple[list[Sample], str | None]:
    """Return up to six dialogues of the last evaluation (else of the last step), slips first, and a note.

    The note says why there are none. Columns that are missing are left blank.
    """
    if not path.is_file():
        return [], None
    try:
        rows = _last_rows(path)
    except DataError as error:
        return [], str(error)
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in _KEY), []).append(row)
    samples = [_sample(key, turns) for key, turns in groups.items()]
    slipped = [sample for sample in samples if any(turn.correct is False for turn in sample.turns)]
    clean = [sample for sample in samples if sample not in slipped]
    few = slipped[: max(_MOST // 2, _MOST - len(clean))]
    return [*few, *clean][:_MOST], None


def _last_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the last phase that matters. Raises `DataError` for a file that cannot be read."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        # one pass over a small column says which rows are wanted, so that a long run is not held in memory
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        if "phase" not in names:
            return file.read().slice(0, 200).to_pylist()
        phases = file.read(columns=["phase"]).column("phase").to_pylist()
        after = [phase for phase in dict.fromkeys(phases) if str(phase).startswith("eval-after")]
        wanted = after[0] if after else phases[-1] if phases else None
        table = (
            pq.read_table(path, filters=pc.field("phase") == wanted) if wanted is not None else file.read()
        )
        rows = table.to_pylist()
        last = max((row["step"] for row in rows if row.get("step") is not None), default=None)
        return [row for row in rows if row.get("step") == last]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"dialogues.parquet cannot be read ({error}).") from None


def _sample(key: tuple[Any, ...], rows: list[Mapping[str, Any]]) -> Sample:
    ordered = sorted(rows, key=lambda row: row.get("turn") or 0)
    turns = [
        Said(
            int(row.get("turn") or 0) + 1,
            str(row.get("utterance") or ""),
            None if row.get("tracker_text") is None else str(row["tracker_text"]),
            row.get("edit_correct"),
        )
        for row in ordered
    ]
    last = ordered[-1]
    oracle, held = _json(last.get("oracle_state")), _json(last.get("tracker_state"))
    goals = oracle.get("goals", []) if isinstance(oracle, dict) else []
    wanted = [_goal(goal) for goal in goals if isinstance(goal, dict)]
    shown = [f"{slot}: {text}" for slot, text in held.items()] if isinstance(held, dict) else None
    title = (
        ", ".join(str(part) for part in (last.get("phase"), last.get("dialogue_id")) if part) or "dialogue"
    )
    return Sample(title, turns, wanted, shown, last.get("exact"))


def _goal(goal: Mapping[str, Any]) -> str:
    return f"{goal['slot']}: {goal.get('text')}" if goal.get("slot") else str(goal.get("text"))


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:  # an unknown writer's column: shown as absent
        return None
