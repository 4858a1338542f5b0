"""Weights & Biases beside the run folder. `off` imports nothing, `offline` needs no network and no account.

The step is our own metric, `global_step`: wandb's built-in counter may only grow, so points logged again
after a resume would be lost. The run id goes into the checkpoint, and a resumed run goes on under it.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from envs.errors import ConfigError
from recipes.schema import OpdConfig

STEP = "global_step"


class Tracker:
    """An open wandb run, or nothing when `config.wandb` is `off`; a context manager.

    `run_id` is None when off. Raises `ConfigError` when wandb is missing or cannot start.
    """

    def __init__(self, config: OpdConfig, folder: Path, run_id: str | None = None) -> None:
        self.run_id: str | None = None
        self._run: Any = None
        if config.wandb == "off":
            return
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                f"wandb is {config.wandb!r}, but the package cannot be imported ({error}); install it by "
                f"`pip install wandb`, or leave WANDB out"
            ) from None
        try:
            self._run = wandb.init(
                project="fluxforge",
                name=config.name,
                id=run_id or uuid.uuid4().hex[:12],
                dir=str(folder),
                mode=config.wandb,
                resume="allow",
                config=config.model_dump(mode="json"),
                settings=wandb.Settings(silent=True, console="off", init_timeout=90),
            )
        except Exception as error:  # wandb has no common base: its own, requests', OS and usage errors
            raise ConfigError(
                f"wandb ({config.wandb}) could not start: {type(error).__name__}: {error}. Use "
                f"WANDB=offline, log in by `wandb login`, or leave WANDB out"
            ) from error
        self.run_id = str(self._run.id)
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the numbers among `metrics` (nested names joined by "/") at `step`; others are left out."""
        if self._run is not None:
            self._run.log({STEP: step, **dict(_numbers(metrics))})

    def close(self, failed: bool = False) -> None:
        """Finish the run; in `offline` mode everything is on disk then."""
        if self._run is not None:
            self._run.finish(exit_code=int(failed))
            self._run = None

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)


def _numbers(metrics: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            found += _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and math.isfinite(value):
            found.append((f"{prefix}{key}", value))
    return found
