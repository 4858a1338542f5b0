from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import pytest

from envs.dialogue import Dialogue, Turn
from envs.errors import EngineDied, EngineError
from envs.intent import EMPTY, Add, Edit, Goal, Replace, apply
from rollout.collector import collect, tracker_tokens, turn_seed
from rollout.engine import Completion, GenerateRequest
from rollout.expert import oracle_log_texts
from rollout.render import Renderer
from rollout.score import summarize
from rollout.tracker import LogProtocol, TemplateReplies, get_protocol
from rollout.trajectory import Trajectory

LOG = LogProtocol()
BUDGET_50 = Goal("g1.v1", "The budget is 50.", "budget", "50")
BUDGET = Goal("g1", "The budget is 40.", "budget", "40")
ADDRESS = Goal("g2", "Deliver to Brooklyn.", "address", "Brooklyn")
TURNS: list[list[Edit]] = [[Add(BUDGET_50)], [Add(ADDRESS)], [Replace(BUDGET_50, BUDGET)], []]


def dialogue(name: str, turns: int = 4) -> Dialogue:
    state, shown = EMPTY, []
    for t, edits in enumerate(TURNS[:turns]):
        for edit in edits:
            state = apply(state, edit)
        shown.append(Turn(f"{name} message {t}", tuple(edits), state))
    return Dialogue(name, f"{name}/0", "calls", "drift", 1, 0, tuple(shown))


class ScriptedEngine:
    """An engine in process: `answer(text of the prompt, request)` says what it writes, waits, or raises.

    It stops as engines do: at the stop id, or cut at `max_tokens`.
    """

    def __init__(self, renderer: Renderer, answer: Callable[[str, GenerateRequest], object]) -> None:
        self.renderer = renderer
        self.answer = answer
        self.requests: list[GenerateRequest] = []
        self.running = self.most_running = 0

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        done = []
        for request in requests:
            self.requests.append(request)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                said = self.answer(self.renderer.tokenizer.decode(list(request.prompt_ids)), request)
                if asyncio.iscoroutine(said):
                    said = await said
                await asyncio.sleep(0)
            finally:
                self.running -= 1
            assert isinstance(said, str)
            ids = self.renderer.encode_output(said)
            finish = "stop" if len(ids) <= request.max_tokens else "length"
            ids = ids[: request.max_tokens]
            done.append(Completion(tuple(ids), tuple(-0.5 for _ in ids), finish, 7, cached_tokens=3))
        return done


def expert(prompt: str, request: GenerateRequest) -> str:
    """Answer as the oracle: the number of the last message is the turn."""
    return oracle_log_texts(dialogue("any"))[int(prompt.rpartition(" message ")[2][0])]


