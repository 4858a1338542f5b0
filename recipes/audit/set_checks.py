"""Checks of the set as a whole: its files, ids, twins, what drift it realises, what it must hold nothing of."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from envs.drift import BUDGETS
from envs.errors import FluxForgeError
from envs.families import is_procedural
from envs.grading import Grading
from envs.intent import Goal
from envs.task import get_family
from recipes.audit.findings import Check, Finding
from recipes.audit.material import Case, Material
from recipes.build import BuildSettings, build_set, held_out_of
from recipes.card import sha256_of, versions
from recipes.realised import PAPER, Tally
from recipes.sets import get_set


class Files(Check):
    name = "files"
    says = "every file is the one that the manifest names, and holds the tasks of the source"
    nothing = "a single file has no manifest"

    def whole(self, material: Material) -> None:
        manifest = material.manifest
        if manifest is None:
            return
        for entry in manifest["files"]:
            self.look()
            path = material.path / entry["path"]
            if not path.is_file():
                self.fail(entry["path"], "is not there")
            elif sha256_of(path) != entry["sha256"]:
                self.fail(entry["path"], "was changed since the set was built (sha256)")
        for name in manifest["families"]:
            family = get_family(name)
            for task in material.stored(name):
                source = material.task(family, task.id)
                self.look()
                if source is None:
                    self.fail(task.id, "is a task of the set that the source does not hold")
                elif (task.goals, task.opening, task.context) != (
                    source.goals,
                    source.opening,
                    source.context,
                ):
                    self.fail(task.id, "differs from the task of the source")


class Ids(Check):
    name = "ids"
    says = "every dialogue id is there once and says task, condition, budget and seed"

    def __init__(self) -> None:
        super().__init__()
        self._seen: Counter[str] = Counter()

    def see(self, case: Case) -> None:
        dialogue = case.dialogue
        self.look()
        self._seen[dialogue.id] += 1
        if self._seen[dialogue.id] == 2:
            self.fail(dialogue.id, "is there more than once")
        told = f"{dialogue.task_id}|{dialogue.condition}|b{dialogue.budget}|s{dialogue.seed}"
        if dialogue.id != told and not dialogue.id.startswith(f"{told}|"):
            self.fail(dialogue.id, f"its fields say {told!r}")


class Twins(Check):
    name = "twins"
    says = "turn_matched has as many turns as its drift twin, and all conditions of a case end in the same intent"

    def __init__(self) -> None:
        super().__init__()
        self._turns: dict[tuple[Any, ...], dict[str, int]] = {}
        self._final: dict[tuple[str, int], tuple[str, frozenset[Goal]]] = {}

    def see(self, case: Case) -> None:
        d = case.dialogue
        self.look()
        longer = d.id.partition(f"|s{d.seed}")[2]
        if d.condition != "clean":
            self._turns.setdefault((d.task_id, d.budget, d.seed, longer), {})[d.condition] = len(d.turns)
        final = frozenset(d.final.goals)
        first = self._final.setdefault((d.task_id, d.seed), (d.id, final))
        if first[1] != final:
            self.fail(d.id, f"ends in another intent than {first[0]}")

    def whole(self, material: Material) -> None:
        both = len({condition for found in self._turns.values() for condition in found}) == 2
        for (id, budget, seed, _), found in self._turns.items():
            where = f"{id}, budget {budget}, seed {seed}"
            if both and len(found) < 2:
                self.fail(where, f"there is {next(iter(found))} without its twin")
            elif len(set(found.values())) > 1:
                self.fail(where, f"numbers of turns differ: {found}")


class Realised(Check):
    name = "realised"
    says = "drift dialogues hold drift; variants, decoys, turns and tokens by family and file, beside the paper's"

    def __init__(self) -> None:
        super().__init__()
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._structured: dict[str, bool] = {}

    def see(self, case: Case) -> None:
        self.look()
        self._structured[case.dialogue.family] = case.family.structured
        for key in ((case.dialogue.family, case.stratum), ("all", case.stratum)):
            self._tallies.setdefault(key, Tally()).add(case.dialogue)

    def finish(self) -> Finding:
        for (family, stratum), tally in self._tallies.items():
            drifts = tally.variants + tally.decoys
            if stratum.startswith("drift") and not drifts and self._structured.get(family):
                self.fail(
                    f"{family}, {stratum}", "no dialogue of a structured family holds a variant or a decoy"
                )
            if not stratum.startswith("drift") and drifts:
                self.fail(f"{family}, {stratum}", f"{drifts} variants and decoys where nothing may drift")
        self.info["strata"] = [
            {"family": family, "stratum": stratum, **tally.report()}
            for (family, stratum), tally in sorted(self._tallies.items(), key=_order)
        ]
        self.info["paper"] = {b: {"variants_per_goal": v, "decoys": d} for b, (v, d) in PAPER.items()}
        return super().finish()


def _order(pair: tuple[tuple[str, str], Tally]) -> tuple[str, str, int]:
    condition, _, budget = pair[0][1].partition(" ")
    return pair[0][0], condition, BUDGETS.get(budget, 0)


class HeldOutKept(Check):
    name = "held_out"
    says = "a training set holds no task of the evaluation sets and no near copy of one (8-grams)"
    nothing = "only a training set must keep apart from others"

    def whole(self, material: Material) -> None:
        recipe = get_set(material.manifest["set"]) if material.manifest else None
        if recipe is None or not recipe.disjoint_from:
            return
        held_out = held_out_of(recipe, material.data)
        self.info["held-out tasks"] = len(held_out)
        if not len(held_out):
            self.nothing = "no held-out task is here to compare with; give the benchmark files with --data"
            return
        for name in (material.manifest or {})["families"]:
            for task in material.stored(name):
                self.look()
                copy = held_out.near_copy(task, recipe.similarity)
                if copy is not None:
                    self.fail(task.id, f"{copy.similarity} like {copy.held_out_id}")


class Rebuild(Check):
    """Builds the set again, in `jobs` processes, and compares every byte. `jobs` 0 leaves it out.

    A set that a model worded is built from the replies in `cache`; what is not there is asked for again.
    """

    name = "rebuild"
    says = "building the set again gives the same bytes"

    def __init__(self, jobs: int, cache: Path | None = None, grading: Grading | None = None) -> None:
        super().__init__()
        self.jobs = jobs
        self.cache = cache
        self.grading = grading
        self.nothing = "left out" if not jobs else "a single file does not say how it was built"

    def whole(self, material: Material) -> None:
        manifest = material.manifest
        if manifest is None or not self.jobs:
            return
        needs = [name for name in manifest["families"] if not is_procedural(get_family(name))]
        if needs and material.data is None:
            self.nothing = f"it needs the benchmark files of {', '.join(needs)}; give them with --data"
            return
        self.info["processes"] = self.jobs
        scratch = Path(tempfile.mkdtemp(prefix="fluxforge-audit-"))
        try:
            settings = BuildSettings.from_manifest(manifest, cache=self.cache, grading=self.grading)
            again = build_set(settings, material.data, scratch / "again", self.jobs, quiet=True)
            for entry in manifest["files"]:
                self.look()
                old, new = material.path / entry["path"], again / entry["path"]
                if not new.is_file():
                    self.fail(entry["path"], "is not built any more")
                elif not old.is_file() or old.read_bytes() != new.read_bytes():
                    self.fail(entry["path"], "differs from what is built now")
        except FluxForgeError as error:
            self.look()
            self.fail("the set", f"cannot be built again: {error}")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if self.failed and manifest["versions"] != versions():
            self.examples.append(f"versions: built with {manifest['versions']}, now {versions()}")
