"""Tiny random models of both shapes that the trainer must handle: plain attention, and the hybrid of Qwen3.5."""

from __future__ import annotations

import random
from typing import Any

import torch

from trainer.types import Branch, Row

VOCAB = 97

torch.set_num_threads(1)  # tensors this small only wait for a second thread


def llama(seed: int = 0, tied: bool = True, vocab: int = VOCAB, kv_heads: int = 2) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def qwen35(seed: int = 0) -> Any:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(seed)
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.1,
        attn_implementation="sdpa",
    )
    return Qwen3_5ForCausalLM(config)


def rows(seed: int = 0, count: int = 5, branches: bool = True, vocab: int = VOCAB) -> list[Row]:
    """Rows of unlike lengths; one has a single trained token, one has branches only at its ends."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        ids = [rng.randrange(vocab) for _ in range(rng.randint(9, 40))]
        cut = rng.randint(3, len(ids) - 3)
        spans = [(1, 2)] if number == 1 else [(2, cut), (cut + 1, len(ids) - rng.randint(0, 1))]
        trained = sum(end - start for start, end in spans)
        hint = [rng.randrange(vocab) for _ in range(6)]
        row = Row(
            id=f"row{number}",
            ids=ids,
            spans=spans,
            old_logprobs=[-rng.random() * 8 for _ in range(trained)],
            weights=[rng.uniform(-1, 1) for _ in range(trained)],
            teacher_ids=hint + ids,
            teacher_spans=[(a + 6, b + 6) for a, b in spans],
        )
        if branches and number != 2:
            row.branches = [
                Branch(
                    at, [rng.randrange(vocab) for _ in range(rng.randint(1, 5))], weight=rng.uniform(0.5, 2)
                )
                for at in (1, cut, len(ids))
            ]
        made.append(row)
    return made
