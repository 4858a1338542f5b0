"""An LLM judge of single messages: do they say exactly their edits, and do they fit the conversation?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.chat import Chat, derived_seed, model_name, parsed_reply, prompt_hash, render
from envs.intent import Add, Delete, Edit, IntentState, Replace, Switch
from envs.task import SourceTask

JUDGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    # The reason comes first, so that the verdicts follow from it.
    "properties": {
        "reason": {"type": "string"},
        "conveys": {"type": "boolean"},
        "adds": {"type": "boolean"},
        "coherent": {"type": "boolean"},
    },
    "required": ["reason", "conveys", "adds", "coherent"],
    "additionalProperties": False,
}
_PROMPTS = ("judge_system", "judge_user")
HISTORY = 8  # earlier messages that the judge sees


@dataclass(frozen=True, slots=True)
class Verdict:
    """`faithful`: it conveys its edits and adds nothing. `error` is set when the judge gave no verdict."""

    faithful: bool
    coherent: bool
    reason: str
    error: str | None = None


class Judge:
    """Asks a chat model, at temperature 0 by default, and once more where the reply is no verdict."""

    def __init__(
        self,
        endpoint: Chat,
        *,
        model: str | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        max_tokens: int = 512,
        max_asks: int = 2,
    ) -> None:
        self.endpoint = endpoint
        self.model = model_name(endpoint, model)
        self.temperature = temperature
        self.seed = seed
        self.max_tokens = max_tokens
        self.max_asks = max_asks

    @property
    def settings(self) -> dict[str, Any]:
        """What the verdicts depend on, as JSON data."""
        return {
            "model": self.model,
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "max_asks": self.max_asks,
            "prompts": prompt_hash(_PROMPTS, JUDGE_SCHEMA),
        }

    def judge(
        self,
        edits: Sequence[Edit],
        utterance: str,
        live_before: IntentState,
        task: SourceTask,
        *,
        final: bool = False,
        history: Sequence[str] = (),
    ) -> Verdict:
        """Return the verdict on a message; `final` says that it should ask for the answer.

        A reply that is no verdict, `max_asks` times over, gives `Verdict.error`: never a fault of the message.
        Raises what the endpoint raises.
        """
        messages = [
            {"role": "system", "content": render("judge_system")},
            {
                "role": "user",
                "content": render(
                    "judge_user",
                    opening=task.opening,
                    live=live_before.goals,
                    history=list(history)[-HISTORY:],
                    changes=changes(edits, final),
                    utterance=utterance,
                ),
            },
        ]
        seed = derived_seed(self.seed, "judge", utterance)
        for attempt in range(self.max_asks):
            reply = self.endpoint.ask(
                messages,
                temperature=self.temperature,
                seed=seed + attempt,
                max_tokens=self.max_tokens,
                schema=JUDGE_SCHEMA,
            )
            found = parsed_reply(reply.text)
            if found is not None and all(
                isinstance(found.get(k), bool) for k in ("conveys", "adds", "coherent")
            ):
                faithful = found["conveys"] and not found["adds"]
                return Verdict(faithful, found["coherent"], str(found.get("reason", "")))
        return Verdict(False, False, "", error=f"no verdict in {self.max_asks} replies of {self.model}")


def changes(edits: Sequence[Edit], final: bool) -> list[str]:
    """Return one line an edit in plain words; without edits, what such a message is for."""
    lines: list[str] = []
    for edit in edits:
        match edit:
            case Add(goal):
                lines.append(f"new wish: {goal.text}")
            case Delete(goal):
                lines.append(f"withdrawn: {goal.text}")
            case Replace(old, new):
                lines.append(f'instead of "{old.text}" now: {new.text}')
            case Switch(_, function):
                lines.append(f"do another thing from now on: {function}")
    if final:
        lines.append("please give the answer now (no wish is named)")
    return lines or ["nothing: small talk, without any wish"]
