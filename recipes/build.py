"""`fluxforge build`: a named set of dialogues in Parquet, with its data card.

    out/README.md  manifest.json  ids.txt  quarantine.jsonl  (wording.json)
    out/<family>/tasks.parquet  clean.parquet  drift_easy.parquet ... turn_matched_hard.parquet

The same files, settings and versions give the same bytes, whatever the number of processes. The folder appears
under its name when it is complete; if anything fails, an older one stays as it was.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from envs.dialogue import CONDITIONS
from envs.drift import BUDGETS
from envs.errors import ConfigError, EndpointError, MissingFiles, unknown_name
from envs.families import registry
from envs.grading import Grading
from envs.parquet import ROWS_PER_GROUP, open_writer
from envs.task import Family, Quarantined, SourceTask, get_family
from envs.wording_report import WordingReport
from recipes.card import card, reasons, sha256_of, source_files, versions
from recipes.neardup import HeldOut
from recipes.progress import Bar
from recipes.realised import Tally
from recipes.selection import Selection, batched, load_tasks, missing_reason, select
from recipes.sets import SetRecipe, families_of, get_set, splits_of
from recipes.tasks_file import DATA_MARK, write_tasks
from recipes.wording_settings import WordingSettings
from recipes.workers import Stratum, Workers

MANIFEST = "manifest.json"
WORDING = "wording.json"
"""What a model's wordings came to (`WordingReport`), in a set that a model worded."""


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """What decides the bytes of a set. What is None was not given and is the set's own."""

    set: str
    seed: int = 0
    families: tuple[str, ...] | None = None
    budgets: tuple[str, ...] | None = None
    conditions: tuple[str, ...] | None = None
    limit: int | None = None
    """At most so many tasks a family."""
    wording: WordingSettings | None = None
    grading: Grading | None = None

    @property
    def words(self) -> WordingSettings:
        """How the messages are worded."""
        return self.wording or WordingSettings(**get_set(self.set).wording)

    @property
    def grades(self) -> Grading:
        """How answers are graded."""
        return self.grading or Grading(get_set(self.set).grader)

    def checked(self) -> BuildSettings:
        """Return the settings with budgets by name. Raises `UnknownName`, `ConfigError`."""
        get_set(self.set)
        words = {str(b): name for name, b in BUDGETS.items()}
        budgets = None if self.budgets is None else tuple(words.get(name, name) for name in self.budgets)
        for kind, names, known in (
            ("family", self.families, registry()),
            ("budget", budgets, BUDGETS),
            ("condition", self.conditions, CONDITIONS),
        ):
            for name in names or ():
                if name not in known:
                    raise unknown_name(kind, name, known)
            if names is not None and not names:
                raise ConfigError(f"no {kind} is named; leave the flag out for all of the set's")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"a limit is at least 1 task a family, got {self.limit}")
        return replace(self, budgets=budgets)

    @classmethod
    def from_manifest(
        cls, manifest: Mapping[str, Any], *, cache: Path | None = None, grading: Grading | None = None
    ) -> BuildSettings:
        """Return the settings of a built set; `cache` and `grading` (but its verdict) are the machine's own."""
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in manifest["settings"].items()
        }
        wording = WordingSettings.from_recorded(given.pop("wording", {}), cache)
        grading = replace(grading or Grading(), verdict=given.pop("grader", Grading().verdict))
        return cls(set=manifest["set"], wording=wording, grading=grading, **given)

    def strata(self) -> list[Stratum]:
        recipe = get_set(self.set)
        budgets = self.budgets or recipe.budgets
        return [
            Stratum(condition, budget)
            for condition in self.conditions or recipe.conditions
            for budget in (budgets[:1] if condition == "clean" else budgets)
        ]


