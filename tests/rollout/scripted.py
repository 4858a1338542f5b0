"""Agents without a model, for tests of harnesses: one that says what a function says, and keeps what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envs.dialogue import Dialogue, build
from envs.task import Family, SourceTask, get_family
from rollout.agents import Message, Said
from rollout.expert import oracle_log_texts


class ScriptedAgent:
    """Says `answer(messages)`; `asked` holds every chat, in order."""

    def __init__(
        self, answer: Callable[[Sequence[Message]], str] | str = "Noted.", name: str = "scripted"
    ) -> None:
        self.answer = answer
        self.name = name
        self.asked: list[list[Message]] = []

    async def reply(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, group: str
    ) -> Said:
        self.asked.append(list(messages))
        text = self.answer if isinstance(self.answer, str) else self.answer(messages)
        return Said(
            text, prompt_tokens=sum(len(m.content.split()) for m in messages), output_tokens=len(text.split())
        )


def perfect_tracker(dialogue: Dialogue) -> ScriptedAgent:
    """A tracker that writes the expert's edit of each turn, and KEEP when asked for conclusions."""
    texts = oracle_log_texts(dialogue)

    def answer(messages: Sequence[Message]) -> str:
        if "(No new message of the user.)" in messages[-1].content:
            return "KEEP"
        return texts[sum(m.role == "assistant" for m in messages)]

    return ScriptedAgent(answer, "perfect")


def example(
    family: str = "calls", index: int = 0, condition: str = "drift", budget: int = 3
) -> tuple[Family, SourceTask, Dialogue]:
    """A held-out task of a procedural family and its dialogue."""
    found = get_family(family)
    task: SourceTask = found.task("heldout", index)  # type: ignore[attr-defined]
    return found, task, build(found, task, condition, budget, 0)
