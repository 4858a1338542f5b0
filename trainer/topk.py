"""Divergences on k tokens and one bucket for all the others, from hidden states and heads.

Cells are the tokens of a support S and the tail, which holds the rest; Q = 1 - sum_S q and P = 1 - sum_S p are the
tail's masses under student q and teacher p. The KL of these k + 1 cells is never negative and never above the KL over
the whole vocabulary, whatever S is, and equals it where S is the vocabulary. Without the tail it is no divergence:
training then pushes mass out of S.

    student_topk   S = the student's best k and the token that was sampled
                   D = sum_S q (log q - log p) + Q (log Q - log P)
                   dD/dz_j = q_j (gap_j - D),   gap_j = log q_j - log p_j in S, log Q - log P outside
    teacher_topk   S = the teacher's best k
                   D = sum_S p (log p - log q) + P (log P - log Q)
                   dD/dz_j = q_j - p_j in S,   q_j (1 - P / Q) outside

where z are the student's logits. Both tails are exact: log-sum-exp over what is outside S, not 1 - sum. The student's
logits are formed a block of rows at a time and turned into the gradient in place; of the teacher one chunk of the
vocabulary is held, its normaliser, its best k and its tail are kept as the chunks go by.

Shape suffixes: N tokens, C tokens of one chunk, K tokens of the support, D and E widths of student and teacher, V
vocabulary, v a chunk of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.divergence import LOG_FLOOR
from trainer.fused_linear import VOCAB_CHUNK, back_project, check_shapes, project, rows_per_block

MIN_TAIL = 1e-7
"""Smallest tail mass that `log_tail` answers: what float32 can tell 1 - sum apart from 0 with."""


@dataclass(frozen=True, slots=True)
class TopkSums:
    """Diagnostics, fp32 [N]: D, the masses of both on S, the tail's term of D, and log q of the target."""

    D_N: Tensor
    q_mass_N: Tensor
    p_mass_N: Tensor
    tail_N: Tensor
    logq_N: Tensor


Weigh = Callable[[Tensor, slice], Tensor]
"""From log q of the targets so far [..stop] and the chunk's slice to the weight of each of its tokens (no gradient)."""


def fused_student_topk(
    hidden_ND: Tensor,
    head_VD: Tensor,
    teacher_NE: Tensor,
    teacher_head_VE: Tensor,
    targets_N: Tensor,
    weights_N: Tensor,
    k: int,
    *,
    weigh: Weigh | None = None,
    chunk_rows: int | None = None,
    chunk_vocab: int = VOCAB_CHUNK,
    matmul: torch.dtype | None = None,
    head_grad_VD: Tensor | None = None,
) -> tuple[Tensor, TopkSums]:
    """Return (sum_n weights_n D_n, diagnostics) of the reverse KL on the student's best `k` and the target, and tail.

    A scalar with gradient; the support and the weights have none. `weigh` gives further weights that depend on log q of
    the targets. Other arguments as in `fused_divergence`. Raises `ValueError` for arguments that do not fit.
    """
    V = _check(hidden_ND, head_VD, teacher_NE, teacher_head_VE, targets_N, weights_N, k)
    teacher_NE, teacher_head_VE = teacher_NE.detach(), teacher_head_VE.detach()

    def cells(z_CV: Tensor, n: slice) -> tuple[Tensor, ...]:
        target_C1 = targets_N[n].unsqueeze(1)
        best_CK = z_CV.topk(min(k, V), dim=-1).indices
        # A target among the best k would be a cell twice: its copy repeats the first cell and counts for nothing.
        twice_C1 = (best_CK == target_C1).any(1, keepdim=True)
        ids_CK = torch.cat([best_CK, torch.where(twice_C1, best_CK[:, :1], target_C1)], 1)
        counts_CK = torch.ones_like(ids_CK, dtype=z_CV.dtype)
        counts_CK[:, -1:].masked_fill_(twice_C1, 0.0)
        logp_CK, logP_C = teacher_at(teacher_NE[n], teacher_head_VE, ids_CK, chunk_vocab, matmul)
        logq_CK, logQ_C = _log_softmax_in_place(z_CV, ids_CK)
        chosen_C = z_CV.gather(1, target_C1).squeeze(1)
        q_CK, Q_C = logq_CK.exp() * counts_CK, logQ_C.exp()
        gap_CK, gap_C = logq_CK - logp_CK, logQ_C - logP_C
        tail_C = Q_C * gap_C
        D_C = (q_CK * gap_CK).sum(1) + tail_C
        z_CV.exp_()
        inside_CK = z_CV.gather(1, ids_CK) * (gap_CK - D_C.unsqueeze(1))
        z_CV.mul_((gap_C - D_C).unsqueeze(1)).scatter_(1, ids_CK, inside_CK)
        return D_C, q_CK.sum(1), (logp_CK.exp() * counts_CK).sum(1), tail_C, chosen_C

    return _apply(hidden_ND, head_VD, weights_N, cells, weigh, chunk_rows, chunk_vocab, matmul, head_grad_VD)


