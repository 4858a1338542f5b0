"""`compact`: two-phase compaction, as coding agents do it.

First what is cheap: old replies of the agent are cut to their first words. Only if that is not enough does the model
write notes under fixed headings, which take the place of everything but the newest messages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rollout.harness.base import Seat
from rollout.harness.summary import Summary

CUT_REPLY_CHARS = 80


class Compact(Summary):
    name: ClassVar[str] = "compact"
    prompt: ClassVar[str] = "compact"

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        self.cuts = 0

    async def note(self, utterance: str, *, final: bool) -> str | None:
        if self._length() > self.seat.settings.history_chars:
            self._cut_replies()
        await self.shorten()
        return None

    def _length(self) -> int:
        return len(self.summary) + sum(len(m.content) for m in self.history[self.summarised :])

    def _cut_replies(self) -> None:
        """Cut the agent's old replies; what the user said stays whole."""
        old = max(0, len(self.history) - self.seat.settings.keep_messages)
        for at, message in enumerate(self.history[:old]):
            if message.role == "assistant" and len(message.content) > CUT_REPLY_CHARS:
                self.history[at] = replace(
                    message, content=f"{message.content[:CUT_REPLY_CHARS]} [...]", ids=None
                )
                self.cuts += 1


HARNESS = Compact
