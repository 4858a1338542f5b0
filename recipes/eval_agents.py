"""Opens the models of a run: one agent for each model or endpoint that it names, however often it is named."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from envs.endpoint import Endpoint
from envs.errors import ConfigError
from recipes.eval_schema import EvalConfig
from recipes.session import choose_engine
from rollout.agents import Agent, EndpointAgent, EngineAgent
from rollout.engine import EngineConfig
from rollout.fleet import Fleet
from rollout.models import resolve_model
from rollout.render import Renderer

PROBE_S = 15.0
"""Deadline of the question whether a server is there."""


class Agents:
    """The agents of a run by the text that names them; a context manager of the event loop's side.

    Two names for one model folder share an engine. `origins` says what each name turned out to be.
    """

    def __init__(self, config: EvalConfig, names: list[str]) -> None:
        self.config = config
        self.origins: dict[str, str] = {}
        self._agents: dict[str, Agent] = {}
        self._fleets: list[Fleet] = []
        self._holds_ray = False
        self._folders = {name: resolve_model(name) for name in names if not is_endpoint(name)}
        self._kind = choose_engine(config.engine.kind) if self._folders else ""
        self._endpoints = {name: self._endpoint(name) for name in names if is_endpoint(name)}

    async def __aenter__(self) -> Agents:
        try:
            for name, endpoint in self._endpoints.items():
                await check_reachable(endpoint)
                self._agents[name] = EndpointAgent(endpoint, max_in_flight=self.config.max_in_flight)
                self.origins[name] = endpoint.name
            self._hold_ray()
            opened: dict[Path, Agent] = {}
            for name, folder in self._folders.items():
                if folder not in opened:
                    opened[folder] = await self._open(name, folder)
                self._agents[name] = opened[folder]
                self.origins[name] = str(folder)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    def __getitem__(self, name: str) -> Agent:
        return self._agents[name]

    def _hold_ray(self) -> None:
        """Start a private Ray with room for all engines of the run, where there will be several on vLLM."""
        engine, folders = self.config.engine, set(self._folders.values())
        if len(folders) < 2 or self._kind != "vllm" or engine.ray_address != "local":
            return
        from rollout.handles import connect_ray, object_store_bytes

        store = sum(object_store_bytes(str(folder)) for folder in folders)
        connect_ray(None, len(folders) * engine.replicas, store, engine.dashboard_port)
        self._holds_ray = True

    async def _open(self, name: str, folder: Path) -> Agent:
        from transformers import AutoTokenizer

        settings = self.config.engine
        renderer = Renderer(AutoTokenizer.from_pretrained(folder))
        fleet = await Fleet.start(
            self._kind,
            EngineConfig(
                model=str(folder),
                max_model_len=settings.max_model_len,
                dtype=settings.dtype,
                seed=self.config.seed,
                kv_cache_gib=settings.kv_cache_gib,
                tensor_parallel=settings.tensor_parallel,
                threads=settings.threads,
            ),
            replicas=settings.replicas,
            address=None if settings.ray_address == "local" else settings.ray_address,
            dashboard_port=settings.dashboard_port,
        )
        self._fleets.append(fleet)
        return EngineAgent(fleet, renderer, name, max_model_len=settings.max_model_len)

    def _endpoint(self, name: str) -> Endpoint:
        settings = self.config.endpoint
        return Endpoint.parse(
            name,
            timeout_s=settings.timeout_s,
            deadline_s=settings.deadline_s,
            retries=settings.retries,
            key_env=settings.key_env,
            extra=settings.extra,
        )

    async def _close(self) -> None:
        for agent in self._agents.values():
            if isinstance(agent, EndpointAgent):
                agent.close()
        await asyncio.gather(*(fleet.close() for fleet in self._fleets))
        if self._holds_ray:
            from rollout.handles import leave_ray

            self._holds_ray = False
            leave_ray()


async def check_reachable(endpoint: Endpoint) -> None:
    """Raise `ConfigError` when nothing answers at an endpoint's address, so that a typing error is seen at once.

    Any answer will do: not every server lists its models. Later failures are retried, see `EndpointSettings`.
    """
    import httpx

    try:
        async with httpx.AsyncClient(timeout=PROBE_S, trust_env=not is_local(endpoint.url)) as client:
            await client.get(f"{endpoint.url}/models")
    except (httpx.HTTPError, OSError) as error:
        raise ConfigError(
            f"nothing answers at {endpoint.url} ({type(error).__name__}); start the server, or correct the address"
        ) from None


def is_local(url: str) -> bool:
    """Say whether an address is on this machine: no proxy is asked for those."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_endpoint(name: str) -> bool:
    """Say whether a name is that of an endpoint, `openai:URL#MODEL`, and not of a model."""
    return "://" in name
