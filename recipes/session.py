"""What every job starts with: the model folder, its chat in token ids, the protocol, and running engines."""

from __future__ import annotations

import asyncio
from types import TracebackType

from envs.errors import ConfigError
from recipes.schema import OpdConfig
from rollout.engine import EngineConfig
from rollout.fleet import Fleet
from rollout.models import resolve_model, vllm_available
from rollout.render import Renderer
from rollout.tracker import TemplateReplies, get_protocol


class Session:
    """Open engines and the things around them; a context manager that leaves no process behind."""

    def __init__(self, config: OpdConfig) -> None:
        from transformers import AutoTokenizer

        self.config = config
        self.model = resolve_model(config.model or config.tracker)
        self.renderer = Renderer(AutoTokenizer.from_pretrained(self.model))
        self.protocol = get_protocol(config.env.protocol)
        self.replies = TemplateReplies(config.seed)
        self.engine_kind = choose_engine(config.engine.kind)
        self.runner = asyncio.Runner()

    def __enter__(self) -> Session:
        engine = self.config.engine
        self.runner.__enter__()
        self.engine = self.runner.run(
            Fleet.start(
                self.engine_kind,
                EngineConfig(
                    model=str(self.model),
                    max_model_len=engine.max_model_len,
                    dtype=engine.dtype,
                    seed=self.config.seed,
                    kv_cache_gib=engine.kv_cache_gib,
                    tensor_parallel=engine.tensor_parallel,
                    threads=engine.threads,
                ),
                replicas=engine.replicas,
                address=None if engine.ray_address == "local" else engine.ray_address,
                dashboard_port=engine.dashboard_port,
            )
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.runner.run(self.engine.close())
        finally:
            self.runner.__exit__(kind, error, trace)


def choose_engine(kind: str) -> str:
    """Return "vllm" or "local"; says on one line when `auto` falls to `local`, and why."""
    available, reason = vllm_available()
    if kind == "vllm" and not available:
        raise ConfigError(f"engine.kind is 'vllm', but {reason}. Use engine.kind local, or auto")
    if kind == "auto":
        if not available:
            print(f"engine: local (transformers, in process), because {reason}")
        return "vllm" if available else "local"
    return kind
