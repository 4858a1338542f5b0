"""One thread that owns a model: requests come in at any time, join what is running, and leave when they are done.

`LoopEngine` is the engine protocol over a `Core`, which is all that `local` and `vllm` have to write. A core is
made, stepped and changed in the loop's thread only, so it needs no locks.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from envs.errors import EngineDied, EngineError
from rollout.checks import check_generate, check_score, check_version
from rollout.engine import Completion, GenerateRequest, ScoreRequest, Scores

if TYPE_CHECKING:
    import torch

GATHER_S = 0.002
"""An idle loop waits this long after the first request, so that what is sent together is computed together."""


COUNTERS: tuple[str, ...] = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "scored_tokens",
    "weight_loads",
)


class Core(Protocol):
    """What an implementation provides. An `EngineError` concerns one call; any other exception ends the engine."""

    max_model_len: int
    vocab_size: int
    weight_version: int
    counters: dict[str, int]

    def admit_generate(self, request: GenerateRequest, done: Future[Completion]) -> None: ...

    def admit_score(self, request: ScoreRequest, done: Future[Scores]) -> None: ...

    def active(self) -> int:
        """Return how many admitted requests are not done."""
        ...

    def step(self) -> None:
        """Advance every active request by a little; set the futures of those that are done."""
        ...

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Called only when nothing is active."""
        ...

    def capabilities(self) -> Mapping[str, bool]: ...

    def shut(self) -> None: ...


class LoopEngine:
    """The engine protocol over a core that runs in a thread of this process.

    Args:
        build: makes the core; called in the loop's thread.
        name: says in errors which engine speaks.

    Raises:
        EngineError: the core could not be made.
    """

    def __init__(self, build: Callable[[], Core], name: str) -> None:
        self.name = name
        self._build = build
        self._jobs: queue.SimpleQueue[tuple[str, Any, Future[Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # between putting a job and ending the loop: no job is left unanswered
        self._death: str | None = None
        self._held: deque[tuple[str, Any, Future[Any]]] = deque()  # arrived, not admitted yet
        self._running: set[Future[Any]] = set()
        self._beat = time.monotonic()  # when the loop last came round
        self._core: Core | None = None
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._main, args=(started,), name=name, daemon=True)
        self._thread.start()
        started.result()

    # The protocol -----------------------------------------------------------------------------------------

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Return one completion per request, in order. All are checked before any starts."""
        core = self._alive()
        for request in requests:
            check_generate(request, core.max_model_len, core.vocab_size)
        return await self._all("generate", requests)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """Return one `Scores` per request, in order. All are checked before any starts."""
        core = self._alive()
        for request in requests:
            check_score(request, core.max_model_len, core.vocab_size)
            if request.candidates_PK is not None and not core.capabilities()["score_candidates"]:
                raise EngineError(
                    f"{self.name} cannot score chosen candidate ids: vLLM serves prompt_logprob_token_ids only with "
                    f"its V2 model runner, which needs Triton. Use the local engine for this teacher, or top_k."
                )
        return await self._all("score", requests)

    async def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Wait for running requests, hold back new ones, replace the weights. See `Engine`."""
        check_version(version, self._alive().weight_version)
        await asyncio.wrap_future(self._put("load_weights", (weights, version)))

    async def version(self) -> int:
        return self._alive().weight_version

    async def health(self) -> Mapping[str, Any]:
        core = self._alive()
        active = sum(not done.done() for done in list(self._running))
        stalled_s = time.monotonic() - self._beat if active else 0.0
        return {
            **core.counters,
            "weight_version": core.weight_version,
            "active": active,
            "stalled_s": stalled_s,
        }

    async def capabilities(self) -> Mapping[str, bool]:
        """Say what only some engines can do: `score_candidates`."""
        return self._alive().capabilities()

    async def close(self) -> None:
        """End the loop; what still runs gets `EngineDied`. Closing twice is fine."""
        if self._death is None:
            done = self._put("close", None)
            await asyncio.wrap_future(done)
        await asyncio.to_thread(self._thread.join)

    # The callers' side ------------------------------------------------------------------------------------

    def _alive(self) -> Core:
        if self._death is not None:
            raise EngineDied(f"{self.name}: {self._death}")
        assert self._core is not None
        return self._core

    def _put(self, kind: str, payload: Any) -> Future[Any]:
        done: Future[Any] = Future()
        with self._lock:
            self._alive()
            self._jobs.put((kind, payload, done))
        return done

    async def _all(self, kind: str, requests: Sequence[Any]) -> list[Any]:
        # No cancellation of the others when one fails: they are in the core already, and each ends by itself.
        return list(
            await asyncio.gather(*[asyncio.wrap_future(self._put(kind, request)) for request in requests])
        )

    # The loop's side --------------------------------------------------------------------------------------

    def _main(self, started: Future[None]) -> None:
        try:
            self._core = self._build()
        except EngineError as error:
            self._death = str(error)
            started.set_exception(error)
            return
        except Exception as error:  # not swallowed: handed to whoever is starting the engine
            self._death = f"could not start: {type(error).__name__}: {error}"
            started.set_exception(EngineError(f"{self.name} {self._death}"))
            return
        started.set_result(None)
        try:
            self._loop(self._core)
            death = "the engine was closed"
        except Exception as error:  # not swallowed: every caller, now and later, gets it as EngineDied
            death = f"the engine failed: {type(error).__name__}: {error}"
        with self._lock:
            self._death = death
        self._fail_all(f"{self.name}: {death}")
        self._core.shut()

    def _loop(self, core: Core) -> None:
        held = self._held
        while True:
            self._beat = time.monotonic()
            if not core.active() and not held:
                held.append(self._jobs.get())
                self._beat = time.monotonic()
                time.sleep(GATHER_S)
            while not self._jobs.empty():
                held.append(self._jobs.get())
            while held:
                kind, payload, done = held[0]
                if kind == "load_weights" and core.active():
                    break  # drain first; requests behind it wait for the new weights
                held.popleft()
                if not done.set_running_or_notify_cancel():
                    continue  # the caller has gone
                if kind == "close":
                    done.set_result(None)
                    return
                self._admit(core, kind, payload, done)
            if core.active():
                core.step()

    def _admit(self, core: Core, kind: str, payload: Any, done: Future[Any]) -> None:
        self._running.add(done)
        done.add_done_callback(self._running.discard)
        try:
            if kind == "generate":
                core.counters["requests"] += 1
                core.admit_generate(payload, done)
            elif kind == "score":
                core.counters["requests"] += 1
                core.admit_score(payload, done)
            else:
                core.load_weights(*payload)
                done.set_result(None)
        except EngineError as error:
            done.set_exception(error)

    def _fail_all(self, message: str) -> None:
        while not self._jobs.empty():
            self._held.append(self._jobs.get())
        waiting = [done for _, _, done in self._held if done.set_running_or_notify_cancel()]
        for done in [*waiting, *self._running]:
            done.set_exception(EngineDied(message))
        self._held.clear()
