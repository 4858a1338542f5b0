"""What every harness keeps to: prefixes that grow, where the state stands, what is never shown."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.errors import ConfigError, EngineDied, UnknownName
from rollout.agents import Message, Said
from rollout.harness import get_harness, registry
from rollout.harness.base import HarnessSettings, Seat
from rollout.playing import Played, Players, play
from tests.rollout.scripted import ScriptedAgent, example, perfect_tracker

PLAIN = HarnessSettings(gate=False, format=False, conclusions=False)
SHOWING = ("recap-prompt", "recap-state", "oracle", "stateforge")


def played(
    harness: str, base: ScriptedAgent, setting: HarnessSettings = PLAIN, index: int = 0, **more
) -> Played:
    family, task, dialogue = example(index=index)
    tracker = perfect_tracker(dialogue)
    return asyncio.run(
        play(Players(harness, base, tracker, settings=setting, **more), family, task, dialogue)
    )


def answering(base: ScriptedAgent, dialogue) -> list[list[Message]]:
    """The chats that ended with a user's own message, not with a question of the harness."""
    ends = {turn.utterance for turn in dialogue.turns}
    return [chat for chat in base.asked if any(chat[-1].content.endswith(end) for end in ends)]


def test_all_harnesses_are_registered_and_an_unknown_one_names_the_nearest() -> None:
    assert {
        *(
            "bare",
            "clean",
            "recap-prompt",
            "recap-state",
            "oracle",
            "stateforge",
            "executor",
            "summary",
            "compact",
        )
    } <= set(registry())
    with pytest.raises(UnknownName, match="'stateforge'"):
        get_harness("stateforg")


@pytest.mark.parametrize("harness", ["bare", *SHOWING])
def test_the_history_of_a_turn_is_the_beginning_of_the_next_prompt(harness: str) -> None:
    base = ScriptedAgent(lambda messages: f"reply {len(messages)}")
    done = played(harness, base)
    chats = answering(base, done.dialogue)
    assert len(chats) == len(done.dialogue.turns)
    for before, after in itertools.pairwise(chats):
        assert after[: len(before) - 1] == before[:-1]
        assert len(after) == len(before) + 2


@pytest.mark.parametrize("harness", SHOWING)
def test_what_is_shown_stands_right_before_the_message_and_is_not_kept(harness: str) -> None:
    base = ScriptedAgent()
    done = played(harness, base)
    chats = answering(base, done.dialogue)
    for chat, turn, record in zip(chats, done.dialogue.turns, done.turns, strict=True):
        if record.shown is None:  # nothing is wanted yet
            assert harness in ("oracle", "stateforge") and not turn.state.goals
            assert chat[-1].content == turn.utterance
        else:
            assert chat[-1].content == f"{record.shown}\n{turn.utterance}"
    kept = [message.content for message in chats[-1][:-1] if message.role == "user"]
    assert kept == [turn.utterance for turn in done.dialogue.turns[:-1]]


def test_the_oracle_shows_exactly_the_state_of_each_turn() -> None:
    done = played("oracle", ScriptedAgent())
    for t, (turn, record) in enumerate(zip(done.dialogue.turns, done.turns, strict=True)):
        shown = record.shown or ""
        lines = [line for line in shown.splitlines() if line.startswith("- ")]
        assert lines == [f"- {goal.text}" for goal in turn.state.goals]
        assert not any(f"- {goal.text}\n" in shown for goal in done.dialogue.superseded(t))


def test_stateforge_with_a_perfect_tracker_shows_what_is_wanted_under_the_tracker_s_names() -> None:
    done = played("stateforge", ScriptedAgent())
    for turn, record in zip(done.dialogue.turns, done.turns, strict=True):
        assert record.items is not None and len(record.items) == len(turn.state.goals)
        assert all(f"- {item}" in (record.shown or "") for item in record.items)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 40))