@pytest.fixture(scope="module")
def renderer(tinymodel, tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    tinymodel.save_tokenizer(folder)
    return Renderer(AutoTokenizer.from_pretrained(folder))


def run(engine: ScriptedEngine, dialogues: Sequence[Dialogue], **options) -> list[Trajectory]:
    settings = {"temperature": 1.0, "seed": 0, "max_tokens": 64, "retry_wait_s": 0.0} | options
    protocol = settings.pop("protocol", LOG)
    return asyncio.run(collect(engine, dialogues, engine.renderer, protocol, **settings))  # type: ignore[arg-type]


def test_a_perfect_tracker_is_collected_and_scores_perfectly(renderer: Renderer):
    trajectories = run(ScriptedEngine(renderer, expert), [dialogue("a"), dialogue("b", 2)])
    assert [len(trajectory.turns) for trajectory in trajectories] == [4, 2]
    assert trajectories[0].turns[-1].log == {"budget": "40", "address": "Brooklyn"}
    assert trajectories[0].turns[0].weight_version == 7
    assert trajectories[0].turns[1].cached_tokens == 3
    summary = summarize(trajectories)
    assert (summary["edit_accuracy"], summary["final_exact"], summary["errors"]) == (1.0, 1.0, 0)


def test_each_prompt_is_all_that_came_before_and_nothing_is_encoded_again(renderer: Renderer):
    engine = ScriptedEngine(renderer, expert)
    (trajectory,) = run(engine, [dialogue("a")])
    ids = trajectory.ids()
    for request, (start, end) in zip(engine.requests, trajectory.spans(), strict=True):
        assert list(request.prompt_ids) == ids[:start]
        assert request.stop_ids == renderer.stop_ids
        assert ids[end - 1] == renderer.close_id
        assert request.group == "a"
    assert renderer.tokenizer.decode(ids).count("Track what the user") == 1


def test_a_turn_cut_at_its_limit_is_closed_before_the_next_message(renderer: Renderer):
    (trajectory,) = run(ScriptedEngine(renderer, expert), [dialogue("a")], max_tokens=10)
    first, second = trajectory.turns[:2]
    assert (first.finish_reason, len(first.output_ids)) == ("length", 10)
    assert second.context_ids[0] == renderer.close_id
    assert renderer.tokenizer.decode(trajectory.ids()).count("<|im_end|>") == 1 + 4 + 3 + (
        trajectory.turns[-1].finish_reason == "stop"
    )


def test_a_slow_dialogue_holds_up_nobody(renderer: Renderer):
    others_done = asyncio.Event()
    finished: list[tuple[str, int]] = []

    def answer(prompt: str, request: GenerateRequest) -> object:
        if request.group == "slow":

            async def wait() -> str:
                await asyncio.wait_for(others_done.wait(), 10)
                return "KEEP"

            return wait()
        return expert(prompt, request)

    def on_turn(trajectory: Trajectory, t: int) -> None:
        finished.append((trajectory.dialogue.id, t))
        if len({name for name, turn in finished if turn == 3}) == 3:
            others_done.set()

    dialogues = [dialogue("slow", 1), dialogue("a"), dialogue("b"), dialogue("c")]
    trajectories = run(ScriptedEngine(renderer, answer), dialogues, on_turn=on_turn)
    assert [trajectory.error for trajectory in trajectories] == [None] * 4
    assert finished[-1] == ("slow", 0)
    assert len(finished) == 13


def test_concurrency_is_bounded_when_asked(renderer: Renderer):
    dialogues = [dialogue(name) for name in "abcdef"]
    free, bounded = ScriptedEngine(renderer, expert), ScriptedEngine(renderer, expert)
    run(free, dialogues)
    run(bounded, dialogues, max_concurrency=2)
    assert free.most_running == 6
    assert bounded.most_running == 2
    assert len(bounded.requests) == len(free.requests) == 24


def test_seeds_depend_on_run_dialogue_turn_and_sample_only(renderer: Renderer):
    engine = ScriptedEngine(renderer, expert)
    run(engine, [dialogue("a"), dialogue("b"), dialogue("a")], seed=5)
    seeds = [request.seed for request in engine.requests]
    assert len(set(seeds)) == 12, "samples of the same dialogue differ"
    again = ScriptedEngine(renderer, expert)
    run(again, [dialogue("b"), dialogue("a")], seed=5, max_concurrency=1)
    assert {request.seed for request in again.requests} <= set(seeds)
    assert turn_seed(5, "a", 0) in seeds
    assert turn_seed(0, "calls/0", 3) == 316149634, "alike in every process and version"


def test_a_dead_engine_costs_only_the_turn_in_flight(renderer: Renderer):
    deaths = {"a": 2, "b": 0}

    def answer(prompt: str, request: GenerateRequest) -> object:
        if " message 2" in prompt and deaths.get(request.group, 0) > 0:
            deaths[request.group] -= 1
            raise EngineDied("replica 0 is gone")
        return expert(prompt, request)

    engine = ScriptedEngine(renderer, answer)
    trajectories = run(engine, [dialogue("a"), dialogue("b")], max_retries=2)
    assert [trajectory.error for trajectory in trajectories] == [None, None]
    assert [turn.text for turn in trajectories[0].turns] == [turn.text for turn in trajectories[1].turns]
    asked = [request for request in engine.requests if request.group == "a"]
    assert len(asked) == 4 + 2
    assert asked[2] == asked[3] == asked[4], "the same request with the same seed"


def test_retries_are_bounded_and_finished_turns_are_kept(renderer: Renderer):
    def answer(prompt: str, request: GenerateRequest) -> object:
        if request.group == "a" and " message 2" in prompt:
            raise EngineDied("replica 0 is gone")
        return expert(prompt, request)

    engine = ScriptedEngine(renderer, answer)
    lost, fine = run(engine, [dialogue("a"), dialogue("b")], max_retries=1)
    assert lost.error == "turn 3 of 4: EngineDied: replica 0 is gone (asked 2 times)"
    assert [turn.log for turn in lost.turns] == [turn.log for turn in fine.turns[:2]]
    assert fine.error is None and len(fine.turns) == 4
    assert summarize([lost, fine])["errors"] == 1


def test_a_silent_engine_is_given_up_at_the_deadline(renderer: Renderer):
    (trajectory,) = run(
        ScriptedEngine(renderer, lambda prompt, request: asyncio.sleep(30)),
        [dialogue("a")],
        timeout_s=0.05,
        max_retries=1,
    )
    assert trajectory.turns == []
    assert trajectory.error is not None
    assert "EngineTimeout: the engine did not answer within 0.05 s (asked 2 times)" in trajectory.error


def test_a_dialogue_longer_than_the_context_says_so_and_others_go_on(renderer: Renderer):
    short = dialogue("s", 1)
    long, fine = run(
        ScriptedEngine(renderer, expert), [dialogue("a"), short], max_tokens=64, max_model_len=440
    )
    assert long.error is not None and "the engine's context is 440" in long.error
    assert 0 < len(long.turns) < 4
    assert len(long.ids()) <= 440
    assert (fine.error, len(fine.turns)) == (None, 1)


def test_a_request_the_engine_refuses_is_not_sent_again(renderer: Renderer):
    def answer(prompt: str, request: GenerateRequest) -> object:
        raise EngineError("prompt of 9000 tokens, context 2048")

    engine = ScriptedEngine(renderer, answer)
    (trajectory,) = run(engine, [dialogue("a")])
    assert trajectory.error == "turn 1 of 4: EngineError: prompt of 9000 tokens, context 2048"
    assert len(engine.requests) == 1


def test_a_bug_is_raised_and_not_hidden(renderer: Renderer):
    def answer(prompt: str, request: GenerateRequest) -> object:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(ScriptedEngine(renderer, answer), [dialogue("a"), dialogue("b")])
    with pytest.raises(ValueError, match="max_tokens"):
        run(ScriptedEngine(renderer, expert), [dialogue("a")], max_tokens=0)


def test_forced_prefixes_are_encoded_marked_and_folded(renderer: Renderer):
    engine = ScriptedEngine(renderer, expert)
    slipped, plain = run(engine, [dialogue("a"), dialogue("b")], prefixes={"a": ["SET budget: 60", "KEEP"]})
    assert [turn.forced for turn in slipped.turns] == [True, True, False, False]
    assert slipped.turns[0].output_ids == renderer.encode_output("SET budget: 60")
    assert slipped.turns[1].log == {"budget": "60"}
    assert all(math.isnan(value) for value in slipped.turns[0].logprobs)
    assert len(slipped.turns[0].logprobs) == len(slipped.turns[0].output_ids)
    assert sum(request.group == "a" for request in engine.requests) == 2
    assert not any(turn.forced for turn in plain.turns)
    summary = summarize([slipped])
    assert (summary["turns"], summary["recovery"], summary["final_exact"]) == (2, 1.0, 0.0)


def test_forced_log_lines_take_the_form_of_the_protocol(renderer: Renderer):
    engine = ScriptedEngine(renderer, lambda prompt, request: "NONE")
    prefixes = {"a": ["SET budget: 60\nSET address: Queens", "DEL address"]}
    (trajectory,) = run(engine, [dialogue("a")], prefixes=prefixes, protocol=get_protocol("full"))
    assert [turn.text for turn in trajectory.turns] == [
        "budget: 60\naddress: Queens",
        "budget: 60",
        "NONE",
        "NONE",
    ]
    assert [turn.malformed for turn in trajectory.turns] == [0] * 4


def test_hints_show_the_expert_edit_for_the_trackers_own_state(renderer: Renderer):
    def answer(prompt: str, request: GenerateRequest) -> str:
        return "SET spending budget: 50" if " message 1" not in prompt else "KEEP"

    (trajectory,) = run(ScriptedEngine(renderer, answer), [dialogue("a")], hints=True)
    shown = [renderer.tokenizer.decode(turn.context_ids) for turn in trajectory.turns]
    assert "(edit: SET budget: 50)" in shown[0]
    assert "(edit: SET spending budget: 40)" in shown[2], "under the tracker's own name"
    assert "(edit: KEEP)" in shown[3]
    full = run(ScriptedEngine(renderer, answer), [dialogue("a")], hints=True, protocol=get_protocol("full"))
    assert "(edit: budget: 50)" in renderer.tokenizer.decode(full[0].turns[0].context_ids)


def test_replies_stand_before_the_next_message_sync_or_async(renderer: Renderer):
    async def slow_reply(talk: Dialogue, t: int) -> str:
        await asyncio.sleep(0)
        return f"reply to {t}"

    (plain,) = run(ScriptedEngine(renderer, expert), [dialogue("a")], replies=TemplateReplies(0))
    assert TemplateReplies(0)(dialogue("a"), 1) in renderer.tokenizer.decode(plain.turns[2].context_ids)
    (trajectory,) = run(ScriptedEngine(renderer, expert), [dialogue("a")], replies=slow_reply)
    shown = [renderer.tokenizer.decode(turn.context_ids) for turn in trajectory.turns]
    assert "reply" not in shown[0]
    assert [f"reply to {t}" in text for t, text in enumerate(shown[1:])] == [True] * 3


def test_conclusions_live_across_turns_and_die_with_their_supports(renderer: Renderer):
    said = ["SET budget: 50\nDERIVE courses <- budget: two fit", "KEEP", "SET budget: 40", "KEEP"]
    answer = lambda prompt, request: said[int(prompt.rpartition(" message ")[2][0])]  # noqa: E731
    (trajectory,) = run(ScriptedEngine(renderer, answer), [dialogue("a")])
    assert [list(turn.derived) for turn in trajectory.turns] == [["courses"], ["courses"], [], []]


def test_token_accounting(renderer: Renderer):
    prefixes = {"a": ["KEEP"]}
    (trajectory,) = run(ScriptedEngine(renderer, expert), [dialogue("a", 2)], prefixes=prefixes)
    forced, sampled = trajectory.turns
    assert tracker_tokens([trajectory]) == {
        "output": len(sampled.output_ids),
        "forced": len(forced.output_ids),
        "context": len(forced.context_ids) + len(sampled.context_ids),
        "processed": len(trajectory.ids()),
        "cached": 3,
        "turns": 1,
    }


def test_the_full_protocol_writes_more_with_every_goal(renderer: Renderer):
    full = get_protocol("full")
    log: dict[str, str] = {}
    states = []
    for edit in oracle_log_texts(dialogue("a")):
        states.append(full.target(log, edit))
        log = full.apply(log, states[-1]).log
    answer = lambda prompt, request: states[int(prompt.rpartition(" message ")[2][0])]  # noqa: E731
    (whole,) = run(ScriptedEngine(renderer, answer), [dialogue("a")], protocol=full)
    (edits,) = run(ScriptedEngine(renderer, expert), [dialogue("a")])
    assert whole.turns[-1].log == edits.turns[-1].log
    assert tracker_tokens([whole])["output"] > tracker_tokens([edits])["output"]
