"""`recap-prompt`: before each message a fixed reminder to go through the history again."""

from __future__ import annotations

from typing import ClassVar

from rollout.harness.base import Chat
from rollout.prompting import render


class RecapPrompt(Chat):
    name: ClassVar[str] = "recap-prompt"

    async def note(self, utterance: str, *, final: bool) -> str | None:
        return render("recap_prompt")


HARNESS = RecapPrompt