def test_a_conclusion_is_never_shown_once_a_support_is_gone(index: int) -> None:
    _, _, dialogue = example(index=index)
    tracker = perfect_tracker(dialogue)
    writes = tracker.answer
    concluded: dict[str, tuple[str, str]] = {}
    log: dict[str, str] = {}

    def answer(messages: Sequence[Message]) -> str:
        assert callable(writes)
        if "(No new message of the user.)" not in messages[-1].content:
            return writes(messages)
        lines = []
        for key in current():
            name = f"c{len(concluded)}"
            concluded[name] = key, current()[key]
            lines.append(f"DERIVE {name} <- {key}: conclusion {name}.")
        return "\n".join(lines) or "KEEP"

    def current() -> dict[str, str]:
        return log

    tracker.answer = answer
    base = ScriptedAgent()
    seen: list[tuple[dict[str, str], str]] = []
    harness_class = get_harness("stateforge")

    async def run() -> None:
        from rollout.agents import Meter
        from rollout.harness.states import TrackedStates
        from rollout.tracker import get_protocol

        states = TrackedStates(
            Meter(tracker, temperature=0, seed=0, group="g"), get_protocol("log"), max_tokens=64
        )
        meter = Meter(base, temperature=0, seed=0, group="g")
        harness = harness_class(
            Seat(meter, states=states, settings=HarnessSettings(gate=False, state_chars=10_000))
        )
        for t, turn in enumerate(dialogue.turns):
            read = states.read

            async def reading(utterance: str, read=read) -> None:
                await read(utterance)
                log.clear()
                log.update(states.log)

            states.read = reading  # type: ignore[method-assign]
            done = await harness.turn(turn.utterance, final=t == len(dialogue.turns) - 1)
            states.read = read  # type: ignore[method-assign]
            seen.append((dict(log), done.shown or ""))

    asyncio.run(run())
    shown_once = 0
    for held, shown in seen:
        for name, (key, value) in concluded.items():
            if f"conclusion {name}." in shown:
                shown_once += 1
                assert held.get(key) == value, f"{name} rests on {key}: {value}, the state holds {held}"
    assert shown_once or len(dialogue.turns) < 3


def test_conclusions_are_asked_for_only_where_they_are_wanted() -> None:
    def asked(on: bool) -> int:
        family, task, dialogue = example()
        tracker = perfect_tracker(dialogue)
        setting = HarnessSettings(gate=False, format=False, conclusions=on)
        asyncio.run(
            play(Players("stateforge", ScriptedAgent(), tracker, settings=setting), family, task, dialogue)
        )
        return sum("(No new message of the user.)" in chat[-1].content for chat in tracker.asked)

    assert asked(False) == 0
    assert asked(True) >= 1


def test_the_tracker_s_conversation_only_grows() -> None:
    family, task, dialogue = example()
    tracker = perfect_tracker(dialogue)
    asyncio.run(play(Players("stateforge", ScriptedAgent(), tracker, settings=PLAIN), family, task, dialogue))
    assert len(tracker.asked) == len(dialogue.turns)
    for before, after in itertools.pairwise(tracker.asked):
        assert after[: len(before)] == before
    assert tracker.asked[0][-1].content == dialogue.turns[0].utterance
    assert tracker.asked[1][-1].content.startswith("Agent: ")


def test_the_format_tracker_has_its_own_prompt_and_its_lines_are_shown_apart() -> None:
    def base_says(messages: Sequence[Message]) -> str:
        tracking = messages[0].content.startswith("Track how the final answer must be written")
        return "SET form: JSON only" if tracking else "Noted."

    setting = HarnessSettings(gate=False, conclusions=False)
    done = played("stateforge", ScriptedAgent(base_says), setting)
    shown = done.turns[-1].shown or ""
    assert "[How to write the answer]\n- form: JSON only" in shown
    assert "form: JSON only" not in shown.split("[How to write the answer]")[0]
    assert done.tracker_tokens > 0


def gate_base(verdict: str) -> ScriptedAgent:
    def says(messages: Sequence[Message]) -> str:
        last = messages[-1].content
        if last.startswith("Check a draft answer."):
            return verdict
        return "second" if last.startswith("The answer cannot be used yet") else "first"

    return ScriptedAgent(says)


