"""Harness overhead a turn, and what the place of the state does to the prefix cache.

Overhead: seconds a turn that are not spent waiting for an engine, 32 dialogues at once, with an engine that answers at
once (so that nothing overlaps and every second is the harness's own), chats rendered by the tokenizer of `tiny`.
Cache: the same dialogues with the oracle's state between history and message, and at the top in the system message.
The share of prompt tokens that stand in an earlier prompt of the dialogue, in whole blocks as vLLM caches them, is
counted without an engine; `--vllm` plays them on vLLM and reports its own hit rate and the time a turn as well.

    python -m recipes.bench.harness [--vllm] [--dialogues 32]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from envs.dialogue import Dialogue
from envs.mix import DialogueStream
from envs.task import SourceTask
from rollout.agents import EngineAgent, Message, Meter
from rollout.engine import Completion, EngineConfig, GenerateRequest
from rollout.harness.base import HarnessSettings, Needs, Seat
from rollout.harness.oracle import Oracle
from rollout.harness.states import OracleStates
from rollout.models import resolve_model
from rollout.playing import Players, play
from rollout.render import Renderer

FAMILIES = ("calls", "sql", "math")
HARNESSES = ("bare", "recap-prompt", "oracle", "stateforge")
GOAL_S = 0.005
BLOCK = 16
"""Tokens of one block of vLLM's prefix cache."""
PLAIN = HarnessSettings(reply_tokens=32, answer_tokens=32, gate=False, format=False, conclusions=False)

WHOLE = replace(PLAIN, gate=True, format=True, conclusions=True)


class AtOnce:
    """An engine that answers at once, with the same 32 tokens, and counts what a prefix cache would serve."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = tuple(ids)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._seen: dict[str, set[tuple[int, ...]]] = {}

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        done = []
        for request in requests:
            cached = self._hit(request)
            self.prompt_tokens += len(request.prompt_ids)
            self.cached_tokens += cached
            done.append(Completion(self.ids, (0.0,) * len(self.ids), "length", 0, cached))
        return done

    def _hit(self, request: GenerateRequest) -> int:
        """Return the tokens of the longest run of whole blocks that an earlier prompt of the group began with."""
        seen = self._seen.setdefault(request.group, set())
        ids, hit = tuple(request.prompt_ids), 0
        for end in range(BLOCK, len(ids), BLOCK):
            if hit == end - BLOCK and ids[:end] in seen:
                hit = end
            seen.add(ids[:end])
        return hit


class NoCache(AtOnce):
    """The same without the counting, which takes time of its own."""

    def _hit(self, request: GenerateRequest) -> int:
        return 0


class OnTop(Oracle):
    """The oracle's state in the system message, where it changes the beginning of every prompt."""

    name: ClassVar[str] = "on top"
    needs: ClassVar[Needs] = "oracle"

    async def write(self, messages: Sequence[Message], utterance: str, *, final: bool) -> Message:
        shown = messages[-1].content.removesuffix(f"\n{utterance}")
        system = Message("system", f"{self.seat.context}\n\n{shown}")
        return await super().write(
            [system, *self.history, Message("user", utterance)], utterance, final=final
        )


def dialogues(count: int) -> list[tuple[SourceTask, Dialogue]]:
    stream = DialogueStream(FAMILIES, "heldout", 0, "medium")
    return [(stream.task_at(i), stream.dialogue_at(i)) for i in range(count)]


def overhead(
    harness: str,
    chosen: Sequence[tuple[SourceTask, Dialogue]],
    renderer: Renderer,
    settings: HarnessSettings = PLAIN,
) -> float:
    """Return seconds of this thread a turn, all dialogues at once. CPU time, so a busy machine does not count."""
    from envs.task import get_family

    agent = EngineAgent(NoCache(renderer.encode_output("Noted. " * 10)[:32]), renderer, "at once")  # type: ignore[arg-type]
    players = Players(harness, agent, agent, settings=settings)

    async def run() -> float:
        started = time.thread_time()
        jobs = (play(players, get_family(d.family), task, d) for task, d in chosen)
        await asyncio.gather(*jobs)
        return time.thread_time() - started

    turns = sum(len(dialogue.turns) for _, dialogue in chosen)
    return asyncio.run(run()) / turns


