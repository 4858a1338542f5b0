"""`fluxforge plan`: what a run would place where on a cluster, the memory of each part per GPU, or why it cannot.

    make plan TRACKER=2b
    fluxforge plan --tracker 9b --cluster 2x8x141 --base 122b --json

From configurations alone: no GPU, no weights, no torch. A run that does not fit is refused with the nearest changes
that would make it fit. docs/plan.md says what is counted and what is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from recipes.count import shape_of
from recipes.inputs import engine_kind
from recipes.memory import GIB, GPU_RUNTIME_GIB, Serving, engine_parts, sequences_held, total, trainer_parts
from recipes.placement import (
    Cluster,
    Free,
    Pool,
    TooBig,
    cluster_here,
    listed,
    smallest_serving,
    trainer_split,
)
from recipes.preflight import model_shape, preset_model, tokens_per_dialogue, training_of
from recipes.schema import OpdConfig
from recipes.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the recipe does not say. `base`: model of the base agent's fleet (None: templates, no GPU); `ranks` and
    `zero` of the trainer (None: chosen)."""

    base: str | None = None
    ranks: int | None = None
    zero: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Expected tokens of one OPD step: dialogues sampled, tokens read and written in them, and what a rank gets."""

    samples: int
    tokens_a_dialogue: float
    tokens: float
    scored: float
    tokens_a_rank: float
    micro_batches_a_rank: int


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Pools by role, the step, and remarks. `colocated`: each student engine shares its GPU with a trainer rank."""

    tracker: str
    cluster: Cluster
    pools: tuple[Pool, ...]
    step: Step
    colocated: bool
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"usable_gib": self.cluster.usable_gib}

    def text(self) -> str:
        """The plan for people: a line a pool, its memory below it."""
        c, step = self.cluster, self.step
        lines = [
            f"plan: tracker {self.tracker} on {c.name}: {c.nodes} x {c.gpus_per_node} GPUs, "
            f"{c.usable_gib:.0f} of {c.gpu_gib:.0f} GiB usable on each"
        ]
        for pool in self.pools:
            split = f"ZeRO-{pool.zero}" if pool.zero is not None else _parallel(pool)
            kind = ("rank" if pool.zero is not None else "engine") + ("s" if pool.replicas > 1 else "")
            lines += [
                f"{pool.role} ({pool.model}): {pool.replicas} {kind}, {split}",
                f"  on {_places(pool)}",
                f"  {total(pool.memory):.1f} GiB a GPU: "
                + ", ".join(f"{part} {gib:.1f}" for part, gib in pool.memory.items()),
            ]
            if pool.held is not None:
                lines.append(f"  the cache of an engine holds {pool.held} dialogues of the full context")
        used = {gpu for pool in self.pools for replica in pool.gpus for gpu in replica}
        lines += [
            f"idle GPUs: {c.gpus - len(used)}",
            f"a step: {step.samples} dialogues of about {step.tokens_a_dialogue:.0f} tokens = {step.tokens:,.0f} "
            f"tokens in rows, {step.scored:,.0f} scored by a teacher",
            f"micro-batches of a rank: {step.micro_batches_a_rank}",
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def make_plan(config: OpdConfig, cluster: Cluster, options: PlanOptions) -> ClusterPlan:
    """Return the plan without looking for another one. Raises `TooBig`."""
    free, pools, notes = Free(cluster), [], []
    student = shape_of(config.model or config.tracker)
    samples = max(1, config.opd.dialogues * config.opd.group)
    for role, name in served_models(config, options):
        shape, scores = shape_of(name), "teacher" in role
        serving = Serving(scores=scores, batched_tokens=max(2048, config.engine.max_model_len))
        serving = smallest_serving(
            role, shape, serving, cluster, min(samples, 64), config.engine.max_model_len
        )
        gpus = free.take(serving)
        if gpus is None:
            raise TooBig(f"{role} ({name}) needs {serving.gpus} GPUs, {free.count} are left")
        held = sequences_held(shape, serving, config.engine.max_model_len)
        pools.append(_pool(role, name, engine_parts(shape, serving), (gpus,), serving, held))
    if free.count == 0:
        raise TooBig(f"no GPU is left for students and trainer beside {' and '.join(p.role for p in pools)}")
    engine = smallest_serving("students", student, _serving(config), cluster, 0, config.engine.max_model_len)
    colocated = free.count < engine.gpus + (options.ranks or 1)
    if colocated:
        made = _colocated(config, student, engine, free, cluster, options)
        notes.append("students and trainer share their GPUs: both stay in memory, and they take turns")
    else:
        made = _apart(config, student, engine, free, cluster, options, samples)
    pools += made
    if options.base is None:
        notes.append("no base agent: replies come from templates (env.base); --base MODEL plans one")
    if config.opd.steps and config.opd.teacher == "oracle":
        notes.append("teacher oracle: no model scores")
    if config.opd.steps and config.opd.teacher == "privileged":
        notes.append("the privileged teacher is the frozen start, on the trainer's ranks")
    if student.state_values and config.student.lora is not None:
        targets = set(config.student.lora.targets)
        if not targets & {"in_proj_qkv", "in_proj_z", "out_proj"}:
            notes.append(
                "student.lora.targets name no layer of linear attention (in_proj_qkv, in_proj_z, out_proj)"
            )
    step = _step(config, pools[-1].replicas, samples)
    return ClusterPlan(config.tracker, cluster, tuple(pools), step, colocated, tuple(notes))


def plan_here(config: OpdConfig) -> ClusterPlan | None:
    """Return what `opd` itself does with this machine's GPUs; None where there is none, where the run joins a cluster
    of other machines, or where the model's size is not known.

    Engines as the recipe says; the student, and a teacher that is a model, in one process on the first GPU, which the
    first engine shares. Raises `TooBig` when an engine finds no GPU or the first GPU is too small for all on it.
    """
    cluster, engine = cluster_here(), config.engine
    student = model_shape(config.model or config.tracker)
    if cluster is None or student is None or engine.ray_address != "local":
        return None
    serving = _serving(config)
    free, served = Free(cluster), engine_parts(student, serving)
    if engine_kind(engine.kind)[0] == "local":  # in this process
        replicas = [((0, 0),)] * engine.replicas
    else:
        replicas = [gpus for _ in range(engine.replicas) if (gpus := free.take(serving)) is not None]
    if len(replicas) < engine.replicas:
        raise TooBig(
            f"{engine.replicas} engines of {engine.tensor_parallel} GPUs (engine.replicas, engine.tensor_parallel) "
            f"need {engine.replicas * engine.tensor_parallel} GPUs, this machine has {cluster.gpus}"
        )
    parts = _rank_parts(config, student, 1, 0)
    if config.opd.steps and config.opd.teacher == "model":
        teacher = model_shape(preset_model(str(config.opd.teacher_model)))
        parts["teacher"] = 2 * teacher.parameters / GIB if teacher is not None else 0.0
    shared = sum((0, 0) in gpus for gpus in replicas)
    if shared * total(served) + total(parts) > cluster.usable_gib:
        raise TooBig(
            f"the first GPU would hold {shared} engine{'s' if shared > 1 else ''} of {total(served):.1f} GiB "
            f"({listed(served)}) and the trainer's {total(parts):.1f} GiB ({listed(parts)}), "
            f"{cluster.usable_gib:.1f} GiB are usable. Lower student.tokens_per_micro or engine.kv_cache_gib, set "
            f"student.gradient_checkpointing or student.lora, or take a smaller tracker"
        )
    held = sequences_held(student, serving, engine.max_model_len)
    pools = (
        _pool("students", config.tracker, served, tuple(replicas), serving, held),
        Pool("trainer", config.tracker, parts, (((0, 0),),), zero=0),
    )
    step = _step(config, 1, max(1, config.opd.dialogues * config.opd.group))
    return ClusterPlan(config.tracker, cluster, pools, step, True, ())


def served_models(config: OpdConfig, options: PlanOptions) -> Iterator[tuple[str, str]]:
    """Yield (role, model) of what has engines of its own. Base and teacher of one model share them."""
    teacher = config.opd.teacher_model if config.opd.steps and config.opd.teacher == "model" else None
    if options.base is not None and teacher is not None and _same(options.base, teacher):
        yield "base and teacher", options.base
        return
    if options.base is not None:
        yield "base", options.base
    if teacher is not None:
        yield "teacher", teacher


def _apart(
    config: OpdConfig,
    student: ModelShape,
    engine: Serving,
    free: Free,
    cluster: Cluster,
    options: PlanOptions,
    samples: int,
) -> list[Pool]:
    """Trainer ranks on up to half of what is left, engines on the rest."""
    most = free.count - engine.gpus
    half = max(1, min(most, free.count // 2))
    # First the powers of two up to half of the GPUs, from the top; then more, where fewer do not fit.
    counts = [2**k for k in range(12) if 2**k <= half][::-1] + [
        2**k for k in range(12) if half < 2**k <= most
    ]
    counts = [options.ranks] if options.ranks is not None else counts
    ranks, zero, parts = trainer_split(
        lambda n, stage: _rank_parts(config, student, n, stage), counts, cluster.usable_gib, options.zero
    )
    wanted = min((free.count - ranks) // engine.gpus, samples)
    replicas = []
    for _ in range(wanted):
        gpus = free.take(engine)
        if gpus is None:
            break
        replicas.append(gpus)
    if not replicas:
        raise TooBig(f"no node has {engine.gpus} GPUs left for an engine of the students")
    held = sequences_held(student, engine, config.engine.max_model_len)
    engines = _pool("students", config.tracker, engine_parts(student, engine), tuple(replicas), engine, held)
    return [engines, Pool("trainer", config.tracker, parts, _ranks(free, ranks), zero=zero)]


def _colocated(
    config: OpdConfig,
    student: ModelShape,
    engine: Serving,
    free: Free,
    cluster: Cluster,
    options: PlanOptions,
) -> list[Pool]:
    """Engines on what is left, and a trainer rank on each of their GPUs."""
    replicas = []
    while (gpus := free.take(engine)) is not None:
        replicas.append(gpus)
    if not replicas:
        raise TooBig(f"an engine of the students needs {engine.gpus} GPUs, {free.count} are left")
    places = [(place,) for gpus in replicas for place in gpus]
    count = len(places) if options.ranks is None else options.ranks
    if count > len(places):
        raise TooBig(f"{count} trainer ranks were asked for, {len(places)} GPUs are left")
    served = engine_parts(student, engine)
    ranks, zero, parts = trainer_split(
        lambda n, stage: _rank_parts(config, student, n, stage),
        [count],
        cluster.usable_gib - total(served),
        options.zero,
    )
    held = sequences_held(student, engine, config.engine.max_model_len)
    return [
        _pool("students", config.tracker, served, tuple(replicas), engine, held),
        Pool("trainer", config.tracker, parts, tuple(places[:ranks]), zero=zero),
    ]


def _serving(config: OpdConfig) -> Serving:
    """How the recipe serves the student."""
    return Serving(
        value_bytes=4 if config.engine.dtype == "float32" else 2,
        tensor_parallel=config.engine.tensor_parallel,
        kv_cache_gib=config.engine.kv_cache_gib,
        batched_tokens=max(2048, config.engine.max_model_len),
    )


def _rank_parts(config: OpdConfig, student: ModelShape, ranks: int, zero: int) -> dict[str, float]:
    training = training_of(config, student, ranks=ranks, zero=zero, gpu=True)
    return trainer_parts(student, training) | {"runtime": GPU_RUNTIME_GIB}


def _ranks(free: Free, count: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    taken = [free.take(Serving()) for _ in range(count)]
    return tuple(gpus for gpus in taken if gpus is not None)


def _pool(
    role: str,
    model: str,
    parts: dict[str, float],
    gpus: tuple[tuple[tuple[int, int], ...], ...],
    serving: Serving,
    held: int,
) -> Pool:
    return Pool(role, model, parts, gpus, serving.tensor_parallel, serving.pipeline_parallel, None, held)


def _step(config: OpdConfig, ranks: int, samples: int) -> Step:
    each = tokens_per_dialogue(config)
    tokens = each * samples
    scored = tokens if config.opd.steps and config.opd.teacher != "oracle" else 0.0
    micro = math.ceil(tokens / ranks / config.student.tokens_per_micro)
    return Step(samples, each, tokens, scored, tokens / ranks, micro)


def _parallel(pool: Pool) -> str:
    pipeline = f", pipeline parallel {pool.pipeline_parallel}" if pool.pipeline_parallel > 1 else ""
    return f"tensor parallel {pool.tensor_parallel}{pipeline}"


def _places(pool: Pool) -> str:
    nodes: dict[int, list[int]] = {}
    for node, gpu in (place for replica in pool.gpus for place in replica):
        nodes.setdefault(node, []).append(gpu)
    return "; ".join(f"node {node}, GPUs {_ranges(sorted(gpus))}" for node, gpus in sorted(nodes.items()))


def _ranges(numbers: list[int]) -> str:
    """Return sorted numbers as in "0-3, 6"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _same(a: str, b: str) -> bool:
    return preset_model(a) == preset_model(b)