@pytest.mark.parametrize("harness", ["stateforge", "oracle", "recap-state"])
def test_the_gate_asks_once_more_only_where_the_draft_fails(harness: str) -> None:
    setting = HarnessSettings(format=False, conclusions=False)
    failing = played(harness, gate_base("FAIL: the colour is wrong"), setting)
    assert failing.answer == "second"
    assert failing.detail["cut_short"] is False
    assert failing.detail["gate_problem"] == "the colour is wrong" and failing.detail["draft"] == "first"
    for verdict in ("PASS", "PASS. It does not FAIL anything", "hm", ""):
        assert played(harness, gate_base(verdict), setting).answer == "first"
    off = HarnessSettings(gate=False, format=False, conclusions=False)
    base = gate_base("FAIL: never asked")
    assert played(harness, base, off).answer == "first"
    assert not any(chat[-1].content.startswith("Check a draft") for chat in base.asked)


def test_the_gate_sees_the_state_and_the_base_agent_never_the_oracle() -> None:
    base = gate_base("PASS")
    done = played("stateforge", base, HarnessSettings(format=False, conclusions=False))
    (check,) = [chat[-1].content for chat in base.asked if chat[-1].content.startswith("Check a draft")]
    assert all(f"- {item}" in check for item in done.turns[-1].items or ())


@pytest.mark.parametrize("harness", ["summary", "compact"])
def test_long_histories_are_shortened_and_what_the_user_said_last_stays(harness: str) -> None:
    base = ScriptedAgent(
        lambda messages: "notes" if "Conversation:" in messages[-1].content else "long " * 60
    )
    setting = HarnessSettings(history_chars=600, keep_messages=2)
    done = played(harness, base, setting)
    chats = answering(base, done.dialogue)
    last = chats[-1]
    roles = [message.role for message in last if message.role != "system"]
    assert roles == (["user", "assistant"] * len(roles))[: len(roles)] and roles[-1] == "user"
    assert last[-1].content == done.dialogue.turns[-1].utterance
    assert any("[Summary of the conversation so far]\nnotes" in message.content for message in last)
    assert len(last) < 2 * len(done.dialogue.turns)


def test_compaction_cuts_replies_first_and_needs_no_model_where_that_is_enough() -> None:
    base = ScriptedAgent(lambda messages: "word " * 100)
    done = played("compact", base, HarnessSettings(history_chars=3000, keep_messages=2))
    assert len(base.asked) == len(done.dialogue.turns), "no summary was asked for"
    assert any(message.content.endswith("[...]") for message in base.asked[-1])


@pytest.mark.parametrize("harness", sorted(set(registry()) - {"clean", "executor"}))
def test_in_a_replay_only_the_last_reply_is_written(harness: str) -> None:
    family, task, dialogue = example()
    recorded = [f"recorded {t}" for t in range(len(dialogue.turns))]
    base = ScriptedAgent("mine")
    players = Players(harness, base, perfect_tracker(dialogue), settings=PLAIN)
    done = asyncio.run(play(players, family, task, dialogue, recorded))
    assert [turn.reply for turn in done.turns] == [*recorded[:-1], "mine"]
    (chat,) = answering(base, dialogue)
    assert [m.content for m in chat if m.role == "assistant"] == recorded[:-1]


def test_an_engine_that_fails_for_good_leaves_the_turns_before_and_says_which() -> None:
    class Dying(ScriptedAgent):
        async def reply(self, messages: Sequence[Message], **more) -> Said:
            if len(self.asked) == 2:
                raise EngineDied("the process is gone")
            return await super().reply(messages, **more)

    done = played("bare", Dying())
    assert done.error == f"turn 3 of {len(done.dialogue.turns)}: EngineDied: the process is gone"
    assert len(done.turns) == 2 and done.answer == ""


def test_the_executor_needs_a_state_that_can_be_executed() -> None:
    from rollout.agents import Meter

    with pytest.raises(ConfigError, match="executed"):
        get_harness("executor")(Seat(Meter(ScriptedAgent(), temperature=0, seed=0, group="")))


def test_an_answer_that_ended_at_its_limit_is_marked() -> None:
    class Wordy(ScriptedAgent):
        async def reply(self, messages: Sequence[Message], **more) -> Said:
            return replace(await super().reply(messages, **more), cut_short=True)

    assert played("bare", Wordy()).detail == {"cut_short": True}
    assert played("bare", ScriptedAgent()).detail == {}
