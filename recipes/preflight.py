"""What is checked before anything heavy starts: run folder, data, port, memory and disk.

The memory estimate comes from configurations, file headers and the recipe alone (no torch). Shapes are those of
recipes/count.py; what each part takes says recipes/memory.py; stored parameters are counted in the safetensors
headers. Where several GPUs share the work, recipes/plan.py says what goes where.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import struct
import subprocess
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from envs.errors import ConfigError, DataError, UnknownName
from recipes.config import resolved_yaml, tracker_presets
from recipes.count import shape_from_config, shape_of, usual_shape
from recipes.inputs import check_dashboard, check_data, check_model, engine_kind, local_folder, private_ray
from recipes.memory import GIB, Training, trainer_parts
from recipes.runs import check_folder
from recipes.schema import OpdConfig
from recipes.shapes import ModelShape

PROCESS_GIB = 0.9
"""Resident memory of a process that has torch and transformers loaded (measured: 0.6 to 0.9)."""
VLLM_GIB = 2.0
"""The same of a Ray actor with vLLM, Ray's own processes included (measured on CPU, model not counted)."""


@dataclass(slots=True)
class Plan:
    """GiB by part, and remarks. `device` says what the memory is of: "host" or "GPU"."""

    memory: dict[str, float] = field(default_factory=dict)
    disk_gib: float = 0.0
    device: str = "host"
    notes: list[str] = field(default_factory=list)

    @property
    def memory_gib(self) -> float:
        return sum(self.memory.values())


