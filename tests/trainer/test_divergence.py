from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.divergence import divergence_in_place, fused_divergence

torch.set_num_threads(1)  # tensors this small only wait for a second thread

BETAS = [0.0, 0.1, 0.5, 1.0]


def make(N=37, V=301, D=16, E=24, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    shapes = [(N, D), (V, D), (N, E), (V, E)]
    return [torch.randn(s, generator=g).to(dtype) for s in shapes] + [torch.rand(N, generator=g)]


def naive(student, head, teacher, teacher_head, weights, beta):
    """The textbook formula in float64 with autograd."""
    logq = (student.double() @ head.double().T).log_softmax(-1)
    logp = (teacher.double() @ teacher_head.double().T).log_softmax(-1)
    if beta == 0:
        D = (logp.exp() * (logp - logq)).sum(-1)
    elif beta == 1:
        D = (logq.exp() * (logq - logp)).sum(-1)
    else:
        logm = ((1 - beta) * logq.exp() + beta * logp.exp()).log()
        D = beta * (logp.exp() * (logp - logm)).sum(-1) + (1 - beta) * (logq.exp() * (logq - logm)).sum(-1)
    return (weights * D).sum(), D


def grads(function, student, head, *rest, **options):
    student, head = student.clone().requires_grad_(), head.clone().requires_grad_()
    loss, D = function(student, head, *rest, **options)
    loss.backward()
    return loss.item(), D.detach(), student.grad, head.grad


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("chunk_rows", [1, 16, 64])
def test_equals_the_naive_formula(beta, chunk_rows):
    inputs = make()
    ours = grads(fused_divergence, *inputs, beta, chunk_rows=chunk_rows, chunk_vocab=100)
    theirs = grads(naive, *inputs, beta)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    torch.testing.assert_close(ours[1].double(), theirs[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours[2], theirs[2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours[3], theirs[3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("beta", BETAS)
def test_equals_trl(beta):
    kernel = pytest.importorskip("trl.kernels.chunked_divergence").ChunkedDivergenceFunction
    inputs = make()

    def trl(student, head, teacher, teacher_head, weights, beta):
        D, _ = kernel.apply(student, head, None, teacher, teacher_head, None, beta)
        return (weights * D).sum(), D

    ours, theirs = grads(fused_divergence, *inputs, beta), grads(trl, *inputs, beta)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_direction_on_two_tokens():
    """q = (3/4, 1/4), p = (1/2, 1/2): beta 1 is KL(q||p), beta 0 is KL(p||q), 1/2 is the JSD."""
    q, p = torch.tensor([[0.75, 0.25]]), torch.tensor([[0.5, 0.5]])
    reverse = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    forward = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(2.0)
    m = [0.625, 0.375]
    jsd = 0.5 * sum(a * math.log(a / c) for a, c in zip([0.5, 0.5], m, strict=True))
    jsd += 0.5 * sum(a * math.log(a / c) for a, c in zip([0.75, 0.25], m, strict=True))
    eye, one = torch.eye(2), torch.ones(1)
    for beta, golden in ((1.0, reverse), (0.0, forward), (0.5, jsd)):
        loss, D_N = fused_divergence(q.log(), eye, p.log(), eye, one, beta)
        assert loss.item() == pytest.approx(golden, abs=1e-6)
        assert D_N.item() == pytest.approx(golden, abs=1e-6)
    # Descent moves mass towards the teacher: the gradient in the over-weighted logit is positive.
    z = q.log().requires_grad_()
    fused_divergence(z, eye, p.log(), eye, one, 1.0)[0].backward()
    assert z.grad is not None and z.grad[0, 0] > 0 > z.grad[0, 1]


@pytest.mark.parametrize(
    ("beta", "value", "dh_norm", "dW_norm"),
    [
        (0.0, 227.116207, 17.120014, 13.841608),
        (0.1, 6.362131, 0.159499, 0.163476),
        (0.5, 13.748642, 0.376615, 0.376061),
        (1.0, 252.772006, 27.196554, 29.276068),
    ],
)
def test_golden_values_and_gradient_norms(beta, value, dh_norm, dW_norm):
    """Pinned figures of one fixed input, so that a change of version or kernel shows."""
    loss, _, dh, dW = grads(fused_divergence, *make(seed=7), beta)
    assert [loss, dh.norm().item(), dW.norm().item()] == pytest.approx([value, dh_norm, dW_norm], rel=1e-4)


@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 30.0), beta=st.sampled_from(BETAS))
@settings(max_examples=40, deadline=None)
def test_never_negative_and_zero_on_itself(seed, scale, beta):
    student, head, teacher, teacher_head, weights = make(N=5, V=64, D=8, E=8, seed=seed)
    _, D_N = fused_divergence(student * scale, head, teacher * scale, teacher_head, weights, beta)
    assert torch.isfinite(D_N).all() and (D_N >= -1e-5).all()
    student.requires_grad_()
    loss, same_N = fused_divergence(student, head, student, head, weights, beta)
    loss.backward()
    assert student.grad is not None
    assert same_N.abs().max() < 1e-5 and student.grad.abs().max() < 1e-5


def test_descent_reaches_the_teacher():
    """Plain descent on the reverse KL ends at the teacher, no mass lost."""
    torch.manual_seed(0)
    p_logits = 2 * torch.randn(1, 50)
    z, eye = torch.zeros(1, 50, requires_grad=True), torch.eye(50)
    optimizer = torch.optim.Adam([z], lr=0.05)
    for _ in range(600):
        optimizer.zero_grad()
        loss, _ = fused_divergence(z, eye, p_logits, eye, torch.ones(1), 1.0)
        loss.backward()
        optimizer.step()
    assert 0 <= loss.item() + 1e-6 < 1e-3


@pytest.mark.parametrize("beta", BETAS)
def test_impossible_tokens_give_no_nan(beta):
    student, teacher = torch.randn(3, 20), torch.randn(3, 20)
    student[:, 3] = teacher[:, 3] = -math.inf  # impossible for both
    D_R = divergence_in_place(student, teacher, beta)
    assert torch.isfinite(D_R).all() and torch.isfinite(student).all()
    student, teacher = torch.randn(3, 20), torch.randn(3, 20)
    student[:, 5] = -math.inf
    if beta > 0:  # forward KL is infinite there, the others are not
        assert torch.isfinite(divergence_in_place(student, teacher, beta)).all()


def test_nan_is_not_hidden():
    inputs = make(N=4)
    inputs[0][2] = math.nan
    loss, D_N = fused_divergence(*inputs, 1.0)
    assert math.isnan(loss.item())
    assert torch.isnan(D_N).tolist() == [False, False, True, False]


def test_bfloat16_stays_close_and_tied_heads_share_one_gradient():
    inputs = make(dtype=torch.bfloat16)
    ours, exact = grads(fused_divergence, *inputs, 1.0), grads(naive, *inputs, 1.0)
    assert ours[0] == pytest.approx(exact[0], rel=1e-4)
    assert ours[2].dtype == torch.bfloat16
    assert (ours[2].float() - exact[2].float()).norm() / exact[2].float().norm() < 1e-2

    embedding = torch.randn(50, 8, requires_grad=True)
    ids = torch.tensor([1, 4, 4])
    teacher, teacher_head = torch.randn(3, 8), torch.randn(50, 8)
    for function in (fused_divergence, naive):
        if embedding.grad is not None:
            first, embedding.grad = embedding.grad, None
        function(embedding[ids] * 0.5, embedding, teacher, teacher_head, torch.ones(3), 1.0)[0].backward()
    torch.testing.assert_close(first, embedding.grad, rtol=1e-4, atol=1e-5)


def test_head_gradient_into_a_buffer_and_upstream_scale():
    student, *rest = make()
    head, rest = rest[0], rest[1:]
    _, _, dh, dW = grads(fused_divergence, student, head, *rest, 0.5)
    buffer = torch.ones_like(head)
    a = student.clone().requires_grad_()
    fused_divergence(a, head, *rest, 0.5, head_grad_VD=buffer)[0].backward()
    torch.testing.assert_close(buffer - 1, dW, rtol=1e-4, atol=1e-5)
    b = student.clone().requires_grad_()
    (fused_divergence(b, head, *rest, 0.5)[0] * 3).backward()
    assert a.grad is not None and b.grad is not None
    torch.testing.assert_close(a.grad, dh)
    torch.testing.assert_close(b.grad, 3 * dh)


def test_no_tokens_is_a_zero():
    student, head, teacher, teacher_head, weights = make(N=0)
    student.requires_grad_()
    loss, D_N = fused_divergence(student, head, teacher, teacher_head, weights, 1.0)
    loss.backward()
    assert loss.item() == 0 and D_N.shape == (0,)


def test_bad_arguments():
    student, head, teacher, teacher_head, weights = make()
    with pytest.raises(ValueError, match="teacher vocabulary 300"):
        fused_divergence(student, head, teacher, teacher_head[:300], weights, 1.0)
    with pytest.raises(ValueError, match="36 teacher tokens"):
        fused_divergence(student, head, teacher[:36], teacher_head, weights, 1.0)
    with pytest.raises(ValueError, match="beta"):
        fused_divergence(student, head, teacher, teacher_head, weights, 1.5)
    with pytest.raises(ValueError, match="weights_N"):
        fused_divergence(student, head, teacher, teacher_head, weights[:5], 1.0)
