"""User simulators: they put the edits of one turn into words, and nothing else.

`TemplateSimulator` draws from `envs.wording`. A language model may take its place behind the same interface.
"""

from __future__ import annotations

import functools
import random
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from envs.errors import unknown_name
from envs.intent import EMPTY, Add, Delete, Edit, Goal, IntentState, Replace, Switch
from envs.wording import SETS
from envs.words import mentions

if TYPE_CHECKING:
    from envs.merge import Merging
    from envs.task import SourceTask

_VERBS = """
add answer apply arrange ask assign attend bill board book bring buy call charge check choose claim
collect come compute convert count cover credit deliver dig dim display divide do draw drive drop
dust earn engrave enroll exclude feed fence fertilize fetch fill filter find finish fit fix fly
follow format get give go groom group grow guarantee heat hire hold include insure invite join keep
label learn leave let limit list look lower make mark meet mix multiply note open order pack paint
park pay pick place plan plant play print put queue raise redeem remind rent repair report reserve
restrict return ring round run schedule seat select send serve set ship show shuffle sign skip sleep
sort sow spend start stay stop subtract take tell text tip top track travel treat turn use wait wake
wash water wrap write
"""
# First words that show that a goal's text is an imperative; any other text is taken for a sentence.
IMPERATIVES = frozenset(_VERBS.split())
# First words after which a slot takes no "the".
DETERMINERS = ("the ", "a ", "an ", "my ", "our ", "your ", "each ", "every ", "whether ", "how ", "what ")


class Simulator(Protocol):
    """Puts one turn into words; deterministic in its arguments and the state of `rng`."""

    def utter(
        self,
        edits: Sequence[Edit],
        turn_index: int,
        total: int,
        opening: str,
        rng: random.Random,
        live: IntentState = EMPTY,
    ) -> str:
        """Return the user's message of turn `turn_index` (0-based) of `total`.

        It realises exactly `edits`: the last turn also asks for the answer, without naming any goal; a turn
        without edits is small talk. The first message starts with `opening`. `live` is the state before the
        turn: it tells which references would be ambiguous and is never restated.
        """
        ...


