"""Opens the models of a run: one agent for each model or endpoint that it names, however often it is named."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType

from envs.endpoint import Endpoint
from recipes.eval_schema import EvalConfig
from recipes.session import choose_engine
from rollout.agents import Agent, EndpointAgent, EngineAgent
from rollout.engine import EngineConfig
from rollout.fleet import Fleet
from rollout.models import resolve_model
from rollout.render import Renderer


class Agents:
    """The agents of a run by the text that names them; a context manager of the event loop's side.

    Two names for one model folder share an engine. `origins` says what each name turned out to be.
    """

    def __init__(self, config: EvalConfig, names: list[str]) -> None:
        self.config = config
        self.origins: dict[str, str] = {}
        self._agents: dict[str, Agent] = {}
        self._fleets: list[Fleet] = []
        self._folders = {name: resolve_model(name) for name in names if not is_endpoint(name)}
        self._endpoints = {name: self._endpoint(name) for name in names if is_endpoint(name)}

    async def __aenter__(self) -> Agents:
        try:
            for name, endpoint in self._endpoints.items():
                self._agents[name] = EndpointAgent(endpoint, max_in_flight=self.config.max_in_flight)
                self.origins[name] = endpoint.name
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

    async def _open(self, name: str, folder: Path) -> Agent:
        from transformers import AutoTokenizer

        settings = self.config.engine
        renderer = Renderer(AutoTokenizer.from_pretrained(folder))
        fleet = await Fleet.start(
            choose_engine(settings.kind),
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


def is_endpoint(name: str) -> bool:
    """Say whether a name is that of an endpoint, `openai:URL#MODEL`, and not of a model."""
    return "://" in name
