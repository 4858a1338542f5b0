"""What a trainer rank and an engine keep in memory, part by part, from the shape of a model. GiB; no torch here.

Counted from the shape: weights, gradients, optimizer, KV cache, states. Modelled: activations (the tensors that
autograd saves, tests/recipes/test_memory.py compares them with a real backward pass) and logits (the fused losses
hold one block of rows, trainer/fused_linear.py). Assumed, not measured: `GPU_RUNTIME_GIB`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recipes.shapes import ModelShape

GIB = 2**30
GPU_RUNTIME_GIB = 3.0
"""Assumed: CUDA context, NCCL buffers, captured graphs and what the allocator loses, on one GPU of one process."""
USABLE = 0.92
"""Share of a GPU's memory that a plan fills at most."""
BLOCK_BYTES = 40 * 2**20
"""Size of one block of logits in the fused losses (trainer/fused_linear.py)."""
SCORED_ROWS = 1024
"""Rows of logits that vLLM makes at a time when it scores a prompt."""
SEQUENCES = 64
"""Sequences that an engine generates together (rollout/vllm_engine.py)."""


@dataclass(frozen=True, slots=True)
class Training:
    """How a student is trained on one rank.

    `computed`: bytes of a value in forward and backward pass (2 or 4). `trained`: parameters with an optimizer state.
    `tokens`: of one micro-batch. `zero`: 0 nothing is split over the `ranks`, 1 the optimizer, 2 gradients as well,
    3 weights as well. `copied`: parameters of a frozen start that is kept as teacher.
    """

    computed: int
    trained: int
    tokens: int
    checkpointing: bool = False
    ranks: int = 1
    zero: int = 0
    copied: int = 0


def trainer_parts(shape: ModelShape, training: Training) -> dict[str, float]:
    """Return the parts of one rank's memory at the peak of a step.

    Where the computation is in 16 bit there are float32 masters beside the weights (4 bytes a trained parameter);
    gradients are added up in float32 (4) and AdamW has two moments (8). In float32 the weights are their own masters.
    """
    t = training
    split = {part: t.ranks if t.zero >= stage else 1 for part, stage in _STAGES.items()}
    masters = 4 if t.computed == 2 else 0
    parts = {
        "weights": t.computed * shape.parameters / split["weights"],
        "gradients": 4 * t.trained / split["gradients"],
        "optimizer": (masters + 8) * t.trained / split["optimizer"],
        "activations": activation_bytes(shape, t.tokens, t.computed, checkpointing=t.checkpointing),
        "logits": logit_block_bytes(shape.vocab) * 2,  # of student and teacher
    }
    if t.zero == 3 and t.ranks > 1:
        # One layer at a time, and embedding and head, which are gathered once a step.
        largest = max(block.parameters for block in shape.blocks)
        parts["gathered"] = t.computed * (largest + shape.embedding * (1 if shape.tied else 2))
    if t.copied:
        parts["frozen start"] = t.computed * t.copied / split["weights"]
    return {part: value / GIB for part, value in parts.items()}


_STAGES = {"optimizer": 1, "gradients": 2, "weights": 3}


def activation_bytes(shape: ModelShape, tokens: int, computed: int, *, checkpointing: bool = False) -> float:
    """Return what one forward pass over `tokens` keeps for its backward pass.

    With checkpointing: the input of each layer, and of one layer all that it keeps. The kernels are those of a GPU: no
    attention matrix, and of linear attention one state every 64 tokens. Its plain torch version, which runs on a CPU,
    keeps more.
    """
    kept = [block.kept for block in shape.blocks]
    values = shape.hidden * len(kept) + max(kept) if checkpointing else sum(kept)
    return float(tokens * values * computed)


def logit_block_bytes(vocab: int) -> int:
    """Return the bytes of one float32 block of the fused losses: 16 to 128 rows, `BLOCK_BYTES` where they fit."""
    rows = max(16, min(128, BLOCK_BYTES // (4 * vocab) // 16 * 16))
    return rows * vocab * 4


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served: bytes of a value, GPUs of one replica, KV cache a GPU, and whether it scores prompts."""

    value_bytes: int = 2
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    kv_cache_gib: float = 1.0
    scores: bool = False
    batched_tokens: int = 8192

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


def engine_parts(shape: ModelShape, serving: Serving) -> dict[str, float]:
    """Return the parts of one GPU's memory under an engine."""
    tp = serving.tensor_parallel
    widest = max(linear.outputs for block in shape.blocks for linear in block.linears)
    rows = max(SCORED_ROWS if serving.scores else 0, SEQUENCES)
    parts = {
        "weights": serving.value_bytes * shape.parameters / serving.gpus,
        "activations": serving.batched_tokens * (4 * shape.hidden + 3 * widest / tp) * serving.value_bytes,
        "logits": rows * shape.vocab * 4 * 2,  # logits and log-probs, float32
    }
    gib = {part: value / GIB for part, value in parts.items()}
    return {
        "weights": gib["weights"],
        "KV cache": serving.kv_cache_gib,
        **gib,
        "runtime": GPU_RUNTIME_GIB,
    }


def kv_bytes_per_gpu(shape: ModelShape, serving: Serving, tokens: int) -> float:
    """Return the cache that one sequence of `tokens` takes on each GPU of a replica.

    Key and value heads are split over the tensor-parallel GPUs until each has one; states are split likewise; layers
    over the pipeline.
    """
    tp = min(serving.tensor_parallel, shape.kv_heads)
    growing = shape.kv_bytes_per_token(serving.value_bytes) * tokens / tp
    fixed = shape.state_bytes(serving.value_bytes) / serving.tensor_parallel
    return (growing + fixed) / serving.pipeline_parallel


def sequences_held(shape: ModelShape, serving: Serving, tokens: int) -> int:
    """Return how many sequences of `tokens` the KV cache of one replica holds."""
    return int(serving.kv_cache_gib * GIB / kv_bytes_per_gpu(shape, serving, tokens))


def total(parts: Mapping[str, float]) -> float:
    return sum(parts.values())
