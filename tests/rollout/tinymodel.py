"""Random models of a few thousand weights, saved as Hugging Face folders with a byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB_SIZE = 288
"""256 bytes, the special tokens, and padding rows as real checkpoints have them."""


def save_tokenizer(folder: Path) -> int:
    """Save a byte-level tokenizer with a chat template; return the id of <|im_end|>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: at for at, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    end = fast.convert_tokens_to_ids("<|im_end|>")
    assert isinstance(end, int)
    return end


def save_tiny_llama(folder: Path, seed: int = 0, *, tied: bool = True) -> Path:
    """Two layers, head size 32 (the least that vLLM's CPU attention takes), fp32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    end = save_tokenizer(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.2,  # wide enough that distributions are far from uniform
        bos_token_id=None,
        eos_token_id=end,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_tiny_qwen35(folder: Path, seed: int = 0) -> Path:
    """Four layers, three of them linear attention, as in Qwen3.5; fp32."""
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    end = save_tokenizer(folder)
    torch.manual_seed(seed)
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.2,
        eos_token_id=end,
        dtype="float32",
    )
    Qwen3_5ForCausalLM(config).save_pretrained(folder)
    return folder
