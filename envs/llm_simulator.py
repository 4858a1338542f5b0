"""A language model as the user: one request an edit, each reply checked, the template where the model fails.

The model is shown the task's opening and the one change it has to say, neither the state nor the final intent,
so it has nothing else to tell. Its message is accepted when the rules of `envs.fidelity` find no fault and, where
there is a judge, the judge finds it faithful and coherent. A refused reply is asked for again with the reasons.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envs.chat import Chat, derived_seed, model_name, parsed_reply, prompt_hash, render
from envs.errors import ConfigError
from envs.fidelity import KINDS, Fault, check_utterance, goals_of
from envs.intent import EMPTY, Add, Delete, Edit, Goal, IntentState, Replace, Switch, edit_to_dict
from envs.judge import Judge
from envs.personas import Persona, get_persona
from envs.simulator import (
    Simulator,
    TemplateSimulator,
    closed,
    live_beside,
    slot_is_clear,
    split_of,
    value_is_clear,
)
from envs.task import SourceTask
from envs.wording_report import WordingReport

if TYPE_CHECKING:
    from envs.merge import Merging

UTTER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"message": {"type": "string"}},
    "required": ["message"],
    "additionalProperties": False,
}
_PROMPTS = ("utter_system", "utter_user", "utter_retry")
# Faults beside those of the rules.
FORM_KINDS = {
    "unreadable": "the reply is not the JSON that was asked for",
    "too_long": "it is much longer than its change needs",
    "judged_unfaithful": "a reader would not take exactly the change from it",
    "judged_incoherent": "it does not fit the conversation",
    "judge_failed": "the judge gave no verdict",
}
_SPARE_CHARACTERS = 240  # what a message may have beside the texts of its edit


@dataclass(frozen=True, slots=True)
class _Part:
    """One request: an edit, or none for small talk and the request for the answer."""

    edits: tuple[Edit, ...]
    live: IntentState
    kind: str
    turn: int
    template: str


class LLMSimulator:
    """Words turns with a chat model; see `Simulator.utter` and `Staged`.

    `fallback` words what the model cannot (default: the templates of the task's split). `max_asks` bounds the
    requests for one message. `persona` is a style for the model to write in. The endpoint's errors pass
    through: a network that is down must not turn into template wordings. The same arguments give the same
    requests, so with an endpoint that caches, a build that was stopped goes on where it was.
    Raises `ConfigError` for `max_asks` below 1, a negative temperature or a model without a name.
    """

    merging: Merging | None = None

    def __init__(
        self,
        endpoint: Chat,
        *,
        model: str | None = None,
        fallback: Simulator | None = None,
        persona: str | Persona | None = None,
        temperature: float = 0.8,
        seed: int = 0,
        max_tokens: int = 400,
        max_asks: int = 3,
        judge: Judge | None = None,
        report: WordingReport | None = None,
    ) -> None:
        if max_asks < 1:
            raise ConfigError(f"a message needs 1 request or more, got max_asks={max_asks}")
        if temperature < 0:
            raise ConfigError(f"a temperature is 0 or more, got {temperature}")
        self.endpoint = endpoint
        self.model = model_name(endpoint, model)
        self.fallback = fallback
        self.persona = get_persona(persona) if isinstance(persona, str) else persona
        self.temperature = temperature
        self.seed = seed
        self.max_tokens = max_tokens
        self.max_asks = max_asks
        self.judge = judge
        self.report = report if report is not None else WordingReport()
        self._dialogue_id = ""
        self._task: SourceTask | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """All that the wordings depend on, beside the dialogues themselves."""
        return {
            "kind": "llm",
            "model": self.model,
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "max_asks": self.max_asks,
            "prompts": prompt_hash(_PROMPTS, UTTER_SCHEMA),
            "persona": self.persona.to_dict() if self.persona else None,
            "judge": self.judge.settings if self.judge else None,
            "fallback": getattr(self.fallback, "split", None) if self.fallback else "split of the task",
        }

    @property
    def tag(self) -> str:
        """ "|llm-" and 8 hex digits of the settings."""
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()
        return f"|llm-{digest[:8]}"

    def staged(self, dialogue_id: str, task: SourceTask) -> LLMSimulator:
        """Return the simulator of one dialogue; all count in one report."""
        bound = copy.copy(self)
        bound._dialogue_id = dialogue_id
        bound._task = task
        bound.fallback = self.fallback or TemplateSimulator(split_of(task))
        return bound

    def utter(
        self,
        edits: Sequence[Edit],
        turn_index: int,
        total: int,
        opening: str,
        rng: random.Random,
        live: IntentState = EMPTY,
    ) -> str:
        """Return the message of one turn; raises what the endpoint raises."""
        said = [opening.strip()] if turn_index == 0 and opening else []
        task = self._task or SourceTask("", "", "", opening, "", live.goals, {})
        for part in self._parts(edits, turn_index, total, rng, live):
            said.append(self._say(part, task))
        return " ".join([*map(closed, said[:-1]), said[-1]])

    def _parts(
        self, edits: Sequence[Edit], turn: int, total: int, rng: random.Random, live: IntentState
    ) -> list[_Part]:
        """Return the requests of a turn: one an edit; then the request for the answer, or else small talk."""
        fallback = self.fallback or TemplateSimulator()
        parts: list[_Part] = []
        for at, edit in enumerate(edits):
            beside = live_beside(live, edits, at)
            # A middle turn, so that the template adds no opening and no request of its own.
            place = 0 if turn == 0 and at == 0 else 1
            template = fallback.utter((edit,), place, 3, "", rng, beside)
            parts.append(_Part((edit,), beside, _kind(edit), turn, template))
        last = turn == total - 1
        if last or not edits:
            place = 2 if last else 1
            template = fallback.utter((), place, 3, "", rng, live)
            said = live_beside(live, edits, -1)
            parts.append(_Part((), said, "final" if last else "small_talk", turn, template))
        return parts

    def _say(self, part: _Part, task: SourceTask) -> str:
        """Ask for one message until it is right; the template after `max_asks` replies."""
        messages: list[Mapping[str, str]] = [
            {
                "role": "system",
                "content": render("utter_system", style=self.persona.style if self.persona else ""),
            },
            {"role": "user", "content": _request(part, task)},
        ]
        edits = json.dumps([edit_to_dict(edit) for edit in part.edits], sort_keys=True)
        seed = derived_seed(self.seed, self._dialogue_id, part.turn, edits)
        refused: list[str] = []
        for attempt in range(self.max_asks):
            reply = self.endpoint.ask(
                messages,
                temperature=self.temperature,
                seed=seed + attempt,
                max_tokens=self.max_tokens,
                schema=UTTER_SCHEMA,
            )
            found = parsed_reply(reply.text)
            text = found.get("message") if found else None
            text = text.strip() if isinstance(text, str) else None
            faults = self._faults(part, text, task)
            if text and not faults:
                self.report.note(self._dialogue_id, part.turn, attempt + 1, refused, True)
                return text
            refused += [fault.kind for fault in faults]
            messages += [
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": render("utter_retry", faults=faults, kinds=KINDS | FORM_KINDS)},
            ]
        self.report.note(self._dialogue_id, part.turn, self.max_asks, refused, False)
        return part.template

    def _faults(self, part: _Part, text: str | None, task: SourceTask) -> list[Fault]:
        if text is None:
            return [Fault("unreadable", "answer with the JSON object alone")]
        faults = check_utterance(part.edits, text, part.live, task, strict=True)
        if len(text) > _SPARE_CHARACTERS + 2 * sum(len(goal.text) for goal in goals_of(part.edits)):
            faults.append(Fault("too_long", "be brief"))
        if faults or self.judge is None:
            return faults
        verdict = self.judge.judge(part.edits, text, part.live, task, final=part.kind == "final")
        if verdict.error is not None:
            return [Fault("judge_failed", "write it more plainly")]
        if not verdict.faithful:
            faults.append(Fault("judged_unfaithful", verdict.reason))
        if not verdict.coherent:
            faults.append(Fault("judged_incoherent", verdict.reason))
        return faults


def _request(part: _Part, task: SourceTask) -> str:
    """Return the prompt for one message."""
    old: Goal | None = None
    new: Goal | str | None = None
    match part.edits:
        case (Add(goal),):
            new = goal
        case (Delete(goal),):
            old = goal
        case (Replace(before, after),):
            old, new = before, after
        case (Switch(_, function),):
            new = function
    slot_clear = old is not None and slot_is_clear(old, part.live)
    value_clear = old is not None and value_is_clear(old, part.live)
    return render(
        "utter_user",
        kind=part.kind,
        opening=task.opening,
        old=old,
        new=new,
        quote_old=old is not None and old.value is not None and not (slot_clear or value_clear),
        name_slot=slot_clear,
    )


def _kind(edit: Edit) -> str:
    match edit:
        case Add():
            return "add"
        case Delete():
            return "delete"
        case Replace():
            return "replace"
        case Switch():
            return "switch"
