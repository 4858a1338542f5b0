"""The memory account against real runs on this CPU: what autograd saves, and the resident memory of a training step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from recipes.count import shape_from_config, table
from recipes.memory import (
    GIB,
    Serving,
    Training,
    activation_bytes,
    engine_parts,
    kv_bytes_per_gpu,
    logit_block_bytes,
    sequences_held,
    total,
    trainer_parts,
)

ROOT = Path(__file__).resolve().parents[2]
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 4},
    "qwen3": {
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_attention_heads": 4,
        "head_dim": 32,
    },
}


def saved_bytes(values: dict[str, Any], tokens: int, checkpointing: bool = False) -> int:
    """Bytes of the tensors that one forward pass of transformers' model keeps, parameters left out."""
    from transformers import AutoConfig, AutoModelForCausalLM

    plain = {key: value for key, value in values.items() if key != "model_type"}
    config = AutoConfig.for_model(values["model_type"], **plain)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model.model(torch.arange(tokens)[None] % 50, use_cache=False).last_hidden_state
    assert hidden.requires_grad  # and alive, so no storage was given away twice
    return sum(kept.values())


@pytest.mark.parametrize("name", SHAPES)
def test_activations_are_within_a_fifth_of_what_autograd_saves(name: str) -> None:
    values = {**SHAPES[name], "num_key_value_heads": 2, "vocab_size": 50, "num_hidden_layers": 3}
    shape = shape_from_config(values)
    saved = saved_bytes(values, 200)
    assert activation_bytes(shape, 200, 4) == pytest.approx(saved, rel=0.2)
    kept = activation_bytes(shape, 200, 4, checkpointing=True)
    assert saved_bytes(values, 200, checkpointing=True) < kept < activation_bytes(shape, 200, 4)


SCRIPT = """
import json, sys, resource
from pathlib import Path
import torch
torch.set_num_threads(1)
from transformers import LlamaConfig, LlamaForCausalLM
from trainer.student import Student, StudentConfig
from trainer.types import Row

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))

settings = json.loads(sys.argv[1])
row = Row(id="a", ids=list(range(40)), spans=[(1, 40)])
small = LlamaConfig(vocab_size=64, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
config = StudentConfig(model="made", dtype=settings["dtype"], tokens_per_micro=64)
Student(config, LlamaForCausalLM(small)).step([row])  # what libraries take at first use is not counted
before = status("VmRSS")
torch.set_default_dtype(getattr(torch, settings["dtype"]))
model = LlamaForCausalLM(LlamaConfig(**settings["config"]))
torch.set_default_dtype(torch.float32)
student = Student(config, model)
Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
for _ in range(2):
    student.step([row])
print(json.dumps({"bytes": status("VmHWM") - before, "parameters": student.parameters_count}))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's peak of a process")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_gradients_and_optimizer_are_what_a_process_takes(dtype: str) -> None:
    """Within 10% of the resident memory at the peak of two real steps of a model with 33 million parameters."""
    values = {
        "vocab_size": 8192,
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 9,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps({"dtype": dtype, "config": values})],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    measured = json.loads(done.stdout.splitlines()[-1])
    shape = shape_from_config({**values, "model_type": "llama"})
    assert shape.parameters == measured["parameters"]
    size = 4 if dtype == "float32" else 2
    parts = trainer_parts(shape, Training(size, shape.parameters, tokens=40))
    assert total(parts) * GIB == pytest.approx(measured["bytes"], rel=0.10)


def test_zero_splits_what_its_stage_says() -> None:
    shape = shape_from_config(table()["9b"], "9b")
    whole = trainer_parts(shape, Training(2, shape.parameters, 4096))
    assert whole["weights"] * GIB == 2 * shape.parameters
    assert whole["gradients"] * GIB == 4 * shape.parameters
    assert whole["optimizer"] * GIB == 12 * shape.parameters
    for stage, split in enumerate([(), ("optimizer",), ("optimizer", "gradients")]):
        parts = trainer_parts(shape, Training(2, shape.parameters, 4096, ranks=4, zero=stage))
        assert parts == {part: gib / (4 if part in split else 1) for part, gib in whole.items()}
    third = trainer_parts(
        shape, Training(2, shape.parameters, 4096, ranks=4, zero=3, copied=shape.parameters)
    )
    assert third["weights"] == third["frozen start"] == whole["weights"] / 4
    assert third["gathered"] * GIB > 2 * 2 * shape.embedding  # head and embedding


def test_a_block_of_logits_is_that_of_the_fused_losses() -> None:
    from trainer.fused_linear import rows_per_block

    for vocab in (50, 32_768, 151_936, 248_320, 900_000):
        assert logit_block_bytes(vocab) == rows_per_block(vocab) * vocab * 4


def test_an_engines_cache_is_split_until_each_gpu_has_one_head() -> None:
    shape = shape_from_config(table()["122b"], "122b")  # two key heads
    one = Serving(kv_cache_gib=4.0)
    alone = kv_bytes_per_gpu(shape, one, 8192)
    assert alone == 24_576 * 8192 + shape.state_bytes()
    two, eight = (kv_bytes_per_gpu(shape, Serving(tensor_parallel=n), 8192) for n in (2, 8))
    assert two == alone / 2
    assert eight == 24_576 * 8192 / 2 + shape.state_bytes() / 8
    assert sequences_held(shape, one, 8192) == int(4 * GIB / alone)
    scored = engine_parts(shape, Serving(tensor_parallel=8, scores=True))
    plain = engine_parts(shape, Serving(tensor_parallel=8))
    assert scored["logits"] == 16 * plain["logits"] == 1024 * 248_320 * 8 / GIB
    assert scored["weights"] == pytest.approx(2 * 122.11e9 / 8 / GIB, rel=1e-4)
