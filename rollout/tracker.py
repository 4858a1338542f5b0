"""Tracker protocols: what the tracker is told, and how what it writes becomes a state.

The default protocol is an append-only log. The tracker writes edit lines under short names of its own choice,
and the state is the fold of all lines, computed here and not by the model:

    SET name: requirement          add, or replace in place
    DEL name                       withdraw
    KEEP                           nothing changed
    DERIVE name <- a, b: text      a conclusion that dies with any of its supports
    TASK text                      the current task, all of the rest of the line (kept under `TASK_KEY`)

Reading is lenient: a line that does not parse changes nothing and is counted, so one slip does not spoil the
lines after it. Names are compared without regard to case and spacing. The second protocol, `full`
(`rollout/full_protocol.py`), sits behind the same interface.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from envs.dialogue import Dialogue
from envs.errors import unknown_name

TASK_KEY = "@task"
"""The log key that `TASK` lines set. It holds the function, not a goal."""

_PROMPTS = Path(__file__).parent / "prompts"
_BULLET = re.compile(r"^(?:[-*•]\s+|\d+[.)]\s+)")


@dataclass(frozen=True, slots=True)
class Derived:
    """A conclusion: `supports` are names of log items or of other conclusions."""

    text: str
    supports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """The state after a tracker's output.

    `log` maps names to requirements in order of arrival. `malformed` counts lines that did not parse,
    `missed` lines that parsed but named something absent (a DEL, a DERIVE support), `lines` those that
    parsed.
    """

    log: dict[str, str]
    malformed: int = 0
    derived: dict[str, Derived] = field(default_factory=dict)
    missed: int = 0
    lines: int = 0


class TrackerProtocol(Protocol):
    """How a tracker is prompted and read. `log` arguments map names to requirements, in order."""

    name: str

    def system_prompt(self) -> str: ...

    def user_message(self, utterance: str, reply: str | None = None, hint: str | None = None) -> str:
        """Return the text shown for one turn: the agent's previous `reply`, the user's message, and for
        privileged contexts the expert's lines."""
        ...

    def apply(
        self, log: Mapping[str, str], text: str, derived: Mapping[str, Derived] | None = None
    ) -> Applied:
        """Read what the tracker wrote. Never raises; `log` and `derived` are not changed."""
        ...

    def target(self, log: Mapping[str, str], edit: str) -> str:
        """Return what a perfect tracker writes in this protocol when `edit` (log lines) is called for."""
        ...


class LogProtocol:
    """The append-only log of the module docstring."""

    name = "log"

    def system_prompt(self) -> str:
        return read_prompt("log")

    def user_message(self, utterance: str, reply: str | None = None, hint: str | None = None) -> str:
        return compose_message(utterance, reply, hint)

    def apply(
        self, log: Mapping[str, str], text: str, derived: Mapping[str, Derived] | None = None
    ) -> Applied:
        state = _Fold(dict(log), dict(derived or {}))
        lines = [line for raw in text.splitlines() if (line := strip_bullet(raw))]
        malformed = sum(not state.line(line) for line in lines)
        if not lines:  # saying nothing is not KEEP
            malformed = 1
        return Applied(
            state.log, malformed, state.derived, state.missed, len(lines) - malformed if lines else 0
        )

    def target(self, log: Mapping[str, str], edit: str) -> str:
        return edit


