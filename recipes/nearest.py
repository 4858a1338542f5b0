"""A plan or a refusal: where a run does not fit, the nearest changes that would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from envs.errors import ConfigError
from recipes.config import tracker_presets
from recipes.count import shape_of
from recipes.placement import Cluster, TooBig, clusters
from recipes.plan import ClusterPlan, PlanOptions, make_plan
from recipes.preflight import preset_model
from recipes.schema import EngineSettings, LoraSettings, OpdConfig


def run_plan(config: OpdConfig, cluster: Cluster, options: PlanOptions) -> ClusterPlan:
    """Return the plan of a run. Raises `TooBig` (a `ConfigError`) with the nearest changes that would make it fit."""
    try:
        return make_plan(config, cluster, options)
    except TooBig as error:
        fits = nearest_fits(config, cluster, options)
        hint = (
            f"Nearest fit: {'; or '.join(fits)}" if fits else "Nothing near it fits: take a smaller tracker"
        )
        raise TooBig(f"this run does not fit {cluster.name}: {error}. {hint}") from None


def nearest_fits(config: OpdConfig, cluster: Cluster, options: PlanOptions) -> list[str]:
    """Return the first change of settings that fits this cluster, and the first other cluster that fits as it is."""
    found = []
    for label, changed, other in _smaller(config, options):
        if _fits(changed, cluster, other):
            found.append(label)
            break
    for name in sorted(clusters(), key=lambda name: clusters()[name].gpus * clusters()[name].gpu_gib):
        larger = clusters()[name]
        if larger.gpus * larger.gpu_gib > cluster.gpus * cluster.gpu_gib and _fits(config, larger, options):
            found.append(f"--cluster {name}")
            break
    return found


def _smaller(config: OpdConfig, options: PlanOptions) -> Iterator[tuple[str, OpdConfig, PlanOptions]]:
    """Settings that take less, each alone and then one after the other together; last of all smaller models."""
    student, engine = config.student, config.engine
    changes: list[tuple[str, str, dict[str, Any]]] = []
    if not student.gradient_checkpointing:
        changes.append(("--student.gradient_checkpointing true", "student", {"gradient_checkpointing": True}))
    if student.tokens_per_micro > 2048:
        changes.append(("--student.tokens_per_micro 2048", "student", {"tokens_per_micro": 2048}))
    if engine.kv_cache_gib > 4:
        changes.append(("--engine.kv_cache_gib 4", "engine", {"kv_cache_gib": 4.0}))
    if student.lora is None:
        changes.append(("--student.lora.rank 32", "student", {"lora": LoraSettings()}))
    for some in [*([change] for change in changes), *(changes[: n + 1] for n in range(1, len(changes)))]:
        changed = config
        for _, part, update in some:
            settings = getattr(changed, part).model_copy(update=update)
            changed = changed.model_copy(update={part: settings})
        yield " ".join(words for words, _, _ in some), changed, options
    for smaller in ("35b", "9b"):
        if options.base is not None and shape_of(smaller).parameters < shape_of(options.base).parameters:
            yield f"--base {smaller}", config, replace(options, base=smaller)
    teacher = config.opd.teacher_model
    for smaller in ("122b", "9b", "4b") if teacher is not None else ():
        if shape_of(smaller).parameters < shape_of(preset_model(str(teacher))).parameters:
            opd = config.opd.model_copy(update={"teacher_model": smaller})
            yield f"--opd.teacher_model {smaller}", config.model_copy(update={"opd": opd}), options
    for smaller in ("9b", "4b", "2b"):
        if shape_of(smaller).parameters < shape_of(config.model or config.tracker).parameters:
            preset = tracker_presets()[smaller]
            changed = {
                "tracker": smaller,
                "model": preset["model"],
                "engine": EngineSettings(**preset["engine"]),
            }
            yield f"--tracker {smaller}", config.model_copy(update=changed), options


def _fits(config: OpdConfig, cluster: Cluster, options: PlanOptions) -> bool:
    try:
        make_plan(config, cluster, options)
    except ConfigError:
        return False
    return True
