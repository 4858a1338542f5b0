"""Loading a trainable or teaching model, its compute dtype, and low-rank adapters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Low-rank adapters on the linear layers `targets` (names, or "all-linear"; never the head)."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] | str = "all-linear"


def compute_dtype(name: str, device: str) -> torch.dtype:
    """Return the dtype for "auto", "bfloat16" or "float32"; raise `ConfigError` for another name."""
    if name == "auto":
        from rollout.models import best_compute_dtype

        name = best_compute_dtype()
    if name not in ("bfloat16", "float32"):
        raise ConfigError(f"dtype must be auto, bfloat16 or float32, got {name!r}")
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def load_causal_lm(folder: str | Path, dtype: torch.dtype) -> Any:
    """Load a causal language model from a folder; raise `ConfigError` where that fails."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, attn_implementation="sdpa")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot load a model from {str(folder)!r}: {error}. Give a folder with config.json and safetensors."
        ) from error


def refuse_scaled_logits(config: Any, name: str) -> None:
    """Raise `ConfigError` for models whose logits are not hidden states times the head."""
    for key in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(config, key, None) not in (None, 1, 1.0):
            raise ConfigError(
                f"{name or 'the model'} scales its logits ({key}); the fused losses do not support that"
            )


def add_lora(model: Any, lora: LoraConfig) -> Any:
    from peft import LoraConfig as PeftLoraConfig
    from peft import get_peft_model

    targets: Any = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    if any(t in ("lm_head", "embed_tokens") for t in ([targets] if isinstance(targets, str) else targets)):
        raise ConfigError(
            "LoRA targets must not name the head or the embedding: engines cannot serve such adapters"
        )
    config = PeftLoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")  # type: ignore[arg-type]
    try:
        return get_peft_model(model, config, autocast_adapter_dtype=False)
    except ValueError as error:
        raise ConfigError(f"LoRA targets {lora.targets!r} do not fit the model: {error}") from error


def lora_delta(layer: Any) -> Tensor:
    """Return scale * B @ A in fp32, [out, in]."""
    (name,) = layer.active_adapters
    return layer.scaling[name] * (layer.lora_B[name].weight.float() @ layer.lora_A[name].weight.float())


def plain_name(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")
