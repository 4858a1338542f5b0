"""Checkpoints: round trip, verification, a full disk at any write, a kill at any moment."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from envs.errors import CheckpointError
from trainer import checkpoint
from trainer.checkpoint import latest, load_checkpoint, rng_state, save_checkpoint, set_rng_state

REPO = Path(__file__).resolve().parents[2]


def some_tensors(value: float = 1.0) -> dict[str, dict[str, torch.Tensor]]:
    tied = torch.full((4, 3), value)
    return {
        "weights": {"embed": tied, "head": tied, "bf16": torch.arange(6).bfloat16().view(2, 3).t()},
        "optimizer": {"step": torch.tensor(7), "exp_avg": torch.full((4, 3), value / 2)},
    }


def test_round_trip_keeps_values_dtypes_shapes_and_meta(tmp_path: Path) -> None:
    meta = {"cursor": 24, "ids": ["calls/train/1|drift|b1|s0"], "wandb": None, "fingerprint": {"seed": 0}}
    path = save_checkpoint(tmp_path, 12, some_tensors(0.1), meta)
    loaded = load_checkpoint(path, fingerprint={"seed": 0})
    assert path.name == "step-000012" and loaded.step == 12 and loaded.meta == meta
    for group, named in some_tensors(0.1).items():
        assert loaded.tensors[group].keys() == named.keys()
        for name, tensor in named.items():
            assert loaded.tensors[group][name].dtype == tensor.dtype
            assert torch.equal(loaded.tensors[group][name], tensor)


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def test_rng_states_survive_json() -> None:
    seed_all(5)
    torch.randn(random.randint(1, 5) + np.random.randint(1, 5))
    random.gauss(0, 1)  # leaves a second one in store
    state = json.loads(json.dumps(rng_state()))
    first = (random.random(), random.gauss(0, 1), np.random.normal(), torch.randn(4).tolist())
    seed_all(9)
    set_rng_state(state)
    assert (random.random(), random.gauss(0, 1), np.random.normal(), torch.randn(4).tolist()) == first


def test_newest_are_kept_and_a_step_saved_again_gets_a_suffix(tmp_path: Path) -> None:
    for step in (9, 10, 1_000_000):
        save_checkpoint(tmp_path, step, some_tensors(), {}, keep=2)
    again = save_checkpoint(tmp_path, 1_000_000, some_tensors(2.0), {}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-1000000", "step-1000000.1"]
    assert latest(tmp_path) == again
    assert load_checkpoint(again).tensors["weights"]["embed"][0, 0] == 2.0


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert latest(tmp_path) is None and latest(tmp_path / "absent") is None


def test_latest_skips_incomplete_ones(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save_checkpoint(tmp_path, step, some_tensors(), {}, keep=9)
    (tmp_path / "step-000004" / "manifest.json").unlink()
    (tmp_path / "step-000003" / "optimizer.safetensors").unlink()
    weights = tmp_path / "step-000002" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert latest(tmp_path) == tmp_path / "step-000001"


@pytest.mark.parametrize("name", ["weights.safetensors", "meta.json", "manifest.json"])
def test_a_changed_file_is_named(tmp_path: Path, name: str) -> None:
    path = save_checkpoint(tmp_path, 1, some_tensors(), {"cursor": 1})
    raw = bytearray((path / name).read_bytes())
    raw[-3] ^= 1
    (path / name).write_bytes(bytes(raw))
    with pytest.raises(CheckpointError, match=name):
        load_checkpoint(path)


def test_a_manifest_cannot_point_outside(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, some_tensors(), {})
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["../weights.safetensors"] = {"bytes": 1, "sha256": "0"}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        load_checkpoint(path)


def test_another_runs_checkpoint_says_what_differs(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, {}, {"fingerprint": {"tracker": "tiny", "seed": 0, "opd.steps": 16}})
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path, fingerprint={"tracker": "2b", "seed": 0, "env.budget": 3})
    text = str(caught.value)
    assert "tracker: 'tiny' there, '2b' here" in text and "opd.steps: 16 there, '(not set)' here" in text
    assert "env.budget: '(not set)' there, 3 here" in text and "seed" not in text


def test_meta_must_be_json(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="JSON"):
        save_checkpoint(tmp_path, 1, {}, {"bad": {1, 2}})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("at", range(9))
def test_a_full_disk_at_any_call_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    old = save_checkpoint(tmp_path, 1, some_tensors(), {"cursor": 1})
    calls = 0

    def failing(real):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == at + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr(checkpoint, "save_file", failing(save_file))
    monkeypatch.setattr(Path, "write_text", failing(Path.write_text))
    monkeypatch.setattr(os, "fsync", failing(os.fsync))
    with pytest.raises(CheckpointError, match=r"No space left.*step-000001, is untouched"):
        save_checkpoint(tmp_path, 2, some_tensors(), {"cursor": 2})
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]
    assert load_checkpoint(old).meta == {"cursor": 1}


def test_every_failing_call_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups, meta, manifest, and the syncs of four files and their folder: nine calls before the
    rename.
    """
    calls = []
    for owner, name in ((checkpoint, "save_file"), (Path, "write_text"), (os, "fsync"), (os, "rename")):
        real = getattr(owner, name)

        def recorded(*args, _real=real, _name=name, **kwargs):
            calls.append(_name)
            return _real(*args, **kwargs)

        monkeypatch.setattr(owner, name, recorded)
    save_checkpoint(tmp_path, 2, some_tensors(), {})
    assert calls.index("rename") == 9


def test_a_real_write_limit_leaves_the_old_one(tmp_path: Path) -> None:
    """RLIMIT_FSIZE fails inside the library's own writer, where no monkeypatch reaches."""
    old = save_checkpoint(tmp_path, 1, some_tensors(), {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"could not be written.*is untouched"):
            save_checkpoint(tmp_path, 2, {"weights": {"w": torch.zeros(100_000)}}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"] and load_checkpoint(old).step == 1


WRITER = """
import sys, torch
from pathlib import Path
from trainer.checkpoint import save_checkpoint
for step in range(1, 100_000):
    tensors = {"w": {"w": torch.full((500_000,), float(step))}}
    save_checkpoint(Path(sys.argv[1]), step, tensors, {"cursor": step})
    print(step, flush=True)
"""


@pytest.mark.parametrize("delay_ms", [0, 3, 11])
def test_kill_while_writing_leaves_a_loadable_newest(tmp_path: Path, delay_ms: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], cwd=REPO, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    seen = [process.stdout.readline() for _ in range(3)]
    time.sleep(delay_ms / 1000)
    process.kill()
    seen += process.stdout.readlines()
    process.wait()
    path = latest(tmp_path)
    assert path is not None
    loaded = load_checkpoint(path)
    assert loaded.step >= int(seen[-1]) and loaded.meta["cursor"] == loaded.step
    assert torch.equal(loaded.tensors["w"]["w"], torch.full((500_000,), float(loaded.step)))
    save_checkpoint(tmp_path, loaded.step + 1, {}, {})
    assert not list(tmp_path.glob(".tmp-*"))
