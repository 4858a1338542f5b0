"""Where an engine lives: in a Ray actor, or in this process. A handle starts it, talks to it and ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import warnings
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from envs.errors import EngineDied, EngineError
from rollout.engine import EngineConfig

if TYPE_CHECKING:
    import numpy as np
    import torch

Packed = dict[str, tuple["np.ndarray", str, tuple[int, ...]]]
"""Weights as plain bytes: name -> (uint8 array, dtype, shape). Ray hands arrays over without copying, and numpy
has no bfloat16."""

log = logging.getLogger("fluxforge.fleet")

PLACEMENT_TIMEOUT_S = 120.0
RAY_STARTS = 3
_ray = {"ours": False, "users": 0}  # whether this process started Ray, and how many fleets use it


class Handle(Protocol):
    """One engine. `call` raises `EngineDied` when it is gone; `EngineError` is the engine's own answer."""

    async def call(self, method: str, *args: Any) -> Any: ...

    async def kill(self) -> None:
        """Make it die as if by accident; for tests."""
        ...

    async def end(self) -> None:
        """End it and free what it holds; also when it has died already."""
        ...


class Home(Protocol):
    """Makes handles and holds what they share."""

    async def spawn(self, index: int) -> Handle:
        """Return a started engine. Raises `EngineError` when it cannot start, `EngineDied` when it died meanwhile."""
        ...

    def share(self, weights: Mapping[str, torch.Tensor]) -> Any:
        """Return what `call("load_weights", shared, version)` of any handle takes."""
        ...

    async def close(self) -> None: ...


