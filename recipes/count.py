"""From a model's configuration to its shape: parameters to the last one, and what a token leaves behind.

Counted, not estimated: `ModelShape.parameters` equals the sum over transformers' own class on the meta device
(tests/recipes/test_shapes.py). Of models that also see, the text part is counted. No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from envs.errors import ConfigError, DataError, UnknownName, unknown_name
from recipes.inputs import local_folder
from recipes.shapes import Block, Linear, ModelShape

MODELS = Path(__file__).parent / "models.yaml"


def shape_of(model: str | Path) -> ModelShape:
    """Return the shape of a named model (models.yaml, short or hub name), a config.json, or a folder that holds one.

    A folder of this name on this machine comes before the table. Raises `UnknownName`, `ConfigError` (a class whose
    parameters cannot be counted, a value that is missing) and `DataError` (not JSON).
    """
    path = Path(model).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json" or path.is_file():
        return _read(path, str(model))
    found = table_name(str(model))
    folder = local_folder("tiny" if found == "tiny" else str(model))
    if folder is not None:
        return _read(folder / "config.json", str(model))
    if found is None:
        raise unknown_name("model", str(model), [*table(), "or a folder with config.json"])
    return shape_from_config(table()[found], found)


def find_shape(model: str | Path) -> ModelShape | None:
    """Return `shape_of` a model, or None where it is not known or of a class that is not counted."""
    try:
        return shape_of(model)
    except UnknownName:
        return None


def table_name(model: str) -> str | None:
    """Return the short name in models.yaml of a short or hub name, else None."""
    return next((name for name, row in table().items() if model in (name, row["model"])), None)


@cache
def table() -> dict[str, dict[str, Any]]:
    """Return models.yaml: short name to configuration."""
    return yaml.safe_load(MODELS.read_text(encoding="utf-8"))


def shape_from_config(config: Mapping[str, Any], name: str = "the model") -> ModelShape:
    """Return the shape that a parsed config.json describes.

    Raises `UnknownName` for a model_type that is not counted, `ConfigError` for a value that is missing or no number.
    """
    text: Mapping[str, Any] = {**config, **(config.get("text_config") or {})}
    kind = str(text.get("model_type", "")).removesuffix("_text")
    if kind not in KINDS:
        raise unknown_name(f"model_type of {name}", kind or "none", KINDS)
    try:
        return KINDS[kind](_Values(text, name))
    except (TypeError, ZeroDivisionError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name}: its config.json has a value that makes no model ({error})") from None


def usual_shape(name: str, parameters: int, layers: int, hidden: int, vocab: int) -> ModelShape:
    """Return a dense model of these sizes in usual proportions: heads of 128, MLPs 3.5 times as wide, a tied head.

    For classes that are not counted; its `parameters` are exactly those given.
    """
    heads = max(1, hidden // 128)
    linears = (
        *_attention(hidden, heads, heads, hidden // heads, False, False),
        *_mlp(hidden, 7 * hidden // 2),
    )
    kept = _kept_attention(hidden, heads, heads, hidden // heads, False) + _kept_mlp(hidden, 7 * hidden // 2)
    each, rest = divmod(parameters - (vocab + 1) * hidden, layers)
    inner = sum(linear.parameters for linear in linears)
    blocks = [Block("full", linears, 0, 1.0, each - inner, kept) for _ in range(layers)]
    blocks[0] = replace(blocks[0], other=blocks[0].other + rest)
    return ModelShape(name, "usual", hidden, vocab, True, heads, heads, hidden // heads, tuple(blocks))


@dataclass(frozen=True, slots=True)
class _Values:
    """Values of a config.json; a missing one is an error that names it, unless transformers has a default."""

    text: Mapping[str, Any]
    name: str

    def int(self, key: str, default: int | None = None) -> int:
        value = self.text.get(key, default)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"{self.name}: config.json has {key} {value!r}; a whole number is needed")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self.text.get(key, default))


def _read(path: Path, name: str) -> ModelShape:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is not there; give a folder or file with a model's config.json") from None
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise DataError(f"{path}: holds no object")
    return shape_from_config(config, name)


def _dense(v: _Values, *, qk_norm: bool, qkv_bias: bool | None, head_dim: int | None = None) -> ModelShape:
    """Llama, Mistral, Qwen2 and Qwen3: full attention and a gated MLP in every layer."""
    hidden, heads = v.int("hidden_size"), v.int("num_attention_heads")
    head_dim = v.int("head_dim", head_dim or hidden // heads)
    kv_heads = v.int("num_key_value_heads", heads)
    bias = v.flag("attention_bias")
    attention = _attention(hidden, heads, kv_heads, head_dim, bias if qkv_bias is None else qkv_bias, bias)
    mlp = _mlp(hidden, v.int("intermediate_size"), v.flag("mlp_bias"))
    other = 2 * hidden + (2 * head_dim if qk_norm else 0)
    kept = _kept_attention(hidden, heads, kv_heads, head_dim, qk_norm) + _kept_mlp(
        hidden, v.int("intermediate_size")
    )
    block = Block("full", (*attention, *mlp), 0, 1.0, other, kept)
    return _shape(v, hidden, heads, kv_heads, head_dim, (block,) * v.int("num_hidden_layers"))


def _qwen3_moe(v: _Values) -> ModelShape:
    """Full attention; routed experts in the layers that `decoder_sparse_step` and `mlp_only_layers` leave to them."""
    hidden, heads = v.int("hidden_size"), v.int("num_attention_heads")
    head_dim, kv_heads = v.int("head_dim", hidden // heads), v.int("num_key_value_heads", 4)
    bias = v.flag("attention_bias")
    attention = _attention(hidden, heads, kv_heads, head_dim, bias, bias)
    experts, chosen, width = (
        v.int("num_experts", 128),
        v.int("num_experts_per_tok", 8),
        v.int("moe_intermediate_size"),
    )
    step, dense_layers = v.int("decoder_sparse_step", 1), v.text.get("mlp_only_layers") or ()
    norms = 2 * hidden + 2 * head_dim
    kept = _kept_attention(hidden, heads, kv_heads, head_dim, True)
    blocks = []
    for layer in range(v.int("num_hidden_layers")):
        if layer not in dense_layers and experts > 0 and (layer + 1) % step == 0:
            stacked = experts * 3 * width * hidden
            sparse = kept + _kept_mlp(hidden, width * chosen) + experts
            blocks.append(
                Block("full", attention, stacked, chosen / experts, norms + experts * hidden, sparse)
            )
        else:
            mlp = _mlp(hidden, v.int("intermediate_size"))
            dense = kept + _kept_mlp(hidden, v.int("intermediate_size"))
            blocks.append(Block("full", (*attention, *mlp), 0, 1.0, norms, dense))
    return _shape(v, hidden, heads, kv_heads, head_dim, tuple(blocks))


def _qwen3_5(v: _Values, *, moe: bool) -> ModelShape:
    """Qwen3.5: linear attention (gated delta rule) in three of four layers, gated full attention in the fourth."""
    hidden, heads = v.int("hidden_size"), v.int("num_attention_heads")
    head_dim, kv_heads = v.int("head_dim", 256), v.int("num_key_value_heads", 2 if moe else 4)
    bias = v.flag("attention_bias")
    full = _attention(hidden, heads, kv_heads, head_dim, bias, bias, gated=True)
    key_heads, value_heads = v.int("linear_num_key_heads", 16), v.int("linear_num_value_heads", 32)
    key_dim, value_dim = v.int("linear_key_head_dim", 128), v.int("linear_value_head_dim", 128)
    keys, values, kernel = key_heads * key_dim, value_heads * value_dim, v.int("linear_conv_kernel_dim", 4)
    mixed = 2 * keys + values
    linear = (
        Linear("in_proj_qkv", hidden, mixed),
        Linear("in_proj_z", hidden, values),
        Linear("in_proj_b", hidden, value_heads),
        Linear("in_proj_a", hidden, value_heads),
        Linear("out_proj", values, hidden),
    )
    if moe:
        experts, chosen = v.int("num_experts", 256), v.int("num_experts_per_tok", 8)
        width, shared = v.int("moe_intermediate_size"), v.int("shared_expert_intermediate_size")
        mlp = (*_mlp(hidden, shared), Linear("shared_expert_gate", hidden, 1))
        stacked, used, router = experts * 3 * width * hidden, chosen / experts, experts * hidden
        mlp_kept = _kept_mlp(hidden, shared + width * chosen) + experts
    else:
        mlp, stacked, used, router = _mlp(hidden, v.int("intermediate_size")), 0, 1.0, 0
        mlp_kept = _kept_mlp(hidden, v.int("intermediate_size"))
    # Of linear attention: input and its norm, mixed q k v before and after the convolution, z, the heads' outputs
    # before and after the gated norm, and the state at the end of each chunk of 64 tokens.
    linear_kept = 3 * hidden + 3 * mixed + 4 * values + value_heads * key_dim * value_dim // 32
    full_block = Block(
        "full",
        (*full, *mlp),
        stacked,
        used,
        2 * hidden + 2 * head_dim + router,
        _kept_attention(hidden, heads, kv_heads, head_dim, True, gated=True) + mlp_kept,
    )
    linear_other = mixed * kernel + 2 * value_heads + value_dim
    linear_block = Block(
        "linear",
        (*linear, *mlp),
        stacked,
        used,
        2 * hidden + linear_other + router,
        linear_kept + mlp_kept,
    )
    blocks = tuple(full_block if kind == "full_attention" else linear_block for kind in _layer_types(v))
    return _shape(
        v,
        hidden,
        heads,
        kv_heads,
        head_dim,
        blocks,
        state_values=value_heads * key_dim * value_dim,
        conv_values=mixed * (kernel - 1),
    )


def _layer_types(v: _Values) -> list[str]:
    layers = v.int("num_hidden_layers")
    given = v.text.get("layer_types")
    if given is None:
        interval = v.int("full_attention_interval", 4)
        return ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]
    if len(given) != layers or not set(given) <= {"linear_attention", "full_attention"}:
        raise ConfigError(
            f"{v.name}: config.json has {len(given)} layer_types for {layers} layers, or one that is neither "
            f"linear_attention nor full_attention"
        )
    return list(given)


def _attention(
    hidden: int, heads: int, kv_heads: int, head_dim: int, qkv_bias: bool, out_bias: bool, gated: bool = False
) -> tuple[Linear, ...]:
    return (
        Linear("q_proj", hidden, heads * head_dim * (2 if gated else 1), qkv_bias),
        Linear("k_proj", hidden, kv_heads * head_dim, qkv_bias),
        Linear("v_proj", hidden, kv_heads * head_dim, qkv_bias),
        Linear("o_proj", heads * head_dim, hidden, out_bias),
    )


def _mlp(hidden: int, width: int, bias: bool = False) -> tuple[Linear, ...]:
    return (
        Linear("gate_proj", hidden, width, bias),
        Linear("up_proj", hidden, width, bias),
        Linear("down_proj", width, hidden, bias),
    )


def _kept_attention(
    hidden: int, heads: int, kv_heads: int, head_dim: int, qk_norm: bool, gated: bool = False
) -> int:
    """Input and its norm (the first in float32 as well), q k v around norm and rotation, and the heads' output."""
    queries, keys = heads * head_dim, kv_heads * head_dim
    rounds = 3 if qk_norm else 2
    return 4 * hidden + rounds * (queries + keys) + keys + queries + (3 * queries if gated else 0)


