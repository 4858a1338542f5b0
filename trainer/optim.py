"""AdamW on fp32 masters: parameters in the compute dtype, gradients added up in fp32, schedule, clipping.

With fp32 parameters the masters are the parameters themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from envs.errors import CheckpointError, ConfigError, TrainingError

Schedule = Literal["cosine", "linear", "constant"]


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """`lr` is reached after `warmup_steps` (linear from lr / warmup_steps) and then falls to `final_lr_ratio * lr`
    at `total_steps`. `clip` bounds the global gradient norm (0: no bound)."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0
    total_steps: int = 1000
    schedule: Schedule = "cosine"
    final_lr_ratio: float = 0.0
    clip: float = 1.0


def learning_rate(config: OptimConfig, step: int) -> float:
    """Return the rate of step number `step` (from 0)."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    span = max(1, config.total_steps - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps) / span)
    shape = 0.5 * (1.0 + math.cos(math.pi * done)) if config.schedule == "cosine" else 1.0 - done
    return config.lr * (config.final_lr_ratio + (1.0 - config.final_lr_ratio) * shape)


class MasterAdamW:
    """AdamW over named parameters. Backward passes add their gradients up until `step`.

    Matrices decay, vectors (norms, biases) do not. Not for parameters that are views of one another: give each
    tied weight once.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], config: OptimConfig) -> None:
        self.config = config
        self.steps = 0
        self.parameters = dict(parameters)
        if not self.parameters:
            raise ConfigError("nothing to train: no parameter requires a gradient")
        if config.schedule not in ("cosine", "linear", "constant"):
            raise ConfigError(f"schedule must be cosine, linear or constant, got {config.schedule!r}")
        self.masters: dict[str, Tensor] = {}
        self.grads: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            master = parameter.detach()
            if master.dtype != torch.float32:
                master = master.float()
                parameter.register_post_accumulate_grad_hook(self._adder(name))
            self.masters[name] = master
        decayed = [m for m in self.masters.values() if m.ndim >= 2]
        plain = [m for m in self.masters.values() if m.ndim < 2]
        groups = [
            {"params": group, "weight_decay": decay}
            for group, decay in ((decayed, config.weight_decay), (plain, 0.0))
            if group
        ]
        self.adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)

    def _adder(self, name: str) -> Any:
        def add(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self.grad_buffer(name).add_(parameter.grad)
            parameter.grad = None

        return add

    def grad_buffer(self, name: str) -> Tensor:
        """Return the fp32 tensor in which the gradient of `name` is added up (zeros before the first backward)."""
        parameter = self.parameters[name]
        if parameter.dtype == torch.float32:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            return parameter.grad
        if name not in self.grads:
            self.grads[name] = torch.zeros_like(self.masters[name])
        return self.grads[name]

    def zero_grad(self) -> None:
        """Forget what was added up. The memory is kept for the next step."""
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad.zero_()
        for grad in self.grads.values():
            grad.zero_()

    @torch.no_grad()
    def step(self) -> dict[str, float]:
        """Clip, update the masters, copy them to the parameters, zero the gradients; return `grad_norm` and `lr`.

        Raises `TrainingError` naming a parameter whose gradient is not finite; weights and state are untouched then,
        and the gradients are dropped.
        """
        grads = {name: self.grad_buffer(name) for name in self.parameters}
        norms = torch.stack(torch._foreach_norm(list(grads.values())))
        norm = float(torch.linalg.vector_norm(norms))
        if not math.isfinite(norm):
            bad = [
                name for name, value in zip(grads, norms.tolist(), strict=True) if not math.isfinite(value)
            ]
            self.zero_grad()
            raise TrainingError(
                f"step {self.steps} refused: the gradient of {bad[0] if bad else 'all parameters together'} is not "
                f"finite ({len(bad)} of {len(grads)} parameters). The weights are unchanged. Lower the learning rate, "
                "or look for rows with extreme weights."
            )
        if self.config.clip and norm > self.config.clip:
            torch._foreach_mul_(list(grads.values()), self.config.clip / norm)
        lr = learning_rate(self.config, self.steps)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        for name, master in self.masters.items():
            master.grad = grads[name]
        self.adamw.step()
        for name, parameter in self.parameters.items():
            if parameter.dtype != torch.float32:
                parameter.copy_(self.masters[name])
                self.masters[name].grad = None
        self.zero_grad()
        self.steps += 1
        return {"grad_norm": norm, "lr": lr}

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return (tensors, scalars): masters and both moments by parameter name; the count of steps.

        The tensors are the live ones, so that saving needs no second copy of them: write or clone them before the
        next step.
        """
        tensors: dict[str, Tensor] = {}
        for name, master in self.masters.items():
            tensors[f"master.{name}"] = master.detach()
            state = self.adamw.state.get(master)
            if state:
                tensors[f"exp_avg.{name}"] = state["exp_avg"]
                tensors[f"exp_avg_sq.{name}"] = state["exp_avg_sq"]
        return tensors, {"optimizer_steps": self.steps}

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, exactly. Raises `CheckpointError` naming what is missing or misshapen."""
        for name, master in self.masters.items():
            saved = tensors.get(f"master.{name}")
            if saved is None or saved.shape != master.shape:
                what = (
                    "is missing"
                    if saved is None
                    else f"has shape {tuple(saved.shape)}, not {tuple(master.shape)}"
                )
                raise CheckpointError(f"the checkpoint does not fit this student: master.{name} {what}")
        self.steps = int(scalars["optimizer_steps"])
        self.adamw.state.clear()
        for name, master in self.masters.items():
            master.copy_(tensors[f"master.{name}"])
            if self.parameters[name].dtype != torch.float32:
                self.parameters[name].copy_(master)
            if f"exp_avg.{name}" in tensors:
                self.adamw.state[master] = {
                    "step": torch.tensor(float(self.steps), dtype=torch.float32, device=master.device),
                    "exp_avg": tensors[f"exp_avg.{name}"].to(master.device, copy=True),
                    "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(master.device, copy=True),
                }
        self.zero_grad()
