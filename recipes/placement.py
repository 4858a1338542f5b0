"""Which GPUs hold what: the smallest replicas that fit, then ranks and engines from what is left.

A role that is served (base agent, teacher, students) gets engines of the fewest GPUs that its memory fits in, tensor
parallel within a node, and pipeline parallel over whole nodes only where a node is too small. The trainer gets up to
half of the GPUs that are left, with the lowest ZeRO stage that fits, the students' engines the rest. Where too few
are left for both, each GPU holds an engine and a trainer rank side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import yaml

from envs.errors import ConfigError, unknown_name
from recipes.memory import GIB, USABLE, Serving, engine_parts, kv_bytes_per_gpu, total
from recipes.preflight import gpus_free_gib
from recipes.shapes import ModelShape

CLUSTERS = Path(__file__).parent / "clusters.yaml"


@dataclass(frozen=True, slots=True)
class Cluster:
    """`gpu_gib` is the memory of one GPU; all GPUs are alike."""

    name: str
    nodes: int
    gpus_per_node: int
    gpu_gib: float

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def usable_gib(self) -> float:
        return self.gpu_gib * USABLE


class TooBig(ConfigError):
    """A run that does not fit a cluster."""


@dataclass(frozen=True, slots=True)
class Pool:
    """One role's share of the cluster. `memory`: GiB by part on each of its GPUs; `gpus`: (node, GPU) of each replica.

    `parallel` says tensor and pipeline parallel sizes of one replica; ranks of the trainer are replicas of one GPU.
    """

    role: str
    model: str
    memory: dict[str, float]
    gpus: tuple[tuple[tuple[int, int], ...], ...]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    zero: int | None = None
    held: int | None = None
    """Sequences of the full context that the KV cache of one replica holds."""

    @property
    def replicas(self) -> int:
        return len(self.gpus)


@dataclass(slots=True)
class Free:
    """GPUs that are not taken yet, by node."""

    cluster: Cluster
    left: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = [list(range(self.cluster.gpus_per_node)) for _ in range(self.cluster.nodes)]

    @property
    def count(self) -> int:
        return sum(len(node) for node in self.left)

    def take(self, serving: Serving) -> tuple[tuple[int, int], ...] | None:
        """Take the GPUs of one replica: within one node, or whole nodes for a pipeline; None where there are none."""
        each, stages = serving.tensor_parallel, serving.pipeline_parallel
        nodes = [node for node, left in enumerate(self.left) if len(left) >= each]
        if stages > 1:
            nodes = [node for node in nodes if len(self.left[node]) == self.cluster.gpus_per_node]
        if len(nodes) < stages:
            return None
        if stages == 1:
            nodes.sort(key=lambda node: len(self.left[node]))  # the fullest node first
        taken = []
        for node in nodes[:stages]:
            taken += [(node, gpu) for gpu in self.left[node][:each]]
            self.left[node] = self.left[node][each:]
        return tuple(taken)


def smallest_serving(
    role: str, shape: ModelShape, serving: Serving, cluster: Cluster, sequences: int, tokens: int
) -> Serving:
    """Return `serving` with the fewest GPUs that fit; at least `serving.tensor_parallel` of them.

    With `sequences` > 0 the KV cache is made to hold so many sequences of `tokens`; else it is left as given. Raises
    `TooBig` naming what the best split would need.
    """
    best = None
    for tp, pp in _splits(shape, cluster):
        if tp < serving.tensor_parallel:
            continue
        tried = replace(serving, tensor_parallel=tp, pipeline_parallel=pp)
        if sequences:
            cache = sequences * kv_bytes_per_gpu(shape, tried, tokens) / GIB
            tried = replace(tried, kv_cache_gib=max(1.0, cache))
        if total(engine_parts(shape, tried)) <= cluster.usable_gib:
            return tried
        best = tried
    if best is None:
        raise TooBig(
            f"{role} ({shape.name}): {serving.tensor_parallel} GPUs an engine (engine.tensor_parallel) do not go into "
            f"nodes of {cluster.gpus_per_node} GPUs, or {shape.heads} heads do not divide by them"
        )
    parts = engine_parts(shape, best)
    raise TooBig(
        f"{role} ({shape.name}) needs {total(parts):.0f} GiB on each of {best.gpus} GPUs "
        f"({listed(parts)}), {cluster.usable_gib:.0f} GiB are usable on a GPU of {cluster.name}"
    )


def _splits(shape: ModelShape, cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Tensor-parallel sizes within a node that the heads divide by; then pipelines over whole nodes."""
    sizes = [2**k for k in range(10) if 2**k <= cluster.gpus_per_node and shape.heads % 2**k == 0]
    yield from ((size, 1) for size in sizes)
    for nodes in range(2, cluster.nodes + 1):
        if sizes and sizes[-1] == cluster.gpus_per_node:
            yield sizes[-1], nodes


def trainer_split(
    parts_of: Callable[[int, int], dict[str, float]],
    counts: list[int],
    room: float,
    zero: int | None,
) -> tuple[int, int, dict[str, float]]:
    """Return (ranks, ZeRO stage, parts) for the first of `counts` that fits into `room` GiB, lowest stage first.

    `parts_of(ranks, stage)` gives a rank's memory. Raises `TooBig` with the best that was tried.
    """
    best: tuple[int, int, dict[str, float]] | None = None
    for ranks in counts:
        for stage in (0, 1, 2, 3) if zero is None else (zero,):
            parts = parts_of(ranks, stage)
            if total(parts) <= room:
                return ranks, stage, parts
            if best is None or total(parts) < total(best[2]):
                best = ranks, stage, parts
    assert best is not None, "there is at least one count of ranks to try"
    ranks, stage, parts = best
    raise TooBig(
        f"the trainer needs {total(parts):.0f} GiB on each of {ranks} ranks with ZeRO-{stage} ({listed(parts)}), "
        f"{room:.0f} GiB are free for it"
    )


def listed(parts: dict[str, float]) -> str:
    """Return the parts of a memory account on one line, GiB."""
    return ", ".join(f"{part} {gib:.1f}" for part, gib in parts.items())


@cache
def clusters() -> dict[str, Cluster]:
    """Return the presets of clusters.yaml by name."""
    rows = yaml.safe_load(CLUSTERS.read_text(encoding="utf-8"))
    return {name: Cluster(name, **row) for name, row in rows.items()}


def cluster_named(name: str | None) -> Cluster:
    """Return a preset; None: the GPUs of this machine, or where it has none the first preset.

    Raises `UnknownName`.
    """
    if name is None:
        return cluster_here() or next(iter(clusters().values()))
    if name not in clusters():
        raise unknown_name("cluster", name, clusters())
    return clusters()[name]


def cluster_here() -> Cluster | None:
    """Return this machine's GPUs as a cluster of one node, with what is free on the fullest; None without a GPU."""
    free = gpus_free_gib()
    return Cluster("this machine", 1, len(free), min(free)) if free else None
