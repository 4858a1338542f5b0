"""A language model as the reader: from the utterances of a dialogue alone, what the user wants in the end.

For sets whose messages are not the templates' own. The model is told the opening and the messages, nothing else; its
items are compared with G* as a tracker's are (`rollout.match`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.chat import Chat, derived_seed, model_name, parsed_reply, render
from envs.dialogue import Dialogue
from rollout.score import score_state

READ_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "wants": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"about": {"type": "string"}, "want": {"type": "string"}},
                "required": ["about", "want"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["wants"],
    "additionalProperties": False,
}


class ModelReader:
    """Asks a chat model at temperature 0, and once more where its reply cannot be read."""

    def __init__(self, endpoint: Chat, *, seed: int = 0, max_tokens: int = 1024, max_asks: int = 2) -> None:
        self.endpoint = endpoint
        self.name = model_name(endpoint, None)
        self.seed = seed
        self.max_tokens = max_tokens
        self.max_asks = max_asks

    def read(self, utterances: Sequence[str], opening: str) -> dict[str, str] | None:
        """Return the items by what they are about; None where no reply could be read.

        Raises what the endpoint raises.
        """
        messages = [
            {"role": "system", "content": render("read_system")},
            {"role": "user", "content": render("read_user", opening=opening, messages=utterances)},
        ]
        for attempt in range(self.max_asks):
            reply = self.endpoint.ask(
                messages,
                temperature=0.0,
                seed=derived_seed(self.seed, "read", *utterances) + attempt,
                max_tokens=self.max_tokens,
                schema=READ_SCHEMA,
            )
            items = _items(parsed_reply(reply.text))
            if items is not None:
                return items
        return None

    def missed(self, dialogue: Dialogue, opening: str) -> str | None:
        """Return what the reader got wrong of a dialogue's final state, None where it got it back exactly."""
        items = self.read([turn.utterance for turn in dialogue.turns], opening)
        if items is None:
            return f"no reply of {self.name} could be read"
        stale = dialogue.superseded(len(dialogue.turns) - 1)
        if score_state(items, dialogue.final.goals, stale).exact:
            return None
        return f"read {list(items.values())}, wanted {[goal.text for goal in dialogue.final.goals]}"


def _items(found: dict[str, Any] | None) -> dict[str, str] | None:
    wants = found.get("wants") if found is not None else None
    if not isinstance(wants, list):
        return None
    items: dict[str, str] = {}
    for want in wants:
        if not isinstance(want, dict) or not all(isinstance(want.get(key), str) for key in ("about", "want")):
            return None
        name = want["about"]
        while name in items:  # two requirements about the same thing are two items
            name += " too"
        items[name] = want["want"]
    return items
