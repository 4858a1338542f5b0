"""The collector: plays dialogues with the tracker and brings back trajectories of token ids.

One coroutine a dialogue, one request a turn. All live dialogues are in flight together, so the engine batches
whatever is ready and a slow dialogue holds up nobody. Every sampled turn has a seed of its own, made from
(seed, dialogue id, turn), so that results do not depend on who finishes first, nor on how often a turn had to
be asked again. A dead or silent engine costs its dialogues the turn in flight: they ask again from their last
finished turn. What cannot be finished comes back with `error` set; no dialogue is ever left out.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from envs.dialogue import Dialogue
from envs.errors import EngineDied, EngineError, EngineTimeout
from rollout.engine import Completion, Engine, GenerateRequest
from rollout.expert import expert_edit
from rollout.render import Renderer
from rollout.tracker import Derived, TrackerProtocol, stable_hash
from rollout.trajectory import TrackedTurn, Trajectory

Replies = Callable[[Dialogue, int], Awaitable[str | None] | str | None]
"""The agent's reply to turn t (0-based), shown to the tracker before turn t + 1; None shows nothing."""
OnTurn = Callable[[Trajectory, int], None]
"""Called when turn t of a trajectory is finished."""


async def collect(
    engine: Engine,
    dialogues: Sequence[Dialogue],
    renderer: Renderer,
    protocol: TrackerProtocol,
    *,
    temperature: float,
    seed: int,
    max_tokens: int,
    replies: Replies | None = None,
    prefixes: Mapping[str, Sequence[str]] | None = None,
    hints: bool = False,
    max_retries: int = 2,
    on_turn: OnTurn | None = None,
    max_concurrency: int | None = None,
    timeout_s: float = 600.0,
    retry_wait_s: float = 0.5,
    max_model_len: int | None = None,
) -> list[Trajectory]:
    """Return one trajectory for each dialogue, in order.

    A dialogue may be given several times; each time is a sample of its own. `prefixes` maps dialogue ids to
    log lines for the first turns (`slipped_prefix`), which are put in the protocol's form, encoded and marked
    `forced` instead of being sampled. `hints` shows
    the expert edit for the tracker's own state after each message (privileged contexts). `timeout_s` is the
    deadline of one request, `max_retries` how often one turn is asked again after `EngineDied` or
    `EngineTimeout`, with `retry_wait_s`, doubled each time, in between. `max_concurrency` bounds the
    dialogues in flight. With `max_model_len`, a turn that would not fit is not sent.

    An engine's errors end up in `Trajectory.error`; any other exception is a bug, stops everything and is
    raised.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    slots = asyncio.Semaphore(max_concurrency or max(1, len(dialogues)))
    player = _Player(
        engine, renderer, protocol, temperature, seed, max_tokens, replies, prefixes or {}, hints,
        max_retries, on_turn, timeout_s, retry_wait_s, max_model_len,
    )  # fmt: skip

    async def play(trajectory: Trajectory, sample: int) -> None:
        async with slots:
            await player.play(trajectory, sample)

    trajectories = [Trajectory(dialogue) for dialogue in dialogues]
    seen: Counter[str] = Counter()
    tasks: list[asyncio.Task[None]] = []
    for trajectory in trajectories:
        sample = seen[trajectory.dialogue.id]
        seen[trajectory.dialogue.id] += 1
        tasks.append(asyncio.create_task(play(trajectory, sample)))
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return trajectories


def turn_seed(seed: int, dialogue_id: str, turn: int, sample: int = 0) -> int:
    """Return the 31-bit sampling seed of a turn; `sample` counts repeats of the same dialogue."""
    return stable_hash(seed, dialogue_id, sample, turn)


def tracker_tokens(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Count tokens over all turns.

    `output`: written by the tracker; `forced`: given in its place; `context`: appended by the template,
    messages and hints; `processed`: what an engine without a prefix cache would read and write (each
    sampled turn's whole context and its output); `cached`: prompt tokens the prefix cache served; `turns`:
    sampled turns.
    """
    count: Counter[str] = Counter(output=0, forced=0, context=0, processed=0, cached=0, turns=0)
    for trajectory in trajectories:
        length = 0
        for turn in trajectory.turns:
            length += len(turn.context_ids) + len(turn.output_ids)
            count["context"] += len(turn.context_ids)
            count["forced" if turn.forced else "output"] += len(turn.output_ids)
            if not turn.forced:
                count["processed"] += length
                count["cached"] += turn.cached_tokens
                count["turns"] += 1
    return dict(count)


