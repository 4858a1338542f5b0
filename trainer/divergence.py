"""Generalised Jensen-Shannon divergence over the whole vocabulary, from hidden states and heads.

With p the teacher's and q the student's next-token distribution and m = (1 - beta) q + beta p:

    beta = 0      D = KL(p || q)                                dD/dz = q - p
    beta = 1      D = KL(q || p)                                dD/dz = q (log q - log p - D)
    otherwise     D = beta KL(p || m) + (1 - beta) KL(q || m)   dD/dz = (1 - beta) q (log q - log m - KL(q || m))

where z are the student's logits. The convention is TRL's (`trl/kernels/chunked_divergence.py`), the values equal
its. The gradient is made in the forward pass, while the logits of a chunk of rows are at hand, so that each
model's logits are computed once and only one block per model is ever held. This needs the upstream gradient to be
a scalar, which it is for a weighted sum.

Shape suffixes: N tokens, C tokens of one chunk, R rows of one slice, D and E widths of student and teacher, V
vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.fused_linear import VOCAB_CHUNK, back_project, check_shapes, project, row_slices, rows_per_block

LOG_FLOOR = torch.finfo(torch.float32).min / 4
"""Log-probabilities of impossible tokens, so that 0 * log 0 is 0 and not NaN."""


def fused_divergence(
    student_ND: Tensor,
    student_head_VD: Tensor,
    teacher_NE: Tensor,
    teacher_head_VE: Tensor,
    weights_N: Tensor,
    beta: float,
    *,
    chunk_rows: int | None = None,
    chunk_vocab: int = VOCAB_CHUNK,
    matmul: torch.dtype | None = None,
    head_grad_VD: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (sum_n weights_n D_n, D_N): a scalar with gradient and the fp32 [N] divergences in nats without.

    Gradients go to `student_ND` and, where it asks for one, to `student_head_VD` (the two may be tied to anything);
    the teacher gets none. Hidden states and heads are float32 or bfloat16; the softmax is float32; `matmul` is the
    dtype of the logits' product (None: float32). `chunk_rows` None picks blocks of about 40 MB.

    With `head_grad_VD` (fp32 [V, D]) the head's gradient is added there during this call, for an upstream gradient of
    1, and autograd gets none for the head: it saves one head-sized tensor a call.

    Raises `ValueError` for shapes or a `beta` that do not fit.
    """
    check_shapes(student_ND, student_head_VD, weights_N=weights_N)
    check_shapes(teacher_NE, teacher_head_VE)
    if teacher_NE.shape[0] != student_ND.shape[0]:
        raise ValueError(f"{student_ND.shape[0]} student tokens but {teacher_NE.shape[0]} teacher tokens")
    if teacher_head_VE.shape[0] != student_head_VD.shape[0]:
        raise ValueError(
            f"student vocabulary {student_head_VD.shape[0]} but teacher vocabulary {teacher_head_VE.shape[0]}: "
            "slice both heads to the shared tokens"
        )
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta must be in [0, 1] (0 forward KL, 1 reverse KL), got {beta}")
    return _FusedDivergence.apply(  # type: ignore[no-any-return]
        student_ND,
        student_head_VD,
        teacher_NE.detach(),
        teacher_head_VE.detach(),
        weights_N.detach().float(),
        float(beta),
        chunk_rows or rows_per_block(student_head_VD.shape[0]),
        chunk_vocab,
        matmul,
        head_grad_VD,
    )


class _FusedDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        student_ND: Tensor,
        student_head_VD: Tensor,
        teacher_NE: Tensor,
        teacher_head_VE: Tensor,
        weights_N: Tensor,
        beta: float,
        chunk_rows: int,
        chunk_vocab: int,
        matmul: torch.dtype | None,
        head_grad_VD: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        (N, _), V = student_ND.shape, student_head_VD.shape[0]
        device = student_ND.device
        need_hidden, need_head = ctx.needs_input_grad[:2]
        into = head_grad_VD
        if need_head and into is None:
            into = torch.zeros(student_head_VD.shape, dtype=torch.float32, device=device)
        grad_ND = torch.empty_like(student_ND) if need_hidden else None
        need_grad = need_hidden or into is not None

        D_N = torch.empty(N, dtype=torch.float32, device=device)
        rows = min(chunk_rows, max(N, 1))
        student_CV = torch.empty(rows, V, dtype=torch.float32, device=device)
        teacher_CV = torch.empty(rows, V, dtype=torch.float32, device=device)
        for start in range(0, N, rows):
            n = slice(start, min(start + rows, N))
            size = n.stop - n.start
            s_CV, t_CV = student_CV[:size], teacher_CV[:size]
            project(student_ND[n], student_head_VD, s_CV, chunk_vocab, matmul)
            project(teacher_NE[n], teacher_head_VE, t_CV, chunk_vocab, matmul)
            for r in row_slices(size, V):
                D_N[n][r] = divergence_in_place(s_CV[r], t_CV[r], beta)
            if need_grad:
                grad_CD = grad_ND[n] if grad_ND is not None else None
                back_project(s_CV, student_ND[n], student_head_VD, weights_N[n], grad_CD, into)

        ctx.grad_ND = grad_ND
        ctx.grad_VD = into if need_head and head_grad_VD is None else None
        ctx.head_dtype = student_head_VD.dtype
        ctx.mark_non_differentiable(D_N)
        return weights_N @ D_N, D_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_ND, grad_VD = ctx.grad_ND, ctx.grad_VD
        ctx.grad_ND = ctx.grad_VD = None
        if grad_ND is not None:
            grad_ND = grad_ND.mul_(grad)
        if grad_VD is not None:
            grad_VD = grad_VD.mul_(grad).to(ctx.head_dtype)
        return (grad_ND, grad_VD, *(None,) * 8)


def divergence_in_place(student_RV: Tensor, teacher_RV: Tensor, beta: float) -> Tensor:
    """Take fp32 logits of both models; return D_R and leave dD/dz in `student_RV` (`teacher_RV` is used up)."""
    s_RV, t_RV = student_RV, teacher_RV
    torch.log_softmax(s_RV, -1, out=s_RV)
    torch.log_softmax(t_RV, -1, out=t_RV)
    s_RV.clamp_(min=LOG_FLOOR)
    t_RV.clamp_(min=LOG_FLOOR)

    if beta == 1.0:
        gap_RV = torch.sub(s_RV, t_RV, out=t_RV)
        q_RV = torch.softmax(s_RV, -1, out=s_RV)  # softmax of log-probs; several times faster than exp on CPU
        D_R = torch.linalg.vecdot(q_RV, gap_RV)
        q_RV.mul_(gap_RV.sub_(D_R.unsqueeze(1)))
        return D_R

    p_RV = torch.softmax(t_RV, -1)
    if beta == 0.0:
        D_R = torch.linalg.vecdot(p_RV, t_RV.sub_(s_RV))
        torch.softmax(s_RV, -1, out=s_RV).sub_(p_RV)
        return D_R

    q_RV = torch.softmax(s_RV, -1)
    log_m_RV = torch.logaddexp(s_RV + math.log1p(-beta), t_RV + math.log(beta))
    kl_p_R = torch.linalg.vecdot(p_RV, t_RV.sub_(log_m_RV))
    kl_q_R = torch.linalg.vecdot(q_RV, s_RV.sub_(log_m_RV))
    s_RV.sub_(kl_q_R.unsqueeze(1)).mul_(q_RV).mul_(1.0 - beta)
    return beta * kl_p_R + (1.0 - beta) * kl_q_R
