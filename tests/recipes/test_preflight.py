"""Checks before a run: memory and disk with both numbers, ports, data folders, sizes from headers alone."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from envs.errors import ConfigError, DataError, MissingFiles
from recipes import inputs, preflight
from recipes.bench import run as run_bench
from recipes.config import load_config
from recipes.preflight import Plan, available_gib, check, estimate, model_shape, stored_parameters
from recipes.schema import OpdConfig


def a_model(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    shape = {"num_hidden_layers": 3, "hidden_size": 16, "vocab_size": 100, **config}
    (folder / "config.json").write_text(json.dumps(shape))
    save_file({"a": torch.zeros(10, 16), "b": torch.zeros(5)}, folder / "model-1.safetensors")
    save_file({"c": torch.zeros(7, dtype=torch.bfloat16)}, folder / "model-2.safetensors")
    return folder


def config_of(*words: str) -> OpdConfig:
    return load_config("opd", list(words))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "gpu_free_gib", lambda: None)


def sizes(model: str) -> tuple[int, int, int, int]:
    shape = model_shape(model)
    assert shape is not None
    return shape.parameters, len(shape.blocks), shape.hidden, shape.vocab


def test_a_class_that_is_not_counted_is_sized_by_its_headers(tmp_path: Path) -> None:
    here = str(a_model(tmp_path / "m"))
    assert stored_parameters(here) == 172 and sizes(here) == (172, 3, 16, 100)
    nested = a_model(tmp_path / "n")
    inner = {"num_hidden_layers": 5, "hidden_size": 8, "vocab_size": 9}
    (nested / "config.json").write_text(json.dumps({"text_config": inner}))
    assert sizes(str(nested)) == (172, 5, 8, 9)
    (nested / "config.json").write_text(json.dumps({"hidden_size": 8}))
    with pytest.raises(DataError, match="has no 'num_hidden_layers'"):
        model_shape(str(nested))


def test_a_model_that_is_not_here_has_the_tables_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUXFORGE_CACHE", str(tmp_path))
    monkeypatch.delenv("FLUXFORGE_MODELS", raising=False)
    assert sizes("tiny") == (134_515_008, 30, 576, 49152)
    assert sizes("Qwen/Qwen3.5-2B") == sizes("2b") == (1_881_825_088, 24, 2048, 248_320)
    assert model_shape("owner/unheard-of") is None and stored_parameters("2b") is None
    a_model(tmp_path / "SmolLM2-135M-Instruct")
    assert sizes("tiny") == (172, 3, 16, 100)
    monkeypatch.setenv("FLUXFORGE_MODELS", str(tmp_path / "models"))
    a_model(tmp_path / "models" / "Qwen3.5-2B")
    assert sizes("Qwen/Qwen3.5-2B") == (172, 3, 16, 100)


def test_broken_model_files_are_named(tmp_path: Path) -> None:
    folder = a_model(tmp_path / "m")
    (folder / "model-2.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(DataError, match=r"model-2\.safetensors: not a safetensors file"):
        model_shape(str(folder))
    (folder / "model-2.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match=r"model-2\.safetensors"):
        model_shape(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config\.json: not JSON"):
        model_shape(str(folder))


def test_the_tiny_recipe_fits_a_laptop(host: None) -> None:
    assert 5 < estimate(config_of()).memory_gib < 12


def test_the_parts_of_training_all_weights(host: None) -> None:
    def config_of(*words: str) -> OpdConfig:
        return load_config("opd", ["--student.freeze_embeddings=false", *words])

    plan = estimate(config_of())
    kinds = ("weights", "gradients", "optimizer")
    trained = sum(plan.memory[f"student {kind}"] for kind in kinds)
    bf16 = estimate(config_of("--student.dtype", "bfloat16")).memory
    assert bf16["student weights"] == pytest.approx(2 * 134.5e6 / 2**30, rel=0.01)
    assert bf16["student gradients"] == pytest.approx(4 * 134.5e6 / 2**30, rel=0.01)
    assert bf16["student optimizer"] == pytest.approx(12 * 134.5e6 / 2**30, rel=0.01)
    fp32 = estimate(config_of("--student.dtype", "float32")).memory
    assert fp32["student optimizer"] == pytest.approx(8 * 134.5e6 / 2**30, rel=0.01)  # its own masters
    assert 16 * 134.5e6 < trained * 2**30 < 18.1 * 134.5e6
    adapter = estimate(config_of("--student.lora.rank", "8"))
    assert adapter.memory_gib < plan.memory_gib - 1 and adapter.disk_gib < plan.disk_gib
    less = estimate(
        config_of("--student.gradient_checkpointing", "true", "--student.tokens_per_micro", "1024")
    )
    assert less.memory["student activations"] < plan.memory["student activations"] / 4
    assert estimate(config_of(), training=False).memory_gib < plan.memory_gib - trained


def test_a_teacher_counts_unless_it_is_the_oracle(host: None) -> None:
    assert "teacher" in estimate(config_of("--opd.teacher", "privileged")).memory
    assert "teacher" not in estimate(config_of("--opd.teacher", "oracle", "--opd.loss", "expert")).memory
    big = estimate(config_of("--student.dtype=bfloat16", "--opd.teacher=model", "--opd.teacher_model=2b"))
    assert big.memory["teacher"] == pytest.approx(2 * 1.882e9 / 2**30, rel=0.01)


def test_too_little_memory_is_said_with_both_numbers(
    tmp_path: Path, host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "available_gib", lambda device: 3.5)
    with pytest.raises(
        ConfigError, match=r"needs about \d+\.\d GiB of host memory .* 3\.5 GiB are available"
    ):
        check(config_of(), tmp_path / "runs")
    monkeypatch.setattr(preflight, "available_gib", lambda device: 64.0)
    assert check(config_of(), tmp_path / "runs") == []
    assert not (tmp_path / "runs").exists()


def test_too_little_disk_is_said_with_both_numbers(tmp_path: Path, host: None) -> None:
    config = config_of("--checkpoint.keep", "1000000")
    with pytest.raises(ConfigError, match=r"need about [\d.]+ GiB of disk .*, [\d.]+ GiB are free"):
        check(config, tmp_path / "runs")
    check(config, tmp_path / "runs", training=False)


@pytest.fixture
def with_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout.models.vllm_available", lambda: (True, "vLLM is installed"))
    monkeypatch.setattr(inputs, "dashboard_installed", lambda: True)


def test_a_port_in_use(tmp_path: Path, host: None, with_dashboard: None) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} \(engine.dashboard_port\)"):
            check(config_of("--engine.dashboard_port", str(port)), tmp_path)
    check(config_of("--engine.dashboard_port", str(port)), tmp_path)


def test_a_dashboard_needs_its_packages_and_a_ray_of_its_own(
    tmp_path: Path, host: None, with_dashboard: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = ("--engine.dashboard_port", "8299")
    monkeypatch.setattr(inputs, "check_port", lambda port: None)
    monkeypatch.setattr(inputs, "dashboard_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"dashboard_port .* not installed; .*ray\[default\]"):
        check(config_of(*port), tmp_path)
    for other in ("--engine.kind=local", "--engine.ray_address=10.0.0.1:6379"):
        assert any("dashboard_port is not used" in note for note in check(config_of(*port, other), tmp_path))


def test_a_folder_that_is_no_model(tmp_path: Path, host: None) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingFiles, match=r"empty is not a complete model folder: config.json is missing"):
        check(config_of("--tracker", str(tmp_path / "empty")), tmp_path)
    inputs.check_model(config_of("--tracker", str(a_model(tmp_path / "m"))))
    inputs.check_model(config_of())  # a size name is found, or fetched, later


def test_data_folders(tmp_path: Path, host: None) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingFiles, match=r"holds none of: .*gsm8k/"):
        check(config_of("--data", str(tmp_path / "empty")), tmp_path)
    (tmp_path / "data" / "gsm8k").mkdir(parents=True)
    check(config_of("--data", str(tmp_path / "data")), tmp_path)


def test_remarks(host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = estimate(
        config_of("--warmup.steps=0", "--engine.threads=100000", "--opd.teacher=privileged")
    ).notes
    assert any("untrained model" in note for note in notes) and any("100000" in note for note in notes)
    assert any("not checked" in note for note in estimate(config_of("--tracker", "a/b")).notes)
    monkeypatch.setattr("rollout.models.vllm_available", lambda: (False, "no wheel for this machine"))
    plan = estimate(config_of())
    assert "engine: local (transformers, in process), because no wheel for this machine" in plan.notes
    assert plan.memory["engine KV cache"] == 0.0


def test_what_is_available_is_less_than_the_machine_has() -> None:
    import psutil

    free = available_gib("host")
    assert free is not None and 0 < free <= psutil.virtual_memory().total / 2**30
    assert Plan({"a": 1.5, "b": 2.0}).memory_gib == 3.5


def test_bench_writes_rows_and_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    import recipes.bench

    entry = {"row": "speed", "ours": 3.0, "other": 1.0, "ratio": 3.0, "goal": 2.0}
    module = types.SimpleNamespace(rows=lambda: [entry])
    monkeypatch.setattr(recipes.bench, "modules", lambda: ["speed"])
    monkeypatch.setattr("importlib.import_module", lambda name: module)
    (tmp_path / "result.json").write_text(json.dumps([{**entry, "row": "old"}, {**entry, "ours": 1.0}]))
    path = run_bench([], tmp_path)
    assert json.loads(path.read_text()) == [{**entry, "row": "old"}, entry]