class LocalHandle:
    """An engine in this process."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    async def call(self, method: str, *args: Any) -> Any:
        return await getattr(self.engine, method)(*args)

    async def kill(self) -> None:
        await self.engine.close()

    end = kill


class LocalHome:
    """Engines in this process: for machines without vLLM, and for tests."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self.build = build

    async def spawn(self, index: int) -> Handle:
        return LocalHandle(await asyncio.to_thread(self.build))

    def share(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        # A copy: the trainer goes on changing its own, and a replacement must get these.
        return {name: tensor.detach().clone() for name, tensor in weights.items()}

    async def close(self) -> None:
        return None


class EngineHost:
    """The Ray actor around an engine."""

    def __init__(self, kind: str, config: EngineConfig) -> None:
        self.kind, self.config = kind, config

    async def start(self) -> None:
        """Build the engine; apart from __init__, so that an error arrives as itself and not as a dead actor."""
        self.engine = await asyncio.to_thread(build_engine, self.kind, self.config)

    async def call(self, method: str, *args: Any) -> Any:
        if method == "load_weights":
            args = (unpack_weights(args[0]), *args[1:])
        return await getattr(self.engine, method)(*args)

    async def die(self) -> None:
        os._exit(1)


class RayHandle:
    """An engine in a Ray actor."""

    def __init__(self, actor: Any, name: str) -> None:
        self.actor, self.name = actor, name

    async def start(self) -> RayHandle:
        await self._ask(self.actor.start.remote())
        return self

    async def call(self, method: str, *args: Any) -> Any:
        return await self._ask(self.actor.call.remote(method, *args))

    async def kill(self) -> None:
        self.actor.die.remote()

    async def end(self) -> None:
        import ray

        ray.kill(self.actor, no_restart=True)

    async def _ask(self, reference: Awaitable[Any]) -> Any:
        from ray.exceptions import RayActorError, RayError, RayTaskError

        try:
            return await reference
        except RayActorError as error:
            raise EngineDied(f"{self.name}: its process is gone ({_first_line(error)})") from error
        except RayTaskError as error:
            if isinstance(error.cause, EngineError):
                raise error.cause from None  # the engine's own error, without Ray around it
            raise EngineError(f"{self.name}: {error}") from error
        except RayError as error:
            raise EngineDied(f"{self.name}: {_first_line(error)}") from error


class RayHome:
    """Ray actors in a placement group, one bundle a replica; a bundle never straddles two nodes.

    CPUs are counted, not bound: one for each engine, whatever the number of its threads, so that two engines fit
    a machine with two cores.
    """

    def __init__(
        self,
        kind: str,
        config: EngineConfig,
        replicas: int,
        address: str | None,
        dashboard_port: int | None = None,
    ) -> None:
        self.kind, self.config, self.replicas = kind, config, replicas
        self.address, self.dashboard_port = address, dashboard_port
        self.group: Any = None

    async def open(self) -> RayHome:
        import ray
        from ray.util import placement_group

        connect_ray(self.address, self.replicas, object_store_bytes(self.config.model), self.dashboard_port)
        try:
            gpus = self.config.tensor_parallel if ray.cluster_resources().get("GPU") else 0
            if self.config.tensor_parallel > 1 and not gpus:
                raise EngineError(f"tensor_parallel is {self.config.tensor_parallel}, but Ray sees no GPU")
            self.bundle = {"CPU": 1.0} | ({"GPU": float(gpus)} if gpus else {})
            self.gpus = gpus
            self.group = placement_group([self.bundle] * self.replicas, strategy="PACK")
            try:
                async with asyncio.timeout(PLACEMENT_TIMEOUT_S):
                    await self.group.ready()
            except TimeoutError as error:
                raise EngineError(
                    f"Ray could not place {self.replicas} engines of {self.bundle} within "
                    f"{PLACEMENT_TIMEOUT_S:g} s; free now: {ray.available_resources()}"
                ) from error
        except BaseException:
            await self.close()
            raise
        return self

    async def spawn(self, index: int) -> Handle:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from rollout.vllm_engine import process_env

        actor = (
            ray.remote(EngineHost)
            .options(
                num_cpus=1,
                num_gpus=self.gpus,
                max_restarts=0,  # the fleet replaces it: a new one also needs the current weights
                scheduling_strategy=PlacementGroupSchedulingStrategy(self.group, index),
                runtime_env={"env_vars": process_env(self.config.threads, on_cpu=not self.gpus)},
            )
            .remote(self.kind, self.config)
        )
        handle = RayHandle(actor, f"engine {index}")
        try:
            return await handle.start()
        except BaseException:
            await handle.end()
            raise

    def share(self, weights: Mapping[str, torch.Tensor]) -> Any:
        import ray

        return ray.put(pack_weights(weights, self.config.dtype))

    async def close(self) -> None:
        from ray.util import remove_placement_group

        if self.group is not None:
            remove_placement_group(self.group)
            self.group = None
        leave_ray()


def build_engine(kind: str, config: EngineConfig) -> Any:
    """Return a started engine of this process."""
    if kind == "vllm":
        from rollout.vllm_engine import VllmEngine

        return VllmEngine(config)
    from rollout.local_engine import LocalEngine

    return LocalEngine(config)


def connect_ray(
    address: str | None, engines: int, object_store: int, dashboard_port: int | None = None
) -> None:
    """Start a private Ray, or join the one at `address`, or use the one this process is connected to already.

    A private one shows its dashboard on `dashboard_port` of 127.0.0.1; None: it has no dashboard.
    Raises `EngineError` when none of these works.
    With `FLUXFORGE_ENGINE_LOGS` set, what the engines print appears in this process's output.
    """
    import ray

    if not ray.is_initialized():
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a token file of an earlier run would turn it on
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # else engines run at nice 15, behind everything
        options: dict[str, Any] = {}
        failure: Exception = EngineError("never tried")
        if address is None:
            options = {
                "num_cpus": max(os.cpu_count() or 1, engines + 1),
                "object_store_memory": object_store,
                "include_dashboard": dashboard_port is not None,
            }
            if dashboard_port is not None:
                options |= {"dashboard_host": "127.0.0.1", "dashboard_port": dashboard_port}
        elif "://" not in address and ":" in address:
            host, _, port = address.rpartition(":")
            try:  # Ray itself knocks for many minutes at a door that is not there
                socket.create_connection((host, int(port)), timeout=10).close()
            except (OSError, ValueError) as error:
                raise EngineError(f"no Ray answers at {address} ({error}); is its head node up?") from error
        for attempt in range(RAY_STARTS if address is None else 1):
            try:
                ray.init(
                    address=address or "local",
                    namespace="fluxforge",
                    log_to_driver=bool(os.environ.get("FLUXFORGE_ENGINE_LOGS")),
                    logging_level=logging.WARNING,
                    **options,
                )
                break
            except Exception as error:  # a plain Exception after 30 s, which a busy machine may need twice
                ray.shutdown()
                failure = error
                log.warning("Ray did not start (attempt %d): %s", attempt + 1, _first_line(error))
        else:
            where = f"join Ray at {address}" if address else "start a private Ray"
            raise EngineError(f"could not {where}: {_first_line(failure)}") from failure
        _ray["ours"] = True
    _ray["users"] += 1


def leave_ray() -> None:
    """Shut Ray down when its last fleet leaves, unless somebody else of this process started it."""
    import ray

    _ray["users"] -= 1
    if _ray["users"] == 0 and _ray["ours"]:
        _ray["ours"] = False
        ray.shutdown()


def object_store_bytes(model: str) -> int:
    """Room for two versions of the weights in fp32, and some for requests."""
    size = sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))
    return 256 * 2**20 + 4 * size


def pack_weights(weights: Mapping[str, torch.Tensor], dtype: str) -> Packed:
    """Cast to the engine's dtype, which is often half the size of what the trainer keeps, and turn into bytes."""
    import torch

    from rollout.models import best_compute_dtype

    target: torch.dtype = getattr(torch, best_compute_dtype() if dtype == "auto" else dtype)
    packed: Packed = {}
    for name, tensor in weights.items():
        plain = tensor.detach().cpu()
        plain = (plain.to(target) if plain.is_floating_point() else plain).contiguous()
        array = plain.reshape(-1).view(torch.uint8).numpy()
        packed[name] = (array, str(plain.dtype).removeprefix("torch."), tuple(plain.shape))
    return packed


def unpack_weights(packed: Packed) -> dict[str, torch.Tensor]:
    """Return tensors on the memory of `packed`. They are only ever read from."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {
            name: torch.from_numpy(array).view(getattr(torch, dtype)).reshape(shape)
            for name, (array, dtype, shape) in packed.items()
        }


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