def check(config: OpdConfig, runs: Path, *, training: bool = True) -> list[str]:
    """Raise what would stop the run later on; return remarks worth a line.

    Raises `ConfigError` (run folder taken or not resumable, port in use, too little memory or disk, with both
    numbers) and `MissingFiles` (a data folder without any known family, a folder that is no model).
    """
    check_folder(runs, config, config.resume)
    check_model(config)
    check_data(config)
    check_dashboard(config)
    plan = estimate(config, training=training)
    # Of training on GPUs recipes/plan.py says what goes where, and refuses what does not fit.
    available = None if training and plan.device == "GPU" else available_gib(plan.device)
    if available is not None and plan.memory_gib > available:
        parts = ", ".join(f"{part} {gib:.1f}" for part, gib in plan.memory.items())
        raise ConfigError(
            f"this run needs about {plan.memory_gib:.1f} GiB of {plan.device} memory ({parts}), "
            f"{available:.1f} GiB are available. Close other programs, or lower student.tokens_per_micro, "
            f"engine.kv_cache_gib or engine.replicas, set student.gradient_checkpointing or student.lora, "
            f"or take a smaller tracker"
        )
    place = next(folder for folder in (runs, *runs.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(place).free / GIB
    if training and plan.disk_gib > free:
        raise ConfigError(
            f"checkpoints need about {plan.disk_gib:.1f} GiB of disk below {runs} (checkpoint.keep "
            f"{config.checkpoint.keep} and the one being written), {free:.1f} GiB are free. Free some, lower "
            f"checkpoint.keep, or train an adapter (student.lora)"
        )
    return plan.notes


def show(config: OpdConfig, runs: Path, *, training: bool = True) -> None:
    """Print the resolved configuration and what the run would need; then raise what `check` raises."""
    plan = estimate(config, training=training)
    print(resolved_yaml(config), end="")
    print("---")
    print(f"run folder: {runs / str(config.name)}")
    print(f"training families: {', '.join(config.env.training_families)}")
    if training:
        dialogues = config.warmup.steps * config.warmup.dialogues
        samples = config.opd.steps * config.opd.dialogues * config.opd.group
        tokens = tokens_per_dialogue(config)
        print(
            f"steps: {config.warmup.steps} warm-up, {config.opd.steps} {config.opd.loss} with teacher "
            f"{_teacher(config)}"
        )
        print(
            f"tokens: about {(dialogues + samples) * tokens:,.0f} trained on ({dialogues} warm-up "
            f"dialogues, {samples} samples, about {tokens:.0f} tokens each)"
        )
    print(f"{plan.device} memory: about {plan.memory_gib:.1f} GiB")
    for part, gib in plan.memory.items():
        print(f"  {part}: {gib:.2f}")
    available = available_gib(plan.device)
    if available is not None:
        print(f"  available: {available:.1f}")
    if training:
        print(f"disk for checkpoints: about {plan.disk_gib:.1f} GiB")
    for note in check(config, runs, training=training):
        print(f"note: {note}")


def estimate(config: OpdConfig, *, training: bool = True) -> Plan:
    """Return the memory and disk that a run needs at its peak. Parts of unknown size are left out, with a
    note.
    """
    plan = Plan(device="GPU" if gpu_free_gib() is not None else "host")
    model = config.model or config.tracker
    shape, stored = model_shape(model), stored_parameters(model)
    kind, reason = engine_kind(config.engine.kind)
    if reason:
        plan.notes.append(f"engine: local (transformers, in process), because {reason}")
    if config.engine.dashboard_port is not None and not private_ray(config):
        plan.notes.append("engine.dashboard_port is not used: this run starts no Ray of its own")
    if config.engine.threads > (os.cpu_count() or 1):
        plan.notes.append(
            f"engine.threads is {config.engine.threads}, this machine has {os.cpu_count()} CPUs"
        )
    if training and config.opd.teacher == "privileged" and config.opd.steps and not config.warmup.steps:
        plan.notes.append(
            "without a warm-up the privileged teacher is the untrained model, which teaches little"
        )
    if shape is None:
        plan.notes.append(f"the size of {config.model} is not known here, so memory is not checked")
        return plan
    served = value_bytes(config.engine.dtype) * (stored or shape.parameters) / GIB
    replicas = config.engine.replicas
    plan.memory["engine weights"] = replicas * served
    plan.memory["engine KV cache"] = replicas * config.engine.kv_cache_gib if kind == "vllm" else 0.0
    if plan.device == "host":
        plan.memory["processes"] = PROCESS_GIB + (VLLM_GIB * replicas if kind == "vllm" else 0.0)
    if not training:
        return plan
    settings = training_of(config, shape)
    for part, gib in trainer_parts(shape, settings).items():
        plan.memory["teacher" if part == "frozen start" else f"student {part}"] = gib
    plan.memory["weights on their way to the engines"] = served
    if config.opd.steps and config.opd.teacher == "model":
        teacher = model_shape(preset_model(str(config.opd.teacher_model)))
        if teacher is None:
            plan.notes.append(
                f"the size of teacher {config.opd.teacher_model} is not known here and not counted"
            )
        else:
            plan.memory["teacher"] = settings.computed * teacher.parameters / GIB
    saved = (12 * settings.trained + settings.computed * settings.copied) / GIB
    plan.disk_gib = saved * (config.checkpoint.keep + 1)
    return plan


def training_of(
    config: OpdConfig, shape: ModelShape, *, ranks: int = 1, zero: int = 0, gpu: bool = False
) -> Training:
    """Return how a recipe trains a model of this shape, on this machine or (`gpu`) on a GPU.

    Raises `ConfigError` for adapters on layers it has not.
    """
    student = config.student
    if student.lora is not None:
        trained = shape.adapter_parameters(student.lora.rank, student.lora.targets)
    elif student.freeze_embeddings:
        trained = shape.parameters - shape.embedding * (1 if shape.tied else 2)
    else:
        trained = shape.parameters
    frozen = bool(config.opd.steps) and config.opd.teacher == "privileged"
    return Training(
        2 if gpu and student.dtype == "auto" else value_bytes(student.dtype),
        trained,
        student.tokens_per_micro,
        student.gradient_checkpointing,
        ranks,
        zero,
        # Of the frozen start: the adapter alone where there is one, else a copy of the model.
        (trained if student.lora is not None else shape.parameters) if frozen else 0,
    )


def model_shape(model: str) -> ModelShape | None:
    """Return the shape of a model on this machine, else that of models.yaml, else None.

    A class that is not counted has the shape of a usual dense model with as many parameters as its files hold. Raises
    `DataError` when config.json or a safetensors header cannot be read.
    """
    folder = local_folder(model)
    if folder is None:
        try:
            return shape_of(model)
        except UnknownName:
            return None
    config = _json(folder / "config.json")
    try:
        return shape_from_config(config, model)
    except ConfigError:
        text = config.get("text_config") or config  # of models that also see
        try:
            sizes = text["num_hidden_layers"], text["hidden_size"], text["vocab_size"]
        except KeyError as error:
            raise DataError(f"{folder / 'config.json'}: has no {error}; is this a language model?") from None
        return usual_shape(model, stored_parameters(model) or 0, *sizes)


def stored_parameters(model: str) -> int | None:
    """Return the number of values in the files of a model on this machine (a vision tower included), else None."""
    folder = local_folder(model)
    if folder is None:
        return None
    return sum(_header_parameters(file) for file in sorted(folder.glob("*.safetensors")))


def available_gib(device: str = "host") -> float | None:
    """Return the GiB that a new process can take: of the host (container limit heeded) or of the freest
    GPU.
    """
    if device == "GPU":
        return gpu_free_gib()
    import psutil

    free = psutil.virtual_memory().available
    limit = _cgroup_free()
    return (free if limit is None else min(free, limit)) / GIB


def gpu_free_gib() -> float | None:
    """Return the free memory of the freest GPU in GiB; None where there is none."""
    return max(gpus_free_gib(), default=None)


def gpus_free_gib() -> list[float]:
    """Return the free memory of each GPU of this machine in GiB; nothing where there is none."""
    if shutil.which("nvidia-smi") is None:
        return []
    words = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.split() if done.returncode == 0 else []
    return [int(line) / 1024 for line in lines if line.isdigit()]


def tokens_per_dialogue(config: OpdConfig, sample: int = 16) -> float:
    """Return the mean length of a training dialogue in tokens, roughly: four letters a token, and chat
    marks.
    """
    from envs.mix import DialogueStream

    env = config.env
    stream = DialogueStream(
        env.training_families, "train", config.seed, env.budget, env.condition_mix, source=config.data
    )
    lengths = [
        sum(len(turn.utterance) / 4 + 30 for turn in stream.dialogue_at(i).turns) for i in range(sample)
    ]
    return sum(lengths) / len(lengths)


def _header_parameters(file: Path) -> int:
    """Return the number of values in a safetensors file, from its header (length in 8 bytes, then JSON)."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > file.stat().st_size:
                raise ValueError(f"header of {length} bytes in a file of {file.stat().st_size}")
            header = json.loads(stream.read(length))
        return sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise DataError(f"{file}: not a safetensors file ({error}); download it again") from None


def _json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: not JSON ({error})") from None


def _teacher(config: OpdConfig) -> str:
    return (
        f"{config.opd.teacher} ({config.opd.teacher_model})"
        if config.opd.teacher_model
        else config.opd.teacher
    )


def preset_model(name: str) -> str:
    return tracker_presets().get(name, {}).get("model", name)


def value_bytes(dtype: str) -> int:
    """Return the bytes of one value of "auto", "bfloat16" or "float32" on this machine."""
    return 4 if dtype == "float32" or (dtype == "auto" and not _fast_bf16()) else 2


def _fast_bf16() -> bool:
    from rollout.models import cpu_has_bf16

    if gpu_free_gib() is not None:
        return True
    cpuinfo = Path("/proc/cpuinfo")
    return cpu_has_bf16(cpuinfo.read_text()) if cpuinfo.is_file() else platform.machine() == "arm64"


def _cgroup_free() -> int | None:
    """Return what is left of this container's memory limit (cgroup v2); None without a limit."""
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - used + int(stat.get("inactive_file", 0))
