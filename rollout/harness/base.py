"""The protocol of harnesses, and the plain chat that most of them are a variation of.

A harness object plays one dialogue. It is given the user's messages one by one and returns a reply to each; the
reply to the last one is the answer. It sees neither the dialogue nor the oracle: what it may use lies in its
`Seat`. In a replay the replies before the last turn are given, and only the last one is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from envs.intent import IntentState
from rollout.agents import Message, Meter
from rollout.harness.states import States

Needs = Literal["nothing", "states", "oracle"]


@dataclass(frozen=True, slots=True)
class HarnessSettings:
    """What harnesses can be told. Lengths in characters are the same for every tokenizer."""

    reply_tokens: int = 96
    """Longest reply before the last turn."""
    answer_tokens: int = 384
    """Longest answer to the last message."""
    tracker_tokens: int = 64
    """Longest output of a tracker a turn; the format tracker and conclusions have the same limit."""
    state_chars: int = 800
    """Longest state, and longest recap of `recap-state`."""
    history_chars: int = 4000
    """Length of history from which `summary` and `compact` shorten it."""
    keep_messages: int = 4
    """Newest messages that they leave as they are."""
    gate: bool = True
    """Check the answer before it is given, and write it once more if it breaks something."""
    format: bool = True
    """Keep the output conventions with a tracker of their own."""
    conclusions: bool = True
    """Let the tracker derive conclusions after each reply."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What carrying out a state gave: an answer, or why there is none."""

    answer: str
    problem: str | None = None


Execute = Callable[[Mapping[str, str], IntentState | None], Executed]
"""Answers a tracker's items, or an exact state where there is one, without a model."""


@dataclass(slots=True)
class Seat:
    """What one dialogue gives its harness."""

    base: Meter
    """The base agent."""
    context: str = ""
    """The task's context, the system message of the chat."""
    states: States | None = None
    """Where the state comes from: a tracker or the oracle. Set for harnesses that need one."""
    conventions: States | None = None
    """The format tracker's state, in `stateforge` and what is compared with it."""
    execute: Execute | None = None
    """Set for structured families."""
    settings: HarnessSettings = field(default_factory=HarnessSettings)


@dataclass(frozen=True, slots=True)
class HarnessTurn:
    """What a harness did in one turn. `shown` is what it put between the history and the user's message."""

    reply: str
    shown: str | None = None
    detail: Mapping[str, object] | None = None
    """More to record of the case, such as the gate's verdict."""


class Harness(Protocol):
    """Plays one dialogue. Raises `EngineError` or `EndpointError` where an agent fails for good."""

    name: ClassVar[str]
    needs: ClassVar[Needs]
    """`states`: a tracker or the oracle by choice of the row; `oracle`: always the oracle."""
    condition: ClassVar[str | None]
    """The only condition that it plays; None: those of the run."""

    def __init__(self, seat: Seat) -> None: ...

    async def turn(self, utterance: str, *, final: bool, given: str | None = None) -> HarnessTurn:
        """Take the next user message; return the reply: written, or `given` in a replay."""
        ...


class Chat:
    """The plain chat. A harness overrides what it does differently: `note`, `view`, `write` or `after`.

    `history` holds the user's own messages and the replies, never what a harness put beside them: so the prompt of
    each turn begins with that of the turn before up to its last message, and a prefix cache serves it.
    """

    name: ClassVar[str] = "chat"
    needs: ClassVar[Needs] = "nothing"
    condition: ClassVar[str | None] = None

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.system = [Message("system", seat.context)] if seat.context else []
        self.history: list[Message] = []
        self.detail: dict[str, object] = {}

    async def turn(self, utterance: str, *, final: bool, given: str | None = None) -> HarnessTurn:
        shown = await self.note(utterance, final=final)
        if given is None:
            asked = Message("user", utterance if shown is None else f"{shown}\n{utterance}")
            reply = await self.write([*self.system, *self.view(), asked], utterance, final=final)
        else:
            reply = Message("assistant", given)
        self.history += [Message("user", utterance), reply]
        await self.after(reply.content, final=final)
        return HarnessTurn(reply.content, shown, dict(self.detail))

    async def note(self, utterance: str, *, final: bool) -> str | None:
        """Return what is put between the history and the user's message; None: nothing."""
        return None

    def view(self) -> Sequence[Message]:
        """Return the history as the model sees it."""
        return self.history

    async def write(self, messages: Sequence[Message], utterance: str, *, final: bool) -> Message:
        """Return the base agent's reply to `messages`."""
        settings = self.seat.settings
        limit = settings.answer_tokens if final else settings.reply_tokens
        said = await self.seat.base.reply(messages, limit)
        if final and said.cut_short:
            self.detail["cut_short"] = True
        return said.message()

    async def after(self, reply: str, *, final: bool) -> None:
        """Do what is to be done once the reply is given."""
