"""Checks of what a run is given by name: a model folder, a data folder, a port. Part of recipes/preflight.py."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path

from envs.errors import ConfigError, MissingFiles
from recipes.config import tracker_presets
from recipes.schema import OpdConfig


def check_data(config: OpdConfig) -> None:
    """Raise `MissingFiles` when `data` holds no family that is read from files."""
    from envs.families import is_procedural, registry

    real = sorted(name for name, family in registry().items() if not is_procedural(family))
    if config.data is not None and real and not any((config.data / name).is_dir() for name in real):
        raise MissingFiles(
            f"data folder {config.data} holds none of: {', '.join(f'{name}/' for name in real)}. Give the "
            f"folder that has them in their upstream layout, or leave DATA out"
        )


def check_model(config: OpdConfig) -> None:
    """Raise `MissingFiles` when the model is a folder of this machine that cannot be loaded; of a run folder
    or a checkpoint, say where the run's model lies.
    """
    from rollout.models import folder_problem

    name = config.model or config.tracker
    folder = Path(name).expanduser()
    if name in tracker_presets() or not folder.is_dir():
        return
    problem = folder_problem(folder)
    if problem is None:
        return
    run = next((place for place in (folder, *folder.parents[:2]) if (place / "config.yaml").is_file()), None)
    if run is not None:
        raise MissingFiles(
            f"{folder} belongs to a run and is no model folder: checkpoints are only for resuming it. The "
            f"tracker of a finished run is the model folder {run / 'tracker'}"
        )
    raise MissingFiles(f"{folder} is not a complete model folder: {problem}")


def check_dashboard(config: OpdConfig) -> None:
    """Raise `ConfigError` when Ray's dashboard is asked for and cannot be shown."""
    port = config.engine.dashboard_port
    if port is None or not private_ray(config):
        return
    check_port(port)
    if not dashboard_installed():
        raise ConfigError(
            "engine.dashboard_port asks for Ray's dashboard, whose packages are not installed; install them by "
            "`.venv/bin/python -m pip install 'ray[default]'`, or leave the key out"
        )


def dashboard_installed() -> bool:
    """Say whether the packages of `ray[default]` are here; Ray refuses to start with a dashboard without."""
    return all(importlib.util.find_spec(name) for name in ("aiohttp_cors", "opencensus", "prometheus_client"))


def check_port(port: int | None) -> None:
    """Raise `ConfigError` when `port` is taken on this machine."""
    if port is None:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"port {port} (engine.dashboard_port) cannot be used: {error.strerror}; choose another "
                f"one, or null for no dashboard"
            ) from None


def engine_kind(kind: str) -> tuple[str, str]:
    """Return "vllm" or "local", and where `auto` falls to the second, why."""
    from rollout.models import vllm_available

    if kind != "auto":
        return kind, ""
    available, reason = vllm_available()
    return ("vllm", "") if available else ("local", reason)


def private_ray(config: OpdConfig) -> bool:
    """Say whether this run will start a Ray of its own."""
    return config.engine.ray_address == "local" and engine_kind(config.engine.kind)[0] == "vllm"


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
