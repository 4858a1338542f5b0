"""`fluxforge build`: the same bytes from one process and many, whole folders or nothing, cards that tell the truth."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from envs.dialogue import build
from envs.errors import ConfigError, GraderError, MissingFiles, UnknownName
from envs.families import is_procedural, registry
from envs.families.gsm8k import FAMILY as GSM8K
from envs.parquet import read_dialogues
from envs.task import Grade, SourceTask, get_family
from recipes import cli
from recipes.build import BuildSettings, build_set
from recipes.card import sha256_of
from recipes.tasks_file import read_tasks

sys.path.insert(0, str(Path(__file__).parent))
import madedata


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return madedata.write(tmp_path_factory.mktemp("data") / "files")


@pytest.fixture(scope="module")
def built(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """General-test of made-up GSM8K and two procedural families, 33 tasks of each: more than one batch."""
    settings = BuildSettings("general-test", families=("math", "gsm8k", "calls"), limit=33)
    return build_set(settings, data, tmp_path_factory.mktemp("out") / "gt", quiet=True)


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def ids(folder: Path) -> list[str]:
    return (folder / "ids.txt").read_text().split()


def test_many_processes_and_another_place_give_the_same_bytes(
    built: Path, data: Path, tmp_path: Path
) -> None:
    moved = madedata.write(tmp_path / "elsewhere")
    settings = BuildSettings("general-test", families=("gsm8k", "calls", "math"), limit=33)
    again = build_set(settings, moved, tmp_path / "deep" / "other", jobs=3, quiet=True)
    assert files(again) == {
        name: text if name.endswith(".parquet") else files(again)[name] for name, text in files(built).items()
    }
    assert manifest(again)["files"][:-3] == manifest(built)["files"][:-3]
    assert str(tmp_path).encode() not in b"".join(files(again).values())


def test_the_same_call_gives_the_same_folder(built: Path, data: Path, tmp_path: Path) -> None:
    settings = BuildSettings("general-test", families=("math", "gsm8k", "calls"), limit=33)
    assert files(build_set(settings, data, tmp_path / "gt", jobs=2, quiet=True)) == files(built)


def test_dialogues_are_those_of_their_tasks(built: Path, data: Path) -> None:
    tasks = {task.id: task for task in GSM8K.load(data, "test")}
    seen = 0
    for stratum, condition, budget in (("clean", "clean", 1), ("drift_hard", "drift", 5)):
        for dialogue in read_dialogues(built / "gsm8k" / f"{stratum}.parquet"):
            assert dialogue == build(GSM8K, tasks[dialogue.task_id], condition, budget, 0)
            seen += 1
    assert seen == 66


def test_every_condition_and_budget_shows_the_same_cases(built: Path) -> None:
    assert len(ids(built)) == 99 == len(set(ids(built)))
    strata = {entry["stratum"] for entry in manifest(built)["files"] if "stratum" in entry}
    drifting = {f"{c}_{b}" for c in ("drift", "turn_matched") for b in ("easy", "medium", "hard")}
    assert strata == {"clean", *drifting}
    for family in ("gsm8k", "calls", "math"):
        listed = [id for id in ids(built) if id.startswith(f"{family}/")]
        for stratum in strata:
            shown = [d.task_id for d in read_dialogues(built / family / f"{stratum}.parquet")]
            assert shown == listed
        assert [task.id for task in read_tasks(built / family / "tasks.parquet", None)] == listed


def test_general_test_has_125_cases_stratified_by_family(data: Path, tmp_path: Path) -> None:
    def sample(seed: int) -> Path:
        settings = BuildSettings("general-test", seed, ("calls", "gsm8k", "math"), conditions=("clean",))
        return build_set(settings, data, tmp_path / str(seed), quiet=True)

    first, other = sample(0), sample(1)
    counts = {name: entry["tasks"] for name, entry in manifest(first)["families"].items()}
    assert counts == {"calls": 43, "gsm8k": 40, "math": 42}  # gsm8k has but 40 to give
    assert sum(counts.values()) == len(ids(first)) == 125
    assert ids(first) != ids(other)


def test_tasks_come_back_as_they_were(built: Path, data: Path) -> None:
    source = {task.id: task for task in GSM8K.load(data, "test")}
    for task in read_tasks(built / "gsm8k" / "tasks.parquet", data):
        assert task == source[task.id] and task.payload == source[task.id].payload
        assert GSM8K.grade(task, GSM8K.gold(task)).full_credit


def test_the_manifest_and_the_card_tell_what_is_there(built: Path, data: Path) -> None:
    told = manifest(built)
    for entry in told["files"]:
        assert sha256_of(built / entry["path"]) == entry["sha256"]
    assert {entry["path"] for entry in told["files"]} | {"manifest.json"} == set(files(built))
    assert told["families"]["gsm8k"]["sources"][0] == {
        "path": "gsm8k/test.jsonl",
        "bytes": (data / "gsm8k" / "test.jsonl").stat().st_size,
        "sha256": sha256_of(data / "gsm8k" / "test.jsonl"),
    }
    card = (built / "README.md").read_text()
    for words in (
        "| gsm8k | MIT |",
        sha256_of(data / "gsm8k" / "test.jsonl"),
        "--limit 33",
        "| drift_hard | 33 |",
    ):
        assert words in card
    hard, easy = (
        next(e["realised"] for e in told["files"] if e["path"] == f"calls/drift_{b}.parquet")
        for b in ("hard", "easy")
    )
    assert 1.7 < hard["variants_per_goal"] < 2.8 and 0.8 < easy["variants_per_goal"] < 1
    assert (
        hard["decoys"] > easy["decoys"] and hard["turns"] > easy["turns"] and hard["tokens"] > easy["tokens"]
    )


def test_datasets_reads_the_folder(built: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    cache = {"cache_dir": str(tmp_path / "cache")}
    every = datasets.load_dataset(str(built), "all", split="drift_hard", **cache)
    assert len(every) == 99 and set(every["family"]) == {"calls", "gsm8k", "math"}
    assert len(datasets.load_dataset(str(built), "math", split="clean", **cache)) == 33
    assert len(datasets.load_dataset(str(built), "tasks", split="tasks", **cache)) == 99
    plain = datasets.load_dataset("parquet", data_files=f"{built}/*/clean.parquet", split="train", **cache)
    assert len(plain) == 99 and plain[0]["turns"][0]["utterance"]


def test_training_keeps_apart_from_the_held_out_tasks(data: Path, tmp_path: Path) -> None:
    settings = BuildSettings("train", families=("gsm8k",), conditions=("drift",), budgets=("1",))
    out = build_set(settings, data, tmp_path / "train", quiet=True)
    assert manifest(out)["families"]["gsm8k"]["near_copies"] == 1
    assert ids(out) == [f"gsm8k/train/{at}" for at in range(4)]
    lines = [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]
    copies = [line for line in lines if line["why"] == "near copy of a held-out task"]
    assert [(line["id"], line["reason"]) for line in copies] == [("gsm8k/train/4", "1.0 like gsm8k/test/0")]
    assert {d.budget for d in read_dialogues(out / "gsm8k" / "drift_easy.parquet")} == {1}


class _Rejecting:
    """GSM8K whose grader rejects, or fails on, some golds."""

    def __init__(self) -> None:
        self.name, self.splits, self.structured, self.variants_flip = "gsm8k", ("test",), True, True
        for part in ("load", "gold", "variants", "decoys", "execute", "skipped"):
            setattr(self, part, getattr(GSM8K, part))

    def grade(self, task: SourceTask, answer: str) -> Grade:
        if task.id.endswith("/3"):
            return Grade(0.0, False, {"why": "no"})
        if task.id.endswith("/5"):
            raise GraderError("no database")
        return GSM8K.grade(task, answer)


def test_a_gold_that_its_grader_rejects_is_left_out_and_told(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry(), "gsm8k", _Rejecting())  # type: ignore[misc]
    settings = BuildSettings("calibration", families=("gsm8k",), conditions=("clean",))
    out = build_set(settings, data, tmp_path / "out", quiet=True)
    assert not {"gsm8k/test/3", "gsm8k/test/5"} & set(ids(out)) and len(ids(out)) == 38
    lines = [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]
    assert [(line["id"], line["why"]) for line in lines] == [
        ("gsm8k/test/3", "gold rejected"),
        ("gsm8k/test/5", "gold rejected"),
    ]
    assert "no database" in lines[1]["reason"] and "- `gsm8k/test/5`" in (out / "README.md").read_text()


def test_families_without_files_are_left_out_unless_asked_for(data: Path, tmp_path: Path) -> None:
    out = build_set(
        BuildSettings("general-test", conditions=("clean",), limit=2), data, tmp_path / "out", quiet=True
    )
    told = manifest(out)
    missing = {name for name, found in registry().items() if not is_procedural(found)} - {"gsm8k"}
    assert set(told["families"]) == {"gsm8k"} and set(told["skipped"]) == missing
    assert all("$DATA" in reason or "DATA=" in reason for reason in told["skipped"].values())
    assert "`bfcl`: the whole family, its files are not there" in (out / "README.md").read_text()
    with pytest.raises(MissingFiles, match="BFCL_v4"):
        build_set(BuildSettings("general-test", families=("bfcl",)), data, tmp_path / "no", quiet=True)
    with pytest.raises(MissingFiles, match="finds no family's files"):
        build_set(BuildSettings("general-test"), None, tmp_path / "no", quiet=True)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (BuildSettings("trian"), "Did you mean 'train'"),
        (BuildSettings("train", families=("gsmk8",)), "Did you mean 'gsm8k'"),
        (BuildSettings("train", budgets=("hrad",)), "Did you mean 'hard'"),
        (BuildSettings("train", conditions=("drfit",)), "Did you mean 'drift'"),
    ],
)
def test_unknown_names_name_the_nearest(settings: BuildSettings, says: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=says):
        build_set(settings, None, tmp_path / "out")


def test_what_cannot_be_built_is_refused(tmp_path: Path) -> None:
    for settings, jobs, says in (
        (BuildSettings("train", limit=0), 1, "limit is at least 1"),
        (BuildSettings("train", families=()), 1, "no family is named"),
        (BuildSettings("train", families=("bfcl",)), 1, "has no training split"),
        (BuildSettings("train"), 0, "at least one job"),
    ):
        with pytest.raises(ConfigError, match=says):
            build_set(settings, tmp_path, tmp_path / "out", jobs)


def small(seed: int = 0) -> BuildSettings:
    return BuildSettings("train", seed, ("calls",), ("easy",), ("drift",), limit=3)


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds no built set"):
        build_set(small(), None, tmp_path / "notes")
    assert files(tmp_path / "notes") == {"a.txt": b"mine"}
    with pytest.raises(ConfigError, match="is a file"):
        build_set(small(), None, tmp_path / "notes" / "a.txt")


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_build_that_fails_leaves_the_old_set_and_nothing_else(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = build_set(small(), None, tmp_path / "set", quiet=True)
    before = files(out)

    def broken(*_: Any) -> Iterator[Any]:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("recipes.build.card", broken)
        with pytest.raises(type(error)):
            build_set(small(1), None, out, quiet=True)
    assert files(out) == before and os.listdir(tmp_path) == ["set"]
    build_set(small(1), None, out, quiet=True)
    assert files(out) != before and os.listdir(tmp_path) == ["set"]


def test_the_command_line_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["build", "--set=train", "--families=calls,", "--budgets=5", "--conditions=drift,clean"]
    assert cli.main([*words, "--limit=2", "--seed=4"]) == 0
    assert capsys.readouterr().out.endswith("runs/data/train\n")
    folder = tmp_path / "runs" / "data" / "train" / "calls"
    assert {d.id for d in read_dialogues(folder / "clean.parquet")} == {
        f"calls/train/{n}|clean|b5|s4" for n in (0, 1)
    }
    assert cli.main(["build", "--set", "trian"]) == 2
    assert "Did you mean 'train'" in capsys.readouterr().err
    assert cli.main(["build", "--set", "general-test", "--families", "gsm8k"]) == 2
    head = yaml.safe_load((folder.parent / "README.md").read_text().split("---")[1])
    assert head["configs"][0]["data_files"][0] == {"split": "drift_hard", "path": "*/drift_hard.parquet"}


def test_every_family_that_has_files_can_be_built(benchmark_data: Path, tmp_path: Path) -> None:
    settings = BuildSettings("calibration", budgets=("hard",), limit=3)
    out = build_set(settings, benchmark_data, tmp_path / "out", quiet=True)
    for name, entry in manifest(out)["families"].items():
        stored = list(read_tasks(out / name / "tasks.parquet", benchmark_data))
        assert 1 <= len(stored) == entry["tasks"] <= 3
        family = get_family(name)
        for task in stored:
            assert family.grade(task, family.gold(task)).full_credit
        assert entry["sources"]
    assert {"gsm8k", "bfcl"} <= set(manifest(out)["families"])
