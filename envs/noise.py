"""Noise on any wording: typos, fragments, politeness, letter case, missing marks, several edits in one message.

The edits stay exact. Values, old values, slots, free-text goals, quotations and whatever holds a digit are never
touched; words of a goal's text and words that carry the change ("not", "instead") are never misspelt. A message
in which a rule (`envs.fidelity`) finds a fault that the plain one has not is left plain.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import re
from collections.abc import Sequence
from typing import Any

from envs.errors import ConfigError
from envs.fidelity import check_utterance, goals_of
from envs.intent import EMPTY, Add, Delete, Edit, IntentState, Replace, Switch
from envs.merge import Merging
from envs.personas import PERSONAS, Persona, get_persona
from envs.simulator import (
    Simulator,
    Staged,
    TemplateSimulator,
    bare,
    closed,
    live_beside,
    slot_is_clear,
    split_of,
    value_is_clear,
)
from envs.task import SourceTask
from envs.typos import CARRYING, misspell
from envs.words import phrase_spans, words

# Fragments of one edit, by wording split: memorised ones stay visible here too.
FRAGMENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "add": ("{slot}: {value}.", "{value} for {slot}.", "{slot}, {value}."),
        "replace_slot": ("{slot} now {new}.", "{slot}: {new} instead.", "{new} for {slot}, changed."),
        "replace_old": ("{new}, not {old}.", "{new} instead of {old}.", "no {old}, {new}."),
        "delete": ("no {slot} after all.", "{slot}: forget it.", "without {slot}."),
        "small_talk": ("Hm.", "Ok so far.", "Moment.", "Wait."),
        "final": ("Answer now.", "Go.", "Done, your turn.", "Ok, result?"),
    },
    "heldout": {
        "add": ("{slot} = {value}.", "{slot} {value}."),
        "replace_slot": ("{slot} -> {new}.", "correction, {slot} {new}."),
        "replace_old": ("{old} -> {new}.", "{old} out, {new} in."),
        "delete": ("{slot}: scrap that.", "{slot} not needed."),
        "small_talk": ("One sec.", "Still here."),
        "final": ("Over to you.", "All set, proceed."),
    },
}

_QUOTED = re.compile(r'"[^"]*"|`[^`]*`|\S*\d\S*')
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_ARTICLE = re.compile(r"\b(?:the|an?) (?=\S)", re.IGNORECASE)
_APOSTROPHE = re.compile(r"(?<=[a-z])['\u2019](?=(?:t|s|m|re|ve|ll|d)\b)")


class Noise:
    """A simulator that roughens what `simulator` says (default: the templates of the task's split).

    `persona` is a name of `PERSONAS` or a `Persona`; `typo_rate` (a word) overrides its own. With
    `merge_rate`, neighbouring turns are merged with that chance, up to `merge_cap` edits a message
    (`envs.merge`). All options are in the dialogue's id. Raises `UnknownName` or `ConfigError` for options
    that cannot be.
    """

    def __init__(
        self,
        simulator: Simulator | None = None,
        *,
        persona: str | Persona = "plain",
        typo_rate: float | None = None,
        merge_rate: float = 0.0,
        merge_cap: int = 3,
    ) -> None:
        self.simulator = simulator
        self.persona = get_persona(persona) if isinstance(persona, str) else persona
        self.typo_rate = self.persona.typos if typo_rate is None else typo_rate
        if not 0 <= self.typo_rate <= 1:
            raise ConfigError(f"a typo rate is a chance from 0 to 1, got {self.typo_rate}")
        merging = Merging(merge_rate, merge_cap)
        self.merging: Merging | None = merging if merge_rate else None
        if isinstance(simulator, Staged) and simulator.merging is not None:
            raise ConfigError("the simulator below this noise merges turns already; set its merge_rate to 0")
        self._dialogue_id = ""
        self._task: SourceTask | None = None
        self._split = simulator.split if isinstance(simulator, TemplateSimulator) else "train"

    @property
    def settings(self) -> dict[str, Any]:
        """All options, and those of the simulator below."""
        inner = self.simulator
        return {
            "kind": "noise",
            "persona": self.persona.to_dict(),
            "typo_rate": self.typo_rate,
            "merge_rate": self.merging.rate if self.merging else 0.0,
            "merge_cap": self.merging.cap if self.merging else None,
            "over": inner.settings
            if isinstance(inner, Staged)
            else {"kind": "template", "split": getattr(inner, "split", "split of the task")},
        }

    @property
    def tag(self) -> str:
        """The options in short: "|hurried-t0.1-m0.3x3"; a persona of the caller's own brings a hash along."""
        name = self.persona.name
        if PERSONAS.get(name) != self.persona:
            fields = json.dumps(self.persona.to_dict(), sort_keys=True)
            name += "~" + hashlib.sha256(fields.encode()).hexdigest()[:6]
        typos = f"-t{self.typo_rate:g}" if self.typo_rate != self.persona.typos else ""
        merged = f"-m{self.merging.rate:g}x{self.merging.cap}" if self.merging else ""
        below = self.simulator.tag if isinstance(self.simulator, Staged) else ""
        return f"{below}|{name}{typos}{merged}"

    def staged(self, dialogue_id: str, task: SourceTask) -> Noise:
        """Return the simulator of one dialogue."""
        bound = copy.copy(self)
        bound._dialogue_id = dialogue_id
        bound._task = task
        inner = self.simulator or TemplateSimulator(split_of(task))
        bound._split = inner.split if isinstance(inner, TemplateSimulator) else split_of(task)
        bound.simulator = inner.staged(dialogue_id, task) if isinstance(inner, Staged) else inner
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
        """Return the message of one turn, see `Simulator.utter`."""
        own = random.Random(f"noise|{self._dialogue_id}|{turn_index}|{rng.random()}")
        inner = self.simulator or TemplateSimulator()
        opening = opening.strip() if turn_index == 0 else ""
        if (
            edits and turn_index == total - 1
        ):  # all goals and the request at once, a list where the wording has one
            plain = inner.utter(edits, turn_index, total, "", rng, live)
        else:
            said: list[str] = []
            for at in range(max(len(edits), 1)):
                step, beside = edits[at : at + 1], live_beside(live, edits, at)
                final = turn_index == total - 1
                fragment = self._fragment(step, final, beside, own)
                said.append(fragment or inner.utter(step, turn_index, total, "", rng, beside))
            plain = " ".join([*map(closed, said[:-1]), said[-1]])
        task = self._task or SourceTask("", "", "", opening, "", live.goals, {})
        rough = self._roughen(plain, edits, own, first=turn_index == 0)
        if rough != plain and (faults := check_utterance(edits, rough, live, task)):
            known = {fault.kind for fault in check_utterance(edits, plain, live, task)}
            if any(fault.kind not in known for fault in faults):
                rough = plain
        return f"{opening} {rough}".strip()

    def _fragment(
        self, edits: Sequence[Edit], final: bool, live: IntentState, rng: random.Random
    ) -> str | None:
        """Return a fragment for one edit, or for none; None where the persona or the edit wants a sentence."""
        if rng.random() >= self.persona.fragments:
            return None
        fields: dict[str, str] = {}
        match tuple(edits):
            case ():
                kind = "final" if final else "small_talk"
            case (Add(goal),) if goal.slot and goal.value:
                kind, fields = "add", {"slot": goal.slot, "value": goal.value}
            case (Delete(goal),) if goal.slot and goal.value and slot_is_clear(goal, live):
                kind, fields = "delete", {"slot": goal.slot}
            case (Replace(old, new),) if new.slot and new.value and slot_is_clear(old, live):
                kind, fields = "replace_slot", {"slot": new.slot, "new": new.value}
                if old.value and value_is_clear(old, live) and rng.random() < 0.4:
                    kind, fields = "replace_old", {"old": old.value, "new": new.value}
            case _:
                return None
        said = rng.choice(FRAGMENTS[self._split][kind]).format_map(fields)
        return said[:-1] if said.endswith("..") else said

    def _roughen(self, plain: str, edits: Sequence[Edit], rng: random.Random, first: bool) -> str:
        persona = self.persona
        text = plain
        if edits and not first and rng.random() < persona.opener_rate:
            text = f"{rng.choice(persona.openers)} {text}"
        if rng.random() < persona.closer_rate:
            text = f"{closed(text)} {rng.choice(persona.closers)}"
        lower = rng.random() < persona.lower
        no_stop = rng.random() < persona.no_stop
        exact, known, spelled = _protected(edits)
        pieces: list[str] = []
        at = 0
        for start, end in [*_exact_spans(text, exact), (len(text), len(text))]:
            loose = text[at:start]
            if start == len(text) and no_stop and loose.endswith("."):
                loose = loose[:-1]
            pieces += [self._loosen(loose, known, spelled, lower, rng), text[start:end]]
            at = end
        return "".join(pieces).strip()

    def _loosen(self, text: str, known: set[str], spelled: set[str], lower: bool, rng: random.Random) -> str:
        """Roughen a stretch without exact words; `known` words keep their spelling, `spelled` their case too."""
        persona = self.persona
        if persona.no_article:
            text = _ARTICLE.sub(lambda m: "" if rng.random() < persona.no_article else m.group(), text)
        if persona.no_apostrophe:
            text = _APOSTROPHE.sub(lambda m: "" if rng.random() < persona.no_apostrophe else m.group(), text)

        def change(match: re.Match[str]) -> str:
            word = match.group()
            plain = word.lower()
            if lower and word not in spelled:
                word = plain
            if plain in known or plain in CARRYING or rng.random() >= self.typo_rate:
                return word
            return misspell(word, rng)

        return _WORD.sub(change, text)


def _protected(edits: Sequence[Edit]) -> tuple[set[str], set[str], set[str]]:
    """Return phrases that stay letter for letter, words that keep their spelling, words that keep their case."""
    exact: set[str] = set()
    texts: list[str] = []
    for edit in edits:
        if isinstance(edit, Switch):
            exact |= {edit.new, edit.new.replace("_", " ")}
    for goal in goals_of(edits):
        exact |= {goal.value, goal.slot or ""} if goal.value is not None else {bare(goal)}
        texts.append(goal.text)
    known = {word for text in texts for word in words(text)}
    spelled = {word for text in texts for word in _WORD.findall(text) if word != word.lower()}
    return exact, known, spelled


def _exact_spans(text: str, exact: set[str]) -> list[tuple[int, int]]:
    """Return the stretches of a text that stay as they are, in order; those that touch or overlap as one."""
    found = [match.span() for match in _QUOTED.finditer(text)]
    for phrase in exact:
        found += phrase_spans(text, phrase)
    merged: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
