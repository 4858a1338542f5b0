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
from typing import Literal

import torch
from torch import Tensor

from envs.errors import ConfigError, unknown_name
from trainer.divergence import fused_divergence
from trainer.linear_ce import fused_cross_entropy, fused_logprobs, fused_policy_gradient, truncated_ratio
from trainer.topk import TopkSums, fused_student_topk, fused_teacher_topk

StateWeight = Literal["none", "token", "prefix"]
TOPK_OPTIONS = ("top_k", "state_weight", "ratio_clip")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The trained tokens of a micro-batch.

    `hidden_ND` predicts `targets_N`. `weights_N` fp32. `old_logprobs_N` fp32 log b of the targets.
    `teacher_NE` and `teacher_head_VE` for losses with a teacher. `head_grad_VD`: see `fused_divergence`.
    `matmul`: dtype of the products that make logits (None: float32). `rows_N` int64 number of each token's row, whose
    tokens stand together and in order (None: one row).
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
    rows_N: Tensor | None = None


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
    options: tuple[str, ...] = ("beta", "ratio_clip")
    """What it is told beside the tokens and the denominator."""


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


def student_topk(
    tokens: Tokens,
    *,
    denominator: float,
    top_k: int = 16,
    state_weight: StateWeight = "none",
    ratio_clip: float = 2.0,
) -> LossResult:
    """Reverse KL on the student's best k tokens S (the sampled one included) and one tail bucket.

    loss = sum_n w_n r_n D_n / denominator
    D_n = sum_{v in S} q_v (log q_v - log p_v) + Q (log Q - log P),   Q = 1 - sum_S q, P = 1 - sum_S p

    It is the KL(q || p) of k + 1 cells: 0 <= D <= KL(q || p), equal where S is the vocabulary. r_n = sg[...] corrects
    for tokens that an older policy b sampled, see `state_weights`.
    """
    return _topk(fused_student_topk, "student_topk", tokens, denominator, top_k, state_weight, ratio_clip)


def teacher_topk(
    tokens: Tokens,
    *,
    denominator: float,
    top_k: int = 16,
    state_weight: StateWeight = "none",
    ratio_clip: float = 2.0,
) -> LossResult:
    """Forward KL on the teacher's best k tokens S and one tail bucket.

    loss = sum_n w_n r_n D_n / denominator
    D_n = sum_{v in S} p_v (log p_v - log q_v) + P (log P - log Q)

    It is the KL(p || q) of k + 1 cells, mode covering. r_n as in `student_topk`.
    """
    return _topk(fused_teacher_topk, "teacher_topk", tokens, denominator, top_k, state_weight, ratio_clip)


def state_weights(
    logq_N: Tensor, old_N: Tensor, rows_N: Tensor | None, kind: StateWeight, ratio_clip: float
) -> Tensor:
    """Return r_n in [0, ratio_clip] for losses that are an expectation over the next token; no gradient.

    The state that token n was drawn in came from b, so the exact ratio is prod_{i < n} rho_i over the row's trained
    tokens, rho_i = q(y_i) / b(y_i), without n's own. "prefix" is this product, "token" its last factor alone, both
    truncated at `ratio_clip`; "none" is 1. The first token of a row has 1.
    """
    if kind == "none":
        return torch.ones_like(logq_N)
    log_rho_N = logq_N - old_N
    before_N = torch.roll(log_rho_N, 1)
    number_N = torch.arange(len(log_rho_N), device=log_rho_N.device)
    first_N = number_N == 0
    if rows_N is not None:
        first_N |= torch.roll(rows_N, 1) != rows_N
    before_N = before_N.masked_fill(first_N, 0.0)
    if kind == "prefix":
        sums_N = before_N.double().cumsum(0)
        start_N = torch.where(first_N, number_N, 0).cummax(0).values  # of the token's own row
        before_N = (sums_N - sums_N[start_N]).to(logq_N.dtype)
    return before_N.exp().clamp(max=ratio_clip)


LOSSES: dict[str, LossSpec] = {
    "full": LossSpec(full, needs_teacher=True),
    "expert": LossSpec(expert, on_branches=True),
    "sampled": LossSpec(sampled, needs_teacher=True, needs_old_logprobs=True),
    "state": LossSpec(state, needs_old_logprobs=True),
    "student_topk": LossSpec(student_topk, needs_teacher=True, needs_old_logprobs=True, options=TOPK_OPTIONS),
    "teacher_topk": LossSpec(teacher_topk, needs_teacher=True, needs_old_logprobs=True, options=TOPK_OPTIONS),
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


def _topk(
    fused: Callable[..., tuple[Tensor, TopkSums]],
    name: str,
    tokens: Tokens,
    denominator: float,
    top_k: int,
    kind: StateWeight,
    ratio_clip: float,
) -> LossResult:
    if tokens.teacher_NE is None or tokens.teacher_head_VE is None:
        raise ConfigError(f"loss {name!r} reads a teacher's hidden states: give an in-process teacher")
    old_N = _old_logprobs(tokens, name) if kind != "none" else None
    rows_N, weights = tokens.rows_N, []

    def weigh(logq_N: Tensor, n: slice) -> Tensor:
        assert old_N is not None
        so_far_N = None if rows_N is None else rows_N[: n.stop]
        r_C = state_weights(logq_N, old_N[: n.stop], so_far_N, kind, ratio_clip)[n]
        weights.append(r_C.float().sum())
        return r_C

    shared = min(tokens.head_VD.shape[0], tokens.teacher_head_VE.shape[0])  # the rest is padding
    loss, found = fused(
        tokens.hidden_ND,
        tokens.head_VD[:shared],
        tokens.teacher_NE,
        tokens.teacher_head_VE[:shared],
        tokens.targets_N,
        tokens.weights_N / denominator,
        top_k,
        weigh=None if kind == "none" else weigh,
        matmul=tokens.matmul,
        head_grad_VD=None if tokens.head_grad_VD is None else tokens.head_grad_VD[:shared],
    )
    sums = {
        "divergence": found.D_N.sum(),
        "q_mass": found.q_mass_N.sum(),
        "p_mass": found.p_mass_N.sum(),
        "tail_divergence": found.tail_N.sum(),
    }
    if old_N is not None:
        sums |= {"state_weight": torch.stack(weights).sum(), **_ratio_sums(found.logq_N, old_N, ratio_clip)}
    return LossResult(loss, found.D_N, sums, {"divergence_max": found.D_N.max()})


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
