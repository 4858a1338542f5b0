"""Top-k divergences with a tail: golden values, gradients, the bounds of coarsening, weights of stale states."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.errors import ConfigError
from trainer.divergence import fused_divergence
from trainer.losses import Tokens, get_loss, state_weights
from trainer.student import Student, StudentConfig
from trainer.teacher import ModelTeacher
from trainer.topk import (
    MIN_TAIL,
    fused_student_topk,
    fused_teacher_topk,
    log_tail,
    teacher_at,
    teacher_best,
    topk_divergence,
)

sys.path.insert(0, str(Path(__file__).parent))
import tiny_models

torch.set_num_threads(1)  # tensors this small only wait for a second thread

NAMES = ("student_topk", "teacher_topk")
FUSED = {"student_topk": fused_student_topk, "teacher_topk": fused_teacher_topk}


def inputs(
    seed: int = 0, N: int = 7, D: int = 5, V: int = 23, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    return {
        "hidden_ND": torch.randn(N, D, generator=made, dtype=dtype).requires_grad_(),
        "head_VD": torch.randn(V, D, generator=made, dtype=dtype),
        "teacher_NE": torch.randn(N, D + 2, generator=made, dtype=dtype),
        "teacher_head_VE": torch.randn(V, D + 2, generator=made, dtype=dtype),
        "targets_N": torch.randint(0, V, (N,), generator=made),
        "weights_N": torch.rand(N, generator=made, dtype=dtype) + 0.5,
    }


def naive(name: str, given: dict[str, Any], k: int) -> torch.Tensor:
    """[N] from full logits by autograd; the cells are written out one token at a time."""
    logq_NV = (given["hidden_ND"] @ given["head_VD"].t()).log_softmax(-1)
    logp_NV = (given["teacher_NE"] @ given["teacher_head_VE"].t()).log_softmax(-1)
    divergences = []
    for logq_V, logp_V, target in zip(logq_NV, logp_NV, given["targets_N"].tolist(), strict=True):
        best = (logq_V if name == "student_topk" else logp_V).topk(min(k, len(logq_V))).indices.tolist()
        inside = sorted({*best, target} if name == "student_topk" else {*best})
        outside = [v for v in range(len(logq_V)) if v not in inside]
        cells_q = [logq_V[v] for v in inside] + ([logq_V[outside].logsumexp(0)] if outside else [])
        cells_p = [logp_V[v] for v in inside] + ([logp_V[outside].logsumexp(0)] if outside else [])
        a, b = (cells_q, cells_p) if name == "student_topk" else (cells_p, cells_q)
        divergences.append(torch.stack([x.exp() * (x - y) for x, y in zip(a, b, strict=True)]).sum())
    return torch.stack(divergences)


def test_golden_values():
    """q = (0.5, 0.3, 0.2), p = (0.2, 0.2, 0.6), the first token was sampled, k = 1."""
    q, p = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([[0.2, 0.2, 0.6]]).log()
    given = (q.requires_grad_(), torch.eye(3), p, torch.eye(3), torch.tensor([0]), torch.tensor([1.0]), 1)
    loss, sums = fused_student_topk(*given)
    assert loss.item() == pytest.approx(0.5 * math.log(0.5 / 0.2) + 0.5 * math.log(0.5 / 0.8), rel=1e-6)
    assert (sums.q_mass_N.item(), sums.p_mass_N.item()) == (pytest.approx(0.5), pytest.approx(0.2))
    assert sums.tail_N.item() == pytest.approx(0.5 * math.log(0.5 / 0.8), rel=1e-6)
    loss.backward()
    inside, outside = math.log(0.5 / 0.2) - loss.item(), math.log(0.5 / 0.8) - loss.item()
    expected = torch.tensor([[0.5 * inside, 0.3 * outside, 0.2 * outside]])
    assert q.grad is not None
    torch.testing.assert_close(q.grad, expected, rtol=1e-5, atol=1e-7)

    loss, sums = fused_teacher_topk(*given)
    assert loss.item() == pytest.approx(0.6 * math.log(0.6 / 0.2) + 0.4 * math.log(0.4 / 0.8), rel=1e-6)
    assert (sums.q_mass_N.item(), sums.p_mass_N.item()) == (pytest.approx(0.2), pytest.approx(0.6))
    q.grad = None
    loss.backward()
    torch.testing.assert_close(q.grad, torch.tensor([[0.25, 0.15, -0.4]]), rtol=1e-5, atol=1e-6)


def test_a_target_outside_the_best_is_a_cell_of_its_own():
    q, p = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([[0.2, 0.2, 0.6]]).log()
    loss, _ = fused_student_topk(q, torch.eye(3), p, torch.eye(3), torch.tensor([2]), torch.tensor([1.0]), 1)
    full = 0.5 * math.log(0.5 / 0.2) + 0.2 * math.log(0.2 / 0.6) + 0.3 * math.log(0.3 / 0.2)
    assert loss.item() == pytest.approx(full, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [1, 4, 22, 23, 99])
def test_values_and_gradients_are_those_of_full_logits(name: str, k: int) -> None:
    for chunks in ({}, {"chunk_rows": 3, "chunk_vocab": 4}):
        given, plain = inputs(), inputs()
        head = given["head_VD"].requires_grad_()
        loss, sums = FUSED[name](**given, k=k, **chunks)
        loss.backward()
        plain["head_VD"].requires_grad_()
        D_N = naive(name, plain, k)
        (plain["weights_N"] @ D_N).backward()
        torch.testing.assert_close(sums.D_N, D_N.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(given["hidden_ND"].grad, plain["hidden_ND"].grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(head.grad, plain["head_VD"].grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [1, 5, 23])
def test_gradcheck(name: str, k: int) -> None:
    given = inputs(3, N=3, dtype=torch.float64)
    hidden = given.pop("hidden_ND")
    # A fused gradient is made once and given away, so a second backward pass over one output has none.
    assert torch.autograd.gradcheck(
        lambda h: FUSED[name](h, **given, k=k)[0], (hidden,), eps=1e-7, atol=1e-6, nondet_tol=math.inf
    )


@pytest.mark.parametrize(("name", "beta"), [("student_topk", 1.0), ("teacher_topk", 0.0)])
def test_the_whole_vocabulary_is_the_full_divergence(name: str, beta: float) -> None:
    given, full = inputs(1), inputs(1)
    loss, sums = FUSED[name](**given, k=23)
    loss.backward()
    weights, targets = full.pop("weights_N"), full.pop("targets_N")
    assert len(targets) == 7
    args = (full["hidden_ND"], full["head_VD"], full["teacher_NE"], full["teacher_head_VE"], weights, beta)
    other, D_N = fused_divergence(*args)
    other.backward()
    assert loss.item() == pytest.approx(other.item(), rel=1e-5)
    torch.testing.assert_close(sums.D_N, D_N, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(given["hidden_ND"].grad, full["hidden_ND"].grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(sums.tail_N, torch.zeros(7))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 20), st.sampled_from(NAMES))
def test_it_is_between_zero_and_the_full_divergence_and_grows_with_k(
    seed: int, sharp: float, name: str
) -> None:
    """Guards the complaints of negative and clamped top-k losses: the tail makes it a divergence."""
    given = inputs(seed, N=4, V=40)
    given["head_VD"] = given["head_VD"] * sharp
    beta = 1.0 if name == "student_topk" else 0.0
    args = (given["hidden_ND"], given["head_VD"], given["teacher_NE"], given["teacher_head_VE"])
    _, full_N = fused_divergence(*args, given["weights_N"], beta)
    before_N = torch.zeros(4)
    slack_N = 1e-5 * (1 + full_N)
    for k in (1, 3, 10, 40):
        _, sums = FUSED[name](**given, k=k)
        assert bool((before_N - slack_N <= sums.D_N).all() and (full_N + slack_N >= sums.D_N).all())
        before_N = sums.D_N


def test_extreme_logits_stay_finite() -> None:
    given = inputs(2, N=4)
    given["head_VD"], given["teacher_head_VE"] = given["head_VD"] * 300, given["teacher_head_VE"] * -300
    for name in NAMES:
        loss, _ = FUSED[name](**given, k=2)
        (grad,) = torch.autograd.grad(loss, given["hidden_ND"])
        assert bool(torch.isfinite(loss)) and bool(torch.isfinite(grad).all()), name


def test_descent_moves_the_student_onto_the_teacher_and_keeps_its_mass() -> None:
    """Without the tail the mass leaves the support (the toy of docs/opd.md); with it the full KL goes to zero."""
    torch.manual_seed(0)
    V = 50
    teacher = torch.randn(1, V)
    z = torch.randn(1, V).requires_grad_()
    optimizer = torch.optim.Adam([z], lr=0.05)
    for _ in range(1500):
        optimizer.zero_grad()
        target = torch.multinomial(z.detach().softmax(-1)[0], 1)
        loss, sums = fused_student_topk(z, torch.eye(V), teacher, torch.eye(V), target, torch.ones(1), 6)
        loss.backward()
        optimizer.step()
    _, full_N = fused_divergence(z, torch.eye(V), teacher, torch.eye(V), torch.ones(1), 1.0)
    assert full_N.item() < 0.05 and loss.item() < 0.02
    assert sums.q_mass_N.item() == pytest.approx(sums.p_mass_N.item(), abs=0.05)


def test_teachers_chunks_give_the_whole_row() -> None:
    given = inputs(4)
    logp_NV = (given["teacher_NE"] @ given["teacher_head_VE"].t()).log_softmax(-1)
    ids_NK = torch.tensor([[0, 22, 5, 5]]).expand(7, 4)  # an id that stands twice
    for chunk in (1, 4, 23, 100):
        logp_NK, tail_N = teacher_at(given["teacher_NE"], given["teacher_head_VE"], ids_NK, chunk, None)
        torch.testing.assert_close(logp_NK, logp_NV.gather(1, ids_NK), rtol=1e-5, atol=1e-5)
        rest = [v for v in range(23) if v not in (0, 5, 22)]
        torch.testing.assert_close(tail_N, logp_NV[:, rest].logsumexp(-1), rtol=1e-5, atol=1e-5)
        ids, best_NK, left_N = teacher_best(given["teacher_NE"], given["teacher_head_VE"], 6, chunk, None)
        expected = logp_NV.topk(6)
        assert torch.equal(ids, expected.indices)
        torch.testing.assert_close(best_NK, expected.values, rtol=1e-5, atol=1e-5)
        masked = logp_NV.scatter(1, expected.indices, -torch.inf)
        torch.testing.assert_close(left_N, masked.logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_cells_given_as_arrays() -> None:
    """As a teacher elsewhere gives them: padding scores -inf, the tail is one minus the rest."""
    logq = torch.tensor([[0.5, 0.3, 0.0]]).log()
    logp = torch.tensor([[0.2, 0.2, 0.0]]).log()
    tail = log_tail(logp[:, :2])
    assert tail.item() == pytest.approx(math.log(0.6), rel=1e-6)
    D = topk_divergence(logq, torch.tensor([0.2]).log(), logp, tail).item()
    assert pytest.approx(0.5 * math.log(2.5) + 0.3 * math.log(1.5) + 0.2 * math.log(1 / 3), rel=1e-5) == D
    full = torch.tensor([[0.6, 0.4]]).log()
    assert log_tail(full).item() == pytest.approx(math.log(MIN_TAIL), rel=0.1)
    assert math.isfinite(topk_divergence(full, torch.tensor([-torch.inf]), full, log_tail(full)).item())


def tokens(rows_N: torch.Tensor | None = None, **changes: Any) -> Tokens:
    given = inputs()
    old_N = changes.pop("old_logprobs_N", torch.full((7,), -2.0))
    return Tokens(
        given["hidden_ND"],
        given["head_VD"],
        given["targets_N"],
        given["weights_N"],
        old_N,
        given["teacher_NE"],
        given["teacher_head_VE"],
        rows_N=rows_N,
        **changes,
    )


def test_weights_of_stale_states() -> None:
    """The current token is left out; a row starts at 1; nothing exceeds the bound."""
    logq = torch.tensor([0.1, -0.2, 0.3, 0.4, 0.5])
    old, rows = torch.zeros(5), torch.tensor([0, 0, 0, 1, 1])
    token = state_weights(logq, old, rows, "token", 1.2)
    torch.testing.assert_close(token, torch.tensor([0.0, 0.1, -0.2, 0.0, 0.4]).exp().clamp(max=1.2))
    prefix = state_weights(logq, old, rows, "prefix", 9.0)
    torch.testing.assert_close(prefix, torch.tensor([0.0, 0.1, -0.1, 0.0, 0.4]).exp())
    assert torch.equal(state_weights(logq, old, rows, "none", 1.0), torch.ones(5))
    torch.testing.assert_close(
        state_weights(logq, old, None, "prefix", 99.0), torch.tensor([0.0, 0.1, -0.1, 0.2, 0.6]).exp()
    )


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_weights_change_nothing_bit_for_bit(name: str) -> None:
    plain = tokens()
    get_loss(name).function(plain, denominator=3.0, top_k=4, state_weight="none").loss.backward()
    given = inputs()
    _, sums = FUSED[name](**given, k=4)
    rows = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    for kind in ("token", "prefix"):
        weighed = tokens(rows, old_logprobs_N=sums.logq_N.clone())
        result = get_loss(name).function(weighed, denominator=3.0, top_k=4, state_weight=kind)
        result.loss.backward()
        assert torch.equal(weighed.hidden_ND.grad, plain.hidden_ND.grad)  # type: ignore[arg-type]
        assert result.sums["state_weight"].item() == 7.0 and result.sums["mismatch_kl"].item() == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_weights_multiply_and_have_no_gradient(name: str) -> None:
    rows = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    given = tokens(rows)
    result = get_loss(name).function(given, denominator=2.0, top_k=3, state_weight="prefix", ratio_clip=1.5)
    plain = inputs()
    D_N = naive(name, plain, 3)
    logq_N = (
        (plain["hidden_ND"] @ plain["head_VD"].t())
        .log_softmax(-1)
        .gather(1, plain["targets_N"][:, None])[:, 0]
    )
    r_N = state_weights(logq_N.detach(), torch.full((7,), -2.0), rows, "prefix", 1.5)
    expected = (plain["weights_N"] * r_N * D_N).sum() / 2
    expected.backward()
    result.loss.backward()
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(given.hidden_ND.grad, plain["hidden_ND"].grad, rtol=1e-4, atol=1e-6)
    assert r_N.max() <= 1.5 and result.sums["state_weight"].item() == pytest.approx(
        r_N.sum().item(), rel=1e-5
    )


def test_bad_arguments_are_named() -> None:
    given = inputs()
    with pytest.raises(ValueError, match="k must be at least 1"):
        fused_student_topk(**given, k=0)
    with pytest.raises(ValueError, match="23 but teacher vocabulary 20"):
        fused_teacher_topk(**{**given, "teacher_head_VE": given["teacher_head_VE"][:20]}, k=2)
    with pytest.raises(ValueError, match="7 student tokens but 3"):
        fused_student_topk(**{**given, "teacher_NE": given["teacher_NE"][:3]}, k=2)
    with pytest.raises(ConfigError, match="old_logprobs"):
        bad = tokens(old_logprobs_N=torch.full((7,), math.nan))
        get_loss("student_topk").function(bad, denominator=1.0, state_weight="token")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [tiny_models.llama, tiny_models.qwen35])
def test_steps_do_not_depend_on_micro_batches(name: str, make: Any) -> None:
    losses, weights = [], []
    rows = tiny_models.rows(branches=False)
    for row in rows:
        row.weights = []
    for tokens_per_micro in (16, 4096):
        student = Student(
            StudentConfig(model="", dtype="float32", lr=1e-2, tokens_per_micro=tokens_per_micro), make()
        )
        teacher = ModelTeacher(make(1), privileged=True)
        metrics = student.step(rows, name, teacher=teacher, top_k=5, state_weight="prefix")
        assert 0 < metrics["q_mass"] <= 1 + 1e-5 and 0 < metrics["p_mass"] <= 1 + 1e-5
        losses.append(metrics["loss"])
        weights.append(torch.cat([p.flatten() for p in student.optimizer.parameters.values()]).detach())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=2e-4)
