"""What an engine is: it knows token ids and nothing of text, dialogues or losses.

Shape suffixes: `P` scored positions, `K` candidate ids per position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Continue `prompt_ids`. Stops at `stop_ids` (the stop id is part of the output) or at `max_tokens`.

    `temperature` 0 is greedy. `seed` makes sampling repeatable. `group` keeps requests of one dialogue on one
    replica (prefix cache). `top_k_logprobs` asks for that many candidates per position (0: none).
    """

    prompt_ids: Sequence[int]
    max_tokens: int
    stop_ids: tuple[int, ...]
    temperature: float = 1.0
    seed: int | None = None
    group: str = ""
    top_k_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """`logprobs` are those of the sampled ids under the model (before temperature), one per output id.

    `finish_reason` is "stop" (a stop id was sampled and is the last output id) or "length".
    """

    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    weight_version: int
    cached_tokens: int = 0
    """Prompt tokens served from the prefix cache."""
    top_ids_PK: np.ndarray | None = None
    top_logprobs_PK: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Score `ids` at `positions`: row i is the distribution that predicts ids[positions[i]], 1 <= position < len.

    Give `candidates_PK` (log-probs at chosen ids) or `top_k` (the model's own best k), or neither: then only the
    log-prob of the token that stands there is returned.
    """

    ids: Sequence[int]
    positions: Sequence[int]
    candidates_PK: np.ndarray | None = None
    top_k: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class Scores:
    """`token_logprobs_P` float32; the others float32/int64 [P, K] where asked for, else None."""

    token_logprobs_P: np.ndarray
    logprobs_PK: np.ndarray | None
    top_ids_PK: np.ndarray | None
    weight_version: int


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How to start one engine."""

    model: str
    """A Hugging Face folder."""
    max_model_len: int = 2048
    dtype: str = "auto"
    """"auto" (bf16 where the hardware is fast in it), "bfloat16" or "float32"."""
    seed: int = 0
    kv_cache_gib: float = 1.0
    tensor_parallel: int = 1
    threads: int = 2
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Passed on to the implementation (vLLM engine arguments)."""


class Engine(Protocol):
    """The contract of DESIGN.md; `vllm` and `local` implement it, and one conformance suite runs on both.

    Errors: `EngineError` for a request that cannot be served, `EngineDied` when the process is gone,
    `EngineTimeout` at a deadline. Requests are independent: many may be in flight.
    """

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]: ...

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]: ...

    async def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Replace the weights in place by Hugging Face names; later requests see only the new ones."""
        ...

    async def version(self) -> int: ...

    async def health(self) -> Mapping[str, Any]:
        """Return counters (requests, tokens, cached tokens) or raise `EngineDied`."""
        ...

    async def close(self) -> None: ...
