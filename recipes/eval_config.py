"""From a recipe file and a command line to one checked `EvalConfig`, as `recipes/config.py` does for training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.errors import ConfigError, MissingFiles
from recipes.config import COMMAND_LINE, default_name, parse_overrides, read_recipe, recipe_path, validated
from recipes.eval_schema import EvalConfig

SMOKE: dict[str, Any] = {
    "cases": 2,
    "budgets": [1],
    "conditions": ["drift"],
    "limits": {"reply_tokens": 16, "answer_tokens": 32, "tracker_tokens": 24, "state_chars": 200},
}
"""What --smoke lays over a recipe."""
NOT_COMPARED = ("name", "resume", "engine", "endpoint", "max_in_flight", "grade_workers")
"""Settings that may differ between a run and its resumption: they change nothing that is measured."""


def load_eval(
    recipe: str | Path = "eval",
    overrides: Sequence[str] = (),
    *,
    flags: Mapping[str, Any] | None = None,
    runs: Path = Path("runs"),
    job: str = "eval",
) -> EvalConfig:
    """Return the checked configuration, its name filled in. A resumed run starts from its own config.yaml.

    The flag `tracker` names the one tracker of the run; `trackers.NAME` adds one. Raises as `load_config` does.
    """
    line = {**(flags or {}), **parse_overrides(overrides)}
    tracker = line.pop("tracker", None)
    layers: list[tuple[str, Mapping[str, Any]]] = []
    path = recipe_path(recipe)
    resumed = _resumed(line, runs, job, read_recipe(path))
    if resumed is not None:
        layers.append((str(resumed), {**read_recipe(resumed), "resume": True}))
    else:
        layers.append((str(path), read_recipe(path)))
        if line.get("smoke") is True:
            layers.append(("--smoke", SMOKE))
    if resumed is None and (replay := line.get("replay")) is not None and Path(str(replay)).is_file():
        from recipes.record import recorded_settings

        layers.append((str(replay), recorded_settings(Path(str(replay)))))
    if tracker is not None:  # it takes the place of those of the recipe
        source, body = layers[0]
        layers[0] = source, {key: value for key, value in body.items() if key != "trackers"}
        layers.append(("--tracker", {"trackers": {label_of(str(tracker)): str(tracker)}}))
    layers.append((COMMAND_LINE, line))
    config = validated(EvalConfig, layers)
    if config.data is not None and not config.data.is_dir():
        raise MissingFiles(
            f"data folder {config.data} is not there; give the folder of benchmark files (--data)"
        )
    if config.replay is not None and not config.replay.is_file():
        raise MissingFiles(f"{config.replay} is not there; write it by `fluxforge record`")
    if config.name is None:
        config = config.model_copy(update={"name": default_name(label_of(config.base), config.seed, job)})
    return config


def fingerprint(config: EvalConfig) -> dict[str, Any]:
    """Return the settings that a resumed run must share with its folder."""
    plain = config.model_dump(mode="json")
    kept = {key: value for key, value in plain.items() if key not in NOT_COMPARED}
    return {**kept, "max_model_len": config.engine.max_model_len}


def check_same(there: EvalConfig, here: EvalConfig, path: Path) -> None:
    """Raise `ConfigError` that names each setting in which a resumed run differs from its folder."""
    old, new = fingerprint(there), fingerprint(here)
    changed = [f"{key}: {old[key]!r} there, {new[key]!r} now" for key in new if old[key] != new[key]]
    if changed:
        raise ConfigError(
            f"the run in {path} has other settings: {'; '.join(changed)}. Resume it with its own (leave those "
            f"flags out), or choose another name by NAME=... (--name ...)"
        )


def label_of(model: str) -> str:
    """Return a short name for a model: the last part of its path, hub name or endpoint."""
    last = re.split(r"[/#]", model.rstrip("/"))[-1]
    return re.sub(r"[^A-Za-z0-9._-]", "-", last).lstrip("._-") or "model"


def _resumed(line: Mapping[str, Any], runs: Path, job: str, body: Mapping[str, Any]) -> Path | None:
    if line.get("resume") is not True:
        return None
    base = str(line.get("base", body.get("base", "tiny")))
    name = line.get("name") or default_name(label_of(base), int(line.get("seed", 0)), job)
    path = runs / str(name) / "config.yaml"
    if not path.is_file():
        raise ConfigError(
            f"there is nothing to resume in {path.parent}; start the run without RESUME=1 (--resume)"
        )
    return path
