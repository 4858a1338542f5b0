"""The `vllm` engine: vLLM with continuous batching and a prefix cache, one process a replica, CPU and GPU alike.

Shape suffixes: `P` scored positions, `K` candidates, `N` output tokens.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.errors import EngineError
from rollout.checks import GREEDY_BELOW, MAX_TOP_K, check_weights
from rollout.engine import Completion, EngineConfig, GenerateRequest, ScoreRequest, Scores
from rollout.engine_loop import COUNTERS, LoopEngine

CPU_BLOCK = 32
"""Tokens of a KV block on CPU. The least its attention kernel takes (the default is 128); only full blocks are
found again in the prefix cache, and a dialogue grows by some forty tokens a turn."""
CANARY_TOKENS = 16
"""Length of the sequence that is scored before and after a weight load."""
SAMPLE = 64
"""Values of each weight that are kept to tell whether the next load brings anything new."""


class VllmEngine(LoopEngine):
    """`Engine` over vLLM. It wants a process of its own, because vLLM changes the process: host it in a Ray actor.

    `EngineConfig.extra` holds vLLM engine arguments and wins over those chosen here. Scores at chosen candidates
    need vLLM's V2 model runner (`capabilities()["score_candidates"]`); it does not run on CPU.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(lambda: VllmCore(config), name=f"vllm engine ({config.model})")


def process_env(threads: int, on_cpu: bool = True) -> dict[str, str]:
    """Return the environment that a process with a `VllmEngine` needs, set before Python starts there."""
    env = {
        # The engine lives in our process: it dies with it, and only with it.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
    }
    if on_cpu:
        # Engines, trainer and environments share the cores of a small machine: no pinning.
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        # Execution is eager, but a few small functions of the sampler would still be compiled, for 20 s.
        env["TORCHDYNAMO_DISABLE"] = "1"
    return env


def engine_arguments(config: EngineConfig, on_cpu: bool) -> dict[str, Any]:
    """Return vLLM's engine arguments for `config`."""
    from rollout.models import best_compute_dtype

    arguments: dict[str, Any] = {
        "model": config.model,
        "skip_tokenizer_init": True,  # ids in, ids out
        "generation_config": "vllm",  # a model's own sampling defaults must not change what we sample
        "max_model_len": config.max_model_len,
        "dtype": best_compute_dtype() if config.dtype == "auto" else config.dtype,
        "seed": config.seed,
        "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30),
        "tensor_parallel_size": config.tensor_parallel,
        "enable_prefix_caching": True,
        "max_logprobs": MAX_TOP_K + 1,
        "logprobs_mode": "raw_logprobs",  # before temperature: what the contract promises
        "worker_extension_cls": "rollout.vllm_worker.WeightLoader",
        "disable_log_stats": True,
    }
    if on_cpu:
        arguments |= {
            "block_size": CPU_BLOCK,
            "enforce_eager": True,
            # A seeded request whose prompt is split over two steps ends vLLM 0.32 on CPU ("CPU Generator does
            # not use offset"), so prompts go in whole.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(2048, config.max_model_len),
            "max_num_seqs": 64,
        }
    return arguments | dict(config.extra)


@dataclass(slots=True)
class Pending:
    """A request inside vLLM and who waits for it."""

    request: GenerateRequest | ScoreRequest
    done: Future[Any]


