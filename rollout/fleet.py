"""The fleet: several engines that look like one. It routes, watches the clock, and replaces what has died."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envs.errors import ConfigError, EngineDied, EngineError, EngineTimeout, unknown_name
from rollout.engine import Completion, EngineConfig, GenerateRequest, ScoreRequest, Scores
from rollout.handles import Handle, Home, LocalHome, RayHome, build_engine

if TYPE_CHECKING:
    import torch

log = logging.getLogger("fluxforge.fleet")
KINDS = ("auto", "local", "vllm")
GROUPS_KEPT = 100_000
"""Dialogues whose replica is remembered."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and counts of patience."""

    call_s: float = 300.0
    """Deadline of one call."""
    start_s: float = 300.0
    """Deadline for an engine to start and to load weights."""
    probe_s: float = 10.0
    """Deadline of the question whether an engine is alive."""
    resends: int = 3
    """How often requests are sent again after their engine died. They are seeded, so the answer is the same."""
    restarts: int = 10
    """Restarts of one replica within `restart_window_s`; then it is given up."""
    restart_window_s: float = 600.0
    backoff_s: float = 0.5
    """Pause before a restart that follows a failed one; doubled each time."""


@dataclass(slots=True)
class Replica:
    """A place for an engine; the engine in it may change."""

    index: int
    handle: Handle | None = None
    busy: int = 0
    """Requests it is working on."""
    restarts: list[float] = field(default_factory=list)
    """When its engine was replaced (monotonic seconds)."""
    repair: asyncio.Task[None] | None = None
    given_up: str | None = None