def build_set(
    settings: BuildSettings, data: Path | None, out: Path, jobs: int = 1, *, quiet: bool = False
) -> Path:
    """Build a set into the folder `out` and return it.

    `data` is the folder of benchmark files. Families whose files are missing are left out, and the card says
    so, unless they were asked for by name. Raises `UnknownName`, `ConfigError` (also where `out` holds
    something else), `MissingFiles`, `DataError`, `EndpointError` (replies so far stay in the cache).
    """
    settings = settings.checked()
    if jobs < 1:
        raise ConfigError(f"a build needs at least one job, got {jobs}")
    _refuse_foreign(out)
    settings.grades.apply()
    recipe = get_set(settings.set)
    families, skipped = _families(settings, recipe, data)
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    try:
        with Workers(jobs, settings.grades) as workers:
            held_out = held_out_of(recipe, data)

            def grade_golds(
                name: str, batches: Sequence[Sequence[SourceTask]]
            ) -> Iterator[list[Quarantined | None]]:
                with Bar(sum(map(len, batches)), f"check golds of {name}", quiet=quiet) as bar:
                    for verdicts in workers.grade_golds(name, batches):
                        bar.advance(name, len(verdicts))
                        yield verdicts

            selections = select(recipe, families, data, settings.seed, settings.limit, grade_golds, held_out)
            _write(aside, settings, recipe, selections, skipped, data, workers, quiet)
        aside.chmod(0o755)
        _put(aside, out)
    except EndpointError as error:
        shutil.rmtree(aside, ignore_errors=True)
        kept = settings.words.cache if settings.words.endpoint is not None else settings.grades.cache
        raise EndpointError(f"{error}. Nothing was written to {out}. {_resumable(kept)}") from error
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return out


def _resumable(cache: Path | None) -> str:
    """Say what is left of a build whose endpoint failed."""
    if cache is None:
        return "No reply was kept: no cache is named"
    return f"The replies so far are kept in {cache}; the same command goes on from there"


def _families(
    settings: BuildSettings, recipe: SetRecipe, data: Path | None
) -> tuple[list[tuple[Family, tuple[str, ...]]], dict[str, str]]:
    """Return the families to build with their splits, and those that lack files with the reason."""
    names = families_of(recipe, registry()) if settings.families is None else sorted(set(settings.families))
    found: list[tuple[Family, tuple[str, ...]]] = []
    skipped: dict[str, str] = {}
    for name in names:
        family = get_family(name)
        splits = splits_of(family, recipe.role)
        if not splits:
            raise ConfigError(
                f"family {name!r} has no training split (it has {', '.join(family.splits)}), so set "
                f"{settings.set!r} has nothing of it; leave it out of --families"
            )
        missing = missing_reason(family, splits, data)
        if missing is None:
            found.append((family, splits))
        elif settings.families is not None:
            raise missing
        else:
            skipped[name] = str(missing) if data is None else str(missing).replace(str(data), DATA_MARK)
    if not found:
        raise MissingFiles(f"set {settings.set!r} finds no family's files. " + " ".join(skipped.values()))
    return found, skipped


def held_out_of(recipe: SetRecipe, data: Path | None) -> HeldOut:
    """Return every task of the evaluation splits that a set is kept apart from, for those files that are there.

    The whole splits are taken, whatever sample of them a set publishes.
    """
    found = HeldOut()
    names = {name for other in recipe.disjoint_from for name in families_of(get_set(other), registry())}
    for name in sorted(names):
        family = get_family(name)
        splits = splits_of(family, "evaluation")
        if missing_reason(family, splits, data) is None:
            for task in load_tasks(family, splits, data):
                found.add(task)
    return found


