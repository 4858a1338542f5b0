"""One suite for every engine: whoever implements `rollout.engine.Engine` passes it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from envs.errors import EngineDied, EngineError
from rollout.engine import Completion, Engine, EngineConfig, GenerateRequest, ScoreRequest
from rollout.fleet import Fleet
from rollout.local_engine import LocalEngine

MAX_LEN = 128
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}


class Case:
    """An engine under test, an event loop to drive it, and the same model in transformers."""

    def __init__(self, engine: Engine, runner: asyncio.Runner, folder: Path, dtype: str) -> None:
        self.engine, self.runner, self.folder, self.dtype = engine, runner, folder, dtype
        self.atol = TOLERANCE[dtype]
        self.versions = 0

    def generate(self, *requests: GenerateRequest) -> list[Completion]:
        return self.runner.run(self.engine.generate(requests))

    def score(self, *requests: ScoreRequest):
        return self.runner.run(self.engine.score(requests))

    def weights(self) -> dict[str, torch.Tensor]:
        model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    def load(self, weights: dict[str, torch.Tensor]) -> int:
        self.versions = self.runner.run(self.engine.version()) + 1
        self.runner.run(self.engine.load_weights(weights, self.versions))
        return self.versions

    def reference(self, ids: list[int], weights: dict[str, torch.Tensor] | None = None) -> np.ndarray:
        """Return log-probs [len(ids), V] by transformers: row i predicts id i + 1."""
        model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=getattr(torch, self.dtype))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if weights is not None:
                    parameter.copy_(weights[name])
            return model(torch.tensor([ids])).logits[0].float().log_softmax(-1).numpy()


def perturbed(weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    noise = torch.Generator().manual_seed(seed)
    return {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=noise) for name, tensor in weights.items()
    }


ENGINES = [
    pytest.param(("local", "tiny_llama", "float32"), id="local-llama"),
    pytest.param(("local", "tiny_llama", "bfloat16"), id="local-llama-bf16"),
    pytest.param(("local", "tiny_qwen35", "float32"), id="local-qwen35"),
    pytest.param(("fleet", "tiny_llama", "float32"), id="fleet-of-two-local"),
    pytest.param(("vllm", "tiny_llama", "float32"), id="vllm-llama", marks=pytest.mark.slow),
    pytest.param(("vllm", "tiny_llama", "bfloat16"), id="vllm-llama-bf16", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=ENGINES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    kind, model, dtype = request.param
    if kind == "vllm":
        pytest.importorskip("vllm")
        pytest.importorskip("ray")
    folder: Path = request.getfixturevalue(model)
    config = EngineConfig(str(folder), max_model_len=MAX_LEN, dtype=dtype, kv_cache_gib=0.05, threads=1)
    with asyncio.Runner() as runner:
        if kind == "local":
            engine: Engine = LocalEngine(config)
        else:
            replicas = 2 if kind == "fleet" else 1
            engine = runner.run(Fleet.start("vllm" if kind == "vllm" else "local", config, replicas=replicas))
        try:
            yield Case(engine, runner, folder, dtype)
        finally:
            runner.run(engine.close())


def test_greedy_is_the_argmax_and_repeatable(case: Case) -> None:
    request = GenerateRequest(range(40, 60), 12, (), temperature=0.0)
    first, second = case.generate(request)[0], case.generate(request)[0]
    assert first.output_ids == second.output_ids
    assert first.finish_reason == "length" and len(first.output_ids) == 12
    rows = case.reference([*range(40, 60), *first.output_ids])[19:-1]
    for row, token in zip(rows, first.output_ids, strict=True):
        assert row[token] >= row.max() - case.atol


def test_logprobs_are_those_of_the_model_before_temperature(case: Case) -> None:
    prompt = list(range(7, 20))
    done = case.generate(GenerateRequest(prompt, 10, (), temperature=0.5, seed=4))[0]
    ids = [*prompt, *done.output_ids]
    rows = case.reference(ids)
    expected = [rows[at - 1, ids[at]] for at in range(len(prompt), len(ids))]
    np.testing.assert_allclose(done.logprobs, expected, atol=case.atol)
    scored = case.score(ScoreRequest(ids, range(len(prompt), len(ids))))[0]
    assert scored.token_logprobs_P.dtype == np.float32
    np.testing.assert_allclose(done.logprobs, scored.token_logprobs_P, atol=case.atol)


def test_stop_id_ends_the_output_and_is_part_of_it(case: Case) -> None:
    prompt = list(range(90, 99))
    free = case.generate(GenerateRequest(prompt, 20, (), temperature=0.0))[0].output_ids
    stop = free[3]
    done = case.generate(GenerateRequest(prompt, 20, (stop, 1), temperature=0.0))[0]
    assert done.finish_reason == "stop"
    assert done.output_ids == free[: free.index(stop) + 1]
    assert len(done.logprobs) == len(done.output_ids)


def test_stop_id_on_the_last_allowed_token_counts_as_stop(case: Case) -> None:
    prompt = list(range(90, 99))
    free = case.generate(GenerateRequest(prompt, 1, (), temperature=0.0))[0].output_ids
    done = case.generate(GenerateRequest(prompt, 1, free, temperature=0.0))[0]
    assert (done.output_ids, done.finish_reason) == (free, "stop")


def test_length_ends_at_max_model_len(case: Case) -> None:
    done = case.generate(GenerateRequest([5] * (MAX_LEN - 3), 50, (), temperature=0.0))[0]
    assert (len(done.output_ids), done.finish_reason) == (3, "length")


def test_a_seed_repeats_and_seeds_differ(case: Case) -> None:
    def sample(seed: int) -> tuple[int, ...]:
        return case.generate(GenerateRequest([3, 4, 5], 16, (), seed=seed))[0].output_ids

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(5)}) == 5


def test_neighbours_do_not_change_the_answer(case: Case) -> None:
    request = GenerateRequest(range(30, 41), 12, (), temperature=0.0)
    seeded = GenerateRequest(range(30, 41), 12, (), temperature=1.0, seed=9)
    crowd = [GenerateRequest([i + 1] * (3 * i + 1), 3 + i, (), seed=i) for i in range(12)]
    alone = case.generate(request)[0], case.generate(seeded)[0]
    together = case.generate(*crowd[:6], request, seeded, *crowd[6:])
    if case.dtype == "float32":  # in bf16 near ties may fall either way
        assert together[6].output_ids == alone[0].output_ids
        assert together[7].output_ids == alone[1].output_ids
    same = min(len(alone[0].output_ids), 1)
    np.testing.assert_allclose(together[6].logprobs[:same], alone[0].logprobs[:same], atol=case.atol)


def test_requests_that_come_later_join_in(case: Case) -> None:
    async def late() -> list[Completion]:
        long = asyncio.create_task(
            case.engine.generate([GenerateRequest([9, 8, 7], 100, (), temperature=0.0)])
        )
        await asyncio.sleep(0.02)
        short = await case.engine.generate([GenerateRequest([1, 2], 3, (), temperature=0.0)])
        return [*short, *await long]

    short, long = case.runner.run(late())
    assert (len(short.output_ids), len(long.output_ids)) == (3, 100)
    ids = [9, 8, 7, *long.output_ids]
    rows = case.reference(ids)
    np.testing.assert_allclose(
        long.logprobs, [rows[at - 1, ids[at]] for at in range(3, len(ids))], atol=2 * case.atol
    )


def test_many_long_seeded_prompts_at_once(case: Case) -> None:
    """More prompt tokens than one forward takes; vLLM on CPU once died of a seeded prompt split over two."""
    requests = [
        GenerateRequest([(i * j) % 250 for j in range(100)], 3, (), temperature=1.0, seed=i)
        for i in range(30)
    ]
    done = case.generate(*requests)
    assert [len(one.output_ids) for one in done] == [3] * 30
    if case.dtype == "float32":
        assert case.generate(requests[17])[0].output_ids == done[17].output_ids


def test_one_token_prompt(case: Case) -> None:
    done = case.generate(GenerateRequest([65], 4, (), temperature=0.0))[0]
    row = case.reference([65])[0]
    assert row[done.output_ids[0]] >= row.max() - case.atol


def test_top_k_while_generating(case: Case) -> None:
    done = case.generate(GenerateRequest([65, 66], 5, (), temperature=1.0, seed=2, top_k_logprobs=4))[0]
    assert done.top_ids_PK is not None and done.top_logprobs_PK is not None
    assert done.top_ids_PK.shape == done.top_logprobs_PK.shape == (5, 4)
    assert (np.diff(done.top_logprobs_PK, axis=1) <= 0).all()
    rows = case.reference([65, 66, *done.output_ids])[1:-1]
    best = -np.sort(-rows, axis=1)[:, :4]
    np.testing.assert_allclose(done.top_logprobs_PK, best, atol=case.atol)
    assert case.generate(GenerateRequest([65], 2, ()))[0].top_ids_PK is None


def test_score_top_k_and_row_count(case: Case) -> None:
    ids = list(range(50, 80))
    positions = [1, 2, 17, 29]
    scores = case.score(ScoreRequest(ids, positions, top_k=5), ScoreRequest(ids[:2], [1]))
    rows = case.reference(ids)[np.array(positions) - 1]
    assert scores[0].logprobs_PK is not None and scores[0].top_ids_PK is not None
    assert scores[0].logprobs_PK.shape == scores[0].top_ids_PK.shape == (4, 5)
    np.testing.assert_allclose(scores[0].logprobs_PK, -np.sort(-rows, axis=1)[:, :5], atol=case.atol)
    tokens = rows[range(4), [ids[position] for position in positions]]
    np.testing.assert_allclose(scores[0].token_logprobs_P, tokens, atol=case.atol)
    assert scores[1].token_logprobs_P.shape == (1,) and scores[1].logprobs_PK is None


def test_score_at_chosen_ids(case: Case) -> None:
    ids, positions = list(range(50, 60)), [3, 9]
    candidates = np.array([[0, 287, 12], [5, 5, 100]])
    request = ScoreRequest(ids, positions, candidates_PK=candidates)
    able = case.runner.run(case.engine.capabilities())["score_candidates"]  # type: ignore[attr-defined]
    if not able:
        with pytest.raises(EngineError, match="candidate"):
            case.score(request)
        return
    scores = case.score(request)[0]
    rows = case.reference(ids)[np.array(positions) - 1]
    np.testing.assert_allclose(scores.logprobs_PK, np.take_along_axis(rows, candidates, 1), atol=case.atol)
    assert scores.top_ids_PK is None


def test_empty_batches(case: Case) -> None:
    assert case.generate() == []
    assert case.score() == []


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (GenerateRequest([7] * MAX_LEN, 4, ()), (str(MAX_LEN), "max_model_len")),
        (GenerateRequest([], 4, ()), ("empty",)),
        (GenerateRequest([1, 288], 4, ()), ("288", "287")),
        (GenerateRequest([1, -1], 4, ()), ("-1",)),
        (GenerateRequest([1], 0, ()), ("max_tokens",)),
        (GenerateRequest([1], 1, (), temperature=-1.0), ("temperature",)),
        (GenerateRequest([1], 1, (), temperature=float("nan")), ("temperature",)),
        (GenerateRequest([1], 1, (), top_k_logprobs=1000), ("top_k",)),
        (ScoreRequest([7] * MAX_LEN, [1]), (str(MAX_LEN), "max_model_len")),
        (ScoreRequest([1, 2], [0]), ("positions",)),
        (ScoreRequest([1, 2], [2]), ("positions",)),
        (ScoreRequest([1, 2], [1], candidates_PK=np.array([[1], [2]])), ("candidates",)),
        (ScoreRequest([1, 2], [1], candidates_PK=np.array([[288]])), ("candidate",)),
        (ScoreRequest([1, 2], [1], candidates_PK=np.array([[1]]), top_k=1), ("both",)),
    ],
)
def test_bad_requests_say_what_is_wrong(case: Case, request_: object, words: tuple[str, ...]) -> None:
    with pytest.raises(EngineError) as error:
        if isinstance(request_, GenerateRequest):
            case.generate(GenerateRequest([1], 1, ()), request_)
        else:
            case.score(request_)  # type: ignore[arg-type]
    assert not isinstance(error.value, EngineDied)
    for word in words:
        assert word in str(error.value)
    assert case.generate(GenerateRequest([1], 1, ()))  # and the engine goes on


def test_new_weights_are_used_everywhere_and_the_cache_is_dropped(case: Case) -> None:
    old = case.weights()
    prompt = list(range(100, 196))  # three full KV blocks of vLLM's
    request = GenerateRequest(prompt, 8, (), temperature=0.0)
    scoring = ScoreRequest(prompt, range(1, len(prompt)))
    tokens = prompt[1:]
    seen = []
    for seed in (1, 2, 3):
        new = perturbed(old, seed)
        case.generate(request)  # fills the prefix cache with the keys and values of the weights before
        version = case.load(new)
        done, scores = case.generate(request)[0], case.score(scoring)[0]
        assert done.weight_version == scores.weight_version == version
        rows = case.reference([*prompt, *done.output_ids], new)
        np.testing.assert_allclose(
            scores.token_logprobs_P, rows[range(len(tokens)), tokens], atol=3 * case.atol
        )
        expected = [rows[len(prompt) - 1 + at, token] for at, token in enumerate(done.output_ids)]
        np.testing.assert_allclose(done.logprobs, expected, atol=3 * case.atol)
        seen.append(done.output_ids)
    assert len(set(seen)) == 3
    case.load(old)
    again = case.score(scoring)[0]
    rows = case.reference(prompt)
    np.testing.assert_allclose(again.token_logprobs_P, rows[range(len(tokens)), tokens], atol=3 * case.atol)


def test_a_load_waits_for_what_runs_and_holds_back_what_comes(case: Case) -> None:
    old = case.weights()
    before = case.runner.run(case.engine.version())

    async def run() -> tuple[list[Completion], list[Completion]]:
        first = asyncio.create_task(case.engine.generate([GenerateRequest([1, 2, 3], 60, (), seed=1)]))
        await asyncio.sleep(0.01)
        load = asyncio.create_task(case.engine.load_weights(perturbed(old, 7), before + 1))
        results = await asyncio.gather(first, load)
        return results[0], await case.engine.generate([GenerateRequest([1, 2, 3], 60, (), seed=1)])

    first, second = case.runner.run(run())
    assert (first[0].weight_version, second[0].weight_version) == (before, before + 1)
    assert first[0].output_ids != second[0].output_ids
    case.load(old)


def test_wrong_weights_are_named_and_nothing_changes(case: Case) -> None:
    good = case.weights()
    name = "model.norm.weight"
    request = GenerateRequest([5, 6, 7], 8, (), temperature=0.0)
    before, version = case.generate(request)[0], case.runner.run(case.engine.version())
    for bad, word in (
        ({k: v for k, v in good.items() if k != name}, name),
        ({**good, "model.extra.weight": torch.zeros(2)}, "model.extra.weight"),
        ({**good, name: torch.zeros(3)}, name),
    ):
        with pytest.raises(EngineError, match=word):
            case.runner.run(case.engine.load_weights(bad, version + 1))
    assert case.runner.run(case.engine.version()) == version
    after = case.generate(request)[0]
    assert (after.output_ids, after.weight_version) == (before.output_ids, version)


def test_versions_only_grow(case: Case) -> None:
    weights = case.weights()
    version = case.load(weights)
    with pytest.raises(EngineError, match=str(version)):
        case.runner.run(case.engine.load_weights(weights, version - 1))
    assert case.runner.run(case.engine.version()) == version


def test_health_counts(case: Case) -> None:
    before = case.runner.run(case.engine.health())
    case.generate(GenerateRequest([1, 2, 3], 5, ()), GenerateRequest([1, 2], 4, ()))
    case.score(ScoreRequest([1, 2, 3], [1, 2]))
    after = case.runner.run(case.engine.health())
    assert after["requests"] - before["requests"] == 3
    assert after["output_tokens"] - before["output_tokens"] == 9
    assert after["scored_tokens"] - before["scored_tokens"] == 2
    assert after["active"] == 0


def test_closed_engine_is_dead(case: Case) -> None:
    """The last test of the module for each engine: it closes it."""
    case.runner.run(case.engine.close())
    with pytest.raises(EngineDied):
        case.generate(GenerateRequest([1], 1, ()))
    with pytest.raises(EngineDied):
        case.runner.run(case.engine.health())