@dataclass(frozen=True, slots=True)
class _Player:
    """Plays one dialogue at a time; holds what is the same for all of them. See `collect`."""

    engine: Engine
    renderer: Renderer
    protocol: TrackerProtocol
    temperature: float
    seed: int
    max_tokens: int
    replies: Replies | None
    prefixes: Mapping[str, Sequence[str]]
    hints: bool
    max_retries: int
    on_turn: OnTurn | None
    timeout_s: float
    retry_wait_s: float
    max_model_len: int | None

    async def play(self, trajectory: Trajectory, sample: int) -> None:
        """Fill `trajectory` turn by turn; on an engine's error set `error` and keep the finished turns."""
        ids: list[int] = []
        for t in range(len(trajectory.dialogue.turns)):
            try:
                turn = await self._turn(trajectory, t, sample, ids)
            except EngineError as error:
                total = len(trajectory.dialogue.turns)
                trajectory.error = f"turn {t + 1} of {total}: {type(error).__name__}: {error}"
                return
            ids += turn.context_ids + turn.output_ids
            trajectory.turns.append(turn)
            if self.on_turn is not None:
                self.on_turn(trajectory, t)

    async def _turn(self, trajectory: Trajectory, t: int, sample: int, ids: list[int]) -> TrackedTurn:
        """Return turn `t`, given or sampled, with the state it leads to. `ids` are those of the turns
        before."""
        dialogue = trajectory.dialogue
        log, derived = _state(trajectory)
        context_ids = await self._context(trajectory, t)
        prefix = self.prefixes.get(dialogue.id, ())
        if t < len(prefix):
            text = self.protocol.target(log, prefix[t])
            output_ids = self.renderer.encode_output(text)
            turn = TrackedTurn(context_ids, output_ids, [math.nan] * len(output_ids), text, {}, forced=True)
        else:
            done = await self._generate(dialogue, t, sample, [*ids, *context_ids])
            turn = _sampled(context_ids, done, self.renderer.decode(done.output_ids))
        applied = self.protocol.apply(log, turn.text, derived)
        turn.log, turn.derived = applied.log, applied.derived
        turn.malformed, turn.lines, turn.missed = applied.malformed, applied.lines, applied.missed
        return turn

    async def _context(self, trajectory: Trajectory, t: int) -> list[int]:
        """Return the ids that come before the tracker's output of turn `t`."""
        dialogue = trajectory.dialogue
        reply = None
        if t and self.replies is not None:
            answer = self.replies(dialogue, t - 1)
            reply = await answer if inspect.isawaitable(answer) else answer
        hint = None
        if self.hints:
            log, _ = _state(trajectory)
            hint = self.protocol.target(log, expert_edit(dialogue, t, log))
        message = self.protocol.user_message(dialogue.turns[t].utterance, reply, hint)
        if t == 0:
            return self.renderer.start(self.protocol.system_prompt(), message)
        return self.renderer.next(message, trajectory.turns[-1].output_ids)

    async def _generate(self, dialogue: Dialogue, t: int, sample: int, ids: list[int]) -> Completion:
        """Ask for one turn, again if the engine dies or stays silent. Raises `EngineError`."""
        if self.max_model_len is not None and len(ids) + self.max_tokens > self.max_model_len:
            raise EngineError(
                f"the dialogue holds {len(ids)} tokens here and may write {self.max_tokens} more, but the "
                f"engine's context is {self.max_model_len}; raise max_model_len or take shorter dialogues"
            )
        request = GenerateRequest(
            prompt_ids=ids,
            max_tokens=self.max_tokens,
            stop_ids=self.renderer.stop_ids,
            temperature=self.temperature,
            seed=turn_seed(self.seed, dialogue.id, t, sample),
            group=dialogue.id,
        )
        attempt = 0
        while True:
            try:
                return await self._ask(request)
            except (EngineDied, EngineTimeout) as error:
                if attempt == self.max_retries:
                    raise type(error)(f"{error} (asked {attempt + 1} times)") from error
            await asyncio.sleep(self.retry_wait_s * 2**attempt)
            attempt += 1

    async def _ask(self, request: GenerateRequest) -> Completion:
        try:
            async with asyncio.timeout(self.timeout_s):
                (done,) = await self.engine.generate([request])
        except EngineTimeout:
            raise
        except TimeoutError as error:
            raise EngineTimeout(f"the engine did not answer within {self.timeout_s:g} s") from error
        return done


def _state(trajectory: Trajectory) -> tuple[dict[str, str], dict[str, Derived]]:
    """Return the log and conclusions after the last finished turn."""
    return (trajectory.turns[-1].log, trajectory.turns[-1].derived) if trajectory.turns else ({}, {})


def _sampled(context_ids: list[int], done: Completion, text: str) -> TrackedTurn:
    return TrackedTurn(
        context_ids,
        list(done.output_ids),
        list(done.logprobs),
        text,
        log={},
        finish_reason=done.finish_reason,
        weight_version=done.weight_version,
        cached_tokens=done.cached_tokens,
    )