def fused_teacher_topk(
    hidden_ND: Tensor,
    head_VD: Tensor,
    teacher_NE: Tensor,
    teacher_head_VE: Tensor,
    targets_N: Tensor,
    weights_N: Tensor,
    k: int,
    *,
    weigh: Weigh | None = None,
    chunk_rows: int | None = None,
    chunk_vocab: int = VOCAB_CHUNK,
    matmul: torch.dtype | None = None,
    head_grad_VD: Tensor | None = None,
) -> tuple[Tensor, TopkSums]:
    """Return (sum_n weights_n D_n, diagnostics) of the forward KL on the teacher's best `k` and tail.

    The targets only give `logq_N`. Arguments as in `fused_student_topk`.
    """
    V = _check(hidden_ND, head_VD, teacher_NE, teacher_head_VE, targets_N, weights_N, k)
    teacher_NE, teacher_head_VE = teacher_NE.detach(), teacher_head_VE.detach()

    def cells(z_CV: Tensor, n: slice) -> tuple[Tensor, ...]:
        ids_CK, logp_CK, logP_C = teacher_best(teacher_NE[n], teacher_head_VE, min(k, V), chunk_vocab, matmul)
        logq_CK, logQ_C = _log_softmax_in_place(z_CV, ids_CK)
        chosen_C = z_CV.gather(1, targets_N[n].unsqueeze(1)).squeeze(1)
        p_CK, P_C = logp_CK.exp(), logP_C.exp()
        tail_C = P_C * (logP_C - logQ_C)
        D_C = (p_CK * (logp_CK - logq_CK)).sum(1) + tail_C
        z_CV.exp_()
        inside_CK = z_CV.gather(1, ids_CK) - p_CK
        # Where the student has no tail left there is no token outside that the factor could reach.
        outside_C = 1.0 - (logP_C - logQ_C).clamp(max=80.0).exp()
        z_CV.mul_(outside_C.unsqueeze(1)).scatter_(1, ids_CK, inside_CK)
        return D_C, logq_CK.exp().sum(1), p_CK.sum(1), tail_C, chosen_C

    return _apply(hidden_ND, head_VD, weights_N, cells, weigh, chunk_rows, chunk_vocab, matmul, head_grad_VD)


def topk_divergence(logq_NK: Tensor, logQ_N: Tensor, logp_NK: Tensor, logP_N: Tensor) -> Tensor:
    """Return sum_K q (log q - log p) + Q (log Q - log P), [N]: the KL(q || p) of given cells.

    For scores that come as arrays, of a teacher elsewhere; swap the sides for the forward KL. Cells with q = 0 (log q
    of -inf: padding) count for nothing, whatever p is there.
    """
    logq = torch.cat([logq_NK, logQ_N.unsqueeze(-1)], -1).clamp(min=LOG_FLOOR)
    logp = torch.cat([logp_NK, logP_N.unsqueeze(-1)], -1).clamp(min=LOG_FLOOR)
    return torch.where(logq > LOG_FLOOR, logq.exp() * (logq - logp), 0.0).sum(-1)


def log_tail(logp_NK: Tensor) -> Tensor:
    """Return log(1 - sum_K p), [N] fp32, from log-probs of distinct tokens alone; at least log `MIN_TAIL`."""
    inside_N = torch.logsumexp(logp_NK.float(), -1)
    return torch.log(-torch.expm1(inside_N.clamp(max=-MIN_TAIL)))


