"""`fluxforge record`: bare trajectories, played once and frozen, for harnesses to answer the last turn of.

The recording is a run like any other (row `bare`, resumable); when every case has its replies they are written to
`trajectories.jsonl`: first a line with the settings and the SHA-256 of all that follows, then one line a dialogue.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import ConfigError, DataError
from recipes.cases import Case
from recipes.eval_agents import Agents
from recipes.eval_inputs import plays
from recipes.eval_schema import EvalConfig
from recipes.eval_store import EvalFolder
from recipes.progress import Bar
from recipes.runs import write_text

SCHEMA = "fluxforge.trajectories"
VERSION = 1
SELECTION = ("seed", "families", "cases", "conditions", "budgets", "seeds")
"""Settings that decide which dialogues there are; a replay takes them from the recording."""
FILE = "trajectories.jsonl"


@dataclass(frozen=True, slots=True)
class Recording:
    """The user's messages and the agent's replies of one dialogue, the last reply included."""

    utterances: tuple[str, ...]
    replies: tuple[str, ...]


def run_record(config: EvalConfig, runs: Path = Path("runs")) -> int:
    """Play what is missing and freeze the trajectories; return 1, without the file, where some failed."""
    from recipes.evaluation import players_of, run_plays

    with EvalFolder(runs, config, job="record") as folder:
        todo = [one for one in plays(config) if one.key not in folder.done]
        total = len(todo) + len(folder.done)

        async def run() -> None:
            async with Agents(config, [config.base]) as agents:
                players = {row.name: players_of(row, config, agents) for row in config.rows()}
                await run_plays(todo, players, config, folder.add, progress)

        with Bar(total, "trajectories", done=len(folder.done)) as progress:
            if todo:
                asyncio.run(run())
        failed = sum(case.error is not None for case in folder.cases.values())
        if failed:
            folder.write_result("interrupted", base=config.base)
            print(
                f"{failed} of {len(folder.cases)} trajectories failed, so none are frozen; run them by --resume"
            )
            return 1
        path = folder.path / FILE
        digest = write_recorded(path, config, folder.cases.values())
        folder.write_result("done", base=config.base, trajectories=FILE, sha256=digest)
        print(f"trajectories: {path}")
    return 0


def write_recorded(path: Path, config: EvalConfig, cases: Iterable[Case]) -> str:
    """Write the frozen file, sorted by case, and return the SHA-256 of its body."""
    lines = [
        json.dumps(
            {
                "condition": case.condition,
                "case": case.case,
                "utterances": [turn.utterance for turn in case.history],
                "replies": [turn.reply for turn in case.history],
            },
            ensure_ascii=False,
        )
        for case in sorted(cases, key=lambda case: (case.condition, case.case))
    ]
    body = "".join(f"{line}\n" for line in lines)
    digest = hashlib.sha256(body.encode()).hexdigest()
    settings = config.model_dump(mode="json")
    kept = {key: settings[key] for key in (*SELECTION, "base", "temperature", "limits")}
    header = {"schema": SCHEMA, "version": VERSION, "settings": kept, "sha256": digest}
    write_text(path, json.dumps(header, ensure_ascii=False) + "\n" + body)
    return digest


def read_recorded(path: Path) -> dict[tuple[str, str], Recording]:
    """Return the recordings by (condition, case). Raises `DataError` for a file that was changed or cut."""
    header, body = _parts(path)
    if hashlib.sha256(body.encode()).hexdigest() != header["sha256"]:
        raise DataError(f"{path} is not what was recorded: its hash differs from that in its first line")
    found = {}
    for line in body.splitlines():
        entry = json.loads(line)
        key = entry["condition"], entry["case"]
        found[key] = Recording(tuple(entry["utterances"]), tuple(entry["replies"]))
    return found


def recorded_settings(path: Path) -> dict[str, Any]:
    """Return the settings of the file that decide which dialogues there are. Raises `DataError`."""
    settings: Mapping[str, Any] = _parts(path)[0]["settings"]
    return {key: settings[key] for key in SELECTION}


def replies_for(
    recorded: Mapping[tuple[str, str], Recording], condition: str, case: str, utterances: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the recorded replies of a dialogue. Raises `ConfigError` where it, as it is now, was not recorded."""
    found = recorded.get((condition, case))
    if found is None:
        raise ConfigError(
            f"case {case!r} in condition {condition!r} was not recorded; leave out what chooses cases, or record anew"
        )
    if found.utterances != utterances:
        raise ConfigError(
            f"case {case!r} in condition {condition!r} has other messages than those recorded; record anew"
        )
    return found.replies


def _parts(path: Path) -> tuple[dict[str, Any], str]:
    first, newline, body = path.read_text(encoding="utf-8").partition("\n")
    try:
        header = json.loads(first)
        if header["schema"] != SCHEMA or header["version"] != VERSION or not newline:
            raise ValueError("another schema or version")
        if missing := {"settings", "sha256"} - set(header):
            raise ValueError(f"its first line lacks {sorted(missing)}")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no file of recorded trajectories: {error!r}") from None
    return header, body
