"""`summary`: rolling summarisation. When the history grows too long, what is old becomes a summary.

The base model writes the summary from the one before and the messages since. It stands before the first message
that is kept; the newest messages stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rollout.agents import Message
from rollout.harness.base import Chat, Seat
from rollout.prompting import render


class Summary(Chat):
    name: ClassVar[str] = "summary"
    prompt: ClassVar[str] = "summary"

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        self.summary = ""
        self.summarised = 0
        """Messages of the history that the summary stands for; always whole turns."""

    async def note(self, utterance: str, *, final: bool) -> str | None:
        await self.shorten()
        return None

    def view(self) -> Sequence[Message]:
        recent = self.history[self.summarised :]
        if not self.summary or not recent:
            return recent
        first = Message("user", render("summary_note", summary=self.summary) + "\n" + recent[0].content)
        return [first, *recent[1:]]

    async def shorten(self) -> None:
        """Summarise what is old once the history is longer than `history_chars`."""
        settings = self.seat.settings
        recent = self.history[self.summarised :]
        old = recent[: max(0, len(recent) - settings.keep_messages) // 2 * 2]
        if not old or len(self.summary) + sum(len(m.content) for m in recent) <= settings.history_chars:
            return
        ask = render(self.prompt, earlier=self.summary, messages=old)
        said = await self.seat.base.reply([Message("user", ask)], settings.answer_tokens)
        self.summary = said.text.strip() or self.summary
        self.summarised += len(old)


HARNESS = Summary
