"""The command line, as a user calls it: `python -m recipes.cli ...` in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from recipes import cli
from recipes.config import load_config
from recipes.runs import RunFolder
from recipes.schema import OpdConfig

REPO = Path(__file__).resolve().parents[2]


def fluxforge(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(REPO), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "recipes.cli", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_is_quick_and_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from recipes.cli import main; status = main(['--help']); "
        "heavy = {'torch', 'ray', 'vllm', 'wandb', 'transformers', 'pyarrow'} & set(sys.modules); "
        "assert not heavy, heavy; sys.exit(status)"
    )
    spent = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
        after = os.times()
        spent.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
        assert done.returncode == 0, done.stderr
    assert all(job in done.stdout for job in cli.JOBS)
    assert "--debug" in done.stdout
    assert min(spent) < 1.0, spent  # CPU seconds: a busy machine does not count


@pytest.mark.parametrize("job", cli.JOBS)
def test_every_job_has_help(capsys: pytest.CaptureFixture[str], job: str) -> None:
    assert cli.main([job, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"fluxforge {job}" in shown and "--debug" in shown


def test_no_description_of_a_job_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["--help"]) == 0
    assert "..." not in capsys.readouterr().out.split("Commands:")[1]


def test_a_dry_run_of_measure_names_the_folder_it_would_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, name in (
        ([], "measure-tiny-0"),
        (["--seed=3"], "measure-tiny-3"),
        (["--name=opd-x"], "opd-x"),
    ):
        assert cli.main(["measure", "--dry-run", *words]) == 0
        assert f"run folder: runs/{name}\n" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_measure_tells_what_the_checks_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recipes.preflight.check", lambda config, runs, training: ["threads are many"])
    seen: list[OpdConfig] = []
    monkeypatch.setattr("recipes.evaluate.run_measure", lambda config: seen.append(config) or 0)
    (tmp_path / "model").mkdir()
    assert cli.main(["measure", "--model", "model", "--wandb", "offline"]) == 0
    assert capsys.readouterr().err == "note: threads are many\n"
    assert (seen[0].model, seen[0].tracker, seen[0].wandb) == ("model", "tiny", "offline")


def test_a_checkpoint_is_no_model_and_the_error_names_the_one_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    RunFolder.create(tmp_path / "runs", load_config("opd", ["--name", "mine"])).close()
    (tmp_path / "runs" / "mine" / "checkpoints" / "step-000004").mkdir(parents=True)
    for folder in ("runs/mine/checkpoints/step-000004", "runs/mine/checkpoints", "runs/mine"):
        assert cli.main(["measure", "--model", folder]) == 2
        printed = capsys.readouterr().err
        assert f"{folder} belongs to a run" in printed and "model folder runs/mine/tracker" in printed
    (tmp_path / "empty").mkdir()
    assert cli.main(["measure", "--model", "empty"]) == 2
    assert "empty is not a complete model folder: config.json is missing" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "measure-tiny-0").exists()


def test_dry_run_prints_the_resolved_run_and_starts_nothing(tmp_path: Path) -> None:
    done = fluxforge(
        tmp_path,
        *("opd", "--dry-run", "--seed", "3", "--student.lr=2e-4", "--name=2024"),
        *("--opd.steps", "4", "--opd.dialogues", "12", "--opd.group", "1"),
    )
    assert done.returncode == 0, done.stderr
    shown, _, summary = done.stdout.partition("---\n")
    resolved = yaml.safe_load(shown)
    assert resolved["seed"] == 3 and resolved["opd"]["steps"] == 4 and resolved["student"]["lr"] == 2e-4
    assert resolved["name"] == "2024"
    assert "host memory: about" in summary or "GPU memory: about" in summary
    assert "192 samples" not in summary and "48 samples" in summary and "tokens: about" in summary
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["odp"], 2, ["unknown job 'odp'", "'opd'"]),
        (["opd", "--opd.stepps", "4"], 2, ["'opd.stepps'", "Did you mean 'opd.steps'"]),
        (["opd", "--tracker", "tny"], 2, ["unknown tracker 'tny'", "'tiny'"]),
        (["opd", "--env.families", "cals"], 2, ["unknown family 'cals'", "'calls'"]),
        (["opd", "--opd.teacher", "oracel"], 2, ["'oracel'", "'oracle'"]),
        (["opd", "--seed", "x"], 2, ["--seed"]),
        (["opd", "--name"], 2, ["--name"]),
        (["opd", "--data", "nowhere"], 2, ["data folder nowhere", "gsm8k/"]),
        (["opd", "--data", "."], 2, ["data folder .", "holds none of", "gsm8k/"]),
        (["opd", "--resume"], 2, ["nothing to resume in runs/opd-tiny-0"]),
        (["opd", "--tracker", "122b"], 2, ["'122b' is the reference", "fluxforge measure --tracker 122b"]),
        (["opd", "--env.families", "calls,gsm8k"], 2, ["'gsm8k' is read from benchmark files", "DATA="]),
        (["measure", "--resume"], 2, ["nothing to resume", "leave --resume"]),
        (["opd", "--recipe", "absent.yaml"], 2, ["recipe absent.yaml is not there"]),
        (["opd", "--engine.kv_cache_gib", "100000"], 2, ["needs about 1000", "GiB are available"]),
        (["measure", "--tracker", "no/such/folder"], 2, ["model folder no/such/folder is not there"]),
        (["play", "--family", "cals"], 2, ["unknown family 'cals'", "'calls'"]),
        (["play", "--split", "heldoud"], 2, ["unknown split of calls 'heldoud'", "'heldout'"]),
        (["play", "--condition", "drft"], 2, ["unknown condition 'drft'", "'drift'"]),
        (["play", "--budget", "7"], 2, ["unknown budget '7'"]),
        (["play", "--familly", "calls"], 2, ["--familly"]),
        (["report"], 2, ["there is no run below runs/"]),
        (["bench", "--rows", "dialogs"], 2, ["unknown bench 'dialogs'", "'dialogues'"]),
    ],
)
def test_bad_calls_are_one_message_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    parts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == code
    printed = capsys.readouterr().err
    assert printed.startswith("fluxforge: ") and "Traceback" not in printed
    for part in parts:
        assert part in printed
    assert list(tmp_path.iterdir()) == []


def test_an_error_as_a_user_sees_it(tmp_path: Path) -> None:
    done = fluxforge(tmp_path, "opd", "--opd.stepps", "4")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("fluxforge: unknown key 'opd.stepps'") and done.stderr.count("\n") == 1


def test_an_existing_run_is_refused_before_anything_heavy(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "runs", load_config("opd", ["--name", "mine"])).close()
    started = time.monotonic()
    done = fluxforge(tmp_path, "opd", "--name", "mine")
    assert done.returncode == 2 and "RESUME=1 (--resume --name mine)" in done.stderr
    assert time.monotonic() - started < 20
    done = fluxforge(tmp_path, "opd", "--name", "mine", "--resume", "--seed", "8", "--dry-run")
    assert done.returncode == 2 and "seed: 0 there, 8 now" in done.stderr


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--debug", "opd", "--tracker", "tny"], ["opd", "--tracker", "tny", "--debug"]):
        assert cli.main(words) == 2
        printed = capsys.readouterr().err
        assert "Traceback" in printed and "fluxforge: unknown tracker" in printed


def test_play_prints_a_dialogue(tmp_path: Path) -> None:
    done = fluxforge(tmp_path, "play", "--family", "calls", "--seed", "1", "--index", "2")
    assert done.returncode == 0, done.stderr
    assert "calls/heldout/2|drift|b1|s1" in done.stdout


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("raise KeyboardInterrupt", 130, ""),
        ("from envs.errors import CheckpointError; raise CheckpointError('disk')", 1, "fluxforge: disk"),
        ("from envs.errors import DataError; raise DataError('row 3')", 2, "fluxforge: row 3"),
        ("return 130", 130, ""),
        ("return 0", 0, ""),
    ],
)
def test_exit_codes_of_a_job(tmp_path: Path, body: str, code: int, message: str) -> None:
    """A stand-in for recipes.opd, so that each ending is quick; the real one is run by the slow tests."""
    script = (
        "import sys, types\n"
        "def run(config):\n"
        f"    {body}\n"
        "module = types.ModuleType('recipes.opd'); module.run = run; sys.modules['recipes.opd'] = module\n"
        "from recipes.cli import main\n"
        "sys.exit(main(['opd', '--name', 'x']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("recipes.config.load_config", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["opd", "--dry-run"])
