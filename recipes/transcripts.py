"""What was said in a run, turn by turn, as Parquet: one part for each step, one file at the end.

A part is written whole or not at all, so a run that is killed leaves only whole steps, and a resumed run
drops the steps that its checkpoint does not know. One row is one turn of one sample.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from envs.errors import DataError
from envs.intent import state_to_dict

if TYPE_CHECKING:
    from envs.dialogue import Dialogue
    from rollout.trajectory import Trajectory

SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),  # optimizer steps done when the dialogue was played
        pa.field("phase", pa.string(), nullable=False),  # warmup, opd, or what was evaluated
        pa.field("index", pa.int64(), nullable=False),  # number of the dialogue in its stream
        pa.field("sample", pa.int64(), nullable=False),  # number of the sample within its group
        pa.field("dialogue_id", pa.string(), nullable=False),
        pa.field("family", pa.string(), nullable=False),
        pa.field("condition", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("turn", pa.int64(), nullable=False),
        pa.field("utterance", pa.string(), nullable=False),
        pa.field("oracle_state", pa.string(), nullable=False),  # JSON of `state_to_dict`
        pa.field("tracker_text", pa.string()),  # null from here on where the tracker did not speak
        pa.field("tracker_state", pa.string()),  # JSON object, name -> requirement
        pa.field("edit_correct", pa.bool_()),
        pa.field("exact", pa.bool_()),
        pa.field("leak", pa.bool_()),
        pa.field("weight_version", pa.int64()),
    ]
)
_PART = re.compile(r"step-(\d{6,})-([\w.-]+)\.parquet")


def trajectory_rows(
    step: int, phase: str, trajectories: Sequence[Trajectory], first_index: int = 0, group: int = 1
) -> list[dict[str, Any]]:
    """Return one row a turn. Trajectories come in blocks of `group` samples of one dialogue, dialogues in
    order.
    """
    from rollout.score import score_trajectory

    rows: list[dict[str, Any]] = []
    for i, trajectory in enumerate(trajectories):
        scores = score_trajectory(trajectory).turns
        for row in _dialogue_rows(step, phase, trajectory.dialogue, first_index + i // group, i % group):
            if row["turn"] < len(trajectory.turns):
                turn, score = trajectory.turns[row["turn"]], scores[row["turn"]]
                row |= {
                    "tracker_text": turn.text,
                    "tracker_state": json.dumps(turn.log, ensure_ascii=False),
                    "edit_correct": score.edit_correct,
                    "exact": score.state.exact,
                    "leak": score.state.leak,
                    "weight_version": turn.weight_version,
                }
            rows.append(row)
    return rows


def dialogue_rows(
    step: int, phase: str, dialogues: Sequence[Dialogue], first_index: int = 0
) -> list[dict[str, Any]]:
    """Return one row a turn of dialogues in which the tracker did not speak (imitation): its columns are
    null.
    """
    numbered = enumerate(dialogues, start=first_index)
    return [row for i, dialogue in numbered for row in _dialogue_rows(step, phase, dialogue, i, 0)]


def write_part(folder: Path, step: int, phase: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the rows of one step and phase (over those of an earlier attempt) and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:06d}-{phase}.parquet"
    assert _PART.fullmatch(path.name), path.name
    _write(path, iter([pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMA)]))
    return path


def drop_parts(folder: Path, after: int) -> None:
    """Delete the parts of steps after `after`, and what a killed process left half written."""
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        match = _PART.fullmatch(path.name)
        if path.name.startswith(".") or (match and int(match[1]) > after):
            path.unlink()


def merge_parts(folder: Path, path: Path) -> int:
    """Write all parts, in order of step, into one file and return its rows. Raises `DataError` for a broken
    part.
    """
    parts = sorted((int(m[1]), p) for p in folder.glob("*.parquet") if (m := _PART.fullmatch(p.name)))
    rows = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal rows
        for _, part in parts:
            table = _read(part)
            rows += table.num_rows
            yield table

    _write(path, tables())
    return rows


def _dialogue_rows(
    step: int, phase: str, dialogue: Dialogue, index: int, sample: int
) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "phase": phase,
            "index": index,
            "sample": sample,
            "dialogue_id": dialogue.id,
            "family": dialogue.family,
            "condition": dialogue.condition,
            "seed": dialogue.seed,
            "turn": t,
            "utterance": turn.utterance,
            "oracle_state": json.dumps(state_to_dict(turn.state), ensure_ascii=False),
        }
        for t, turn in enumerate(dialogue.turns)
    ]


def _read(part: Path) -> pa.Table:
    try:
        table = pq.ParquetFile(part).read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{part}: cut short or corrupted ({error}); delete it to go on without that step"
        ) from None
    if not table.schema.equals(SCHEMA):
        raise DataError(f"{part}: its columns are not those of a transcript: {', '.join(table.schema.names)}")
    return table


def _write(path: Path, tables: Iterator[pa.Table]) -> None:
    aside = path.with_name(f".{path.name}.part")
    try:
        with aside.open("wb") as file:
            with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
                for table in tables:
                    writer.write_table(table)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