async def play_places(
    place: type[Oracle], agent: EngineAgent, chosen: Sequence[tuple[SourceTask, Dialogue]]
) -> tuple[float, int, int]:
    """Play all dialogues at once; return (wall seconds a turn, prompt tokens, cached tokens)."""
    meters: list[Meter] = []

    async def one(task: SourceTask, dialogue: Dialogue) -> None:
        meter = Meter(agent, temperature=0.0, seed=0, group=f"{place.name}|{dialogue.id}")
        meters.append(meter)
        states = OracleStates([turn.state for turn in dialogue.turns])
        harness = place(Seat(meter, task.context, states, settings=PLAIN))
        for t, turn in enumerate(dialogue.turns):
            await harness.turn(turn.utterance, final=t == len(dialogue.turns) - 1)

    started = time.perf_counter()
    await asyncio.gather(*(one(task, dialogue) for task, dialogue in chosen))
    wall = time.perf_counter() - started
    turns = sum(len(dialogue.turns) for _, dialogue in chosen)
    return wall / turns, sum(m.prompt_tokens for m in meters), sum(m.cached_tokens for m in meters)


def counted_hits(renderer: Renderer, chosen: Sequence[tuple[SourceTask, Dialogue]]) -> dict[str, float]:
    """Return the share of prompt tokens in cached blocks, by where the state stands."""
    found = {}
    for place in (Oracle, OnTop):
        agent = EngineAgent(AtOnce(renderer.encode_output("Noted. " * 10)[:32]), renderer, "at once")  # type: ignore[arg-type]
        _, prompt, cached = asyncio.run(play_places(place, agent, chosen))
        found[place.name] = cached / prompt
    return found


def measured_hits(
    renderer: Renderer, chosen: Sequence[tuple[SourceTask, Dialogue]]
) -> dict[str, dict[str, float]]:
    """Return vLLM's own hit rate and seconds a turn, by where the state stands."""
    from rollout.fleet import Fleet

    async def run() -> dict[str, dict[str, float]]:
        config = EngineConfig(str(resolve_model("tiny")), max_model_len=4096, kv_cache_gib=1.0)
        fleet = await Fleet.start("vllm", config)
        agent = EngineAgent(fleet, renderer, "tiny")
        found: dict[str, dict[str, float]] = {}
        try:
            await play_places(Oracle, agent, chosen[:2])  # warm up
            for place in (Oracle, OnTop):
                seconds, prompt, cached = await play_places(place, agent, chosen[2:])
                found[place.name] = {"hit_rate": cached / prompt, "seconds_a_turn": seconds}
        finally:
            await fleet.close()
        return found

    return asyncio.run(run())


def rows(count: int = 32, vllm: bool = False) -> list[dict[str, Any]]:
    """Return the rows for `make bench`."""
    from transformers import AutoTokenizer

    renderer = Renderer(AutoTokenizer.from_pretrained(resolve_model("tiny")))
    chosen = dialogues(count)
    overhead("bare", chosen[:4], renderer)  # warm caches: tokenizer, templates
    found = []
    measured_rows = [(harness, harness, PLAIN) for harness in HARNESSES]
    measured_rows.append(("stateforge with gate, format tracker and conclusions", "stateforge", WHOLE))
    for what, harness, settings in measured_rows:
        seconds = overhead(harness, chosen, renderer, settings)
        found.append(
            {
                "row": f"harness seconds a turn beside the engine, {count} dialogues at once, {what}",
                "ours": round(seconds, 6),
                "other": None,
                "ratio": round(GOAL_S / seconds, 2),
                "goal": f"under {GOAL_S}",
            }
        )
    hits = counted_hits(renderer, chosen)
    found.append(_place_row("share of prompt tokens in cached blocks", hits["oracle"], hits["on top"]))
    if vllm:
        measured = measured_hits(renderer, chosen)
        ours, other = measured["oracle"], measured["on top"]
        found.append(_place_row("vLLM's prefix-cache hit rate", ours["hit_rate"], other["hit_rate"]))
        seconds = _place_row("seconds a turn on vLLM", ours["seconds_a_turn"], other["seconds_a_turn"])
        found.append(seconds | {"ratio": round(other["seconds_a_turn"] / ours["seconds_a_turn"], 2)})
    return found


def _place_row(what: str, ours: float, other: float) -> dict[str, Any]:
    return {
        "row": f"{what}: state before the message, at the top",
        "ours": round(ours, 4),
        "other": round(other, 4),
        "ratio": round(ours / other, 2) if other else None,
        "goal": None,
    }


def main(argv: list[str] | None = None) -> int:
    """Command line of `python -m recipes.bench.harness`; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", action="store_true", help="also play on vLLM")
    parser.add_argument("--dialogues", type=int, default=32)
    args = parser.parse_args(argv)
    for row in rows(args.dialogues, args.vllm):
        print(json.dumps(row))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
