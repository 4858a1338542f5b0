"""The collector over the fleet against raw vLLM on the very same prompts; and what its prefix cache serves.

Goals: at least 0.90 of raw vLLM's generated tokens a second, and a hit rate of at least 0.8 on tracker contexts.

Ours plays dialogues turn by turn: building contexts, Ray calls, log-probs and parsing included. Raw vLLM, in a
process of its own with the same engine arguments, gets the same prompts as ready token ids, all those of one turn
in one batch, with the same seeds and stop ids and without log-probs. The two take turns, one set of dialogues
after the other, and rest while the other works.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.dialogue import Dialogue
from envs.mix import DialogueStream
from rollout.collector import collect, tracker_tokens, turn_seed
from rollout.engine import EngineConfig
from rollout.fleet import Fleet
from rollout.render import Renderer
from rollout.tracker import LogProtocol, TemplateReplies
from rollout.trajectory import Trajectory

FAMILIES = ("calls", "sql", "math")
ROUNDS = 3
DIALOGUES = 12
"""Dialogues in flight together, as many as a step of the default recipe."""
MAX_TOKENS = 24
SEED = 0
GOAL_SPEED = 0.90
GOAL_HITS = 0.8


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a recorded turn."""

    ids: list[int]
    seed: int
    stop_ids: tuple[int, ...]


def waves(trajectories: Sequence[Trajectory], stop_ids: tuple[int, ...]) -> list[list[Prompt]]:
    """Return the prompts of all dialogues by turn."""
    found: list[list[Prompt]] = []
    for trajectory in trajectories:
        ids: list[int] = []
        for t, turn in enumerate(trajectory.turns):
            ids = [*ids, *turn.context_ids]
            if t == len(found):
                found.append([])
            found[t].append(Prompt(ids, turn_seed(SEED, trajectory.dialogue.id, t), stop_ids))
            ids = [*ids, *turn.output_ids]
    return found


def serve_raw(config: EngineConfig, pipe: Any) -> None:
    """Answer lists of waves with (seconds, generated tokens) until the other end closes. Runs in its own process."""
    from vllm import EngineArgs, SamplingParams
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.llm_engine import LLMEngine

    from rollout.vllm_engine import engine_arguments

    engine = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(config, current_platform.is_cpu())))
    pipe.send("ready")
    number = 0
    while (order := pipe.recv()) is not None:
        started, tokens = time.perf_counter(), 0
        for wave in order:
            for prompt in wave:
                number += 1
                parameters = SamplingParams(
                    temperature=1.0,
                    seed=prompt.seed,
                    max_tokens=MAX_TOKENS,
                    stop_token_ids=list(prompt.stop_ids),
                    ignore_eos=True,
                    detokenize=False,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                )
                engine.add_request(f"r{number}", {"prompt_token_ids": prompt.ids}, parameters)
            while engine.has_unfinished_requests():
                finished: list[Any] = engine.step()
                tokens += sum(len(output.outputs[0].token_ids) for output in finished)
        pipe.send((time.perf_counter() - started, tokens))
    engine.engine_core.shutdown()


async def play(
    fleet: Fleet, dialogues: Sequence[Dialogue], renderer: Renderer
) -> tuple[float, list[Trajectory]]:
    started = time.perf_counter()
    played = await collect(
        fleet,
        dialogues,
        renderer,
        LogProtocol(),
        temperature=1.0,
        seed=SEED,
        max_tokens=MAX_TOKENS,
        replies=TemplateReplies(SEED),
    )
    seconds = time.perf_counter() - started
    if failed := [trajectory.error for trajectory in played if trajectory.error]:
        raise RuntimeError(f"{len(failed)} of {len(played)} dialogues failed: {failed[0]}")
    return seconds, played


async def measure(model: str = "tiny", rounds: int = ROUNDS, dialogues: int = DIALOGUES) -> dict[str, float]:
    """Return seconds and tokens of both sides, and the prompt tokens that ours read and took from its cache."""
    from transformers import AutoTokenizer

    from rollout.models import resolve_model
    from rollout.vllm_engine import process_env

    folder = resolve_model(model)
    renderer = Renderer(AutoTokenizer.from_pretrained(folder))
    config = EngineConfig(model=str(folder), max_model_len=2048, kv_cache_gib=0.5)
    os.environ.update(process_env(config.threads))  # the new process must find it when it starts
    here, there = multiprocessing.get_context("spawn").Pipe()
    raw = multiprocessing.get_context("spawn").Process(target=serve_raw, args=(config, there), daemon=False)
    raw.start()
    there.close()
    try:
        fleet = await Fleet.start("vllm", config)
        try:
            here.recv()
            total: dict[str, float] = dict.fromkeys(
                ("ours_s", "ours_tokens", "raw_s", "raw_tokens", "prompt", "cached"), 0.0
            )
            stream = DialogueStream(FAMILIES, "train", SEED, "easy")
            for turn in range(-1, rounds):  # round -1 warms both up, on few dialogues
                size = dialogues if turn >= 0 else 2
                chosen = [stream.dialogue_at((turn + 1) * dialogues + i) for i in range(size)]
                seconds, played = await play(fleet, chosen, renderer)
                here.send(waves(played, renderer.stop_ids))
                raw_seconds, raw_tokens = await asyncio.to_thread(here.recv)
                if turn < 0:
                    continue
                counts = tracker_tokens(played)
                total["ours_s"] += seconds
                total["ours_tokens"] += counts["output"]
                total["raw_s"] += raw_seconds
                total["raw_tokens"] += raw_tokens
                total["prompt"] += counts["processed"] - counts["output"]
                total["cached"] += counts["cached"]
            return total
        finally:
            await fleet.close()
    finally:
        here.send(None)
        raw.join(timeout=30)
        if raw.is_alive():
            raw.kill()


def rows() -> list[dict[str, Any]]:
    """Return the rows for `make bench`; none where vLLM does not run."""
    from rollout.models import vllm_available

    available, reason = vllm_available()
    if not available:
        print(f"collector: not measured, {reason}")
        return []
    total = asyncio.run(measure())
    ours, other = total["ours_tokens"] / total["ours_s"], total["raw_tokens"] / total["raw_s"]
    hits = total["cached"] / total["prompt"]
    return [
        {
            "row": "generated tokens/s: collector over a Ray fleet, raw vLLM on the same prompts",
            "ours": round(ours, 1),
            "other": round(other, 1),
            "ratio": round(ours / other, 3),
            "goal": GOAL_SPEED,
            "tokens": {"ours": int(total["ours_tokens"]), "other": int(total["raw_tokens"])},
        },
        {
            "row": "prefix-cache hit rate on tracker contexts",
            "ours": round(hits, 3),
            "other": None,
            "ratio": round(hits / GOAL_HITS, 3),
            "goal": GOAL_HITS,
            "prompt_tokens": int(total["prompt"]),
        },
    ]
