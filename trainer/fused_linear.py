"""Rows of logits from hidden states and a head, a chunk at a time, and gradients back from them.

The losses of `divergence` and `linear_ce` share this: they never hold tokens x vocabulary in memory, only one
fp32 block of `chunk_rows` x V, which is logits first and the gradient of the loss in the logits afterwards.

Shape suffixes: N tokens, C tokens of one chunk, D width of the hidden states, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

BLOCK_BYTES = 40 * 2**20
"""Size that one fp32 block of logits may have: small against the logits of a batch, big enough for fast products."""

SLICE_BYTES = 2 * 2**20
"""Point-wise work runs on slices of a block that stay in the cache of a core."""

VOCAB_CHUNK = 2048
"""Columns of one matrix product. Narrow products read their part of the head from cache."""


def rows_per_block(vocab: int, limit_bytes: int = BLOCK_BYTES) -> int:
    """Return how many rows of `vocab` fp32 logits make one block: 16 to 128, a multiple of 16."""
    return max(16, min(128, limit_bytes // (4 * vocab) // 16 * 16))


def row_slices(rows: int, vocab: int) -> Iterator[slice]:
    """Yield slices of `rows` that are small enough for point-wise work in cache."""
    step = max(1, min(rows, SLICE_BYTES // (4 * vocab)))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def project(
    hidden_CD: Tensor, head_VD: Tensor, out_CV: Tensor, chunk_vocab: int, matmul: torch.dtype | None
) -> None:
    """Write `hidden @ head.T` into the fp32 block `out_CV`.

    `matmul` is the dtype that the factors are brought to; the product comes out in it before it is widened, so
    bfloat16 rounds the logits to 8 bits. None is float32, whatever the inputs are: logits of 20 would
    otherwise be off by 0.06, which is more than a converged divergence.
    """
    dtype = matmul or torch.float32
    widened = dtype == torch.float32 and hidden_CD.dtype == head_VD.dtype == torch.bfloat16
    with _bfloat16_units() if widened and hidden_CD.device.type == "cpu" else nullcontext():
        _project(hidden_CD.to(dtype), head_VD, out_CV, chunk_vocab, dtype)


@contextmanager
def _bfloat16_units() -> Iterator[None]:
    """Let float32 products run on the CPU's bfloat16 units, if it has any. Sums stay float32, so for factors that were
    bfloat16 before nothing is rounded."""
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    kept = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = kept


def _project(
    hidden_CD: Tensor, head_VD: Tensor, out_CV: Tensor, chunk_vocab: int, dtype: torch.dtype
) -> None:
    for start in range(0, head_VD.shape[0], chunk_vocab):
        part_vD = head_VD[start : start + chunk_vocab].to(dtype)
        part_Cv = out_CV[:, start : start + chunk_vocab]
        if dtype == torch.float32:
            torch.mm(hidden_CD, part_vD.t(), out=part_Cv)
        else:
            part_Cv.copy_(hidden_CD @ part_vD.t())


def back_project(
    grad_CV: Tensor,
    hidden_CD: Tensor,
    head_VD: Tensor,
    scale_C: Tensor,
    grad_hidden_CD: Tensor | None,
    grad_head_VD: Tensor | None,
) -> None:
    """Turn the gradient in a block of logits into those of its hidden states (written) and of the head (added).

    Row i counts `scale_C[i]` times. `grad_head_VD` is fp32. The product for the hidden states runs in the head's dtype.
    """
    if grad_hidden_CD is not None:
        grad_hidden_CD.copy_(grad_CV.to(head_VD.dtype) @ head_VD)
        grad_hidden_CD.mul_(scale_C.unsqueeze(1))
    if grad_head_VD is not None:
        grad_head_VD.addmm_(grad_CV.t(), hidden_CD.float() * scale_C.unsqueeze(1))


def check_shapes(hidden_ND: Tensor, head_VD: Tensor, **per_token: Tensor | None) -> None:
    """Raise `ValueError` naming the tensor whose shape does not fit the hidden states and head."""
    if hidden_ND.ndim != 2 or head_VD.ndim != 2 or hidden_ND.shape[1] != head_VD.shape[1]:
        raise ValueError(
            f"hidden states {tuple(hidden_ND.shape)} and head {tuple(head_VD.shape)} must be [N, D] and [V, D]"
        )
    for name, tensor in per_token.items():
        if tensor is not None and tuple(tensor.shape) != (hidden_ND.shape[0],):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, expected [{hidden_ND.shape[0]}], one per token"
            )