@torch.no_grad()
def teacher_at(
    hidden_CE: Tensor, head_VE: Tensor, ids_CK: Tensor, chunk_vocab: int, matmul: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """Return fp32 (log p at `ids_CK`, log of the mass on all other tokens [C]), a chunk of the vocabulary at a time."""
    C, V = hidden_CE.shape[0], head_VE.shape[0]
    wide, device = _wide(hidden_CE), hidden_CE.device
    inside_CK = torch.zeros(ids_CK.shape, dtype=wide, device=device)
    outside_C = torch.full((C,), -torch.inf, dtype=wide, device=device)
    block_Cv = torch.empty(C, min(chunk_vocab, V), dtype=wide, device=device)
    for start in range(0, V, chunk_vocab):
        size = min(chunk_vocab, V - start)
        z_Cv = block_Cv[:, :size]
        project(hidden_CE, head_VE[start : start + size], z_Cv, chunk_vocab, matmul or wide)
        here_CK = (ids_CK >= start) & (ids_CK < start + size)
        local_CK = (ids_CK - start).clamp(0, size - 1)
        inside_CK = torch.where(here_CK, z_Cv.gather(1, local_CK), inside_CK)
        taken_Cv = torch.zeros(z_Cv.shape, dtype=torch.bool, device=z_Cv.device)
        # Ids of other chunks point at some column of this one; they must not mark it, nor clear a mark.
        rows_C1 = torch.arange(C, device=z_Cv.device).unsqueeze(1).expand_as(ids_CK)
        taken_Cv[rows_C1[here_CK], local_CK[here_CK]] = True
        rest_C = torch.logsumexp(z_Cv.masked_fill_(taken_Cv, -torch.inf), -1)
        outside_C = torch.logaddexp(outside_C, rest_C)
    # Ids may repeat: the normaliser takes each of them once.
    once_CK = _first_of_each(ids_CK)
    known_C = torch.logsumexp(inside_CK.masked_fill(~once_CK, -torch.inf), -1)
    log_z_C = torch.logaddexp(known_C, outside_C)
    logp_CK = (inside_CK - log_z_C.unsqueeze(1)).clamp(min=LOG_FLOOR)
    return logp_CK, (outside_C - log_z_C).clamp(min=LOG_FLOOR)


@torch.no_grad()
def teacher_best(
    hidden_CE: Tensor, head_VE: Tensor, k: int, chunk_vocab: int, matmul: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (ids of the best `k` [C, K], their log p, log of the mass on all others [C]), a chunk at a time."""
    C, V = hidden_CE.shape[0], head_VE.shape[0]
    wide, device = _wide(hidden_CE), hidden_CE.device
    best_CK = torch.empty(C, 0, dtype=wide, device=device)
    ids_CK = torch.empty(C, 0, dtype=torch.long, device=device)
    outside_C = torch.full((C,), -torch.inf, dtype=wide, device=device)
    for start in range(0, V, chunk_vocab):
        size = min(chunk_vocab, V - start)
        z_Cv = torch.empty(C, size, dtype=wide, device=device)
        project(hidden_CE, head_VE[start : start + size], z_Cv, chunk_vocab, matmul or wide)
        all_Cv = torch.cat([best_CK, z_Cv], 1)
        new_Cv = torch.arange(start, start + size, device=z_Cv.device).expand(C, size)
        all_ids_Cv = torch.cat([ids_CK, new_Cv], 1)
        best_CK, at_CK = all_Cv.topk(min(k, all_Cv.shape[1]), dim=-1)
        ids_CK = all_ids_Cv.gather(1, at_CK)
        dropped_C = torch.logsumexp(all_Cv.scatter(1, at_CK, -torch.inf), -1)
        outside_C = torch.logaddexp(outside_C, dropped_C)
    log_z_C = torch.logaddexp(torch.logsumexp(best_CK, -1), outside_C)
    logp_CK = (best_CK - log_z_C.unsqueeze(1)).clamp(min=LOG_FLOOR)
    return ids_CK, logp_CK, (outside_C - log_z_C).clamp(min=LOG_FLOOR)


def _first_of_each(ids_CK: Tensor) -> Tensor:
    """Return True at the first place of each id of a row, [C, K] bool."""
    same_CKK = ids_CK.unsqueeze(2) == ids_CK.unsqueeze(1)
    earlier = torch.ones(same_CKK.shape[1:], dtype=torch.bool, device=ids_CK.device).tril(-1)
    return ~(same_CKK & earlier).any(-1)


def _log_softmax_in_place(z_CV: Tensor, ids_CK: Tensor) -> tuple[Tensor, Tensor]:
    """Turn logits into log q; return (log q at `ids_CK`, log of the mass on all other tokens [C])."""
    torch.log_softmax(z_CV, -1, out=z_CV)
    z_CV.clamp_(min=LOG_FLOOR)
    inside_CK = z_CV.gather(1, ids_CK)
    z_CV.scatter_(1, ids_CK, -torch.inf)
    outside_C = torch.logsumexp(z_CV, -1).clamp(min=LOG_FLOOR)
    z_CV.scatter_(1, ids_CK, inside_CK)
    return inside_CK, outside_C


def _wide(hidden: Tensor) -> torch.dtype:
    """Softmax and sums run in float32; in float64 where the hidden states are (to check gradients)."""
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32


def _check(
    hidden_ND: Tensor,
    head_VD: Tensor,
    teacher_NE: Tensor,
    teacher_head_VE: Tensor,
    targets_N: Tensor,
    weights_N: Tensor,
    k: int,
) -> int:
    check_shapes(hidden_ND, head_VD, targets_N=targets_N, weights_N=weights_N)
    check_shapes(teacher_NE, teacher_head_VE)
    if teacher_NE.shape[0] != hidden_ND.shape[0]:
        raise ValueError(f"{hidden_ND.shape[0]} student tokens but {teacher_NE.shape[0]} teacher tokens")
    if teacher_head_VE.shape[0] != head_VD.shape[0]:
        raise ValueError(
            f"student vocabulary {head_VD.shape[0]} but teacher vocabulary {teacher_head_VE.shape[0]}: "
            "slice both heads to the shared tokens"
        )
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    return head_VD.shape[0]


def _apply(
    hidden_ND: Tensor,
    head_VD: Tensor,
    weights_N: Tensor,
    cells: Callable[[Tensor, slice], tuple[Tensor, ...]],
    weigh: Weigh | None,
    chunk_rows: int | None,
    chunk_vocab: int,
    matmul: torch.dtype | None,
    head_grad_VD: Tensor | None,
) -> tuple[Tensor, TopkSums]:
    rows = chunk_rows or rows_per_block(head_VD.shape[0])
    loss, *sums = _FusedCells.apply(
        hidden_ND,
        head_VD,
        weights_N.detach().to(_wide(hidden_ND)),
        cells,
        weigh,
        rows,
        chunk_vocab,
        matmul,
        head_grad_VD,
    )
    return loss, TopkSums(*sums)


class _FusedCells(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head_VD: Tensor,
        weights_N: Tensor,
        cells: Callable[[Tensor, slice], tuple[Tensor, ...]],
        weigh: Weigh | None,
        chunk_rows: int,
        chunk_vocab: int,
        matmul: torch.dtype | None,
        head_grad_VD: Tensor | None,
    ) -> tuple[Tensor, ...]:
        N, V = hidden_ND.shape[0], head_VD.shape[0]
        device = hidden_ND.device
        need_hidden, need_head = ctx.needs_input_grad[:2]
        into = head_grad_VD
        if need_head and into is None:
            into = torch.zeros(head_VD.shape, dtype=torch.float32, device=device)
        grad_ND = torch.empty_like(hidden_ND) if need_hidden else None

        wide = _wide(hidden_ND)
        sums = tuple(torch.empty(N, dtype=wide, device=device) for _ in range(5))
        D_N, logq_N = sums[0], sums[-1]
        scale_N = weights_N.clone()
        rows = min(chunk_rows, max(N, 1))
        block_CV = torch.empty(rows, V, dtype=wide, device=device)
        for start in range(0, N, rows):
            n = slice(start, min(start + rows, N))
            z_CV = block_CV[: n.stop - n.start]
            project(hidden_ND[n], head_VD, z_CV, chunk_vocab, matmul or wide)
            for out_N, value_C in zip(sums, cells(z_CV, n), strict=True):
                out_N[n] = value_C
            if weigh is not None:
                scale_N[n] *= weigh(logq_N[: n.stop], n)
            if need_hidden or into is not None:
                grad_CD = grad_ND[n] if grad_ND is not None else None
                back_project(z_CV, hidden_ND[n], head_VD, scale_N[n], grad_CD, into)

        ctx.grad_ND = grad_ND
        ctx.grad_VD = into if need_head and head_grad_VD is None else None
        ctx.head_dtype = head_VD.dtype
        ctx.mark_non_differentiable(*sums)
        return (scale_N @ D_N, *sums)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_ND, grad_VD = ctx.grad_ND, ctx.grad_VD
        ctx.grad_ND = ctx.grad_VD = None
        if grad_ND is not None:
            grad_ND = grad_ND.mul_(grad)
        if grad_VD is not None:
            grad_VD = grad_VD.mul_(grad).to(ctx.head_dtype)
        return (grad_ND, grad_VD, *(None,) * 7)
