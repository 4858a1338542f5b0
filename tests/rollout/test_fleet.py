"""Routing, deadlines and repair, on engines that can be told how to fail; real ones are in test_fleet_engines.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from envs.errors import EngineDied, EngineError, EngineTimeout
from rollout.engine import Completion, GenerateRequest
from rollout.fleet import Fleet, Limits
from rollout.handles import Handle

PATIENT = Limits(call_s=30, start_s=30, probe_s=30, resends=2, restarts=3, backoff_s=0.001)
HASTY = replace(PATIENT, call_s=0.2, probe_s=0.1)
"""For the tests of deadlines; elsewhere a busy machine must not run into one."""


class ScriptedHandle:
    """An engine whose answers name it. `before` runs before each answer and may raise or wait."""

    def __init__(self, index: int, life: int, before: Callable[[str], Awaitable[None]]) -> None:
        self.index, self.life, self.before = index, life, before
        self.dead = asyncio.Event()
        self.seen: list[Any] = []
        self.version = 0
        self.ended = False

    async def call(self, method: str, *args: Any) -> Any:
        if self.dead.is_set():
            raise EngineDied(f"engine {self.index}: its process is gone")
        work = asyncio.ensure_future(self.before(method))
        death = asyncio.ensure_future(self.dead.wait())
        try:
            await asyncio.wait([work, death], return_when=asyncio.FIRST_COMPLETED)
            if self.dead.is_set():
                raise EngineDied(f"engine {self.index}: its process is gone")
            await work
        finally:
            work.cancel()
            death.cancel()
        if method == "load_weights":
            self.version = args[1]
            return None
        if method == "health":
            return {"stalled_s": 0.0}
        self.seen += args[0]
        return [Completion((self.index, self.life), (0.0, 0.0), "length", self.version, 1) for _ in args[0]]

    async def kill(self) -> None:
        self.dead.set()

    async def end(self) -> None:
        self.dead.set()
        self.ended = True


class ScriptedHome:
    def __init__(self) -> None:
        self.handles: list[ScriptedHandle] = []
        self.before: Callable[[str], Awaitable[None]] = self.at_once
        self.start: Callable[[int, int], None] = lambda index, life: None
        self.closed = False

    async def at_once(self, method: str) -> None:
        await asyncio.sleep(0)

    async def spawn(self, index: int) -> Handle:
        life = sum(handle.index == index for handle in self.handles)
        self.start(index, life)
        handle = ScriptedHandle(index, life, lambda method: self.before(method))
        self.handles.append(handle)
        return handle

    def share(self, weights: Any) -> Any:
        return dict(weights)

    async def close(self) -> None:
        self.closed = True


def scenario(replicas: int, limits: Limits = PATIENT):
    """Run the decorated coroutine function with an open fleet and its home; close them after it."""

    def decorate(body: Callable[[Fleet, ScriptedHome], Awaitable[None]]) -> Callable[[], None]:
        def test() -> None:
            async def run() -> None:
                home = ScriptedHome()
                fleet = Fleet(home, replicas, limits)
                await fleet.open()
                try:
                    await body(fleet, home)
                finally:
                    await fleet.close()
                assert home.closed and all(handle.ended for handle in home.handles)

            asyncio.run(run())

        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        return test

    return decorate


def ask(group: str = "", prompt: int = 1) -> GenerateRequest:
    return GenerateRequest([prompt], 2, (), group=group)


async def where(fleet: Fleet, group: str) -> int:
    return (await fleet.generate([ask(group)]))[0].output_ids[0]


@scenario(replicas=3)
async def test_a_dialogue_stays_on_its_replica(fleet: Fleet, home: ScriptedHome) -> None:
    places = {group: await where(fleet, group) for group in "abcdef"}
    for _ in range(3):
        for group in "fedcba":
            assert await where(fleet, group) == places[group]


@scenario(replicas=3)
async def test_the_least_busy_replica_is_chosen(fleet: Fleet, home: ScriptedHome) -> None:
    gate = asyncio.Event()

    async def wait(method: str) -> None:
        await gate.wait()

    home.before = wait
    running = [asyncio.create_task(fleet.generate([ask()] * count)) for count in (4, 1, 1)]
    await asyncio.sleep(0.01)
    busy = sorted(replica.busy for replica in fleet._replicas)
    assert sum(busy) == 6 and max(busy) - min(busy) <= 1
    gate.set()
    await asyncio.gather(*running)
    assert all(replica.busy == 0 for replica in fleet._replicas)


@scenario(replicas=2)
async def test_answers_come_in_the_order_of_the_requests(fleet: Fleet, home: ScriptedHome) -> None:
    groups = ["x", "y", "x", "y", "y", "x"]
    done = await fleet.generate([ask(group) for group in groups])
    first = {"x": done[0].output_ids, "y": done[1].output_ids}
    assert first["x"] != first["y"]
    assert [one.output_ids for one in done] == [first[group] for group in groups]


@scenario(replicas=1)
async def test_requests_of_a_dead_engine_are_sent_again_with_the_current_weights(
    fleet: Fleet, home: ScriptedHome
) -> None:
    await fleet.load_weights({"w": torch.zeros(1)}, 7)
    gate = asyncio.Event()

    async def wait(method: str) -> None:
        if method == "generate":
            await gate.wait()

    home.before = wait
    running = [asyncio.create_task(fleet.generate([ask(str(i), i)])) for i in range(4)]
    await asyncio.sleep(0.01)
    await fleet.kill_replica(0)
    await asyncio.sleep(0.01)
    gate.set()
    done = [(await task)[0] for task in running]
    assert [one.output_ids for one in done] == [(0, 1)] * 4  # the second life of engine 0
    assert [one.weight_version for one in done] == [7] * 4
    assert sorted(request.prompt_ids[0] for request in home.handles[1].seen) == [0, 1, 2, 3]
    assert home.handles[0].ended
    assert (fleet.counters["restarts"], fleet.counters["resent"]) == (1, 4)


@scenario(replicas=2)
async def test_the_others_go_on_while_one_is_replaced(fleet: Fleet, home: ScriptedHome) -> None:
    place = await where(fleet, "a")
    original = home.spawn

    async def slow(index: int) -> Handle:
        await asyncio.sleep(0.1)
        return await original(index)

    home.spawn = slow  # type: ignore[method-assign]
    await fleet.kill_replica(place)
    assert await where(fleet, "a") == 1 - place  # moved
    await asyncio.sleep(0.2)
    assert await where(fleet, "a") == 1 - place  # and stays there: that is where its prefix is now
    assert (await fleet.health())["alive"] == 2


@scenario(replicas=1)
async def test_an_engine_that_dies_on_a_request_again_and_again_is_not_asked_for_ever(
    fleet: Fleet, home: ScriptedHome
) -> None:
    async def die(method: str) -> None:
        if method == "generate":
            raise EngineDied("engine 0: poison")

    home.before = die
    with pytest.raises(EngineDied, match="poison.*sent 3 times"):
        await fleet.generate([ask()])
    home.before = home.at_once
    assert await where(fleet, "") == 0


@scenario(replicas=1, limits=replace(PATIENT, resends=9))
async def test_the_restart_budget_ends(fleet: Fleet, home: ScriptedHome) -> None:
    async def die(method: str) -> None:
        raise EngineDied("engine 0: poison")

    home.before = die
    with pytest.raises(EngineDied, match="engine 0 was replaced 3 times"):
        await fleet.generate([ask()])
    with pytest.raises(EngineDied, match="no engine is left"):
        await fleet.generate([ask()])
    assert fleet.counters["restarts"] == 3


@scenario(replicas=1)
async def test_a_replacement_that_does_not_start_is_tried_again(fleet: Fleet, home: ScriptedHome) -> None:
    def start(index: int, life: int) -> None:
        if fleet.counters["restarts"] < 3:
            raise EngineError("no memory")

    home.start = start
    await fleet.kill_replica(0)
    assert await where(fleet, "") == 0
    assert fleet.counters["restarts"] == 3


@scenario(replicas=1)
async def test_a_replacement_that_never_starts_says_why(fleet: Fleet, home: ScriptedHome) -> None:
    def start(index: int, life: int) -> None:
        raise RuntimeError("no memory")

    home.start = start
    await fleet.kill_replica(0)
    with pytest.raises(EngineDied, match="no memory"):
        await fleet.generate([ask()])


@scenario(replicas=2, limits=HASTY)
async def test_a_deadline_names_the_replica_and_a_slow_engine_lives_on(
    fleet: Fleet, home: ScriptedHome
) -> None:
    async def slow(method: str) -> None:
        await asyncio.sleep(5 if method == "generate" else 0)

    home.before = slow
    with pytest.raises(EngineTimeout, match=r"engine [01] did not answer generate within 0.2 s"):
        await fleet.generate([ask("a")])
    assert fleet.counters["restarts"] == 0


@scenario(replicas=1, limits=HASTY)
async def test_a_stuck_engine_is_replaced(fleet: Fleet, home: ScriptedHome) -> None:
    async def stuck(method: str) -> None:
        await asyncio.sleep(5)

    home.before = stuck
    with pytest.raises(EngineTimeout):
        await fleet.generate([ask()])
    home.before = home.at_once
    assert (await fleet.generate([ask()]))[0].output_ids == (0, 1)
    assert fleet.counters["restarts"] == 1


@scenario(replicas=2)
async def test_an_error_of_the_engine_is_the_callers(fleet: Fleet, home: ScriptedHome) -> None:
    async def refuse(method: str) -> None:
        raise EngineError("prompt too long")

    home.before = refuse
    with pytest.raises(EngineError, match="prompt too long") as error:
        await fleet.generate([ask()])
    assert not isinstance(error.value, EngineDied)
    assert fleet.counters["restarts"] == 0


@scenario(replicas=2)
async def test_every_replica_gets_the_weights_even_one_that_dies_meanwhile(
    fleet: Fleet, home: ScriptedHome
) -> None:
    async def die_once(method: str) -> None:
        if method == "load_weights":
            home.before = home.at_once
            raise EngineDied("engine: gone")

    home.before = die_once
    await fleet.load_weights({"w": torch.zeros(1)}, 3)
    assert await fleet.version() == 3
    living = [handle for handle in home.handles if not handle.dead.is_set()]
    assert [handle.version for handle in living] == [3, 3]


@scenario(replicas=2)
async def test_refused_weights_leave_the_version(fleet: Fleet, home: ScriptedHome) -> None:
    await fleet.load_weights({"w": torch.zeros(1)}, 1)

    async def refuse(method: str) -> None:
        raise EngineError("unknown name")

    home.before = refuse
    with pytest.raises(EngineError, match="unknown name"):
        await fleet.load_weights({"v": torch.zeros(1)}, 2)
    home.before = home.at_once
    assert await fleet.version() == 1
    await fleet.kill_replica(0)
    await fleet.kill_replica(1)
    done = await fleet.generate([ask("a"), ask("b")])
    assert [one.weight_version for one in done] == [1, 1]


@scenario(replicas=2)
async def test_health_finds_the_dead(fleet: Fleet, home: ScriptedHome) -> None:
    await fleet.kill_replica(1)
    assert (await fleet.health())["alive"] == 1
    await asyncio.sleep(0.05)
    health = await fleet.health()
    assert (health["alive"], health["restarts"], health["replicas"]) == (2, 1, 2)


@scenario(replicas=1)
async def test_a_caller_that_gives_up_leaves_no_trace(fleet: Fleet, home: ScriptedHome) -> None:
    async def slow(method: str) -> None:
        await asyncio.sleep(5)

    home.before = slow
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await fleet.generate([ask()])
    home.before = home.at_once
    assert fleet._replicas[0].busy == 0
    assert await where(fleet, "") == 0


def test_when_one_engine_cannot_start_all_are_ended() -> None:
    async def run() -> None:
        home = ScriptedHome()

        def start(index: int, life: int) -> None:
            if index == 2:
                raise EngineError("no model folder")

        home.start = start
        with pytest.raises(EngineError, match="no model folder"):
            await Fleet(home, 3, PATIENT).open()
        assert home.closed and all(handle.ended for handle in home.handles)

    asyncio.run(run())
