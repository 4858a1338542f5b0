"""What an audit looks at: the dialogues of a built set (or of one Parquet file) with their source tasks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.dialogue import Dialogue
from envs.drift import BUDGETS
from envs.errors import DataError, MissingFiles, UnknownName
from envs.families import is_procedural
from envs.jsonl import read_jsonl
from envs.parquet import read_dialogues
from envs.task import Family, SourceTask, get_family
from recipes.build import MANIFEST
from recipes.selection import load_tasks
from recipes.tasks_file import read_tasks

_BUDGET_NAMES = {b: name for name, b in BUDGETS.items()}


@dataclass(frozen=True, slots=True)
class Case:
    """A dialogue with its family, and its source task where that can be had."""

    dialogue: Dialogue
    family: Family
    task: SourceTask | None

    @property
    def stratum(self) -> str:
        """Return "clean", "drift easy", ...: what is averaged over."""
        condition, budget = self.dialogue.condition, self.dialogue.budget
        return condition if condition == "clean" else f"{condition} {_BUDGET_NAMES.get(budget, budget)}"


@dataclass(slots=True)
class Material:
    """A folder that `fluxforge build` wrote, or one file of dialogues.

    Tasks come from the benchmark files below `data` where they are given, else from the set's own
    tasks.parquet; those of procedural families are made anew. Raises `MissingFiles`, `DataError`.
    """

    path: Path
    data: Path | None = None
    manifest: Mapping[str, Any] | None = None
    files: list[Path] = field(default_factory=list)
    _tasks: dict[str, dict[str, SourceTask]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, data: Path | None = None) -> Material:
        if path.is_file():
            return cls(path, data, None, [path])
        if not (path / MANIFEST).is_file():
            raise MissingFiles(
                f"{path} is neither a Parquet file nor a folder with a {MANIFEST}; build a set with "
                f"`fluxforge build`, or name one of its files"
            )
        try:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            files = [path / entry["path"] for entry in manifest["files"] if "stratum" in entry]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path / MANIFEST} is no manifest of a set ({error!r}); build it anew"
            ) from error
        return cls(path, data, manifest, files)

    def cases(self, limit: int | None = None) -> Iterator[Case]:
        """Yield the dialogues, file by file, at most `limit` of each file."""
        for file in self.files:
            for dialogue in itertools.islice(read_dialogues(file), limit):
                yield self.case(dialogue)

    def case(self, dialogue: Dialogue) -> Case:
        try:
            family = get_family(dialogue.family)
        except UnknownName as error:
            raise DataError(f"dialogue {dialogue.id!r}: {error}") from error
        return Case(dialogue, family, self.task(family, dialogue.task_id))

    def task(self, family: Family, id: str) -> SourceTask | None:
        """Return a source task; None where neither the data nor the set holds it."""
        known = self._tasks.setdefault(family.name, {})
        if is_procedural(family):
            if id not in known:
                known[id] = _made(family, id)
        elif not known:
            known |= {task.id: task for task in self._read(family)}
        return known.get(id)

    def stored(self, family: str) -> list[SourceTask]:
        """Return the tasks of a family as the set itself holds them; none for a single file."""
        path = self.path / family / "tasks.parquet"
        return list(read_tasks(path, self.data)) if path.is_file() else []

    def left_out(self) -> list[dict[str, str]]:
        """Return what the set says it left out: id, why, reason; nothing for a single file."""
        path = self.path / "quarantine.jsonl"
        if self.manifest is None or not path.is_file():
            return []
        return [record for _, record in read_jsonl(path, ("id", "why", "reason"))]

    def _read(self, family: Family) -> list[SourceTask]:
        if self.data is not None:
            entry = (self.manifest or {}).get("families", {}).get(family.name, {})
            splits = entry.get("splits") or family.splits
            try:
                return load_tasks(family, splits, self.data)
            except MissingFiles:
                if self.manifest is None:
                    raise
        return self.stored(family.name)

    @property
    def rows(self) -> int:
        """Return how many dialogues the manifest promises, 0 where there is none."""
        return sum(entry["rows"] for entry in (self.manifest or {}).get("files", ()) if "stratum" in entry)


def _made(family: Family, id: str) -> SourceTask:
    _, split, index = id.rsplit("/", 2)
    return family.task(split, int(index))  # type: ignore[attr-defined]
