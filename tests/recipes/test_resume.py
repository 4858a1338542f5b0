"""A run that is killed or stopped anywhere and resumed is the run that was never stopped: same dialogues, same
weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import tinyruns
from tinyruns import Driver, words

KILLED = -9

KILLS = {
    "in the second warm-up step": "kill@train:2",
    "in an opd step's rollout": "kill@turn:7",
    "half through a checkpoint's file": "kill@write:4",
}
MORE_KILLS = {
    "in the first step": "kill@train:1",
    "on the way to measuring the warm-up": "kill@evaluate:2",
    "in an opd step": "kill@train:4",
    "before a checkpoint becomes visible": "kill@rename:3",
    "before old checkpoints are deleted": "kill@visible:3",
    "when only the last measurement is missing": "kill@evaluate:3",
}


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with Driver() as made:
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tinyruns.save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(driver: Driver, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the run that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    ended = driver.run(folder, words(model, "run"))
    assert ended.code == 0, ended.err
    return folder / "runs" / "run"


def assert_same(run: Path, whole: Path) -> None:
    assert tinyruns.result(run)["status"] == "done"
    assert tinyruns.dialogues(run) == tinyruns.dialogues(whole), "other dialogues, or other words in them"
    ours, theirs = tinyruns.weights(run), tinyruns.weights(whole)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), f"{name}: off by {(ours[name] - tensor).abs().max():.2e}"
    kept = ("step", "phase", "cursor", "version", "loss")
    assert [[line[k] for k in kept] for line in tinyruns.metrics(run)] == [
        [line[k] for k in kept] for line in tinyruns.metrics(whole)
    ]
    for when in ("before", "after", "after_warmup", "paired"):
        assert tinyruns.result(run)[when] == tinyruns.result(whole)[when]


def test_the_whole_run_trains_on_each_dialogue_once(whole: Path) -> None:
    trained = tinyruns.trained_on(whole)
    assert [(step, index) for step, _, index, _, _ in trained] == [
        (1, 0), (1, 1), (2, 2), (2, 3), (3, 4), (3, 5), (4, 6), (4, 7),
    ]  # fmt: skip
    assert len({id for *_, id in trained}) == 8


@pytest.mark.parametrize(
    "when", [*KILLS, *(pytest.param(when, marks=pytest.mark.slow) for when in MORE_KILLS)]
)
def test_killed_and_resumed_is_never_killed(
    driver: Driver, model: Path, whole: Path, tmp_path: Path, when: str
) -> None:
    ended = driver.run(tmp_path, words(model, "run"), (KILLS | MORE_KILLS)[when])
    assert ended.code == KILLED, (ended.out, ended.err)
    run = tmp_path / "runs" / "run"
    assert not (run / "result.json").exists(), "a killed process cannot have told how it ended"
    ended = driver.run(tmp_path, ["opd", "--name", "run", "--resume"])
    assert ended.code == 0, ended.err
    assert_same(run, whole)


@pytest.mark.slow
def test_killed_again_and_again(driver: Driver, model: Path, whole: Path, tmp_path: Path) -> None:
    ended = driver.run(tmp_path, words(model, "run"), "kill@train:2")
    kills = 0
    while ended.code == KILLED and kills < 12:
        kills += 1
        # Every attempt gets one step further and dies in the next one, or while it writes.
        ended = driver.run(
            tmp_path, ["opd", "--name", "run", "--resume"], ("kill@write:2", "kill@train:2")[kills % 2]
        )
    assert ended.code == 0 and kills >= 3, (kills, ended.err)
    assert_same(tmp_path / "runs" / "run", whole)


@pytest.mark.parametrize(
    ("fault", "step"), [pytest.param("int@train:2", 2, marks=pytest.mark.slow), ("int@turn:7", 3)]
)
def test_ctrl_c_saves_and_says_how_to_go_on(
    driver: Driver, model: Path, whole: Path, tmp_path: Path, fault: str, step: int
) -> None:
    ended = driver.run(tmp_path, words(model, "run"), fault)
    run = tmp_path / "runs" / "run"
    assert ended.code == 130, ended.err
    assert "make opd NAME=run RESUME=1" in ended.out
    told = tinyruns.result(run)
    assert (told["status"], told["steps"]) == ("interrupted", step)
    assert len(tinyruns.metrics(run)) == step
    assert {row["step"] for row in tinyruns.dialogues(run)} == set(range(1, step + 1))
    ended = driver.run(tmp_path, ["opd", "--name", "run", "--resume"])
    assert ended.code == 0 and f"resumed at step {step}" in ended.out, ended.err
    assert_same(run, whole)


def test_a_full_disk_leaves_the_old_checkpoint(
    driver: Driver, model: Path, whole: Path, tmp_path: Path
) -> None:
    ended = driver.run(tmp_path, words(model, "run"), "full@train:3")
    run = tmp_path / "runs" / "run"
    assert ended.code == 1 and "Traceback" not in ended.err
    for part in ("checkpoint of step 3", "could not be written", "step-000002, is untouched", "resume"):
        assert part in ended.err, ended.err
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["step-000001", "step-000002"]
    told = tinyruns.result(run)
    assert told["status"] == "failed" and "could not be written" in told["error"]
    ended = driver.run(tmp_path, ["opd", "--name", "run", "--resume"])
    assert ended.code == 0 and "resumed at step 2" in ended.out, ended.err
    assert_same(run, whole)


@pytest.mark.slow
def test_the_second_ctrl_c_stops_at_once(driver: Driver, model: Path, whole: Path, tmp_path: Path) -> None:
    ended = driver.run(tmp_path, words(model, "run"), "int2@train:3")
    run = tmp_path / "runs" / "run"
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    told = tinyruns.result(run)
    assert (told["status"], told["steps"]) == ("interrupted", 2)
    assert driver.run(tmp_path, ["opd", "--name", "run", "--resume"]).code == 0
    assert_same(run, whole)


def test_a_finished_run_is_not_resumed(driver: Driver, whole: Path) -> None:
    before = (whole / "result.json").read_text()
    ended = driver.run(whole.parents[1], ["opd", "--name", "run", "--resume"])
    assert ended.code == 2
    assert "is finished" in ended.err
    assert (whole / "result.json").read_text() == before
