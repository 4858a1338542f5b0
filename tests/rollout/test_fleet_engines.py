"""The fleet with real engines: in this process, and once in Ray actors; how weights travel to them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from envs.errors import ConfigError, EngineError
from rollout.engine import EngineConfig, GenerateRequest, ScoreRequest
from rollout.fleet import Fleet, Limits
from rollout.handles import pack_weights, unpack_weights


def test_bad_arguments() -> None:
    config = EngineConfig("/nowhere")
    with pytest.raises(ConfigError, match="vllm"):
        asyncio.run(Fleet.start("vlm", config))
    with pytest.raises(ConfigError, match="replica"):
        asyncio.run(Fleet.start("local", config, replicas=0))
    with pytest.raises(EngineError, match="/nowhere"):
        asyncio.run(Fleet.start("local", config))


def test_auto_says_which_engine_and_why(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rollout.models.vllm_available", lambda: (False, "no wheels for this machine"))

    async def run() -> None:
        fleet = await Fleet.start("auto", EngineConfig(str(tiny_llama), 64, "float32", threads=1))
        assert len((await fleet.generate([GenerateRequest([1], 2, ())]))[0].output_ids) == 2
        await fleet.close()

    with caplog.at_level(logging.INFO, "fluxforge"):
        asyncio.run(run())
    assert "local (no wheels for this machine)" in caplog.text


def test_local_engines_are_replaced_with_the_current_weights(tiny_llama: Path) -> None:
    async def run() -> None:
        config = EngineConfig(str(tiny_llama), 512, "float32", threads=1)
        fleet = await Fleet.start("local", config, limits=Limits(backoff_s=0.01))
        engine = fleet._replicas[0].handle.engine  # type: ignore[union-attr]
        weights = {name: tensor + 0.1 for name, tensor in engine._core.model.named_parameters()}
        await fleet.load_weights(weights, 4)
        request = GenerateRequest([1, 2], 300, (), seed=3)
        expected = (await fleet.generate([request]))[0]
        running = asyncio.create_task(fleet.generate([request]))
        await asyncio.sleep(0.05)
        await fleet.kill_replica(0)
        done = (await running)[0]
        assert (done.output_ids, done.weight_version) == (expected.output_ids, 4)
        assert (await fleet.health())["restarts"] == 1
        await fleet.close()

    asyncio.run(run())


def test_weights_survive_packing() -> None:
    weights = {
        "a": torch.randn(3, 4),
        "b": torch.randn(5, dtype=torch.bfloat16).t(),
        "c": torch.arange(6).reshape(2, 3),
        "d": torch.randn(4, 4).t()[1:],
    }
    back = unpack_weights(pack_weights(weights, "bfloat16"))
    for name, tensor in weights.items():
        expected = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        assert back[name].dtype == expected.dtype
        assert torch.equal(back[name], expected)


@pytest.mark.slow
def test_real_engines_in_ray_actors_die_and_come_back(tiny_llama: Path) -> None:
    pytest.importorskip("vllm")
    ray = pytest.importorskip("ray")

    async def run() -> None:
        config = EngineConfig(str(tiny_llama), 512, "float32", kv_cache_gib=0.05, threads=1)
        fleet = await Fleet.start("vllm", config, replicas=2)
        try:
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
            weights = {name: tensor.detach() + 0.05 for name, tensor in model.named_parameters()}
            await fleet.load_weights(weights, 2)
            requests = [GenerateRequest([1 + i, 2, 3], 200, (), seed=i, group=f"d{i}") for i in range(8)]
            expected = [done.output_ids for done in await fleet.generate(requests)]
            running = asyncio.create_task(fleet.generate(requests))
            await asyncio.sleep(0.2)
            await fleet.kill_replica(0)
            done = await running
            assert [one.output_ids for one in done] == expected  # seeded: sent again, the same answers
            assert {one.weight_version for one in done} == {2}
            for replica in fleet._replicas:
                if replica.repair is not None:
                    await replica.repair
            health = await fleet.health()
            assert (health["alive"], health["restarts"]) == (2, 1)
            scores = await fleet.score([ScoreRequest([1, 2, 3, 4], [1, 2, 3])])
            assert np.isfinite(scores[0].token_logprobs_P).all()
        finally:
            await fleet.close()
        assert not ray.is_initialized()

    asyncio.run(run())


@pytest.mark.slow
def test_a_wrong_model_folder_ends_the_start_and_ray(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    ray = pytest.importorskip("ray")
    with pytest.raises(EngineError, match="could not start"):
        asyncio.run(Fleet.start("vllm", EngineConfig(str(tmp_path), 64)))
    assert not ray.is_initialized()
