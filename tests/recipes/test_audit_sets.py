"""`fluxforge audit` on whole sets: files, rebuild, held-out tasks, the report and the exit code."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envs.parquet import write_dialogues
from recipes import cli
from recipes.audit import AuditSettings, Material, audit, checks
from recipes.audit.findings import Finding
from recipes.build import BuildSettings, build_set

sys.path.insert(0, str(Path(__file__).parent))
import madedata
from auditcases import drift, late, other_goal, saying


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return madedata.write(tmp_path_factory.mktemp("data") / "files", tests=8)


@pytest.fixture(scope="module")
def sound(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = BuildSettings("train", families=("gsm8k", "calls"), budgets=("easy", "hard"), limit=8)
    return build_set(settings, data, tmp_path_factory.mktemp("sound") / "train", quiet=True)


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "train"))


def statuses(folder: Path, data: Path | None, **settings: Any) -> dict[str, str]:
    findings = audit(Material.open(folder, data), AuditSettings(**settings), quiet=True)
    return {finding.name: finding.status for finding in findings}


def test_a_sound_set_passes_all_and_its_rebuild_is_the_same(sound: Path, data: Path) -> None:
    found = statuses(sound, data, rebuild_jobs=2)
    assert set(found.values()) == {"pass"} and len(found) == len(checks(AuditSettings())) == 15


def test_without_the_files_it_says_what_it_could_not_check(sound: Path) -> None:
    found = statuses(sound, None)
    left = {name for name, status in found.items() if status != "pass"}
    assert left == {"held_out", "rebuild"} and {found[name] for name in left} == {"not run"}


def test_changed_files_are_found(folder: Path, data: Path) -> None:
    first = folder / "calls" / "drift_easy.parquet"
    material = Material.open(folder, data)
    dialogues = [case.dialogue for case in replace(material, files=[first]).cases()]
    write_dialogues(first, [*dialogues[1:], dialogues[0]])
    found = statuses(folder, data)
    assert {name for name, status in found.items() if status == "fail"} == {"files", "rebuild"}
    (folder / "ids.txt").unlink()
    assert "ids.txt: is not there" in _finding(folder, data, "files").examples


def _finding(folder: Path, data: Path | None, name: str) -> Finding:
    findings = audit(Material.open(folder, data), AuditSettings(rebuild_jobs=0), quiet=True)
    return next(finding for finding in findings if finding.name == name)


def test_another_source_than_the_one_it_was_built_from_is_found(folder: Path, tmp_path: Path) -> None:
    other = madedata.write(tmp_path / "other", tests=8)
    path = other / "gsm8k" / "train.jsonl"
    path.write_text(path.read_text().replace("mason", "potter"))
    assert "differs from the task of the source" in _finding(folder, other, "files").examples[0]
    found = statuses(folder, other)
    assert {name for name, status in found.items() if status == "fail"} >= {"files", "rebuild"}


def test_a_training_set_with_a_held_out_story_is_found(folder: Path, data: Path, tmp_path: Path) -> None:
    other = madedata.write(tmp_path / "other", tests=8)
    own, test = (other / "gsm8k" / f"{split}.jsonl" for split in ("train", "test"))
    test.write_text(own.read_text().splitlines()[0] + "\n" + test.read_text())
    finding = _finding(folder, other, "held_out")
    assert finding.status == "fail" and "gsm8k/train/0: 1.0 like gsm8k/test/0" in finding.examples


def test_a_quarantined_task_with_dialogues_is_found(folder: Path, data: Path) -> None:
    (folder / "quarantine.jsonl").write_text(
        json.dumps({"id": "gsm8k/train/1", "why": "gold rejected", "reason": "no"}) + "\n"
        + json.dumps({"id": "gsm8k/train/77", "why": "gold rejected", "reason": ""}) + "\n"
    )  # fmt: skip
    finding = _finding(folder, data, "gold")
    assert finding.status == "fail" and finding.failed == 2


def test_the_command_line_reports_and_fails_where_the_data_does(
    folder: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit", str(folder), "--data", str(data), "--jobs", "0", "--sample", "30"]) == 0
    shown = capsys.readouterr().out
    for words in ("recovered ", "30 messages judged by rules", "turn_matched hard", "variants executed"):
        assert words in shown
    report = json.loads((folder / "audit.json").read_text())
    assert report["status"] == "pass" and report["set"] == "train"
    assert [check["name"] for check in report["checks"]] == [check.name for check in checks(AuditSettings())]

    case = drift(1)[0]
    broken = saying(case, late(case), lambda said: f"{said} {other_goal(case, late(case)).text}.")
    write_dialogues(folder.parent / "one.parquet", [broken.dialogue])
    assert (
        cli.main(["audit", str(folder.parent / "one.parquet"), "--out", str(folder.parent / "a.json")]) == 1
    )
    report = json.loads((folder.parent / "a.json").read_text())
    failed = {check["name"] for check in report["checks"] if check["status"] == "fail"}
    assert "no_restating" in failed and "no_restating: calls/" in capsys.readouterr().out


def test_what_is_no_set_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", str(tmp_path)]) == 2
    assert "fluxforge build" in capsys.readouterr().err
    (tmp_path / "manifest.json").write_text("{}")
    assert cli.main(["audit", str(tmp_path)]) == 2
    assert "no manifest of a set" in capsys.readouterr().err


def test_sets_of_real_files_are_sound(benchmark_data: Path, tmp_path: Path) -> None:
    settings = BuildSettings("general-test", budgets=("hard",), limit=8)
    out = build_set(settings, benchmark_data, tmp_path / "out", quiet=True)
    findings = audit(Material.open(out, benchmark_data), AuditSettings(rebuild_jobs=0), quiet=True)
    failed = [(finding.name, finding.examples) for finding in findings if finding.status == "fail"]
    assert not failed
