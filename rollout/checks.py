"""What every engine refuses before it starts, so that both implementations refuse the same things."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from envs.errors import EngineError
from rollout.engine import GenerateRequest, ScoreRequest

if TYPE_CHECKING:
    import torch

MAX_TOP_K = 128
"""Most candidates per position an engine returns (`top_k`, `top_k_logprobs`)."""

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy, as in vLLM."""


def check_generate(request: GenerateRequest, max_model_len: int, vocab_size: int) -> None:
    """Raise `EngineError` unless there is a prompt of known ids with room for one token after it.

    `max_tokens` beyond that room is no error: the completion then ends with "length" at `max_model_len`.
    """
    _check_ids("prompt", request.prompt_ids, vocab_size)
    _check_length("a prompt", len(request.prompt_ids), max_model_len)
    if request.max_tokens < 1:
        raise EngineError(f"max_tokens must be at least 1, got {request.max_tokens}")
    if not (math.isfinite(request.temperature) and request.temperature >= 0):
        raise EngineError(f"temperature must be finite and >= 0, got {request.temperature}")
    if not 0 <= request.top_k_logprobs <= min(MAX_TOP_K, vocab_size):
        raise EngineError(
            f"top_k_logprobs must be in 0..{min(MAX_TOP_K, vocab_size)}, got {request.top_k_logprobs}"
        )


def check_score(request: ScoreRequest, max_model_len: int, vocab_size: int) -> None:
    """Raise `EngineError` unless positions, candidates and length fit. One token of room must remain, because
    vLLM emits one dummy token when it scores.
    """
    _check_ids("sequence", request.ids, vocab_size)
    _check_length("a sequence to score", len(request.ids), max_model_len)
    count = len(request.ids)
    for position in request.positions:
        if not 1 <= position < count:
            raise EngineError(
                f"positions must be in 1..{count - 1} for a sequence of {count} ids, got {position}"
            )
    if request.candidates_PK is not None and request.top_k:
        raise EngineError("give candidates_PK or top_k, not both")
    if not 0 <= request.top_k <= min(MAX_TOP_K, vocab_size):
        raise EngineError(f"top_k must be in 0..{min(MAX_TOP_K, vocab_size)}, got {request.top_k}")
    if request.candidates_PK is not None:
        shape = request.candidates_PK.shape
        if len(shape) != 2 or shape[0] != len(request.positions) or shape[1] < 1:
            raise EngineError(f"candidates_PK must be [{len(request.positions)}, K >= 1], got {list(shape)}")
        if shape[0] and not (request.candidates_PK.min() >= 0 and request.candidates_PK.max() < vocab_size):
            raise EngineError(f"candidate ids must be in 0..{vocab_size - 1}")


def check_version(new: int, current: int) -> None:
    """Versions only grow. The same one may be sent again: a caller that saw a timeout repeats itself."""
    if new < current:
        raise EngineError(
            f"weight version {new} is older than {current}, which is loaded; versions only grow"
        )


def check_weights(
    weights: Mapping[str, torch.Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    tied: Iterable[Sequence[str]] = (),
) -> None:
    """Raise `EngineError` unless `weights` holds every name of `shapes`, in shape, and no other.

    Of the names in one group of `tied` one is enough; where several are given they must be equal.
    """
    import torch

    optional: set[str] = set()
    for group in tied:
        given = [name for name in group if name in weights]
        if given:
            optional.update(group)
        for name in given[1:]:
            one, other = weights[given[0]], weights[name]
            if one.data_ptr() != other.data_ptr() and not torch.equal(one, other):
                raise EngineError(
                    f"{given[0]} and {name} are tied in this model, but the tensors given differ"
                )
    unknown = sorted(set(weights) - set(shapes))
    missing = sorted(set(shapes) - set(weights) - optional)
    faults = []
    if unknown:
        faults.append(f"{len(unknown)} unknown ({_some(unknown)})")
    if missing:
        faults.append(f"{len(missing)} missing ({_some(missing)})")
    if faults:
        raise EngineError(f"weights do not fit the model: {'; '.join(faults)}. Nothing was loaded.")
    for name, tensor in weights.items():
        if tuple(tensor.shape) != tuple(shapes[name]):
            raise EngineError(
                f"weight {name} has shape {list(tensor.shape)}, the model has {list(shapes[name])}. Nothing was loaded."
            )


def _check_ids(what: str, ids: Sequence[int], vocab_size: int) -> None:
    if len(ids) == 0:
        raise EngineError(f"the {what} is empty; it needs at least one token id")
    if min(ids) < 0 or max(ids) >= vocab_size:
        bad = next(i for i in ids if not 0 <= i < vocab_size)
        raise EngineError(f"the {what} holds token id {bad}; the model knows 0..{vocab_size - 1}")


def _check_length(what: str, length: int, max_model_len: int) -> None:
    if length + 1 > max_model_len:
        raise EngineError(
            f"{what} of {length} tokens and one more do not fit max_model_len {max_model_len}; "
            f"shorten it or raise max_model_len"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
