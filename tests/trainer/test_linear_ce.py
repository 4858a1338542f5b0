from __future__ import annotations

import math

import pytest
import torch

from trainer.linear_ce import fused_cross_entropy, fused_logprobs, fused_policy_gradient, truncated_ratio

torch.set_num_threads(1)  # tensors this small only wait for a second thread


def make(N=37, V=301, D=16, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(N, D, generator=g),
        torch.randn(V, D, generator=g),
        torch.randint(0, V, (N,), generator=g),
        torch.rand(N, generator=g),
    )


def test_logprobs_and_entropy_equal_log_softmax():
    h, W, y, _ = make()
    logq_N, entropy_N = fused_logprobs(h, W, y, chunk_rows=10, chunk_vocab=64)
    full = (h.double() @ W.double().T).log_softmax(-1)
    torch.testing.assert_close(logq_N.double(), full.gather(1, y[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy_N.double(), -(full.exp() * full).sum(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk_rows", [1, 16, 64])
def test_cross_entropy_equals_autograd(chunk_rows):
    h, W, y, w = make()
    a, b = h.clone().requires_grad_(), W.clone().requires_grad_()
    loss, logq_N, _ = fused_cross_entropy(a, b, y, w, chunk_rows=chunk_rows)
    loss.backward()
    c, d = h.clone().requires_grad_(), W.clone().requires_grad_()
    golden = (w * torch.nn.functional.cross_entropy(c @ d.T, y, reduction="none")).sum()
    golden.backward()
    torch.testing.assert_close(loss, golden)
    torch.testing.assert_close(a.grad, c.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(b.grad, d.grad, rtol=1e-5, atol=1e-5)
    assert not logq_N.requires_grad


@pytest.mark.parametrize("with_reference", [False, True])
def test_policy_gradient_equals_autograd(with_reference):
    h, W, y, w = make()
    A = torch.randn(37)
    logq = (h @ W.T).log_softmax(-1).gather(1, y[:, None])[:, 0]
    old = logq + 0.8 * torch.randn(37)
    clip = 1.5
    a, b = h.clone().requires_grad_(), W.clone().requires_grad_()
    named = {"reference_logprobs_N": A + logq} if with_reference else {"advantages_N": A}
    loss, _, _ = fused_policy_gradient(a, b, y, w, old, ratio_clip=clip, chunk_rows=16, **named)
    loss.backward()
    c, d = h.clone().requires_grad_(), W.clone().requires_grad_()
    live = (c @ d.T).log_softmax(-1).gather(1, y[:, None])[:, 0]
    rho = (live.detach() - old).exp().clamp(max=clip)
    (-(w * A * rho * live).sum()).backward()
    assert loss.item() == pytest.approx(-(w * A * rho).sum().item(), rel=1e-4)
    torch.testing.assert_close(a.grad, c.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(b.grad, d.grad, rtol=1e-4, atol=1e-4)


def test_ratio_is_truncated_and_never_overflows():
    logq = torch.tensor([0.0, -1.0, -2.0, -1e4])
    old = torch.tensor([-1e4, -1.0, -1.0, 0.0])
    assert truncated_ratio(logq, old, 2.0).tolist() == pytest.approx([2.0, 1.0, math.exp(-1), 0.0])


def test_huge_logits_and_bad_shapes():
    h, W, y, w = make()
    logq_N, entropy_N = fused_logprobs(h * 1e4, W, y)
    assert torch.isfinite(logq_N).all() and torch.isfinite(entropy_N).all() and (entropy_N > -1e-2).all()
    with pytest.raises(ValueError, match="targets_N"):
        fused_logprobs(h, W, y[:3])
    with pytest.raises(ValueError, match="either"):
        fused_policy_gradient(h, W, y, w, w)
    with pytest.raises(ValueError, match="head"):
        fused_logprobs(h, W[:, :3], y)
