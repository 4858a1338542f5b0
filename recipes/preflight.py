"""What is checked before anything heavy starts: run folder, data, port, memory and disk.

The memory estimate comes from file headers and the recipe alone (no torch): parameters are counted in the
safetensors headers, or taken from trackers.yaml while the model is not on this machine.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from envs.errors import ConfigError, DataError
from recipes.config import resolved_yaml, tracker_presets
from recipes.inputs import check_dashboard, check_data, check_model, engine_kind, private_ray
from recipes.runs import check_folder
from recipes.schema import OpdConfig

GIB = 2**30
PROCESS_GIB = 0.9
"""Resident memory of a process that has torch and transformers loaded (measured: 0.6 to 0.9)."""
VLLM_GIB = 2.0
"""The same of a Ray actor with vLLM, Ray's own processes included (measured on CPU, model not counted)."""
BYTES_PER_ACTIVATION = 40
"""Bytes kept for the backward pass per token, layer and hidden unit in 16 bit (34 in Korthikanti et al. 2022,
arXiv:2205.05198, and the float32 norms)."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """`parameters` as stored (tied weights once); layers, hidden size and vocabulary as in config.json."""

    parameters: int
    layers: int
    hidden: int
    vocab: int


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
    available = available_gib(plan.device)
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
    size = model_size(config.model or config.tracker)
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
    if size is None:
        plan.notes.append(f"the size of {config.model} is not known here, so memory is not checked")
        return plan
    weights = size.parameters / GIB
    served = _bytes(config.engine.dtype)
    replicas = config.engine.replicas
    plan.memory["engine weights"] = replicas * served * weights
    plan.memory["engine KV cache"] = replicas * config.engine.kv_cache_gib if kind == "vllm" else 0.0
    if plan.device == "host":
        plan.memory["processes"] = PROCESS_GIB + (VLLM_GIB * replicas if kind == "vllm" else 0.0)
    if not training:
        return plan
    computed = _bytes(config.student.dtype)
    lora = config.student.lora
    trained = weights if lora is None else _adapter_parameters(size, lora.rank, len(lora.targets)) / GIB
    if lora is None and config.student.freeze_embeddings:
        trained -= size.vocab * size.hidden / GIB
    plan.memory["student weights"] = computed * weights
    # Where the computation is in float32 the parameters are their own masters, and their own gradients.
    plan.memory["masters, gradients, AdamW moments"] = (16 if computed == 2 else 12) * trained
    plan.memory["activations"] = activations_gib(size, config)
    plan.memory["weights on their way to the engines"] = served * weights
    copied = computed * trained  # the frozen start: of the adapter only, where there is one
    if config.opd.steps and config.opd.teacher == "privileged":
        plan.memory["teacher"] = copied
    elif config.opd.steps and config.opd.teacher == "model":
        teacher = model_size(_preset_model(str(config.opd.teacher_model)))
        if teacher is None:
            plan.notes.append(
                f"the size of teacher {config.opd.teacher_model} is not known here and not counted"
            )
        else:
            plan.memory["teacher"] = computed * teacher.parameters / GIB
    saved = 12 * trained + (copied if config.opd.teacher == "privileged" else 0.0)
    plan.disk_gib = saved * (config.checkpoint.keep + 1)
    return plan


def activations_gib(size: ModelSize, config: OpdConfig) -> float:
    """Return what one forward pass keeps for its backward pass, and the block of logits of the fused loss."""
    tokens = config.student.tokens_per_micro
    width = _bytes(config.student.dtype) / 2
    layers = 1 + size.layers / 10 if config.student.gradient_checkpointing else size.layers
    logits = min(tokens, 256) * size.vocab * 4 * 2
    return (tokens * layers * size.hidden * BYTES_PER_ACTIVATION * width + logits) / GIB


def model_size(model: str) -> ModelSize | None:
    """Return the size of a model on this machine, else what trackers.yaml says, else None.

    Raises `DataError` when config.json or a safetensors header cannot be read.
    """
    folder = local_folder(model)
    if folder is not None:
        return _measured(folder)
    for name, preset in tracker_presets().items():
        if model in (name, preset.get("model")) and "parameters" in preset:
            shape = preset.get("shape") or _guessed_shape(preset["parameters"])
            return ModelSize(preset["parameters"], shape["layers"], shape["hidden"], shape["vocab"])
    return None


def local_folder(model: str) -> Path | None:
    """Return the folder of a model that is on this machine already; nothing is unpacked or downloaded."""
    from rollout.models import TINY_FOLDER, cache_dir

    places = [Path(model).expanduser()]
    if model == "tiny":
        places = [cache_dir() / TINY_FOLDER]
    elif os.environ.get("FLUXFORGE_MODELS"):
        places.append(Path(os.environ["FLUXFORGE_MODELS"]).expanduser() / model.split("/")[-1])
    for place in places:
        if (place / "config.json").is_file() and any(place.glob("*.safetensors")):
            return place
    return None


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
    if shutil.which("nvidia-smi") is None:
        return None
    words = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    free = [int(line) for line in done.stdout.split() if line.isdigit()] if done.returncode == 0 else []
    return max(free) / 1024 if free else None


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


def _measured(folder: Path) -> ModelSize:
    config = _json(folder / "config.json")
    text = config.get("text_config") or config  # of models that also see
    parameters = sum(_header_parameters(file) for file in sorted(folder.glob("*.safetensors")))
    try:
        return ModelSize(parameters, text["num_hidden_layers"], text["hidden_size"], text["vocab_size"])
    except KeyError as error:
        raise DataError(f"{folder / 'config.json'}: has no {error}; is this a language model?") from None


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


def _guessed_shape(parameters: int) -> Mapping[str, int]:
    """Return the shape of a usual dense model of this size: 12 layers * hidden^2, 32 layers or so."""
    hidden = round((parameters / (12 * 32)) ** 0.5 / 128) * 128
    return {"layers": 32, "hidden": hidden, "vocab": 248_320}


def _adapter_parameters(size: ModelSize, rank: int, targets: int) -> int:
    """Return about how many values the adapters hold: rank * (in + out) a layer and target, MLPs 3.5 times
    wide.
    """
    return round(size.layers * targets * rank * 3.3 * size.hidden)


def _teacher(config: OpdConfig) -> str:
    return (
        f"{config.opd.teacher} ({config.opd.teacher_model})"
        if config.opd.teacher_model
        else config.opd.teacher
    )


def _preset_model(name: str) -> str:
    return tracker_presets().get(name, {}).get("model", name)


def _bytes(dtype: str) -> int:
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