def _kept_mlp(hidden: int, width: int) -> int:
    """Input and its norm likewise; gate, its activation, up, and their product."""
    return 4 * hidden + 4 * width


def _shape(
    v: _Values,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    blocks: tuple[Block, ...],
    *,
    state_values: int = 0,
    conv_values: int = 0,
) -> ModelShape:
    return ModelShape(
        v.name,
        str(v.text["model_type"]),
        hidden,
        v.int("vocab_size"),
        v.flag("tie_word_embeddings"),
        heads,
        kv_heads,
        head_dim,
        blocks,
        state_values,
        conv_values,
    )


KINDS: dict[str, Callable[[_Values], ModelShape]] = {
    "llama": lambda v: _dense(v, qk_norm=False, qkv_bias=None),
    "mistral": lambda v: _dense(v, qk_norm=False, qkv_bias=False),
    "qwen2": lambda v: _dense(v, qk_norm=False, qkv_bias=True),
    "qwen3": lambda v: _dense(v, qk_norm=True, qkv_bias=None, head_dim=128),
    "qwen3_moe": _qwen3_moe,
    "qwen3_5": lambda v: _qwen3_5(v, moe=False),
    "qwen3_5_moe": lambda v: _qwen3_5(v, moe=True),
}
"""How each model_type is counted (`_text` endings left off)."""
