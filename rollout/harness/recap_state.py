"""`recap-state`: what StateForge does, but the state is a recap that the base model writes from the history.

The recap stands in the same place, under the same limit and before the same gate; there is no tracker. What
StateForge gains over it is what the tracker is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rollout.agents import Message
from rollout.harness.base import Chat, Seat
from rollout.harness.gate import passed
from rollout.prompting import render

CHARS_PER_TOKEN = 4
"""Characters of a token, about; a recap gets as many tokens as fit into the state's limit."""


class RecapState(Chat):
    name: ClassVar[str] = "recap-state"

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        self.recap = ""

    async def note(self, utterance: str, *, final: bool) -> str | None:
        settings = self.seat.settings
        ask = Message("user", render("recap_ask", utterance=utterance))
        messages = [*self.system, *self.history, ask]
        said = await self.seat.base.reply(messages, max(16, settings.state_chars // CHARS_PER_TOKEN))
        self.recap = said.text.strip()[: settings.state_chars]
        return render("recap_note", recap=self.recap)

    async def write(self, messages: Sequence[Message], utterance: str, *, final: bool) -> Message:
        draft = await super().write(messages, utterance, final=final)
        if not (final and self.seat.settings.gate):
            return draft
        answer, verdict = await passed(
            self.seat.base, messages, draft, utterance, self.recap, "", self.seat.settings
        )
        self.detail |= verdict
        return answer


HARNESS = RecapState