class VllmCore:
    """vLLM's engine and the requests in it."""

    def __init__(self, config: EngineConfig) -> None:
        import torch

        for name, value in process_env(config.threads, not torch.cuda.is_available()).items():
            os.environ.setdefault(name, value)
        from vllm import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments = engine_arguments(config, on_cpu=current_platform.is_cpu())
        self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        model_config = self._engine.vllm_config.model_config
        self.max_model_len: int = model_config.max_model_len
        self.vocab_size: int = model_config.get_vocab_size()
        self.weight_version = 0
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._shapes = checkpoint_shapes(Path(config.model))
        self._tied = bool(getattr(model_config.hf_text_config, "tie_word_embeddings", False))
        self._numbers = itertools.count()
        self._pending: dict[str, Pending] = {}
        self._sample: dict[str, np.ndarray] = {}
        self._canary_ids = [
            (17 * i + 3) % self.vocab_size for i in range(min(CANARY_TOKENS, self.max_model_len - 1))
        ]

    def capabilities(self) -> Mapping[str, bool]:
        return {"score_candidates": bool(self._engine.vllm_config.use_v2_model_runner)}

    def shut(self) -> None:
        self._engine.engine_core.shutdown()

    def active(self) -> int:
        return len(self._pending)

    def admit_generate(self, request: GenerateRequest, done: Future[Completion]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        greedy = request.temperature < GREEDY_BELOW
        parameters = SamplingParams(
            temperature=0.0 if greedy else request.temperature,
            seed=None if greedy else request.seed,
            max_tokens=request.max_tokens,
            stop_token_ids=list(request.stop_ids),
            ignore_eos=True,  # the caller's stop ids, and only those
            logprobs=request.top_k_logprobs,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._add(request.prompt_ids, parameters, Pending(request, done))

    def admit_score(self, request: ScoreRequest, done: Future[Scores]) -> None:
        self._add(request.ids, self._score_parameters(request), Pending(request, done))

    def step(self) -> None:
        for output in self._engine.step():
            pending = self._pending.pop(output.request_id)
            self.counters["prompt_tokens"] += len(output.prompt_token_ids or ())
            self.counters["cached_tokens"] += output.num_cached_tokens or 0
            try:
                if isinstance(pending.request, GenerateRequest):
                    result: Any = self._completion(pending.request, output)
                else:
                    result = self._scores(pending.request, output)
            except EngineError as error:
                pending.done.set_exception(error)
            else:
                pending.done.set_result(result)

    def _add(self, ids: Any, parameters: Any, pending: Pending) -> None:
        number = f"r{next(self._numbers)}"
        try:
            self._engine.add_request(number, {"prompt_token_ids": list(ids)}, parameters)
        except ValueError as error:  # vLLM's validation; nothing was added
            raise EngineError(f"vLLM refuses the request: {error}") from error
        self._pending[number] = pending

    # Answers ----------------------------------------------------------------------------------------------

    def _completion(self, request: GenerateRequest, output: Any) -> Completion:
        one = output.outputs[0]
        ids = tuple(one.token_ids)
        if one.finish_reason not in ("stop", "length"):
            raise EngineError(f"vLLM ended a request with {one.finish_reason!r} ({one.stop_reason!r})")
        if one.logprobs is None or len(one.logprobs) != len(ids):
            raise EngineError(f"vLLM gave {len(one.logprobs or ())} log-probs for {len(ids)} tokens")
        entries = [one.logprobs[at] for at in range(len(ids))]
        self.counters["output_tokens"] += len(ids)
        top_ids_NK, top_logprobs_NK = _top(entries, request.top_k_logprobs)
        return Completion(
            output_ids=ids,
            logprobs=tuple(entry[token].logprob for entry, token in zip(entries, ids, strict=True)),
            finish_reason=one.finish_reason,
            weight_version=self.weight_version,
            cached_tokens=output.num_cached_tokens or 0,
            top_ids_PK=top_ids_NK,
            top_logprobs_PK=top_logprobs_NK,
        )

    def _score_parameters(self, request: ScoreRequest) -> Any:
        from vllm import SamplingParams

        common: dict[str, Any] = {"temperature": 1.0, "max_tokens": 1, "detokenize": False}
        if request.candidates_PK is None:
            return SamplingParams(prompt_logprobs=request.top_k, flat_logprobs=True, **common)
        # One row for each prompt token after the first; -1 marks what nobody asked for. The first column is the
        # token that stands there.
        rows = np.full((len(request.ids) - 1, request.candidates_PK.shape[1] + 1), -1, dtype=np.int64)
        at_P = np.asarray(request.positions, dtype=np.int64) - 1
        rows[at_P, 0] = np.asarray(request.ids)[at_P + 1]
        rows[at_P, 1:] = request.candidates_PK
        return SamplingParams(prompt_logprob_token_ids=rows, prompt_logprob_start=0, **common)

    def _scores(self, request: ScoreRequest, output: Any) -> Scores:
        self.counters["scored_tokens"] += len(request.positions)
        if request.candidates_PK is not None:
            rows = output.prompt_token_id_logprobs
            if rows is None or len(rows) != len(request.ids) - 1:
                raise EngineError(f"vLLM scored {_count(rows)} rows of {len(request.ids) - 1}")
            rows = rows[np.asarray(request.positions, dtype=np.int64) - 1]
            return Scores(rows[:, 0].copy(), rows[:, 1:].copy(), None, self.weight_version)
        # Entry t scores token t; the first is None, because nothing comes before it.
        logprobs = output.prompt_logprobs
        if logprobs is None or len(logprobs) != len(request.ids):
            raise EngineError(f"vLLM scored {_count(logprobs)} rows of {len(request.ids)}")
        entries = [logprobs[position] for position in request.positions]
        tokens = [request.ids[position] for position in request.positions]
        for entry, token, position in zip(entries, tokens, request.positions, strict=True):
            if not entry or token not in entry:
                raise EngineError(f"vLLM gave no score for the token at position {position}")
        top_ids_PK, top_logprobs_PK = _top(entries, request.top_k)
        return Scores(
            np.array([e[t].logprob for e, t in zip(entries, tokens, strict=True)], dtype=np.float32),
            top_logprobs_PK,
            top_ids_PK,
            self.weight_version,
        )

    # Weights ----------------------------------------------------------------------------------------------

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Replace all weights, drop the prefix cache, and make sure that the model holds what was sent.

        Weights are read back where they can be; beyond that, the answer to a fixed sequence must change when they
        do. A failure here leaves an engine with mixed weights, so it ends it: no `EngineError`.
        """
        tied = [("model.embed_tokens.weight", "lm_head.weight")] if self._tied else []
        shapes = dict(self._shapes)
        for group in tied:
            shapes.update({name: shapes[group[0]] for name in group if group[0] in shapes})
        check_weights(weights, shapes, tied)
        sent = {name: t for name, t in weights.items() if not (self._tied and name == "lm_head.weight")}
        if self._tied and "model.embed_tokens.weight" not in sent:
            sent["model.embed_tokens.weight"] = weights["lm_head.weight"]
        fresh = {name: _sample(tensor) for name, tensor in sent.items()}
        changed = sum(
            name in self._sample and not np.array_equal(sample, self._sample[name])
            for name, sample in fresh.items()
        )
        before = self._canary()
        reports = self._engine.collective_rpc("load_hf_weights", args=(sent, version))
        for read, wrong in reports:
            if wrong:
                raise RuntimeError(
                    f"{len(wrong)} of {read} weights do not hold what was sent ({wrong[0]}, ...)"
                )
        self.counters["weights_read_back"] = min(read for read, _ in reports)
        if not self._engine.reset_prefix_cache():
            raise RuntimeError(
                "vLLM did not drop its prefix cache, which holds keys and values of the old weights"
            )
        after = self._canary()
        if changed > len(fresh) // 10 and np.array_equal(before, after):
            raise RuntimeError(
                f"{changed} of {len(fresh)} weights changed, but the model answers exactly as before"
            )
        self._sample = fresh
        self.weight_version = version
        self.counters["weight_loads"] += 1

    def _canary(self) -> np.ndarray:
        """Return the log-probs of a fixed sequence, float32 [P]. Only when nothing else runs."""
        done: Future[Scores] = Future()
        self.admit_score(ScoreRequest(self._canary_ids, range(1, len(self._canary_ids))), done)
        while not done.done():
            self.step()
        scores = done.result().token_logprobs_P
        if not np.isfinite(scores).all():
            raise RuntimeError("the model gives log-probs that are not finite")
        return scores


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of a folder's safetensors, from their headers."""
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        files = sorted(file.name for file in folder.glob("*.safetensors"))
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        with safe_open(folder / file, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                shapes[name] = tuple(tensors.get_slice(name).get_shape())
    return shapes


def _sample(tensor: Any) -> np.ndarray:
    """Return up to `SAMPLE` values from all over a tensor, float32."""
    flat = tensor.detach().flatten()
    return flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE].float().cpu().numpy()


def _top(entries: list[Any], k: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the best `k` ids and log-probs per position. An entry has k or k + 1 of them, in no set order: the
    token that stands there comes on top of the best."""
    if not k:
        return None, None
    best = [sorted(entry.items(), key=lambda item: -item[1].logprob)[:k] for entry in entries]
    ids = np.array([[token for token, _ in row] for row in best], dtype=np.int64).reshape(-1, k)
    logprobs = np.array([[value.logprob for _, value in row] for row in best], dtype=np.float32).reshape(
        -1, k
    )
    return ids, logprobs


def _count(rows: Any) -> str:
    return "no" if rows is None else str(len(rows))
