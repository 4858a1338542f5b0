from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from envs.errors import CheckpointError, ConfigError, TrainingError
from trainer.optim import MasterAdamW, OptimConfig, learning_rate


def net(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def run(model, optimizer, steps, first=0):
    for k in range(first, first + steps):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(k)).to(next(model.parameters()).dtype)
        model(x).square().mean().backward()
        optimizer.step()


def test_schedule():
    config = OptimConfig(lr=1.0, warmup_steps=4, total_steps=14, schedule="linear")
    assert [learning_rate(config, k) for k in (0, 3, 4, 9, 14, 99)] == pytest.approx([0.25, 1, 1, 0.5, 0, 0])
    cosine = OptimConfig(lr=1.0, total_steps=10, final_lr_ratio=0.1)
    assert [learning_rate(cosine, k) for k in (0, 5, 10)] == pytest.approx([1.0, 0.55, 0.1])
    assert learning_rate(OptimConfig(lr=0.3, schedule="constant"), 10**6) == 0.3


def test_fp32_equals_torch_adamw_with_clipping():
    ours, theirs = net(), net()
    optimizer = MasterAdamW(ours.named_parameters(), OptimConfig(lr=0.01, schedule="constant", clip=0.05))
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    for k in range(6):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(k))
        ours(x).square().mean().backward()
        theirs(x).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
        assert optimizer.step()["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
        reference.step()
        reference.zero_grad()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_masters_keep_updates_that_bfloat16_would_lose():
    parameter = nn.Parameter(torch.full((4, 4), 1.0, dtype=torch.bfloat16))
    optimizer = MasterAdamW([("w", parameter)], OptimConfig(lr=1e-4, schedule="constant", clip=0))
    for _ in range(60):
        parameter.sum().backward()
        optimizer.step()
    assert optimizer.masters["w"][0, 0].item() == pytest.approx(1 - 60e-4, rel=1e-4)
    assert parameter[0, 0].item() == pytest.approx(1 - 60e-4, rel=2**-8)
    assert parameter.grad is None


def test_micro_batches_add_up_in_fp32():
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = MasterAdamW([("w", parameter)], OptimConfig(lr=0.1, schedule="constant", clip=0))
    for _ in range(300):  # in bfloat16 the sum would stop at 256
        parameter.sum().backward()
    assert optimizer.grad_buffer("w").item() == 300.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resume_is_exact(dtype):
    straight, first = net(dtype), net(dtype)
    config = OptimConfig(lr=0.01, warmup_steps=2, total_steps=8, weight_decay=0.1)
    run(straight, MasterAdamW(straight.named_parameters(), config), 6)
    optimizer = MasterAdamW(first.named_parameters(), config)
    run(first, optimizer, 3)
    tensors, scalars = optimizer.state_dict()
    second = net(dtype, seed=9)
    resumed = MasterAdamW(second.named_parameters(), config)
    resumed.load_state_dict(tensors, scalars)
    run(first, optimizer, 1, first=3)  # what goes on must not touch what was saved
    run(second, resumed, 3, first=3)
    for a, b in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bad_gradient_is_refused_by_name(value, dtype):
    model = net(dtype)
    optimizer = MasterAdamW(model.named_parameters(), OptimConfig())
    run(model, optimizer, 1)
    before = [p.clone() for p in model.parameters()]
    optimizer.grad_buffer("2.weight")[1, 1] = value
    with pytest.raises(TrainingError, match=r"2\.weight.*1 of 4"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    run(model, optimizer, 1)  # the bad gradient is gone
    assert optimizer.steps == 2


def test_bad_settings_and_checkpoints():
    with pytest.raises(ConfigError, match="nothing to train"):
        MasterAdamW([], OptimConfig())
    with pytest.raises(ConfigError, match="schedule"):
        MasterAdamW(net().named_parameters(), OptimConfig(schedule="step"))  # type: ignore[arg-type]
    model = net()
    optimizer = MasterAdamW(model.named_parameters(), OptimConfig())
    tensors, scalars = optimizer.state_dict()
    kept = model[0].weight.clone()
    tensors["master.2.weight"] = torch.zeros(2, 2)
    tensors["master.0.weight"] = torch.zeros(8, 6)
    with pytest.raises(CheckpointError, match=r"master\.2\.weight has shape \(2, 2\)"):
        optimizer.load_state_dict(tensors, scalars)
    assert torch.equal(model[0].weight, kept)  # checked before anything is written
    del tensors["master.2.weight"]
    with pytest.raises(CheckpointError, match="is missing"):
        optimizer.load_state_dict(tensors, scalars)