def _write(
    folder: Path,
    settings: BuildSettings,
    recipe: SetRecipe,
    selections: Sequence[Selection],
    skipped: dict[str, str],
    data: Path | None,
    workers: Workers,
    quiet: bool,
) -> None:
    strata = settings.strata()
    files: list[dict[str, Any]] = []
    total = sum(len(selection.tasks) for selection in selections)
    report = WordingReport()
    with Bar(total, f"build {settings.set}", quiet=quiet) as bar:
        for selection in selections:
            name = selection.family.name
            (folder / name).mkdir()
            batches = batched(selection.tasks)
            write_tasks(folder / name / "tasks.parquet", selection.family, batches, data)
            files.append({"path": f"{name}/tasks.parquet", "family": name, "rows": len(selection.tasks)})
            sink = _Sink(folder / name, strata)
            tables = workers.build_tables(name, batches, strata, settings.seed, settings.words)
            for batch, (found, worded) in zip(batches, tables, strict=True):
                sink.take(found)
                report.add(worded)
                bar.advance(name, len(batch))
            files += sink.close(name)
    for entry in files:
        entry["sha256"] = sha256_of(folder / entry["path"])
    manifest = _manifest(settings, selections, skipped, data, files)
    quarantined = {selection.family.name: selection.quarantined for selection in selections}
    (folder / "README.md").write_text(card(manifest, recipe.about, quarantined), encoding="utf-8")
    ids = (task.id for selection in selections for task in selection.tasks)
    (folder / "ids.txt").write_text("".join(f"{id}\n" for id in ids), encoding="utf-8")
    lines = (json.dumps(line, ensure_ascii=False) for line in _left_out(selections))
    (folder / "quarantine.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    written = ["README.md", "ids.txt", "quarantine.jsonl"]
    if settings.words.endpoint is not None:
        counted = json.dumps(report.to_dict(), indent=1, ensure_ascii=False)
        (folder / WORDING).write_text(counted + "\n", encoding="utf-8")
        written.append(WORDING)
    for name in written:
        manifest["files"].append({"path": name, "sha256": sha256_of(folder / name)})
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


class _Sink:
    """One Parquet file a stratum, filled batch by batch, in row groups of a fixed size."""

    def __init__(self, folder: Path, strata: Sequence[Stratum]) -> None:
        self.strata = list(strata)
        self._writers = [open_writer(folder / f"{stratum.name}.parquet") for stratum in strata]
        self._waiting: list[list[pa.Table]] = [[] for _ in strata]
        self._tallies = [Tally() for _ in strata]

    def take(self, found: Sequence[tuple[pa.Table, Tally]]) -> None:
        for at, (table, tally) in enumerate(found):
            self._tallies[at].merge(tally)
            self._waiting[at].append(table)
            if sum(table.num_rows for table in self._waiting[at]) >= ROWS_PER_GROUP:
                self._flush(at)

    def _flush(self, at: int) -> None:
        if self._waiting[at]:
            self._writers[at].write_table(pa.concat_tables(self._waiting[at]).combine_chunks())
            self._waiting[at] = []

    def close(self, family: str) -> list[dict[str, Any]]:
        """Finish the files and return what the manifest says of each."""
        entries: list[dict[str, Any]] = []
        for at, stratum in enumerate(self.strata):
            self._flush(at)
            self._writers[at].close()
            entries.append(
                {
                    "path": f"{family}/{stratum.name}.parquet",
                    "family": family,
                    "stratum": stratum.name,
                    "condition": stratum.condition,
                    "budget": None if stratum.condition == "clean" else stratum.budget,
                    "rows": self._tallies[at].dialogues,
                    "realised": self._tallies[at].report(),
                }
            )
        return entries


def _manifest(
    settings: BuildSettings,
    selections: Sequence[Selection],
    skipped: dict[str, str],
    data: Path | None,
    files: list[dict[str, Any]],
) -> dict[str, Any]:
    families = {
        selection.family.name: {
            "splits": list(selection.splits),
            "tasks": len(selection.tasks),
            "quarantined": len(selection.quarantined),
            "unusable": len(selection.unusable),
            "near_copies": len(selection.near_copies),
            "unusable_reasons": reasons(selection.unusable),
            "sources": source_files(selection.family, data),
        }
        for selection in selections
    }
    listed = {key: getattr(settings, key) for key in ("seed", "families", "budgets", "conditions", "limit")}
    listed = {key: list(value) if isinstance(value, tuple) else value for key, value in listed.items()}
    if not settings.words.plain:
        listed["wording"] = settings.words.recorded()
    if settings.grades.verdict != Grading().verdict:
        listed["grader"] = settings.grades.verdict
    return {
        "schema": "fluxforge.dataset",
        "schema_version": "1",
        "set": settings.set,
        "settings": listed,
        "versions": versions(),
        "families": families,
        "skipped": skipped,
        "files": files,
    }


def _left_out(selections: Sequence[Selection]) -> Iterator[dict[str, Any]]:
    for selection in selections:
        for item in selection.quarantined:
            yield {"id": item.task_id, "why": "gold rejected", "reason": item.reason}
        for item in selection.unusable:
            yield {"id": item.task_id, "why": "not usable", "reason": item.reason}
        for copy in selection.near_copies:
            reason = f"{copy.similarity} like {copy.held_out_id}"
            yield {"id": copy.task_id, "why": "near copy of a held-out task", "reason": reason}


def _refuse_foreign(out: Path) -> None:
    """Raise `ConfigError` where `out` holds anything but a built set, which may be replaced."""
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise ConfigError(f"{out} is not empty and holds no built set; name another folder with --out")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder with --out")


def _put(aside: Path, out: Path) -> None:
    """Give a finished folder its name; an older set of that name goes when the new one is in place."""
    if not out.exists():
        aside.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".old", dir=out.parent))
    out.rename(old / out.name)
    try:
        aside.rename(out)
    except BaseException:
        (old / out.name).rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
