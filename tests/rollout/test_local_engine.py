"""What only the local engine does: batching of its own, caches that are joined and cut, sampling."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.errors import EngineDied, EngineError
from rollout.engine import EngineConfig, GenerateRequest, ScoreRequest
from rollout.local_engine import LocalEngine, pad, sample


@pytest.mark.parametrize("model", ["tiny_llama", "tiny_qwen35"])
def test_joining_and_leaving_in_waves_changes_nothing(model: str, request: pytest.FixtureRequest) -> None:
    """Few rows at a time, prompts of very different length, so that rows wait, join, leave, and padding is cut."""
    folder = request.getfixturevalue(model)
    requests = [
        GenerateRequest([(7 * i + j) % 250 for j in range(1 + (37 * i) % 90)], 2 + (5 * i) % 17, (), 0.0)
        for i in range(14)
    ]

    async def run(max_rows: int) -> list[tuple[int, ...]]:
        engine = LocalEngine(
            EngineConfig(str(folder), 128, "float32", threads=1, extra={"max_rows": max_rows})
        )
        try:
            return [done.output_ids for done in await engine.generate(requests)]
        finally:
            await engine.close()

    alone = asyncio.run(run(1))
    assert [len(ids) for ids in alone] == [r.max_tokens for r in requests]
    assert asyncio.run(run(3)) == alone
    assert asyncio.run(run(64)) == alone


def test_many_scores_in_pieces(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [ScoreRequest(range(1, 3 + i), range(1, 2 + i), top_k=2) for i in range(20)]

    async def run() -> list[np.ndarray]:
        engine = LocalEngine(EngineConfig(str(tiny_llama), 128, "float32", threads=1))
        try:
            return [scores.token_logprobs_P for scores in await engine.score(requests)]
        finally:
            await engine.close()

    whole = asyncio.run(run())
    monkeypatch.setattr("rollout.local_engine.FORWARD_TOKENS", 50)
    monkeypatch.setattr("rollout.local_engine.HEAD_ROWS", 3)
    for one, other in zip(whole, asyncio.run(run()), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_failure_inside_ends_the_engine_and_everybody_hears_of_it(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        engine = LocalEngine(EngineConfig(str(tiny_llama), 128, "float32", threads=1))

        def broken(*args: object, **kwargs: object) -> None:
            raise MemoryError("no room")

        monkeypatch.setattr(engine._core.model, "forward", broken)  # type: ignore[union-attr]
        results = await asyncio.gather(
            *[engine.generate([GenerateRequest([1], 2, ())]) for _ in range(3)], return_exceptions=True
        )
        assert all(isinstance(result, EngineDied) and "no room" in str(result) for result in results)
        with pytest.raises(EngineDied, match="no room"):
            await engine.generate([GenerateRequest([1], 2, ())])

    asyncio.run(run())


def test_closing_ends_what_runs(tiny_llama: Path) -> None:
    async def run() -> None:
        engine = LocalEngine(EngineConfig(str(tiny_llama), 512, "float32", threads=1))
        running = asyncio.create_task(engine.generate([GenerateRequest([1], 500, ())]))
        await asyncio.sleep(0.05)
        await engine.close()
        with pytest.raises(EngineDied):
            await running
        await engine.close()

    asyncio.run(run())


def test_a_caller_that_gives_up_harms_nobody(tiny_llama: Path) -> None:
    async def run() -> None:
        engine = LocalEngine(EngineConfig(str(tiny_llama), 512, "float32", threads=1))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await engine.generate([GenerateRequest([1], 500, ())])
        (done,) = await engine.generate([GenerateRequest([1], 3, ())])
        assert len(done.output_ids) == 3
        await engine.close()

    asyncio.run(run())


def test_tied_weights_by_either_name(tiny_llama: Path) -> None:
    async def run() -> None:
        engine = LocalEngine(EngineConfig(str(tiny_llama), 128, "float32", threads=1))
        state = {k: v.detach().clone() for k, v in engine._core.model.state_dict().items()}  # type: ignore[union-attr]
        assert "lm_head.weight" in state and "model.embed_tokens.weight" in state
        await engine.load_weights(state, 1)
        head_only = {k: v for k, v in state.items() if k != "model.embed_tokens.weight"}
        await engine.load_weights(head_only, 2)
        state["lm_head.weight"] = state["lm_head.weight"] + 1
        with pytest.raises(EngineError, match="tied"):
            await engine.load_weights(state, 3)
        await engine.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"dtype": "float8"}, "float8"),
        ({"extra": {"block_size": 3}}, "block_size"),
    ],
)
def test_bad_configurations(tiny_llama: Path, change: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {
        "model": str(tiny_llama),
        "max_model_len": 64,
        "dtype": "float32",
        **change,
    }
    with pytest.raises(EngineError, match=words):
        LocalEngine(EngineConfig(**arguments))  # type: ignore[arg-type]


def test_sampling_follows_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.2, 0.0, 0.3])
    logits = probabilities.log().expand(4000, 4)
    randoms = [torch.Generator().manual_seed(seed) for seed in range(4000)]
    counts = torch.bincount(sample(logits, [1.0] * 4000, randoms), minlength=4) / 4000
    assert counts[2] == 0
    np.testing.assert_allclose(counts, probabilities, atol=0.03)
    hot = torch.bincount(sample(logits, [0.5] * 4000, randoms), minlength=4) / 4000
    np.testing.assert_allclose(hot, probabilities**2 / (probabilities**2).sum(), atol=0.03)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=5), st.booleans())
def test_padding_keeps_every_id_under_its_mask(sequences: list[list[int]], left: bool) -> None:
    ids_BL, mask_BL = pad(sequences, torch.device("cpu"), left=left)
    for row, ids in enumerate(sequences):
        assert ids_BL[row][mask_BL[row].bool()].tolist() == ids
        edge = mask_BL[row][-1 if left else 0]
        assert edge == 1
