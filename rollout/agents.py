"""Agents: something that continues a chat. One over an engine of token ids, one over a chat endpoint.

A harness speaks only to an `Agent`, so base model and tracker may be the same engine, two engines, or a server.
Failures that may pass (an engine that died or stayed silent, a server that is down) are tried again with waits in
between; what is left is raised as `EngineError` or `EndpointError`, and the case it belongs to stays ungraded.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol

from envs.endpoint import Endpoint
from envs.errors import EngineDied, EngineError, EngineTimeout
from rollout.engine import Completion, Engine, GenerateRequest
from rollout.render import Renderer

ENCODED = 20_000
"""Messages whose ids are remembered: a history is encoded once, not once a turn."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat. `ids` are those an agent wrote it with, so that they are never made anew from text."""

    role: Literal["system", "user", "assistant"]
    content: str
    ids: tuple[int, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Said:
    """A reply and what it cost. `seconds` is the wall time of the request, waits and retries included."""

    text: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    retries: int = 0
    cut_short: bool = False
    """Whether the token limit ended it."""
    ids: tuple[int, ...] | None = None

    def message(self) -> Message:
        return Message("assistant", self.text, self.ids)


class Agent(Protocol):
    """Continues a chat that ends with a user message. Raises `EngineError` or `EndpointError`."""

    name: str

    async def reply(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, group: str
    ) -> Said:
        """Return the next assistant message; `group` keeps a dialogue on one replica."""
        ...


class EngineAgent:
    """An agent over an engine: the chat is rendered to token ids by the model's own template.

    `max_model_len` is the engine's context: a chat that does not fit is an `EngineError` that says so.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        name: str,
        *,
        max_model_len: int | None = None,
        retries: int = 4,
        backoff_s: float = 0.5,
        timeout_s: float = 600.0,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.name = name
        self.max_model_len = max_model_len
        self.retries = retries
        self.backoff_s = backoff_s
        self.timeout_s = timeout_s
        self._start = lru_cache(maxsize=ENCODED)(lambda system, user: tuple(renderer.start(system, user)))
        self._next = lru_cache(maxsize=ENCODED)(lambda user, closed: tuple(self._following(user, closed)))
        self._said = lru_cache(maxsize=ENCODED)(lambda text: tuple(renderer.encode_output(text)))

    async def reply(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, group: str
    ) -> Said:
        ids = self.ids(messages)
        if self.max_model_len is not None and len(ids) + max_tokens > self.max_model_len:
            raise EngineError(
                f"{self.name}: the chat holds {len(ids)} tokens and may get {max_tokens} more, but the context is "
                f"{self.max_model_len}; raise engine.max_model_len or lower the token limits"
            )
        request = GenerateRequest(ids, max_tokens, self.renderer.stop_ids, temperature, seed, group)
        started = time.perf_counter()
        done, retries = await self._persist(request)
        return Said(
            text=self.renderer.decode(done.output_ids),
            prompt_tokens=len(ids),
            cached_tokens=done.cached_tokens,
            output_tokens=len(done.output_ids),
            seconds=time.perf_counter() - started,
            retries=retries,
            cut_short=done.finish_reason == "length",
            ids=done.output_ids,
        )

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the chat as token ids, up to where the assistant writes.

        Raises `ValueError` unless it is: maybe a system message, then user and assistant in turn, user last.
        """
        system, turns = "", list(messages)
        if turns and turns[0].role == "system":
            system = turns.pop(0).content
        roles = [message.role for message in turns]
        if not turns or roles != (["user", "assistant"] * len(turns))[: len(turns)] or roles[-1] != "user":
            raise ValueError(f"a chat alternates user and assistant and ends with the user, got {roles}")
        ids = [*self._start(system, turns[0].content)]
        for said, asked in zip(turns[1::2], turns[2::2], strict=True):
            written = said.ids if said.ids else self._said(said.content)
            ids += written
            ids += self._next(asked.content, written[-1] == self.renderer.close_id)
        return ids

    def _following(self, user: str, closed: bool) -> list[int]:
        return self.renderer.next(user, None if closed else ())

    async def _persist(self, request: GenerateRequest) -> tuple[Completion, int]:
        attempt = 0
        while True:
            try:
                async with asyncio.timeout(self.timeout_s):
                    (done,) = await self.engine.generate([request])
                return done, attempt
            except (EngineDied, TimeoutError) as error:  # EngineTimeout is a TimeoutError
                if attempt == self.retries:
                    kind = EngineDied if isinstance(error, EngineDied) else EngineTimeout
                    what = str(error) or f"no answer within {self.timeout_s:g} s"
                    raise kind(f"{self.name}: {what} (asked {attempt + 1} times)") from error
            await asyncio.sleep(self.backoff_s * 2**attempt)
            attempt += 1


class EndpointAgent:
    """An agent over an OpenAI-compatible endpoint; the endpoint itself retries until its deadline."""

    def __init__(self, endpoint: Endpoint, *, max_in_flight: int = 64) -> None:
        self.endpoint = endpoint
        self.name = endpoint.name
        self._threads = ThreadPoolExecutor(max_in_flight, thread_name_prefix="endpoint")

    async def reply(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, group: str
    ) -> Said:
        plain = [{"role": message.role, "content": message.content} for message in messages]
        started = time.perf_counter()

        def ask():
            return self.endpoint.ask(plain, temperature=temperature, seed=seed, max_tokens=max_tokens)

        reply = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        return Said(
            text=reply.text,
            prompt_tokens=reply.usage.get("prompt_tokens", 0),
            cached_tokens=_cached_tokens(reply.raw),
            output_tokens=reply.usage.get("completion_tokens", 0),
            seconds=time.perf_counter() - started,
            retries=max(0, reply.attempts - 1),
            cut_short=reply.cut_short,
        )

    def close(self) -> None:
        """End the threads; those that wait for a reply end with it."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class NoAgent:
    """Stands where a row asks no base agent, so that none is opened for it. Raises `EngineError` when asked."""

    name = "none"

    async def reply(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, group: str
    ) -> Said:
        raise EngineError("this harness was seated without a base agent, but asked for one")


class Meter:
    """An agent as one dialogue uses it: adds up what was asked, and gives every request a seed of its own."""

    def __init__(self, agent: Agent, *, temperature: float, seed: int, group: str) -> None:
        self.agent = agent
        self.temperature = temperature
        self.seed = seed
        self.group = group
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.retries = 0
        self.seconds = 0.0

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Said:
        self.requests += 1
        started = time.perf_counter()
        try:
            said = await self.agent.reply(
                messages,
                max_tokens=max_tokens,
                temperature=self.temperature,
                seed=(self.seed + 7919 * self.requests) & 0x7FFFFFFF,
                group=self.group,
            )
        except BaseException:
            self.seconds += time.perf_counter() - started
            raise
        self.prompt_tokens += said.prompt_tokens
        self.cached_tokens += said.cached_tokens
        self.output_tokens += said.output_tokens
        self.retries += said.retries
        self.seconds += said.seconds
        return said


def _cached_tokens(raw: str) -> int:
    """Return `usage.prompt_tokens_details.cached_tokens`, which servers with a prefix cache report; else 0."""
    usage = json.loads(raw).get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    count = details.get("cached_tokens") if isinstance(details, dict) else None
    return count if isinstance(count, int) else 0
