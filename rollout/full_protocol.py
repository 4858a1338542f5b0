"""The protocol that rewrites the whole state every turn, one `name: requirement` a line, NONE when empty.

It is the plain way to track a state, kept to be compared with the append-only log: a turn costs as many
tokens as there are goals, so a dialogue's cost grows with the square of its length.
"""

from __future__ import annotations

from collections.abc import Mapping

from rollout.tracker import (
    Applied,
    Derived,
    LogProtocol,
    compose_message,
    find_key,
    read_prompt,
    strip_bullet,
    tidy,
)

EMPTY = "NONE"


class FullProtocol:
    """See the module docstring. Conclusions are not kept."""

    name = "full"

    def system_prompt(self) -> str:
        return read_prompt("full")

    def user_message(self, utterance: str, reply: str | None = None, hint: str | None = None) -> str:
        return compose_message(utterance, reply, hint)

    def apply(
        self, log: Mapping[str, str], text: str, derived: Mapping[str, Derived] | None = None
    ) -> Applied:
        """Return the state that `text` lists. Where no line parses, the old state stands."""
        state: dict[str, str] = {}
        malformed = lines = 0
        for line in filter(None, map(strip_bullet, text.splitlines())):
            name, colon, requirement = (part.strip() for part in line.partition(":"))
            if name and colon and requirement:
                state[find_key(state, name) or tidy(name)] = requirement
                lines += 1
            elif line.upper().rstrip(".") == EMPTY:
                lines += 1
            else:
                malformed += 1
        if not lines:
            return Applied(dict(log), malformed=max(1, malformed))
        return Applied(state, malformed, lines=lines)

    def target(self, log: Mapping[str, str], edit: str) -> str:
        after = LogProtocol().apply(log, edit).log
        return "\n".join(f"{name}: {text}" for name, text in after.items()) or EMPTY