class Fleet:
    """`Engine` over replicas. Make one with `await Fleet.start(...)`; end it with `await fleet.close()`.

    A request goes to the replica that has its group's prefix cache, else to the least busy one. When an engine
    dies, its requests are sent again, whole, to another or to its replacement, which first gets the current
    weights. `EngineTimeout` and `EngineDied` name the replica.
    """

    def __init__(self, home: Home, replicas: int, limits: Limits | None = None) -> None:
        self.home = home
        self.limits = limits or Limits()
        self.counters: Counter[str] = Counter()
        self._replicas = [Replica(index) for index in range(replicas)]
        self._groups: OrderedDict[str, int] = OrderedDict()
        self._weights: tuple[Any, int] | None = None  # what a replacement loads, and its version
        self._loading = asyncio.Lock()
        self._last_failure = ""
        self._closed = False

    @classmethod
    async def start(
        cls,
        kind: str,
        config: EngineConfig,
        *,
        replicas: int = 1,
        address: str | None = None,
        dashboard_port: int | None = None,
        limits: Limits | None = None,
    ) -> Fleet:
        """Start `replicas` engines and wait for them.

        Args:
            kind: "vllm" (Ray actors), "local" (transformers, in this process), or "auto": vLLM where it runs.
            address: of a Ray cluster to join; None starts a private one, which `close` ends.
            dashboard_port: where a private Ray shows its dashboard, on 127.0.0.1; None: nowhere.

        Raises:
            EngineError: an engine could not start; all others are ended.
        """
        if kind not in KINDS:
            raise unknown_name("engine", kind, KINDS)
        if replicas < 1:
            raise ConfigError(f"a fleet needs at least one replica, got {replicas}")
        if kind == "auto":
            from rollout.models import vllm_available

            available, reason = vllm_available()
            kind = "vllm" if available else "local"
            log.info("engine: %s (%s)", kind, reason)
        if kind == "vllm":
            home: Home = await RayHome(kind, config, replicas, address, dashboard_port).open()
        else:
            home = LocalHome(lambda: build_engine("local", config))
        fleet = cls(home, replicas, limits)
        await fleet.open()
        return fleet

    async def open(self) -> None:
        """Start all engines at once; end everything when one cannot start."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for replica in self._replicas:
                    tasks.create_task(self._fill(replica))
        except BaseExceptionGroup as group:
            await self.close()
            raise group.exceptions[0] from None
        except BaseException:
            await self.close()
            raise

    # The engine protocol ----------------------------------------------------------------------------------

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        completions: list[Completion] = await self._spread("generate", requests)
        for request, completion in zip(requests, completions, strict=True):
            self.counters["prompt_tokens"] += len(request.prompt_ids)
            self.counters["cached_tokens"] += completion.cached_tokens
            self.counters["output_tokens"] += len(completion.output_ids)
        return completions

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        scores: list[Scores] = await self._spread("score", requests)
        self.counters["scored_tokens"] += sum(len(request.positions) for request in requests)
        return scores

    async def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Load into every replica; those being replaced get them when they start. Returns when all hold them."""
        async with self._loading:
            self._check_open()
            before = self._weights
            self._weights = (await asyncio.to_thread(self.home.share, weights), version)
            try:
                results = await asyncio.gather(
                    *[self._load(replica) for replica in self._replicas], return_exceptions=True
                )
                errors = [result for result in results if isinstance(result, BaseException)]
                if errors:
                    raise errors[0]
            except EngineError:
                if all(replica.given_up is None for replica in self._replicas):
                    self._weights = before  # refused: every engine still holds the old ones
                raise
            self.counters["weight_loads"] += 1

    async def version(self) -> int:
        self._check_open()
        return self._weights[1] if self._weights else 0

    async def health(self) -> Mapping[str, Any]:
        """Return counters; an engine that does not answer is replaced. Raises `EngineDied` when none is left."""
        self._check_open()
        alive = 0
        for replica in self._replicas:
            if replica.handle is not None:
                try:
                    await self._call(replica, self.limits.probe_s, "health")
                    alive += 1
                except (EngineDied, EngineTimeout) as error:
                    self._lost(replica, replica.handle, error)
        self._check_any()
        return {
            **self.counters,
            "weight_version": await self.version(),
            "replicas": len(self._replicas),
            "alive": alive,
            "active": sum(replica.busy for replica in self._replicas),
        }

    async def capabilities(self) -> Mapping[str, bool]:
        """Return what the engines can do; see `LoopEngine.capabilities`."""
        replica = await self._pick("")
        return await self._call(replica, self.limits.call_s, "capabilities")

    async def close(self) -> None:
        """End all engines, and Ray if the fleet started it. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        repairs = [replica.repair for replica in self._replicas if replica.repair is not None]
        for repair in repairs:
            repair.cancel()
        await asyncio.gather(*repairs, return_exceptions=True)
        try:
            for replica in self._replicas:
                if replica.handle is not None:
                    await replica.handle.end()
                    replica.handle = None
        finally:
            await self.home.close()

    async def kill_replica(self, index: int) -> None:
        """Let an engine's process exit at once. For tests."""
        handle = self._replicas[index].handle
        if handle is None:
            raise EngineDied(f"engine {index} is not running")
        await handle.kill()

    # Routing ----------------------------------------------------------------------------------------------

    async def _spread(self, method: str, requests: Sequence[Any]) -> list[Any]:
        """Send each request to its replica, and again where an engine dies; return the answers in order."""
        self._check_open()
        self.counters["requests"] += len(requests)
        answers: dict[int, Any] = {}
        left = list(range(len(requests)))
        for attempt in range(self.limits.resends + 1):
            batches = await self._assign(requests, left)
            results = await asyncio.gather(
                *[
                    self._send(self._replicas[index], method, [requests[at] for at in batch])
                    for index, batch in batches.items()
                ],
                return_exceptions=True,
            )
            left, death = [], None
            for batch, result in zip(batches.values(), results, strict=True):
                if isinstance(result, EngineDied):
                    left, death = left + batch, result
                elif isinstance(result, BaseException):
                    raise result
                else:
                    answers.update(zip(batch, result, strict=True))
            if death is None:
                return [answers[at] for at in range(len(requests))]
            self.counters["resent"] += len(left)
            if attempt == self.limits.resends:
                raise EngineDied(f"{death} (sent {attempt + 1} times)") from death
        raise AssertionError("unreachable")

    async def _assign(self, requests: Sequence[Any], left: list[int]) -> dict[int, list[int]]:
        """Return replica -> which of `requests` go there, and count them as its work."""
        batches: dict[int, list[int]] = {}
        try:
            for at in left:
                replica = await self._pick(requests[at].group)
                replica.busy += 1
                batches.setdefault(replica.index, []).append(at)
        except BaseException:
            for index, batch in batches.items():
                self._replicas[index].busy -= len(batch)
            raise
        return batches

    async def _send(self, replica: Replica, method: str, batch: list[Any]) -> list[Any]:
        handle = replica.handle
        try:
            return await self._call(replica, self.limits.call_s, method, batch)
        except EngineDied as error:
            self._lost(replica, handle, error)
            raise
        except EngineTimeout as error:
            await self._probe(replica, handle, error)
            raise
        finally:
            replica.busy -= len(batch)

    async def _pick(self, group: str) -> Replica:
        """Return the group's replica if it lives, else the least busy one; wait while all are being replaced."""
        while True:
            self._check_open()
            self._check_any()
            alive = [replica for replica in self._replicas if replica.handle is not None]
            if alive:
                break
            repairs = [replica.repair for replica in self._replicas if replica.repair is not None]
            await asyncio.wait(repairs, return_when=asyncio.FIRST_COMPLETED)
        known = self._groups.get(group) if group else None
        replica = min(alive, key=lambda r: (r.index != known, r.busy))
        if group:
            self._groups[group] = replica.index
            self._groups.move_to_end(group)
            if len(self._groups) > GROUPS_KEPT:
                self._groups.popitem(last=False)
        return replica

    async def _call(self, replica: Replica, limit_s: float, method: str, *args: Any) -> Any:
        handle = replica.handle
        if handle is None:
            raise EngineDied(f"engine {replica.index} is being replaced")
        try:
            async with asyncio.timeout(limit_s):
                return await handle.call(method, *args)
        except EngineTimeout:
            raise
        except TimeoutError as error:
            raise EngineTimeout(
                f"engine {replica.index} did not answer {method} within {limit_s:g} s "
                f"({replica.busy} requests there)"
            ) from error

    # Faults -----------------------------------------------------------------------------------------------

    def _lost(self, replica: Replica, handle: Handle | None, error: BaseException) -> None:
        """Start to replace `handle`, unless somebody has begun to."""
        if handle is None or replica.handle is not handle or self._closed:
            return
        log.warning("engine %d is lost: %s", replica.index, error)
        replica.handle = None
        replica.repair = asyncio.create_task(self._repair(replica, handle))

    async def _probe(self, replica: Replica, handle: Handle | None, error: EngineTimeout) -> None:
        """After a missed deadline: is the engine slow, or is it stuck?"""
        try:
            health = await self._call(replica, self.limits.probe_s, "health")
        except (EngineDied, EngineTimeout) as second:
            self._lost(replica, handle, second)
            return
        if health.get("stalled_s", 0.0) > self.limits.call_s / 2:
            self._lost(replica, handle, error)

    async def _repair(self, replica: Replica, old: Handle) -> None:
        await old.end()
        pause = 0.0
        while True:
            now = time.monotonic()
            replica.restarts = [at for at in replica.restarts if now - at < self.limits.restart_window_s]
            if len(replica.restarts) >= self.limits.restarts:
                replica.given_up = (
                    f"engine {replica.index} was replaced {len(replica.restarts)} times within "
                    f"{self.limits.restart_window_s:g} s and is given up"
                    + (f"; the last start failed with {self._last_failure}" if self._last_failure else "")
                )
                log.error(replica.given_up)
                replica.repair = None
                return
            replica.restarts.append(now)
            self.counters["restarts"] += 1
            await asyncio.sleep(pause)
            try:
                await self._fill(replica)
                log.warning("engine %d is back after %.1f s", replica.index, time.monotonic() - now)
                return
            except Exception as error:  # whatever it was: it counts against the budget and is told at its end
                log.warning("engine %d did not start: %s", replica.index, error)
                self._last_failure = f"{type(error).__name__}: {error}"
                pause = max(self.limits.backoff_s, 2 * pause)

    async def _fill(self, replica: Replica) -> None:
        """Start an engine in this place, with the current weights."""
        try:
            async with asyncio.timeout(self.limits.start_s):
                handle = await self.home.spawn(replica.index)
                try:
                    loaded = None
                    while self._weights is not None and loaded is not self._weights:
                        loaded = self._weights  # may change while they load
                        await handle.call("load_weights", *loaded)
                except BaseException:
                    await handle.end()
                    raise
        except EngineError:
            raise
        except TimeoutError as error:
            raise EngineTimeout(
                f"engine {replica.index} did not start within {self.limits.start_s:g} s"
            ) from error
        replica.handle, replica.repair = handle, None

    async def _load(self, replica: Replica) -> None:
        """Make this replica hold the current weights, whatever happens to its engine meanwhile."""
        assert self._weights is not None
        handle = replica.handle
        if handle is not None:
            try:
                await self._call(replica, self.limits.start_s, "load_weights", *self._weights)
                return
            except (EngineDied, EngineTimeout) as error:
                self._lost(replica, handle, error)
        if replica.repair is not None:
            await replica.repair
        if replica.given_up is not None:
            raise EngineDied(replica.given_up)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineDied("the fleet was closed")

    def _check_any(self) -> None:
        if all(replica.given_up is not None for replica in self._replicas):
            raise EngineDied(f"no engine is left: {self._replicas[0].given_up}")