class _Fold:
    """The log while its lines are applied one by one."""

    def __init__(self, log: dict[str, str], derived: dict[str, Derived]) -> None:
        self.log = log
        self.derived = derived
        self.missed = 0

    def line(self, line: str) -> bool:
        """Apply one line; False if it does not parse."""
        verb, _, rest = line.partition(" ")
        rest = rest.strip()
        match verb.upper().rstrip("."):
            case "KEEP":
                return not rest
            case "SET":
                name, colon, text = (part.strip() for part in rest.partition(":"))
                if not (name and colon and text):
                    return False
                self._set(name, text)
            case "DEL":
                if not rest:
                    return False
                self._delete(rest)
            case "TASK":
                if not rest:
                    return False
                self._set(TASK_KEY, rest)
            case "DERIVE":
                return self._derive(rest)
            case _:
                return False
        return True

    def _set(self, name: str, text: str) -> None:
        known = find_key(self.log, name)
        if (conclusion := find_key(self.derived, name)) is not None:
            self._kill(conclusion)
        if known is not None and self.log[known] != text:
            self._kill_dependents(known)
        self.log[known if known is not None else tidy(name)] = text

    def _delete(self, name: str) -> None:
        if (known := find_key(self.log, name)) is not None:
            del self.log[known]
            self._kill_dependents(known)
        elif (conclusion := find_key(self.derived, name)) is not None:
            self._kill(conclusion)
        else:
            self.missed += 1

    def _derive(self, rest: str) -> bool:
        head, colon, text = (part.strip() for part in rest.partition(":"))
        name, arrow, names = (part.strip() for part in head.partition("<-"))
        supports = [part.strip() for part in names.split(",") if part.strip()]
        if not (name and arrow and supports and colon and text):
            return False
        if find_key(self.log, name) is not None:  # a conclusion never overwrites what the user said
            return False
        if (conclusion := find_key(self.derived, name)) is not None:
            self._kill(conclusion)
        found = [find_key(self.log, s) or find_key(self.derived, s) for s in supports]
        live = tuple(key for key in found if key is not None)
        if len(live) < len(supports):
            self.missed += 1
        else:
            self.derived[tidy(name)] = Derived(text, live)
        return True

    def _kill(self, conclusion: str) -> None:
        if self.derived.pop(conclusion, None) is not None:
            self._kill_dependents(conclusion)

    def _kill_dependents(self, name: str) -> None:
        for key in [key for key, item in self.derived.items() if name in item.supports]:
            self._kill(key)


class TemplateReplies:
    """Short neutral agent replies for training without a base agent; a pure function of (seed, dialogue,
    turn)."""

    WORDINGS = (
        "Noted.",
        "Got it.",
        "Okay.",
        "Understood.",
        "Sure, anything else?",
        "All right.",
        "Thanks, I have that.",
        "Okay, go on.",
    )

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def __call__(self, dialogue: Dialogue, t: int) -> str:
        """Return the agent's reply to turn `t` (0-based); it is shown to the tracker before turn t + 1."""
        return self.WORDINGS[stable_hash(self.seed, dialogue.id, t) % len(self.WORDINGS)]


def get_protocol(name: str) -> TrackerProtocol:
    """Return the protocol registered under `name`. Raises `UnknownName`, naming the nearest."""
    from rollout.full_protocol import FullProtocol

    registry: dict[str, type[LogProtocol | FullProtocol]] = {"log": LogProtocol, "full": FullProtocol}
    if name not in registry:
        raise unknown_name("tracker protocol", name, registry)
    return registry[name]()


def compose_message(utterance: str, reply: str | None, hint: str | None) -> str:
    """Return the user message both protocols show; the labels appear only where there is a reply."""
    message = utterance if reply is None else f"Agent: {reply}\nUser: {utterance}"
    return message if hint is None else f"{message}\n(edit: {hint})"


def read_prompt(name: str) -> str:
    return (_PROMPTS / f"{name}.txt").read_text(encoding="utf-8").strip()


def strip_bullet(line: str) -> str:
    """Return a line without surrounding space and without a list mark."""
    return _BULLET.sub("", line.strip())


def tidy(name: str) -> str:
    """Return a name with its spacing evened out."""
    return " ".join(name.split())


def find_key(items: Mapping[str, object], name: str) -> str | None:
    """Return the key of `items` that is `name` up to case and spacing, or None."""
    wanted = tidy(name)
    if wanted in items:
        return wanted
    folded = wanted.casefold()
    return next((key for key in items if tidy(key).casefold() == folded), None)


def stable_hash(*parts: object) -> int:
    """Return 31 bits that depend only on `parts`, alike in every process."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
