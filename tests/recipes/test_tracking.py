"""wandb in offline mode for real; off means not even imported; progress with and without a terminal."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from envs.errors import ConfigError
from recipes.config import load_config
from recipes.progress import Progress
from recipes.tracking import Tracker

REPO = Path(__file__).resolve().parents[2]


def test_off_imports_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from recipes.config import load_config; "
        "from recipes.tracking import Tracker\n"
        "with Tracker(load_config('opd'), Path('.')) as tracker:\n"
        "    tracker.log(1, {'loss': 1.0}); assert tracker.run_id is None\n"
        "assert 'wandb' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "wandb").exists()


SCRIPT = """
import sys
from pathlib import Path
from recipes.config import load_config
from recipes.tracking import Tracker
config = load_config("opd", ["--wandb", "offline"])
with Tracker(config, Path(sys.argv[1]), sys.argv[2] or None) as tracker:
    for step in range(int(sys.argv[3]), int(sys.argv[3]) + 3):
        tracker.log(step, {"loss": 1 / step, "eval": {"f1": 0.5}, "phase": "opd", "bad": float("nan")})
    print(tracker.run_id)
"""


def stored_records(file: Path) -> list[bytes]:
    """Return the records of a .wandb file: 7 bytes of header, then LevelDB's log format in 32 KiB blocks."""
    data, at, found, part = file.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # too little is left of the block for a header
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            found.append(part)
            part = b""
    return found


def offline_run(folder: Path, run_id: str, first: int) -> str:
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    env = {key: value for key, value in env.items() if not key.startswith("WANDB")}
    words = [sys.executable, "-c", SCRIPT, str(folder), run_id, str(first)]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.slow
def test_offline_writes_a_run_that_resumes_under_its_id_at_an_earlier_step(tmp_path: Path) -> None:
    from wandb.proto import wandb_internal_pb2

    run_id = offline_run(tmp_path, "", 4)
    assert (
        offline_run(tmp_path, run_id, 2) == run_id
    )  # steps 2 and 3 come after 6: wandb's own step would drop them
    files = sorted((tmp_path / "wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"))
    assert len(files) == 2
    history: list[dict[str, str]] = []
    for file in files:
        for raw in stored_records(file):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(raw)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                history.append({(item.key or "/".join(item.nested_key)): item.value_json for item in items})
    assert [entry["global_step"] for entry in history] == ["4", "5", "6", "2", "3", "4"]
    assert history[0]["loss"] == "0.25" and history[0]["eval/f1"] == "0.5"
    assert "phase" not in history[0] and "bad" not in history[0]


def test_wandb_that_cannot_start_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("opd", ["--wandb", "offline"])
    monkeypatch.setitem(sys.modules, "wandb", None)  # what Python does for a package that cannot be imported
    with pytest.raises(ConfigError, match=r"pip install wandb"):
        Tracker(config, tmp_path)


def test_online_without_a_key_says_what_to_do(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from recipes.config import load_config; "
        "from recipes.tracking import Tracker; from envs.errors import ConfigError\n"
        "try:\n    Tracker(load_config('opd', ['--wandb', 'online']), Path(sys.argv[1]))\n"
        "except ConfigError as error:\n    print(error); sys.exit(7)\n"
    )
    # A home without a key and a server that is not there: nothing leaves this machine.
    env = {
        **os.environ,
        "PYTHONPATH": str(REPO),
        "HOME": str(tmp_path),
        "WANDB_BASE_URL": "http://127.0.0.1:9",
    }
    env.pop("WANDB_API_KEY", None)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 7, done.stderr
    assert "WANDB=offline" in done.stdout and "wandb login" in done.stdout


def test_progress_prints_plain_lines_without_a_terminal() -> None:
    out = io.StringIO()
    with Progress(4, "training", done=1, console=Console(file=out, width=200)) as progress:
        progress.advance("loss 2.0 [not markup]")
        progress.advance()
        progress.advance("loss 1.0")
    lines = out.getvalue().splitlines()
    assert len(lines) == 2 and "\x1b" not in out.getvalue()
    assert lines[0].startswith("training 2/4 (") and lines[0].endswith("): loss 2.0 [not markup]")
    assert "left" in lines[0] and lines[1].startswith("training 4/4 (") and "0:00 left" in lines[1]


def test_progress_is_a_bar_on_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with Progress(2, "training", console=console) as progress:
        progress.advance("loss 2.0")
        progress.advance()
    assert "2/2" in out.getvalue() and "loss 2.0" in out.getvalue() and "\x1b[" in out.getvalue()
