"""The run folder: what it holds, what a resumed run finds, and what it refuses."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from envs.dialogue import Dialogue, Turn
from envs.errors import ConfigError, DataError, MissingFiles, UnknownName
from envs.intent import Add, Goal, IntentState, Replace
from recipes.config import load_config, resolved_yaml
from recipes.machine import PeakMemory, tree_rss, versions
from recipes.runs import RunFolder, find_run, read_metrics, read_result
from recipes.schema import OpdConfig
from recipes.transcripts import SCHEMA, dialogue_rows, merge_parts, trajectory_rows, write_part
from rollout.trajectory import TrackedTurn, Trajectory

REPO = Path(__file__).resolve().parents[2]
RESULT_KEYS = {
    "name", "job", "status", "tracker", "teacher", "seed", "wall_s", "peak_rss_mb", "steps",
    "before", "after", "paired", "versions",
}  # fmt: skip


def config_of(name: str = "mine", *words: str) -> OpdConfig:
    return load_config("opd", ["--name", name, *words])


def a_dialogue(id: str = "calls/train/0|drift|b1|s0") -> Dialogue:
    old, new = (
        Goal("g1.v1", "go to Queens", "city", "Queens"),
        Goal("g1", "go to Brooklyn", "city", "Brooklyn"),
    )
    turns = (
        Turn("To Queens.", (Add(old),), IntentState((old,))),
        Turn("Make that Brooklyn.", (Replace(old, new),), IntentState((new,))),
        Turn("Go ahead.", (), IntentState((new,))),
    )
    return Dialogue(id, "calls/train/0", "calls", "drift", 1, 7, turns)


def a_trajectory() -> Trajectory:
    said = [("SET city: Queens", "Queens"), ("SET city: Brooklyn", "Brooklyn"), ("KEEP", "Brooklyn")]
    turns = [
        TrackedTurn([1], [2], [-0.1], text, {"city": value}, weight_version=3 + i)
        for i, (text, value) in enumerate(said[:2])
    ]
    return Trajectory(a_dialogue(), turns, error="the engine was gone")


def test_a_run_leaves_every_file_in_its_schema(tmp_path: Path) -> None:
    config = config_of("mine", "--opd.teacher", "privileged")
    with RunFolder.create(tmp_path, config) as run:
        for step in (1, 2):
            record = run.log_metrics(step, {"loss": 1 / step, "eval": {"f1": float("nan")}})
            assert record["step"] == step and record["wall_s"] >= 0 and record["peak_rss_mb"] > 1
            run.log_dialogues(step, "opd", trajectory_rows(step, "opd", [a_trajectory()], first_index=step))
        run.write_result("done", steps=2, before={"state_f1": 0.1}, after={"state_f1": 0.9}, engine="local")
    folder = tmp_path / "mine"
    assert (folder / "config.yaml").read_text() == resolved_yaml(config)
    assert [record["loss"] for record in read_metrics(folder)] == [1.0, 0.5]
    assert read_metrics(folder)[0]["eval"] == {"f1": None}
    result = read_result(folder)
    assert result.keys() >= RESULT_KEYS and result["engine"] == "local"
    assert (result["status"], result["steps"], result["tracker"], result["teacher"]) == (
        "done",
        2,
        "tiny",
        "privileged",
    )
    table = pq.read_table(folder / "dialogues.parquet")
    assert table.schema.equals(SCHEMA) and table["step"].to_pylist() == [1, 1, 1, 2, 2, 2]
    assert not (folder / "dialogues").exists()


def test_transcript_rows_hold_scores_and_nulls_where_nothing_was_said(tmp_path: Path) -> None:
    rows = trajectory_rows(4, "opd", [a_trajectory(), a_trajectory()], first_index=10, group=2)
    assert [(row["index"], row["sample"], row["turn"]) for row in rows] == [
        (10, 0, 0), (10, 0, 1), (10, 0, 2), (10, 1, 0), (10, 1, 1), (10, 1, 2),
    ]  # fmt: skip
    second, last = rows[1], rows[2]
    assert second["exact"] is True and second["leak"] is False and second["edit_correct"] is True
    assert second["weight_version"] == 4 and json.loads(second["tracker_state"]) == {"city": "Brooklyn"}
    assert json.loads(second["oracle_state"])["goals"][0]["value"] == "Brooklyn"
    assert "tracker_text" not in last
    write_part(tmp_path / "d", 4, "opd", rows)
    write_part(tmp_path / "d", 10, "warmup", dialogue_rows(10, "warmup", [a_dialogue()], 3))
    write_part(tmp_path / "d", 4, "opd", rows[:3])  # an attempt after a crash replaces the part
    assert merge_parts(tmp_path / "d", tmp_path / "all.parquet") == 6
    found = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert [row["step"] for row in found] == [4, 4, 4, 10, 10, 10]
    assert found[2]["tracker_text"] is None and found[5]["exact"] is None and found[5]["index"] == 3


def test_a_broken_part_is_named(tmp_path: Path) -> None:
    part = write_part(tmp_path / "d", 1, "opd", dialogue_rows(1, "opd", [a_dialogue()]))
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"step-000001-opd\.parquet"):
        merge_parts(tmp_path / "d", tmp_path / "all.parquet")
    assert not (tmp_path / "all.parquet").exists()


def test_resume_drops_what_the_checkpoint_does_not_know(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, config_of()) as run:
        for step in range(1, 6):
            run.log_metrics(step, {"loss": float(step)})
            run.log_dialogues(step, "opd", dialogue_rows(step, "opd", [a_dialogue()], step))
        run.write_result("interrupted", steps=5)
    folder = tmp_path / "mine"
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), "wall_s": 100.0, "peak_rss_mb": 1e6})
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 6, "lo')  # killed while it wrote
    with RunFolder.create(tmp_path, config_of(), resume=True) as run:
        run.rewind(3)
        assert [record["step"] for record in read_metrics(folder)] == [1, 2, 3] and run.last_step == 3
        assert 100 <= run.wall_s() < 110 and run.peak_rss_mb() == 1e6
        assert not (folder / "result.json").exists()
        run.log_metrics(4, {"loss": 4.5})
        run.log_dialogues(4, "opd", dialogue_rows(4, "opd", [a_dialogue()], 4))
        run.write_result("done", steps=4)
    assert [record.get("loss") for record in read_metrics(folder)] == [1.0, 2.0, 3.0, 4.5]
    assert sorted(set(pq.read_table(folder / "dialogues.parquet")["step"].to_pylist())) == [1, 2, 3, 4]


def test_metrics_damaged_in_the_middle_are_an_error_that_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n[2]\n')
    with pytest.raises(DataError, match=r"line 2"):
        read_metrics(tmp_path)


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, config_of()) as run:
        run.log_metrics(1, {"loss": 1.0})
    with pytest.raises(ConfigError, match=r"already holds a started run.*RESUME=1.*NAME="):
        RunFolder.create(tmp_path, config_of())
    assert len(read_metrics(tmp_path / "mine")) == 1


def test_a_finished_run_is_neither_resumed_nor_overwritten(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, config_of()) as run:
        run.write_result("done", steps=1)
    with pytest.raises(ConfigError, match=r"already holds a finished run; choose another name"):
        RunFolder.create(tmp_path, config_of())
    with pytest.raises(ConfigError, match=r"is finished"):
        RunFolder.create(tmp_path, config_of(), resume=True)


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing to resume"):
        RunFolder.create(tmp_path, config_of(), resume=True)
    with RunFolder.create(tmp_path, config_of()) as run:  # the failed try is not in the way
        assert run.path == tmp_path / "mine"


def test_resume_with_other_settings_names_each(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, config_of("mine", "--opd.steps", "16")).close()
    with pytest.raises(ConfigError) as caught:
        words = ("--seed", "3", "--opd.steps", "4", "--data", str(tmp_path))
        RunFolder.create(tmp_path, config_of("mine", *words), resume=True)
    assert "seed: 0 there, 3 now" in str(caught.value) and "opd.steps: 16 there, 4 now" in str(caught.value)
    assert f"data: None there, '{tmp_path}' now" in str(caught.value)
    same = config_of("mine", "--opd.steps", "16", "--engine.kind", "local")
    RunFolder.create(tmp_path, same, resume=True).close()


HOLDER = """
import sys, time
from pathlib import Path
from recipes.config import load_config
from recipes.runs import RunFolder
run = RunFolder.create(Path(sys.argv[1]), load_config("opd", ["--name", "mine"]))
print("open", flush=True)
time.sleep(60)
"""


def test_two_processes_cannot_have_one_folder_and_a_kill_frees_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=REPO, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        with pytest.raises(ConfigError, match=rf"another process \(pid {process.pid}\)"):
            RunFolder.create(tmp_path, config_of(), resume=True)
    finally:
        process.kill()
        process.wait()
    RunFolder.create(tmp_path, config_of(), resume=True).close()


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), "interrupted"), (ValueError("loss is NaN"), "failed")]
)
def test_a_run_that_ends_by_an_exception_says_so(tmp_path: Path, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)):
        with RunFolder.create(tmp_path, config_of()) as run:
            run.log_metrics(7, {})
            raise error
    result = read_result(tmp_path / "mine")
    assert (result["status"], result["steps"]) == (status, 7) and str(error) in result["error"]


def test_results_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MissingFiles, match=r"RESUME=1"):
        read_result(tmp_path)
    (tmp_path / "result.json").write_text('{"status": "do')
    with pytest.raises(DataError, match=r"result\.json: not JSON"):
        read_result(tmp_path)
    with RunFolder.create(tmp_path, config_of("x")) as run, pytest.raises(UnknownName, match=r"'done'"):
        run.write_result("dome", steps=0)


def test_find_run(tmp_path: Path) -> None:
    with pytest.raises(MissingFiles, match=r"make opd"):
        find_run(tmp_path, None)
    for at, name in enumerate(("first", "second")):
        RunFolder.create(tmp_path, config_of(name)).close()
        os.utime(tmp_path / name / "config.yaml", (at, at))
    assert find_run(tmp_path, None) == find_run(tmp_path, "second") == tmp_path / "second"
    assert find_run(tmp_path, str(tmp_path / "first")) == tmp_path / "first"
    with pytest.raises(UnknownName, match=r"Did you mean 'first'"):
        find_run(tmp_path, "frist")


def test_memory_of_children_is_seen() -> None:
    memory = PeakMemory(every_s=0.02)
    before = memory.mb()
    code = "b = bytearray(500 * 2**20); print('up', flush=True); import time; time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        assert tree_rss(child.pid) > 500 * 2**20
        deadline = time.monotonic() + 10
        while memory.mb() < before + 100 and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    assert memory.mb() > before + 100  # the peak stays after the child is gone
    memory.close()


def test_versions_name_what_matters() -> None:
    found = versions()
    assert found["python"] == sys.version.split()[0] and found["torch"] and found["transformers"]
    assert found["fluxforge"] is None or len(found["fluxforge"]) == 40
    json.dumps(found)


def test_metrics_survive_a_cut_at_any_byte(tmp_path: Path) -> None:
    """Whatever the last write left, reading gives a prefix of the whole lines."""
    rng = random.Random(0)
    text = "".join(json.dumps({"step": i, "note": "ä" * i}, ensure_ascii=False) + "\n" for i in range(6))
    raw = text.encode()
    for cut in rng.sample(range(len(raw)), 40):
        (tmp_path / "metrics.jsonl").write_bytes(raw[:cut])
        assert [record["step"] for record in read_metrics(tmp_path)] == list(range(raw[:cut].count(b"\n")))


def test_a_run_refused_before_it_measured_anything_leaves_its_name_free(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="teacher"), RunFolder.create(tmp_path, config_of()) as run:
        run.rewind(0)
        raise ConfigError("the teacher does not fit")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("the user's own")
    with pytest.raises(MissingFiles), RunFolder.create(tmp_path, config_of()):
        raise MissingFiles("no model")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_run_refused_later_or_when_resumed_keeps_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), RunFolder.create(tmp_path, config_of()) as run:
        run.log_metrics(1, {"loss": 1.0})
        raise ConfigError("late")
    assert read_result(tmp_path / "mine")["status"] == "failed"
    with pytest.raises(ConfigError), RunFolder.create(tmp_path, config_of(), resume=True):
        raise ConfigError("on resuming")
    assert len(read_metrics(tmp_path / "mine")) == 1
