"""`stateforge`: a tracker keeps what the user wants now, and the base agent is shown it beside each message.

After each user message the tracker folds the edits into the state, after each reply it may derive conclusions;
both are kept apart, and a conclusion dies with any of its supports. The state stands between the history and the
user's message and is not left in the history, so the history stays a prefix that is cached. A second tracker keeps
the output conventions; at the end a gate checks the answer against both, and may have it written once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rollout.agents import Message
from rollout.harness.base import Chat, Needs
from rollout.harness.gate import passed
from rollout.harness.states import derived_lines, goal_lines
from rollout.prompting import render


class StateForge(Chat):
    name: ClassVar[str] = "stateforge"
    needs: ClassVar[Needs] = "states"

    async def note(self, utterance: str, *, final: bool) -> str | None:
        states, conventions = self._states, self.seat.conventions
        await states.read(utterance)
        if conventions is not None:
            await conventions.read(f"{self.seat.context}\n\n{utterance}" if not self.history else utterance)
        goals, rules = goal_lines(states), self._convention_lines()
        if not (goals or rules):
            return None
        derived = within(derived_lines(states), self._room())
        return render("state", goals=goals, derived=derived, conventions=rules)

    async def write(self, messages: Sequence[Message], utterance: str, *, final: bool) -> Message:
        draft = await super().write(messages, utterance, final=final)
        if not (final and self.seat.settings.gate):
            return draft
        answer, verdict = await passed(
            self.seat.base,
            messages,
            draft,
            utterance,
            _bullets(goal_lines(self._states)),
            _bullets(self._convention_lines()),
            self.seat.settings,
        )
        self.detail |= verdict
        return answer

    async def after(self, reply: str, *, final: bool) -> None:
        if not final:
            await self._states.conclude(reply)

    @property
    def _states(self):
        assert self.seat.states is not None, "the runner gives this harness a tracker or the oracle"
        return self.seat.states

    def _convention_lines(self) -> list[str]:
        return [] if self.seat.conventions is None else goal_lines(self.seat.conventions)

    def _room(self) -> int:
        """Return the characters that are left for conclusions: goals are never cut."""
        return self.seat.settings.state_chars - sum(map(len, goal_lines(self._states)))


def within(lines: list[str], chars: int) -> list[str]:
    """Return the newest lines that fit into `chars`, in their order."""
    kept: list[str] = []
    for line in reversed(lines):
        chars -= len(line)
        if chars < 0:
            break
        kept.append(line)
    return kept[::-1]


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


HARNESS = StateForge
