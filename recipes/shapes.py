"""What the shape of a model says: its parameters, those that a token runs through, its cache, adapters on it.

`recipes/count.py` makes shapes from configurations. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from envs.errors import ConfigError

Attention = Literal["full", "linear"]


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear layer, as adapters see it: its name, widths, and whether it has a bias."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)


@dataclass(frozen=True, slots=True)
class Block:
    """One decoder layer.

    `experts` are the parameters of all routed experts, `used` the share of them that a token runs through; `other` is
    what is neither linear layer nor expert (norms, convolution, router). `kept` counts the values that one token leaves
    for the backward pass.
    """

    attention: Attention
    linears: tuple[Linear, ...]
    experts: int
    used: float
    other: int
    kept: int

    @property
    def parameters(self) -> int:
        return sum(linear.parameters for linear in self.linears) + self.experts + self.other


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the plan counts with."""

    name: str
    model_type: str
    hidden: int
    vocab: int
    tied: bool
    heads: int
    kv_heads: int
    head_dim: int
    blocks: tuple[Block, ...]
    state_values: int = 0
    """Values of the recurrent state of one sequence in one layer of linear attention (kept in float32)."""
    conv_values: int = 0
    """Values of the convolution's window, likewise (in the engine's type)."""

    @property
    def embedding(self) -> int:
        """Parameters of one embedding matrix, V * H."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, a tied head once."""
        body = sum(block.parameters for block in self.blocks)
        return body + self.embedding * (1 if self.tied else 2) + self.hidden

    @property
    def active(self) -> int:
        """Parameters that a token runs through: of the routed experts only those that are chosen."""
        idle = sum(block.experts * (1 - block.used) for block in self.blocks)
        return self.parameters - round(idle)

    @property
    def experts(self) -> int:
        """Parameters of all routed experts of all layers."""
        return sum(block.experts for block in self.blocks)

    @property
    def full_layers(self) -> int:
        """Layers whose cache grows with the context."""
        return sum(block.attention == "full" for block in self.blocks)

    def kv_bytes_per_token(self, value_bytes: int = 2) -> int:
        """Bytes that one token adds to the cache of its sequence, over the layers with full attention."""
        return 2 * self.full_layers * self.kv_heads * self.head_dim * value_bytes

    def state_bytes(self, value_bytes: int = 2) -> int:
        """Bytes that one sequence holds however long it is: recurrent states (float32) and convolution windows."""
        return (len(self.blocks) - self.full_layers) * (
            4 * self.state_values + value_bytes * self.conv_values
        )

    def adapter_parameters(self, rank: int, targets: Sequence[str]) -> int:
        """Parameters of low-rank adapters of `rank` on every linear layer named in `targets`.

        Experts stored as one stacked tensor are no linear layers and get none. Raises `ConfigError` when no layer has
        one of the names.
        """
        named = [linear for block in self.blocks for linear in block.linears if linear.name in targets]
        if not named:
            known = sorted({linear.name for block in self.blocks for linear in block.linears})
            raise ConfigError(
                f"no linear layer of {self.name} is called {', '.join(targets)}; it has {', '.join(known)}"
            )
        return sum(rank * (linear.inputs + linear.outputs) for linear in named)
