"""Agents over a real (tiny, random) engine and over an HTTP endpoint: tokens, retries, errors that are data."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from envs.endpoint import Endpoint
from envs.errors import EndpointError, EngineDied, EngineError, EngineTimeout
from rollout.agents import EndpointAgent, EngineAgent, Message, Meter, Said
from rollout.collector import collect
from rollout.engine import Completion, EngineConfig, GenerateRequest
from rollout.harness.base import HarnessSettings
from rollout.harness.states import TrackedStates
from rollout.local_engine import LocalEngine
from rollout.playing import Players, play
from rollout.render import Renderer
from rollout.tracker import TemplateReplies, get_protocol, stable_hash
from tests.envs.stubserver import fail, say, serve
from tests.rollout.scripted import example

ASK = {"max_tokens": 5, "temperature": 0.0, "seed": 1, "group": "g"}


@pytest.fixture(scope="module")
def renderer(tiny_llama: Path) -> Renderer:
    from transformers import AutoTokenizer

    return Renderer(AutoTokenizer.from_pretrained(tiny_llama))


class FakeEngine:
    """Fails as often as it is told, then says "ok"; keeps the requests."""

    def __init__(self, *errors: Exception, ids: tuple[int, ...] = (111, 107)) -> None:
        self.errors = list(errors)
        self.ids = ids
        self.requests: list[GenerateRequest] = []

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        self.requests += requests
        if self.errors:
            raise self.errors.pop(0)
        return [Completion(self.ids, (0.0,) * len(self.ids), "length", 0, 3) for _ in requests]


def test_a_chat_becomes_the_ids_of_the_template(renderer: Renderer) -> None:
    agent = EngineAgent(FakeEngine(), renderer, "fake")  # type: ignore[arg-type]
    chat = [
        Message("system", "s"),
        Message("user", "one"),
        Message("assistant", "yes"),
        Message("user", "two"),
    ]
    wanted = renderer.tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in chat], tokenize=False, add_generation_prompt=True
    )
    assert renderer.tokenizer.decode(agent.ids(chat)) == wanted
    assert agent.ids(chat)[: len(agent.ids(chat[:2]))] == agent.ids(chat[:2]), "a prefix"


def test_what_an_agent_wrote_is_never_tokenised_again(renderer: Renderer) -> None:
    agent = EngineAgent(FakeEngine(), renderer, "fake")  # type: ignore[arg-type]
    odd = (104, 105, 105)
    chat = [Message("user", "one"), Message("assistant", "other text", odd), Message("user", "two")]
    ids = agent.ids(chat)
    start = len(agent.ids(chat[:1]))
    assert tuple(ids[start : start + 3]) == odd
    assert ids[start + 3] == renderer.close_id, "cut off at its limit, so it is closed here"


@pytest.mark.parametrize(
    "roles", [["user", "user"], ["user", "assistant"], [], ["assistant", "user"], ["user", "system", "user"]]
)
def test_a_chat_that_does_not_alternate_is_refused(roles: list[str], renderer: Renderer) -> None:
    agent = EngineAgent(FakeEngine(), renderer, "fake")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="alternates"):
        agent.ids([Message(role, "x") for role in roles])  # type: ignore[arg-type]


def test_a_dead_engine_is_asked_again_with_the_same_request(renderer: Renderer) -> None:
    engine = FakeEngine(EngineDied("gone"), EngineTimeout("late"))
    agent = EngineAgent(engine, renderer, "fake", backoff_s=0.0)  # type: ignore[arg-type]
    said = asyncio.run(agent.reply([Message("user", "hi")], **ASK))
    assert said.retries == 2 and said.cached_tokens == 3 and said.cut_short and said.ids == (111, 107)
    assert len(engine.requests) == 3 and engine.requests[0] == engine.requests[2]


def test_retries_end_and_other_errors_are_not_retried(renderer: Renderer) -> None:
    dead = FakeEngine(*[EngineDied("gone")] * 9)
    agent = EngineAgent(dead, renderer, "fake", backoff_s=0.0, retries=2)  # type: ignore[arg-type]
    with pytest.raises(EngineDied, match=r"fake: gone \(asked 3 times\)"):
        asyncio.run(agent.reply([Message("user", "hi")], **ASK))
    wrong = FakeEngine(EngineError("cannot"))
    with pytest.raises(EngineError, match="cannot"):
        asyncio.run(EngineAgent(wrong, renderer, "fake").reply([Message("user", "hi")], **ASK))  # type: ignore[arg-type]
    assert len(wrong.requests) == 1


def test_a_chat_that_does_not_fit_says_what_to_raise(renderer: Renderer) -> None:
    agent = EngineAgent(FakeEngine(), renderer, "fake", max_model_len=30)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=r"engine\.max_model_len"):
        asyncio.run(agent.reply([Message("user", "x" * 40)], **ASK))


def test_stateforge_over_a_real_engine_keeps_the_sampled_ids(tiny_llama: Path, renderer: Renderer) -> None:
    """Base agent and tracker are the same engine; the tracker's own ids stand in its next prompt."""
    family, task, dialogue = example(budget=1)
    prompts: list[list[int]] = []

    async def run() -> None:
        engine = LocalEngine(EngineConfig(str(tiny_llama), 20_000, "float32", threads=1))
        agent = EngineAgent(engine, renderer, "tiny")
        ids = agent.ids
        agent.ids = lambda messages: prompts.append(ids(messages)) or prompts[-1]  # type: ignore[method-assign]
        settings = HarnessSettings(2, 2, 3, gate=False, format=False, conclusions=False)
        try:
            done = await play(Players("stateforge", agent, agent, settings=settings), family, task, dialogue)
        finally:
            await engine.close()
        assert done.error is None and len(done.turns) == len(dialogue.turns)
        assert 0 < done.engine_seconds <= done.seconds
        assert done.base.output_tokens <= 2 * len(dialogue.turns)

    asyncio.run(run())
    tracker = prompts[::2]
    assert all(after[: len(before)] == before for before, after in itertools.pairwise(tracker))


