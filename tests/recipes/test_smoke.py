"""`make opd SMOKE=1` as a user runs it: real model, real vLLM in a Ray actor. Ctrl-C in the first attempt, then the
engine's process is killed in the middle of a rollout of the second one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import tinyruns
from tinyruns import REPO

from recipes.config import load_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PATIENCE_S = 600


def data_folder() -> Path | None:
    folder = Path(os.environ.get("FLUXFORGE_DATA") or REPO.parent / "shared" / "data")
    return folder.resolve() if folder.is_dir() else None


class Attempt:
    """One `fluxforge opd` process, in a process group of its own, as a terminal would start it."""

    def __init__(self, folder: Path, *argv: str) -> None:
        self.log = folder / f"attempt-{len(list(folder.glob('attempt-*')))}.txt"
        env = {**os.environ, "PYTHONPATH": str(REPO), "PYTHONUNBUFFERED": "1"}
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "recipes.cli", "opd", "--name", "smoke", *argv],
                cwd=folder,
                env=env,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.seen: dict[int, psutil.Process] = {}

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.text()}"
            assert time.monotonic() < deadline, f"{what} did not come:\n{self.text()}"
            self.children()
            time.sleep(0.05)

    def children(self) -> list[psutil.Process]:
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self.seen |= {child.pid: child for child in found}
        return found

    def engine(self) -> psutil.Process:
        """Return the process of the Ray actor that holds the engine, a descendant of this run's own process."""
        engines = [child for child in self.children() if "EngineHost" in " ".join(_words(child))]
        assert len(engines) == 1, [_words(child) for child in self.children()]
        return engines[0]

    def end(self) -> int:
        code = self.process.wait(timeout=PATIENCE_S)
        gone = time.monotonic() + 20
        while left := [child for child in self.seen.values() if child.is_running() and not _zombie(child)]:
            assert time.monotonic() < gone, f"left behind: {[_words(child) for child in left]}"
            time.sleep(0.2)
        return code

    def close(self) -> None:
        """End what is left of this attempt, and nothing else."""
        for child in [*self.children(), *self.seen.values()]:
            if child.is_running():
                child.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Attempt], list[int]]]:
    """Run the two attempts; give the run folder, both of them and their exit codes."""
    from rollout.models import vllm_available

    available, reason = vllm_available()
    if not available:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("smoke")
    run = folder / "runs" / "smoke"
    data = data_folder()
    first = Attempt(folder, "--smoke", *(["--data", str(data)] if data else []))
    made = [first]
    try:
        first.wait_for("the first measurement", lambda: "measuring the tracker (before)" in first.text())
        os.killpg(first.process.pid, signal.SIGINT)  # a terminal sends it to the engines too
        codes = [first.end()]

        second = Attempt(folder, "--resume")
        made.append(second)
        # The checkpoint of step 2 is there, so the rollout of step 3 begins; the engine has been busy for a while.
        second.wait_for("the second step", lambda: (run / "checkpoints" / "step-000002").is_dir())
        engine = second.engine()
        idle = engine.cpu_times().user
        second.wait_for("work in the engine", lambda: engine.cpu_times().user > idle + 0.5)
        os.kill(engine.pid, signal.SIGKILL)
        codes.append(second.end())
        yield run, made, codes
    finally:
        for attempt in made:
            attempt.close()


def test_ctrl_c_keeps_the_step_and_says_how_to_go_on(attempts: tuple[Path, list[Attempt], list[int]]) -> None:
    _, (first, _), codes = attempts
    assert codes[0] == 130, first.text()
    assert "make opd NAME=smoke RESUME=1" in first.text()


def test_the_run_ends_well_after_its_engine_was_killed(
    attempts: tuple[Path, list[Attempt], list[int]],
) -> None:
    run, (_, second), codes = attempts
    assert codes[1] == 0, second.text()
    result = tinyruns.result(run)
    assert (result["status"], result["steps"], result["engine"]) == ("done", 3, "vllm")
    assert result["engine_counters"]["restarts"] == 1
    assert result["engine_counters"]["resent"] >= 1, "no request was in flight when the engine was killed"
    assert result["peak_rss_mb"] < 12 * 1024
    assert (run / "report.html").is_file()


def test_no_dialogue_is_lost_or_trained_on_twice(attempts: tuple[Path, list[Attempt], list[int]]) -> None:
    run, _, _ = attempts
    trained = [(step, index) for step, _, index, _, _ in tinyruns.trained_on(run)]
    assert trained == [(1 + index // 4, index) for index in range(12)]
    rows = tinyruns.dialogues(run, training_only=False)
    assert all(row["tracker_text"] is not None for row in rows if row["phase"] != "warmup"), (
        "a turn is missing"
    )
    result = tinyruns.result(run)
    asked = load_config("opd", ["--smoke"]).eval
    counts = {"unseen": asked.dialogues, "unseen_words": asked.words_dialogues}
    sets = [*counts, *(name for name in ("gsm8k", "bfcl") if data_folder() is not None)]
    for when in ("before", "after_warmup", "after"):
        for name in sets:
            assert result[when][name]["errors"] == 0
            assert result[when][name]["n"] == counts.get(name, asked.real_dialogues)
    versions = {row["step"]: row["weight_version"] for row in rows if row["phase"] == "opd"}
    assert versions[3] == versions[2] + 1, "the new engine answered with old weights"


def test_training_changed_the_tracker_and_the_figures_fit(
    attempts: tuple[Path, list[Attempt], list[int]],
) -> None:
    import torch
    from safetensors.torch import load_file

    from rollout.models import resolve_model

    run, _, _ = attempts
    start = load_file(resolve_model("tiny") / "model.safetensors")
    now = load_file(run / "tracker" / "model.safetensors")
    moved = [name for name in now if not torch.equal(now[name].float(), start[name].float())]
    assert len(moved) > len(now) // 2
    losses = {line["step"]: line["loss"] for line in tinyruns.metrics(run)}
    assert sorted(losses) == [1, 2, 3] and all(0 < loss < 20 for loss in losses.values())
