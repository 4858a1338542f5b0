"""Plays one dialogue with one harness: seats it, gives it the messages, and records what went on turn by turn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from envs.dialogue import Dialogue
from envs.errors import EndpointError, EngineError
from envs.task import Family, SourceTask
from rollout.agents import Agent, Meter
from rollout.execution import executor_of
from rollout.harness import get_harness
from rollout.harness.base import HarnessSettings, Seat
from rollout.harness.states import OracleStates, States, TrackedStates, derived_lines, goal_lines
from rollout.prompting import render
from rollout.tracker import TrackerProtocol, get_protocol, stable_hash


@dataclass(frozen=True, slots=True)
class Players:
    """Who plays one row of the table. `tracker` None: the oracle, for harnesses that need a state."""

    harness: str
    base: Agent
    tracker: Agent | None = None
    protocol: str = "log"
    settings: HarnessSettings = field(default_factory=HarnessSettings)
    temperature: float = 0.0
    """Of the base agent; trackers are greedy."""
    seed: int = 0
    format_by_tracker: bool = False
    """Whether the format tracker is the tracker's model; else the base agent's."""
    neutral: bool = True
    """Whether the tracker is shown neutral replies, as in training, or the agent's own."""


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One turn; `log` None where nothing tracks."""

    reply: str
    shown: str | None
    log: dict[str, str] | None = None
    items: tuple[str, ...] | None = None
    derived: tuple[str, ...] = ()


@dataclass(slots=True)
class Played:
    """A dialogue as it was played. `error`: an engine or endpoint failed for good, and there is no answer."""

    dialogue: Dialogue
    base: Meter
    tracking: list[Meter] = field(default_factory=list)
    turns: list[PlayedTurn] = field(default_factory=list)
    detail: dict[str, object] = field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0

    @property
    def answer(self) -> str:
        return self.turns[-1].reply if len(self.turns) == len(self.dialogue.turns) else ""

    @property
    def engine_seconds(self) -> float:
        return self.base.seconds + sum(meter.seconds for meter in self.tracking)

    @property
    def tracker_tokens(self) -> int:
        return sum(meter.prompt_tokens + meter.output_tokens for meter in self.tracking)


async def play(
    players: Players,
    family: Family,
    task: SourceTask,
    dialogue: Dialogue,
    replies: Sequence[str] | None = None,
) -> Played:
    """Play `dialogue` and return what happened; an agent's failure ends up in `error`, a bug is raised.

    With `replies`, one for each turn but the last, only the last turn is answered (replay).
    Raises `ConfigError` where harness and family do not go together, `UnknownName` for the harness.
    """
    harness_class = get_harness(players.harness)
    seed = stable_hash(players.seed, dialogue.id)
    base = Meter(players.base, temperature=players.temperature, seed=seed, group=dialogue.id)
    played = Played(dialogue, base)
    seat = Seat(base, context=task.context, settings=players.settings)
    if harness_class.needs != "nothing":
        seat.states, seat.conventions = _states(players, harness_class.needs, dialogue, played)
        if family.structured:
            seat.execute = executor_of(family, task, dialogue)
    harness = harness_class(seat)
    started = time.perf_counter()
    try:
        for t, turn in enumerate(dialogue.turns):
            final = t == len(dialogue.turns) - 1
            given = None if replies is None or final else replies[t]
            done = await harness.turn(turn.utterance, final=final, given=given)
            played.detail = dict(done.detail or {})
            played.turns.append(_turn(done.reply, done.shown, seat.states))
    except (EngineError, EndpointError) as error:
        t = len(played.turns) + 1
        played.error = f"turn {t} of {len(dialogue.turns)}: {type(error).__name__}: {error}"
    played.seconds = time.perf_counter() - started
    return played


def _states(
    players: Players, needs: str, dialogue: Dialogue, played: Played
) -> tuple[States, TrackedStates | None]:
    """Return where the state comes from, and the format tracker where the harness shows conventions."""
    settings = players.settings

    def meter(agent: Agent, part: str) -> Meter:
        found = Meter(agent, temperature=0.0, seed=0, group=f"{dialogue.id}|{part}")
        played.tracking.append(found)
        return found

    states: States
    tracker = players.tracker if needs == "states" else None
    if tracker is None:
        states = OracleStates([turn.state for turn in dialogue.turns])
    else:
        states = TrackedStates(
            meter(tracker, "tracker"),
            get_protocol(players.protocol),
            max_tokens=settings.tracker_tokens,
            neutral=players.neutral,
            conclusions=settings.conclusions and players.harness != "executor",
        )
    if not settings.format or players.harness == "executor":
        return states, None
    agent = tracker if tracker is not None and players.format_by_tracker else players.base
    protocol: TrackerProtocol = get_protocol("log")
    conventions = TrackedStates(
        meter(agent, "format"),
        protocol,
        max_tokens=settings.tracker_tokens,
        system=render("format"),
        conclusions=False,
    )
    return states, conventions


def _turn(reply: str, shown: str | None, states: States | None) -> PlayedTurn:
    if states is None or states.exact is not None:
        return PlayedTurn(reply, shown)
    return PlayedTurn(reply, shown, dict(states.log), tuple(goal_lines(states)), tuple(derived_lines(states)))


def with_switches(players: Players, switches: Sequence[str]) -> Players:
    """Return the players with parts of the harness switched off: "no-gate", "no-format", "no-conclusions"."""
    off = {switch.removeprefix("no-"): False for switch in switches}
    return replace(players, settings=replace(players.settings, **off)) if off else players
