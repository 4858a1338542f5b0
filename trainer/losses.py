"""The losses by name. Each is a pure function of hidden states and heads, normalised by a global token count.

`denominator` is the number of trained tokens of the whole optimizer step, over all micro-batches and ranks, so that
micro-batching, packing and the number of ranks change nothing. q is the student, p the teacher, b the policy that
sampled, sg stops the gradient. Back-propagating the one-sample estimate log q - log p itself is not offered: its
expected gradient knows nothing of the teacher.

Shape suffixes: N tokens, D and E widths of student and teacher, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from envs.errors import ConfigError, unknown_name
from trainer.divergence import fused_divergence
from trainer.linear_ce import fused_cross_entropy, fused_logprobs, fused_policy_gradient, truncated_ratio


@dataclass(frozen=True, slots=True)
class Tokens:
    """The trained tokens of a micro-batch.

    `hidden_ND` predicts `targets_N`. `weights_N` fp32. `old_logprobs_N` fp32 log b of the targets.
    `teacher_NE` and `teacher_head_VE` for losses with a teacher. `head_grad_VD`: see `fused_divergence`.
    `matmul`: dtype of the products that make logits (None: float32).
    """

    hidden_ND: Tensor
    head_VD: Tensor
    targets_N: Tensor
    weights_N: Tensor
    old_logprobs_N: Tensor | None = None
    teacher_NE: Tensor | None = None
    teacher_head_VE: Tensor | None = None
    head_grad_VD: Tensor | None = None
    matmul: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class LossResult:
    """`loss` scalar with gradient. `per_token_N` fp32 without: what the loss sums, before weights (nats).

    `sums` are diagnostics summed over the tokens (divide by the token count), `maxima` are maxima over them.
    """

    loss: Tensor
    per_token_N: Tensor
    sums: dict[str, Tensor]
    maxima: dict[str, Tensor]


Loss = Callable[..., LossResult]


@dataclass(frozen=True, slots=True)
class LossSpec:
    """What a loss reads: a teacher's hidden states, the behaviour policy's log-probs; and which tokens it trains."""

    function: Loss
    needs_teacher: bool = False
    needs_old_logprobs: bool = False
    on_branches: bool = False
    """Trains branches where the rows have any (else spans); the others train spans."""


def full(tokens: Tokens, *, denominator: float, beta: float = 1.0, ratio_clip: float = 2.0) -> LossResult:
    """Divergence over the whole vocabulary: loss = sum_n w_n D_n / denominator.

    beta 1: D = KL(q || p), reverse, mode seeking (the default); 0: D = KL(p || q), forward, mode covering;
    between: beta KL(p || m) + (1 - beta) KL(q || m) with m = (1 - beta) q + beta p.
    D is an expectation over the next token, so no ratio of that token enters (`ratio_clip` is not read).
    """
    if tokens.teacher_NE is None or tokens.teacher_head_VE is None:
        raise ConfigError("loss 'full' reads a teacher's hidden states: give an in-process teacher")
    student_head_VD, teacher_head_VE, head_grad_VD = (
        tokens.head_VD,
        tokens.teacher_head_VE,
        tokens.head_grad_VD,
    )
    shared = min(
        student_head_VD.shape[0], teacher_head_VE.shape[0]
    )  # the rest is padding, checked at start-up
    loss, D_N = fused_divergence(
        tokens.hidden_ND,
        student_head_VD[:shared],
        tokens.teacher_NE,
        teacher_head_VE[:shared],
        tokens.weights_N / denominator,
        beta,
        matmul=tokens.matmul,
        head_grad_VD=None if head_grad_VD is None else head_grad_VD[:shared],
    )
    return LossResult(loss, D_N, {"divergence": D_N.sum()}, {"divergence_max": D_N.max()})


def expert(tokens: Tokens, *, denominator: float, beta: float = 1.0, ratio_clip: float = 2.0) -> LossResult:
    """Cross-entropy to given tokens (expert edits, oracle logs): loss = -sum_n w_n log q(y_n) / denominator.

    The direction is KL(expert || q) with the expert a point mass. `beta` and `ratio_clip` are not read.
    """
    loss, logq_N, entropy_N = fused_cross_entropy(
        tokens.hidden_ND,
        tokens.head_VD,
        tokens.targets_N,
        tokens.weights_N / denominator,
        matmul=tokens.matmul,
        head_grad_VD=tokens.head_grad_VD,
    )
    sums = {"cross_entropy": -logq_N.sum(), "entropy": entropy_N.sum()}
    return LossResult(loss, -logq_N, sums, {})


def sampled(tokens: Tokens, *, denominator: float, beta: float = 1.0, ratio_clip: float = 2.0) -> LossResult:
    """Reverse KL(q || p) on the sampled token as a policy gradient.

    loss = -sum_n w_n A_n rho_n / denominator
    A_n = sg[log p(y_n) - log q(y_n)], rho_n = min(q(y_n) / b(y_n), ratio_clip)

    The current token's ratio carries the gradient: -w A rho grad log q. `beta` is not read.
    """
    if tokens.teacher_NE is None or tokens.teacher_head_VE is None:
        raise ConfigError("loss 'sampled' reads a teacher's hidden states: give an in-process teacher")
    old_N = _old_logprobs(tokens, "sampled")
    shared = min(tokens.head_VD.shape[0], tokens.teacher_head_VE.shape[0])
    teacher_logp_N, _ = fused_logprobs(
        tokens.teacher_NE, tokens.teacher_head_VE[:shared], tokens.targets_N, matmul=tokens.matmul
    )
    loss, logq_N, entropy_N = fused_policy_gradient(
        tokens.hidden_ND,
        tokens.head_VD,
        tokens.targets_N,
        tokens.weights_N / denominator,
        old_N,
        reference_logprobs_N=teacher_logp_N,
        ratio_clip=ratio_clip,
        matmul=tokens.matmul,
        head_grad_VD=tokens.head_grad_VD,
    )
    k1_N = logq_N - teacher_logp_N
    sums = {"k1": k1_N.sum(), "entropy": entropy_N.sum(), **_ratio_sums(logq_N, old_N, ratio_clip)}
    return LossResult(loss, k1_N, sums, {})


def state(tokens: Tokens, *, denominator: float, beta: float = 1.0, ratio_clip: float = 2.0) -> LossResult:
    """Policy gradient with the state score: loss = -sum_n A_n rho_n / denominator, A_n = `weights_N`.

    The weights are group-relative advantages (`group_advantages`), one value for all tokens of a turn or row;
    rho_n = min(q / b, ratio_clip) carries the gradient as in `sampled`. Minimising raises what scored above its group.
    `beta` is not read.
    """
    old_N = _old_logprobs(tokens, "state")
    loss, logq_N, entropy_N = fused_policy_gradient(
        tokens.hidden_ND,
        tokens.head_VD,
        tokens.targets_N,
        torch.ones_like(tokens.weights_N) / denominator,
        old_N,
        advantages_N=tokens.weights_N,
        ratio_clip=ratio_clip,
        matmul=tokens.matmul,
        head_grad_VD=tokens.head_grad_VD,
    )
    sums = {
        "advantage_abs": tokens.weights_N.abs().sum(),
        "entropy": entropy_N.sum(),
        **_ratio_sums(logq_N, old_N, ratio_clip),
    }
    value_N = -tokens.weights_N * truncated_ratio(logq_N, old_N, ratio_clip)
    return LossResult(loss, value_N, sums, {})


LOSSES: dict[str, LossSpec] = {
    "full": LossSpec(full, needs_teacher=True),
    "expert": LossSpec(expert, on_branches=True),
    "sampled": LossSpec(sampled, needs_teacher=True, needs_old_logprobs=True),
    "state": LossSpec(state, needs_old_logprobs=True),
}


def get_loss(name: str) -> LossSpec:
    """Return a loss by name; raise `UnknownName` with the nearest known one."""
    if name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    return LOSSES[name]


def group_advantages(scores: list[float], *, scale: bool = False) -> list[float]:
    """Return score - mean of the group, divided by its standard deviation if `scale`. A flat group gives zeros."""
    mean = sum(scores) / len(scores)
    centred = [score - mean for score in scores]
    if not scale:
        return centred
    deviation = (sum(c * c for c in centred) / len(centred)) ** 0.5
    return [c / deviation if deviation > 1e-6 else 0.0 for c in centred]


def _old_logprobs(tokens: Tokens, name: str) -> Tensor:
    old_N = tokens.old_logprobs_N
    if old_N is None or not bool(torch.isfinite(old_N).all()):
        raise ConfigError(
            f"loss {name!r} needs the sampler's log-prob of every trained token: "
            "fill Row.old_logprobs (finite, one a token)"
        )
    return old_N


def _ratio_sums(logq_N: Tensor, old_N: Tensor, ratio_clip: float) -> dict[str, Tensor]:
    """Mismatch KL(b || q) by rho - log rho - 1 (never negative) and the count of truncated ratios."""
    log_rho_N = logq_N - old_N
    return {
        "mismatch_kl": (log_rho_N.clamp(max=20.0).exp() - log_rho_N - 1.0).sum(),
        "truncated": (log_rho_N.exp() > ratio_clip).float().sum(),
    }
