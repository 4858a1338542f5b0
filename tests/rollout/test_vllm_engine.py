"""What only the vLLM engine does: prefix cache, and weights that are read back after a load."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envs.errors import EngineError
from rollout.checks import check_weights
from rollout.engine import EngineConfig, GenerateRequest
from rollout.fleet import Fleet
from rollout.vllm_engine import checkpoint_shapes, engine_arguments, process_env

STALE_HEAD = """
import asyncio, sys
import torch
from transformers import AutoModelForCausalLM
import rollout.vllm_worker
from envs.errors import EngineDied
from rollout.engine import EngineConfig
from rollout.vllm_engine import VllmEngine

async def main(folder):
    engine = VllmEngine(EngineConfig(folder, 64, "bfloat16", kv_cache_gib=0.05, threads=1))
    rollout.vllm_worker.repack_tied_head = lambda model: None
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    weights = {name: tensor.detach() + 0.01 for name, tensor in model.named_parameters()}
    try:
        await engine.load_weights(weights, 1)
    except EngineDied as error:
        print("REFUSED", error, flush=True)

asyncio.run(main(sys.argv[1]))
"""


def test_shapes_come_from_the_checkpoint(tiny_llama: Path) -> None:
    shapes = checkpoint_shapes(tiny_llama)
    assert shapes["model.embed_tokens.weight"] == (288, 64)
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (32, 64)
    assert "lm_head.weight" not in shapes
    with pytest.raises(EngineError, match="20 missing"):
        check_weights({}, shapes)


def test_arguments_of_the_caller_win() -> None:
    arguments = engine_arguments(EngineConfig("m", 4096, "float32", extra={"block_size": 64}), on_cpu=True)
    assert arguments["block_size"] == 64
    assert arguments["max_num_batched_tokens"] == 4096  # whole prompts
    assert "block_size" not in engine_arguments(EngineConfig("m", 4096, "float32"), on_cpu=False)
    assert process_env(3)["OMP_NUM_THREADS"] == "3"


@pytest.mark.slow
def test_growing_dialogues_hit_the_prefix_cache(tiny_llama: Path) -> None:
    pytest.importorskip("vllm")
    pytest.importorskip("ray")

    async def play(fleet: Fleet, number: int) -> None:
        ids = [7] * 60  # a system prompt that all share
        for turn in range(8):
            ids += [(number * 31 + turn * 17 + at) % 250 for at in range(20)]
            request = GenerateRequest(ids, 20, (), seed=turn, group=str(number))
            ids += (await fleet.generate([request]))[0].output_ids

    async def run() -> None:
        fleet = await Fleet.start("vllm", EngineConfig(str(tiny_llama), 512, "float32", kv_cache_gib=0.05))
        try:
            await asyncio.gather(*[play(fleet, number) for number in range(6)])
            assert fleet.counters["cached_tokens"] >= 0.8 * fleet.counters["prompt_tokens"]
        finally:
            await fleet.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_load_that_did_not_take_is_noticed(tiny_llama: Path) -> None:
    """Leave out the step that `reload_weights` forgets, and see that the engine refuses to go on."""
    pytest.importorskip("vllm")
    env = {**os.environ, **process_env(1), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", STALE_HEAD, str(tiny_llama)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "REFUSED" in done.stdout, done.stderr[-2000:]
    assert "do not hold what was sent (model.embed_tokens.weight" in done.stdout
