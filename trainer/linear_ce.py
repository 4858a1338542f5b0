"""Log-probabilities of given tokens, cross-entropy and policy gradient, from hidden states and a head.

All three have the same gradient in the logits z, c (q - onehot(y)), with a coefficient c a token: the weight for
cross-entropy, the advantage times a truncated importance ratio for the policy gradient. A block of logits is
turned into that gradient in place while it is at hand; see `fused_linear`.

Shape suffixes: N tokens, C tokens of one chunk, D width of the hidden states, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.fused_linear import VOCAB_CHUNK, back_project, check_shapes, project, row_slices, rows_per_block

Coefficient = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""From the chunk's log-probs and its slice of the tokens to (value of the loss, coefficient c) a token."""


@torch.no_grad()
def fused_logprobs(
    hidden_ND: Tensor,
    head_VD: Tensor,
    targets_N: Tensor,
    *,
    chunk_rows: int | None = None,
    chunk_vocab: int = VOCAB_CHUNK,
    matmul: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return fp32 (log q(targets_N), entropy of q) in nats, both [N], without gradient.

    `targets_N` is int64 in [0, V). `matmul` as in `fused_divergence`. Raises `ValueError` for shapes that do not fit.
    """
    check_shapes(hidden_ND, head_VD, targets_N=targets_N)
    N, V = hidden_ND.shape[0], head_VD.shape[0]
    logq_N = torch.empty(N, dtype=torch.float32, device=hidden_ND.device)
    entropy_N = torch.empty_like(logq_N)
    rows = min(chunk_rows or rows_per_block(V), max(N, 1))
    block_CV = torch.empty(rows, V, dtype=torch.float32, device=hidden_ND.device)
    for start in range(0, N, rows):
        n = slice(start, min(start + rows, N))
        logits_CV = block_CV[: n.stop - n.start]
        project(hidden_ND[n], head_VD, logits_CV, chunk_vocab, matmul)
        logq_N[n], entropy_N[n] = _probabilities_in_place(logits_CV, targets_N[n], None)
    return logq_N, entropy_N


def fused_cross_entropy(
    hidden_ND: Tensor,
    head_VD: Tensor,
    targets_N: Tensor,
    weights_N: Tensor,
    *,
    chunk_rows: int | None = None,
    chunk_vocab: int = VOCAB_CHUNK,
    matmul: torch.dtype | None = None,
    head_grad_VD: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (-sum_n weights_n log q(y_n), log q(y)_N, entropy_N): a scalar with gradient, two fp32 [N] without.

    Arguments as in `fused_divergence`. Raises `ValueError` for shapes that do not fit.
    """
    check_shapes(hidden_ND, head_VD, targets_N=targets_N, weights_N=weights_N)
    weights_N = weights_N.detach().float()

    def coefficient(logq_C: Tensor, n: slice) -> tuple[Tensor, Tensor]:
        return -logq_C * weights_N[n], weights_N[n]

    return _apply(hidden_ND, head_VD, targets_N, coefficient, chunk_rows, chunk_vocab, matmul, head_grad_VD)


def fused_policy_gradient(
    hidden_ND: Tensor,
    head_VD: Tensor,
    targets_N: Tensor,
    weights_N: Tensor,
    old_logprobs_N: Tensor,
    *,
    advantages_N: Tensor | None = None,
    reference_logprobs_N: Tensor | None = None,
    ratio_clip: float = 2.0,
    chunk_rows: int | None = None,
    chunk_vocab: int = VOCAB_CHUNK,
    matmul: torch.dtype | None = None,
    head_grad_VD: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Policy gradient on the sampled tokens with a truncated importance ratio.

        rho_n = min(q(y_n) / b(y_n), ratio_clip)
        loss = -sum_n weights_n A_n rho_n          gradient = -sum_n weights_n A_n rho_n grad log q(y_n)

    The current token's ratio carries the gradient (grad rho = rho grad log q); truncation bounds its size and keeps
    its direction. b is `old_logprobs_N`, A is `advantages_N`, or with `reference_logprobs_N` (log p of the
    teacher) A_n = sg[log p(y_n) - log q(y_n)] with the live q. Exactly one of the two must be given.

    Returns and other arguments as `fused_cross_entropy`. Raises `ValueError` for arguments that do not fit.
    """
    if (advantages_N is None) == (reference_logprobs_N is None):
        raise ValueError("give either advantages_N or reference_logprobs_N")
    check_shapes(
        hidden_ND,
        head_VD,
        targets_N=targets_N,
        weights_N=weights_N,
        old_logprobs_N=old_logprobs_N,
        advantages_N=advantages_N,
        reference_logprobs_N=reference_logprobs_N,
    )

    def coefficient(logq_C: Tensor, n: slice) -> tuple[Tensor, Tensor]:
        rho_C = truncated_ratio(logq_C, old_logprobs_N[n], ratio_clip)
        if advantages_N is not None:
            A_C = advantages_N[n]
        else:
            assert reference_logprobs_N is not None
            A_C = reference_logprobs_N[n] - logq_C
        c_C = weights_N[n].float() * A_C * rho_C
        return -c_C, c_C

    return _apply(hidden_ND, head_VD, targets_N, coefficient, chunk_rows, chunk_vocab, matmul, head_grad_VD)


def truncated_ratio(logq_N: Tensor, old_logprobs_N: Tensor, ratio_clip: float) -> Tensor:
    """Return min(q / b, ratio_clip) from log-probs. Differences above log(ratio_clip) never reach exp."""
    limit = torch.tensor(ratio_clip, dtype=logq_N.dtype, device=logq_N.device).log()
    return torch.minimum(logq_N - old_logprobs_N, limit).exp()


def _apply(
    hidden_ND: Tensor,
    head_VD: Tensor,
    targets_N: Tensor,
    coefficient: Coefficient,
    chunk_rows: int | None,
    chunk_vocab: int,
    matmul: torch.dtype | None,
    head_grad_VD: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = chunk_rows or rows_per_block(head_VD.shape[0])
    return _FusedTokenLoss.apply(  # type: ignore[no-any-return]
        hidden_ND, head_VD, targets_N, coefficient, rows, chunk_vocab, matmul, head_grad_VD
    )


class _FusedTokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head_VD: Tensor,
        targets_N: Tensor,
        coefficient: Coefficient,
        chunk_rows: int,
        chunk_vocab: int,
        matmul: torch.dtype | None,
        head_grad_VD: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        N, V = hidden_ND.shape[0], head_VD.shape[0]
        device = hidden_ND.device
        need_hidden, need_head = ctx.needs_input_grad[:2]
        into = head_grad_VD
        if need_head and into is None:
            into = torch.zeros(head_VD.shape, dtype=torch.float32, device=device)
        grad_ND = torch.empty_like(hidden_ND) if need_hidden else None

        value_N = torch.empty(N, dtype=torch.float32, device=device)
        logq_N, entropy_N = torch.empty_like(value_N), torch.empty_like(value_N)
        rows = min(chunk_rows, max(N, 1))
        block_CV = torch.empty(rows, V, dtype=torch.float32, device=device)
        for start in range(0, N, rows):
            n = slice(start, min(start + rows, N))
            logits_CV = block_CV[: n.stop - n.start]
            project(hidden_ND[n], head_VD, logits_CV, chunk_vocab, matmul)
            logq_N[n], entropy_N[n] = _probabilities_in_place(logits_CV, targets_N[n], -1.0)
            value_N[n], c_C = coefficient(logq_N[n], n)
            if need_hidden or into is not None:
                grad_CD = grad_ND[n] if grad_ND is not None else None
                back_project(logits_CV, hidden_ND[n], head_VD, c_C, grad_CD, into)

        ctx.grad_ND = grad_ND
        ctx.grad_VD = into if need_head and head_grad_VD is None else None
        ctx.head_dtype = head_VD.dtype
        ctx.mark_non_differentiable(logq_N, entropy_N)
        return value_N.sum(), logq_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_ND, grad_VD = ctx.grad_ND, ctx.grad_VD
        ctx.grad_ND = ctx.grad_VD = None
        if grad_ND is not None:
            grad_ND = grad_ND.mul_(grad)
        if grad_VD is not None:
            grad_VD = grad_VD.mul_(grad).to(ctx.head_dtype)
        return (grad_ND, grad_VD, *(None,) * 6)


def _probabilities_in_place(
    logits_CV: Tensor, targets_C: Tensor, at_target: float | None
) -> tuple[Tensor, Tensor]:
    """Turn logits into q (plus `at_target` at the targets); return (log q at the targets, entropy), both [C]."""
    target_C1 = targets_C.unsqueeze(1)
    chosen_C = logits_CV.gather(1, target_C1).squeeze(1)
    entropy_C = torch.empty_like(chosen_C)
    log_z_C = torch.empty_like(chosen_C)
    for r in row_slices(logits_CV.shape[0], logits_CV.shape[1]):
        z_RV = logits_CV[r]
        top_R, at_R = z_RV.max(-1)
        q_RV = torch.softmax(z_RV, -1)
        # The normaliser from the largest entry alone, which has full relative precision.
        log_z_C[r] = top_R - q_RV.gather(1, at_R.unsqueeze(1)).squeeze(1).log()
        entropy_C[r] = log_z_C[r] - torch.linalg.vecdot(q_RV, z_RV.clamp_(min=-1e30))
        z_RV.copy_(q_RV)
    if at_target is not None:
        logits_CV.scatter_add_(1, target_C1, torch.full_like(target_C1, at_target, dtype=torch.float32))
    return chosen_C - log_z_C, entropy_C
