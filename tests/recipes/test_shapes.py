"""Parameter counts equal transformers' own classes on the meta device, for random tiny and for full-size shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.errors import ConfigError, DataError, UnknownName
from recipes.count import KINDS, find_shape, shape_from_config, shape_of, table, table_name


def on_meta(values: dict[str, Any]) -> Any:
    """The causal language model of a configuration, without memory."""
    import transformers

    plain = {key: value for key, value in values.items() if key not in ("source", "model", "model_type")}
    config = transformers.AutoConfig.for_model(values["model_type"], **plain)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def count(model: Any) -> int:
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(KINDS)))
    kv_heads = draw(st.integers(1, 3))
    values: dict[str, Any] = {
        "model_type": f"{kind}_text" if kind.startswith("qwen3_5") else kind,
        "vocab_size": draw(st.integers(20, 70)),
        "hidden_size": 12 * draw(st.integers(1, 4)),
        "num_hidden_layers": draw(st.integers(1, 5)),
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * draw(st.integers(1, 3)),
        "head_dim": 2 * draw(st.integers(1, 6)),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()) if kind not in ("mistral", "qwen2") else False,
    }
    if kind == "llama":
        values["mlp_bias"] = draw(st.booleans())
    if kind.startswith("qwen3_5"):
        keys = draw(st.integers(1, 3))
        values |= {
            "linear_num_key_heads": keys,
            "linear_num_value_heads": keys * draw(st.integers(1, 3)),
            "linear_key_head_dim": 4 * draw(st.integers(1, 3)),
            "linear_value_head_dim": 4 * draw(st.integers(1, 3)),
            "linear_conv_kernel_dim": draw(st.integers(2, 5)),
        }
    if kind.endswith("moe"):
        values |= {
            "num_experts": draw(st.integers(2, 6)),
            "num_experts_per_tok": 2,
            "moe_intermediate_size": draw(st.integers(3, 20)),
        }
    if kind == "qwen3_5_moe":
        values["shared_expert_intermediate_size"] = draw(st.integers(3, 20))
    else:
        values["intermediate_size"] = draw(st.integers(3, 40))
    if kind == "qwen3_moe":
        values |= {"decoder_sparse_step": draw(st.integers(1, 3)), "mlp_only_layers": [0]}
    return values


@settings(max_examples=60, deadline=None)
@given(configs())
def test_parameters_are_those_of_transformers(values: dict[str, Any]) -> None:
    assert shape_from_config(values).parameters == count(on_meta(values))


@pytest.mark.parametrize("name", table())
def test_full_size_parameters_are_those_of_transformers(name: str) -> None:
    shape = shape_from_config(table()[name], name)
    assert shape.parameters == count(on_meta(table()[name]))
    assert table()[name]["source"]


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("tiny", 0.1345, 0.1345),
        ("2b", 1.88, 1.88),
        ("4b", 4.2, 4.2),
        ("9b", 8.95, 8.95),
        ("35b", 34.7, 3.5),
        ("122b", 122.1, 9.8),
    ],
)
def test_named_models_are_as_big_as_their_names(name: str, billions: float, active: float) -> None:
    shape = shape_from_config(table()[name], name)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.02)
    assert shape.active / 1e9 == pytest.approx(active, rel=0.04)


def test_adapters_are_those_of_peft() -> None:
    from peft import LoraConfig, get_peft_model

    small = {"hidden_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 50}
    for name, targets in (
        ("tiny", ["q_proj", "v_proj", "down_proj"]),
        ("2b", ["q_proj", "gate_proj", "in_proj_qkv"]),
        ("35b", ["o_proj", "up_proj", "out_proj", "shared_expert_gate"]),
    ):
        values = {**table()[name], **small, "num_hidden_layers": 4}
        model = get_peft_model(on_meta(values), LoraConfig(r=3, target_modules=targets))
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert shape_from_config(values).adapter_parameters(3, targets) == trained
    with pytest.raises(ConfigError, match="no linear layer of tiny is called fc1; it has down_proj"):
        shape_from_config(table()["tiny"], "tiny").adapter_parameters(3, ["fc1"])


def test_only_full_attention_grows_with_the_context() -> None:
    """What transformers' own caches hold after a forward pass of a tiny hybrid."""
    from transformers import AutoModelForCausalLM

    shape = shape_from_config(table()["122b"], "122b")
    assert shape.full_layers == 12
    assert shape.kv_bytes_per_token() == 2 * 12 * 2 * 256 * 2  # keys and values, layers, heads, width, bytes
    assert shape.state_bytes() == 36 * (64 * 128 * 128 * 4 + (2 * 16 * 128 + 64 * 128) * 3 * 2)
    assert shape_from_config(table()["tiny"]).state_bytes() == 0
    values = {
        **table()["2b"],
        "hidden_size": 16,
        "intermediate_size": 8,
        "head_dim": 4,
        "vocab_size": 30,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
    }
    tiny = shape_from_config(values)
    model = AutoModelForCausalLM.from_config(on_meta(values).config)
    sizes = []
    for length in (7, 12):
        cache = model(torch.arange(length)[None], use_cache=True).past_key_values
        grown = fixed = 0
        for layer in cache.layers:
            for slot in vars(layer).values():
                for tensor in _tensors(slot):
                    held = tensor.numel() * tensor.element_size()
                    if "keys" in vars(layer):
                        grown += held
                    else:
                        fixed += held
        assert grown == length * tiny.kv_bytes_per_token(4)
        sizes.append(fixed)
    assert sizes[0] == sizes[1]
    # transformers keeps `kernel` columns of the convolution's window, engines the `kernel - 1` that are read again.
    spare = 6 * 4 * (2 * 2 * 8 + 4 * 8)
    assert sizes[0] in (tiny.state_bytes(4), tiny.state_bytes(4) + spare)


def _tensors(slot: Any) -> list[torch.Tensor]:
    if isinstance(slot, torch.Tensor):
        return [slot]
    if isinstance(slot, dict):
        return [tensor for value in slot.values() for tensor in _tensors(value)]
    return []


def test_a_model_is_found_by_name_hub_name_file_or_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUXFORGE_CACHE", str(tmp_path))
    monkeypatch.delenv("FLUXFORGE_MODELS", raising=False)
    assert shape_of("9b").parameters == shape_of("Qwen/Qwen3.5-9B").parameters
    assert table_name("Qwen/Qwen3.5-9B") == "9b" and table_name("x") is None
    nested = {"model_type": "qwen3_5", "tie_word_embeddings": True, "text_config": table()["2b"]}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    for place in (tmp_path, tmp_path / "config.json"):
        assert shape_of(place).parameters == shape_of("2b").parameters
    assert find_shape("owner/unheard-of") is None
    with pytest.raises(UnknownName, match="Did you mean '9b'|known"):
        shape_of("9bb")


def test_bad_configs_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="model_type of the model"):
        shape_from_config({"model_type": "gpt2"})
    with pytest.raises(ConfigError, match="hidden_size None"):
        shape_from_config({"model_type": "llama"})
    with pytest.raises(ConfigError, match="num_attention_heads 'four'"):
        shape_from_config({"model_type": "llama", "hidden_size": 4, "num_attention_heads": "four"})
    with pytest.raises(ConfigError, match="makes no model"):
        shape_from_config({"model_type": "llama", "hidden_size": 4, "num_attention_heads": 0})
    with pytest.raises(ConfigError, match="3 layer_types for 24 layers"):
        shape_from_config({**table()["2b"], "layer_types": ["full_attention"] * 3})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config\.json: not JSON"):
        shape_of(tmp_path)