def test_an_endpoint_answers_and_counts_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    with serve(fail(503), say("hello", usage=usage)) as stub:
        agent = EndpointAgent(Endpoint.parse(f"openai:{stub.url}#m", backoff_s=0.01))
        said = asyncio.run(agent.reply([Message("system", "s"), Message("user", "hi")], **ASK))
        agent.close()
    assert said == Said("hello", 9, 8, 2, said.seconds, 1)
    _, _, body = stub.requests[-1]
    assert body["messages"] == [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (5, 0.0, 1)


def test_a_server_that_stays_down_ends_as_an_error_of_the_case_not_as_a_zero() -> None:
    family, task, dialogue = example(budget=1)
    with serve(say("Noted."), say("Noted."), fail(500)) as stub:
        agent = EndpointAgent(Endpoint.parse(f"openai:{stub.url}#m", retries=1, backoff_s=0.01))
        done = asyncio.run(play(Players("bare", agent), family, task, dialogue))
        agent.close()
    assert done.error is not None and done.error.startswith(f"turn 3 of {len(dialogue.turns)}: EndpointError")
    assert len(done.turns) == 2


def test_every_request_of_a_dialogue_has_a_seed_of_its_own_and_the_same_again() -> None:
    seeds: list[int] = []

    class Seen:
        name = "seen"

        async def reply(self, messages: Sequence[Message], **more) -> Said:
            seeds.append(more["seed"])
            return Said("x", 1, 0, 1, 0.5, 1)

    for _ in range(2):
        meter = Meter(Seen(), temperature=1.0, seed=7, group="g")
        for _ in range(3):
            asyncio.run(meter.reply([Message("user", "hi")], 5))
    assert len(set(seeds)) == 3 and seeds[:3] == seeds[3:]
    assert (meter.prompt_tokens, meter.output_tokens, meter.retries, meter.requests) == (3, 3, 3, 3)
    assert meter.seconds == 1.5


def test_the_time_of_a_request_that_fails_counts_as_the_engine_s() -> None:
    class Slow:
        name = "slow"

        async def reply(self, messages: Sequence[Message], **more) -> Said:
            await asyncio.sleep(0.02)
            raise EndpointError("no")

    meter = Meter(Slow(), temperature=0.0, seed=0, group="g")
    with pytest.raises(EndpointError):
        asyncio.run(meter.reply([Message("user", "hi")], 5))
    assert meter.seconds >= 0.02


def test_a_tracker_in_a_harness_is_asked_token_for_token_what_it_is_asked_in_training(
    tiny_llama: Path, renderer: Renderer
) -> None:
    _, _, dialogue = example(budget=1)
    group = f"{dialogue.id}|tracker"

    def replies(_: object, t: int) -> str:
        wordings = TemplateReplies.WORDINGS
        return wordings[stable_hash(group, t + 1) % len(wordings)]

    async def run() -> tuple[list[int], list[int]]:
        engine = LocalEngine(EngineConfig(str(tiny_llama), 20_000, "float32", threads=1))
        try:
            protocol = get_protocol("log")
            (trained,) = await collect(
                *(engine, [dialogue], renderer, protocol),
                temperature=0.0,
                seed=0,
                max_tokens=6,
                replies=replies,
            )
            agent = EngineAgent(engine, renderer, "tiny")
            meter = Meter(agent, temperature=0.0, seed=0, group=group)
            states = TrackedStates(meter, protocol, max_tokens=6)
            for turn in dialogue.turns:
                await states.read(turn.utterance)
            assert states.log == trained.turns[-1].log
            last = states.messages[-1].ids or ()
            return trained.ids(), [*agent.ids(states.messages[:-1]), *last]
        finally:
            await engine.close()

    trained, played = asyncio.run(run())
    assert played == trained
