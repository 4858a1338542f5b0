"""Where a harness gets the user's current intent from: a tracker that reads along, or the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from envs.intent import IntentState
from rollout.agents import Message, Meter
from rollout.prompting import render
from rollout.tracker import TASK_KEY, Derived, LogProtocol, TemplateReplies, TrackerProtocol, stable_hash

_LOG = LogProtocol()


class States(Protocol):
    """The state after the last message that was read."""

    log: dict[str, str]
    """Stated goals: names to requirements, in order of arrival."""
    derived: dict[str, Derived]
    """Live conclusions, apart from what the user said."""
    exact: IntentState | None
    """The state itself where it is known, as from the oracle."""

    async def read(self, utterance: str) -> None:
        """Take the user's next message."""
        ...

    async def conclude(self, reply: str) -> None:
        """Take the agent's reply and derive from it."""
        ...


class TrackedStates:
    """A tracker over an agent. Its conversation only grows, and holds exactly what it wrote.

    Before each message but the first the tracker is shown a reply: the agent's own, or with `neutral` the kind of
    short text that trackers see in training. Conclusions are asked for in a side branch after a reply, so that the
    log stays as in training; of what is written there only DERIVE lines count.
    """

    def __init__(
        self,
        agent: Meter,
        protocol: TrackerProtocol,
        *,
        max_tokens: int,
        system: str | None = None,
        neutral: bool = True,
        conclusions: bool = True,
    ) -> None:
        self.agent = agent
        self.protocol = protocol
        self.max_tokens = max_tokens
        self.neutral = neutral
        self.conclusions = conclusions
        self.messages = [Message("system", protocol.system_prompt() if system is None else system)]
        self.log: dict[str, str] = {}
        self.derived: dict[str, Derived] = {}
        self.exact: IntentState | None = None
        self.malformed = 0
        self._reply: str | None = None
        self._turn = 0

    async def read(self, utterance: str) -> None:
        asked = Message("user", self.protocol.user_message(utterance, self._shown_reply()))
        said = await self.agent.reply([*self.messages, asked], self.max_tokens)
        self.messages += [asked, said.message()]
        self._apply(said.text)
        self._turn += 1

    async def conclude(self, reply: str) -> None:
        self._reply = reply
        if not (self.conclusions and self.log):
            return
        asked = Message("user", render("conclude", reply=reply))
        said = await self.agent.reply([*self.messages, asked], self.max_tokens)
        lines = [line for line in said.text.splitlines() if line.strip().upper().startswith("DERIVE ")]
        if lines:
            self.derived = _LOG.apply(self.log, "\n".join(lines), self.derived).derived

    def _apply(self, text: str) -> None:
        applied = self.protocol.apply(self.log, text, self.derived)
        if not self.conclusions:
            self.derived = {}
        elif self.protocol.name == _LOG.name:
            self.derived = applied.derived
        else:  # a protocol that writes no conclusions: those whose supports it changed are gone
            self.derived = alive(
                self.derived, [key for key in self.log if applied.log.get(key) != self.log[key]]
            )
        self.log = applied.log
        self.malformed += applied.malformed

    def _shown_reply(self) -> str | None:
        if not self._turn:
            return None
        if not self.neutral:
            return self._reply
        wordings = TemplateReplies.WORDINGS
        return wordings[stable_hash(self.agent.group, self._turn) % len(wordings)]


class OracleStates:
    """The scripted truth, turn by turn. `states[t]` is the state after message t."""

    def __init__(self, states: Sequence[IntentState]) -> None:
        self._states = iter(states)
        self.log: dict[str, str] = {}
        self.derived: dict[str, Derived] = {}
        self.exact: IntentState | None = None

    async def read(self, utterance: str) -> None:
        self.exact = next(self._states)
        self.log = {goal.id: goal.text for goal in self.exact.goals}
        if self.exact.function is not None:
            self.log[TASK_KEY] = self.exact.function

    async def conclude(self, reply: str) -> None:
        return None


def alive(derived: Mapping[str, Derived], gone: Sequence[str]) -> dict[str, Derived]:
    """Return the conclusions that rest on none of `gone`, directly or through others."""
    dead = set(gone)
    kept = dict(derived)
    while dying := [key for key, item in kept.items() if dead & set(item.supports)]:
        dead.update(dying)
        for key in dying:
            del kept[key]
    return kept


def goal_lines(states: States) -> list[str]:
    """Return the stated goals, one line each: an oracle's in its own words, a tracker's under its names."""
    if states.exact is not None:
        return [goal.text for goal in states.exact.goals]
    return [text if key == TASK_KEY else f"{key}: {text}" for key, text in states.log.items()]


def derived_lines(states: States) -> list[str]:
    """Return the live conclusions, one line each."""
    return [f"{key}: {item.text}" for key, item in states.derived.items()]