@runtime_checkable
class Staged(Protocol):
    """A simulator with options. `build` asks for them, so that a dialogue's id and text follow from them."""

    @property
    def tag(self) -> str:
        """What the options add to the id of a dialogue, "" for nothing; equal tags mean equal options."""
        ...

    @property
    def merging(self) -> Merging | None:
        """How neighbouring turns become one message; None for one edit a message."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """All options as JSON data, to be recorded beside the dialogues."""
        ...

    def staged(self, dialogue_id: str, task: SourceTask) -> Simulator:
        """Return the simulator of one dialogue."""
        ...


class TemplateSimulator:
    """Wordings from `envs.wording`; `split` is "train" or "heldout". Raises `UnknownName` for another one."""

    def __init__(self, split: str = "train") -> None:
        if split not in SETS:
            raise unknown_name("wording split", split, SETS)
        self.split = split

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
        first, last = turn_index == 0, turn_index == total - 1
        parts = [opening.strip()] if first and opening else []
        if len(edits) > 1 and all(isinstance(edit, Add) for edit in edits):
            parts = ["\n".join([" ".join([*parts, self._draw("list", {}, first, rng)]), *_bullets(edits)])]
            parts += [self._draw("final", {}, first, rng)] if last else []
            return "\n".join(parts)
        for edit in edits:
            parts.append(self._edit(edit, first, rng, live))
        if last:
            parts.append(self._draw("final", {}, first, rng))
        elif not edits:
            parts.append(self._draw("small_talk", {}, first, rng))
        return " ".join(parts)

    def _edit(self, edit: Edit, first: bool, rng: random.Random, live: IntentState) -> str:
        match edit:
            case Add(goal):
                fields = _fields(goal)
                kind = "add_slot" if "value" in fields else "add_text"
                # "Deliver to Brooklyn" tells value and slot; a text that hides its value cannot stand for it.
                if not _shows_value(goal):
                    fields = {name: fields[name] for name in ("slot", "Slot", "value")}
                elif goal.text.rstrip().endswith("?"):
                    kind = "add_question"
            case Replace(old, new):
                kind, fields = _replace(old, new, rng, live)
            case Delete(goal):
                fields = _fields(goal)
                by_slot = "value" in fields and slot_is_clear(goal, live) and rng.random() < 0.7
                kind = "delete_slot" if by_slot else "delete_text"
                fields["text"] = bare(goal)  # in quotation marks any text may stand
            case Switch(_, function):
                kind, fields = "switch", {"new": function}
        return self._draw(kind, fields, first, rng)

    def _draw(self, kind: str, fields: dict[str, str], first: bool, rng: random.Random) -> str:
        said = rng.choice(_usable(self.split, kind, frozenset(fields), first)).format_map(fields)
        # "Apple Inc." at the end of a sentence brings its own full stop.
        for field in fields.values():
            if field.endswith("."):
                said = said.replace(f"{field}.", field)
        return said


def live_beside(live: IntentState, edits: Sequence[Edit], at: int) -> IntentState:
    """Return what is live for edit number `at` of a message: the state before it, and what its other edits state.

    References must be clear among all of these. With `at` -1 it is what all edits state.
    """
    goals = {goal.id: goal for goal in live.goals}
    for n, edit in enumerate(edits):
        stated = edit.goal if isinstance(edit, Add) else edit.new if isinstance(edit, Replace) else None
        if n != at and stated is not None:
            goals[stated.id] = stated
    return IntentState(tuple(goals.values()), live.function)


def split_of(task: SourceTask) -> str:
    """Return the wording split of a task: training tasks get "train", all others "heldout"."""
    return "train" if task.split == "train" else "heldout"


def _replace(old: Goal, new: Goal, rng: random.Random, live: IntentState) -> tuple[str, dict[str, str]]:
    """Return the kind of template and its fields: by slot, by old value or by text, as is unambiguous."""
    if old.value is None or new.value is None or new.slot is None:
        return "replace_text", {"old": bare(old), "new": bare(new)}
    fields = {"old": old.value, "new": new.value}
    slot_clear, old_clear = slot_is_clear(old, live), value_is_clear(old, live)
    if slot_clear and not (old_clear and rng.random() < 0.4):
        slot = _the(new.slot)
        return "replace_slot", {**fields, "slot": slot, "Slot": _capital(slot)}
    if old_clear:
        return "replace_old", fields
    return "replace_text", {"old": bare(old), "new": bare(new)}


def _fields(goal: Goal) -> dict[str, str]:
    text = bare(goal)
    fields = {"sentence": _sentence(goal.text)}
    if not text.endswith(("!", "?")):  # it can stand in the middle of a sentence
        fields["text"] = text
    if text.split(maxsplit=1)[0] in IMPERATIVES:
        fields |= {"do": text, "Do": _capital(text)}
    if goal.slot is not None and goal.value is not None:
        slot = _the(goal.slot)
        fields |= {"slot": slot, "Slot": _capital(slot), "value": goal.value}
    return fields


@functools.cache
def _usable(split: str, kind: str, fields: frozenset[str], first: bool) -> tuple[str, ...]:
    """Return the templates of a kind whose fields are all there, without the mark of the following ones."""
    usable: list[str] = []
    for template in SETS[split][kind]:
        follows = template.startswith("+")
        body = template.removeprefix("+")
        needs = {name for _, name, _, _ in string.Formatter().parse(body) if name}
        if needs <= fields and not (follows and first):
            usable.append(body)
    return tuple(usable)


def slot_is_clear(goal: Goal, live: IntentState) -> bool:
    return goal.slot is not None and not any(o.slot == goal.slot for o in live.goals if o.id != goal.id)


def value_is_clear(goal: Goal, live: IntentState) -> bool:
    """Return whether the goal's value stands, as a word, in no other live goal."""
    value = goal.value
    if value is None:
        return False
    for other in live.goals:
        if other.id == goal.id:
            continue
        said = f"{other.text} {other.value or ''}"
        # The plain test is quick and settles most cases; word boundaries only matter when it hits.
        if value.casefold() in said.casefold() and mentions(said, value):
            return False
    return True


def closed(text: str) -> str:
    """Return the text with a mark at its end, so that another sentence may follow."""
    return text if text.endswith((".", "!", "?", "\u2026", ":")) else text + "."


def _bullets(edits: Sequence[Edit]) -> list[str]:
    goals = [edit.goal for edit in edits if isinstance(edit, Add)]
    return [f"- {bare(g) if _shows_value(g) else f'{g.slot}: {g.value}'}" for g in goals]


def _shows_value(goal: Goal) -> bool:
    """Return whether the text holds the value verbatim, also when its first letter becomes a capital."""
    if goal.value is None or goal.slot is None:
        return True
    return goal.value in goal.text and goal.value in _capital(goal.text)


def bare(goal: Goal) -> str:
    """Return a goal's text without its full stop, unless that belongs to its value."""
    text = goal.text.strip()
    return text if (goal.value or "").endswith(".") else text.removesuffix(".")


def _sentence(text: str) -> str:
    text = _capital(text.strip())
    return text if text.endswith((".", "!", "?")) else text + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _the(slot: str) -> str:
    return slot if slot.lower().startswith(DETERMINERS) else f"the {slot}"
