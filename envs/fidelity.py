"""Does a message say exactly its edits? Rules that read one utterance against the edits it should realise.

The rules are about what can be read off the words: values verbatim, references that name one goal, and
nothing of any other goal. What needs understanding (a reversed sentence, a wish in other words) is left to
`envs.judge`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envs.intent import Add, Delete, Edit, Goal, IntentState, Replace, Switch
from envs.simulator import bare
from envs.task import SourceTask
from envs.words import content_words, mentions, numbers_in, overlap, phrase_spans, without

KINDS = {
    "empty": "it says nothing beside the opening",
    "missing_value": "a value that the edit states is not there, letter for letter",
    "missing_number": "a number of a free-text goal is not there",
    "missing_text": "too little of a free-text goal is there",
    "missing_function": "the function that is switched to is not named",
    "unnamed_slot": "a new value comes without a word on what it is for",
    "unmarked_old": "a replacement names neither the old value nor the slot",
    "unnamed_goal": "a withdrawal does not name what is withdrawn",
    "ambiguous": "the reference fits another live goal as well",
    "reversed": "the new value is the one that is rejected",
    "no_withdrawal": "no word says that the goal is withdrawn",
    "other_goal": "it names a live goal that this turn does not edit",
    "leaks_final": "it names a goal of the final intent that was not stated yet",
    "names_goal": "small talk or the request for the answer names a goal",
    "stray_number": "it holds a number that belongs to none of its edits",
}

TEXT_SHARE = 0.6  # of a free-text goal's content words, to count as said
REFERENCE_SHARE = 0.5  # the same, to count as referred to
RESTATED_SHARE = 0.8  # of another free-text goal's own content words, to count as restated
SHORT = 3  # "no", "I", "a": values of so few letters stand in sentences by themselves

_WITHDRAWN = re.compile(
    r"\b(?:abandon|abolish|axe|cancel|cross|cut|delet|discard|dismiss|disregard|ditch|drop|eliminat|eras|exclud"
    r"|forg[eo]t|ignor|leave|lift|lose|mistake|nix|obsolete|omit|pretend|remov|reset|retract|revoke|scrap|scratch"
    r"|skip|stop|strik|struck|throw|undo|unsay|void|wip|withdr)\w*"
    r"|\b(?:no|not|never|nothing|neither|longer|out|back|without|off|aside|rid|go|gone|goes|away|end|over|past)\b"
    r"|n['\u2019]t\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a message: a kind of `KINDS`, and how to mend it.

    `detail` speaks of the turn's own edits alone, so that it can be shown to the model that has to mend it;
    `about` is the text of another goal that the message names or may be taken for.
    """

    kind: str
    detail: str
    about: str | None = None


def check_utterance(
    edits: Sequence[Edit],
    utterance: str,
    live_before: IntentState,
    task: SourceTask,
    *,
    strict: bool = False,
) -> list[Fault]:
    """Return the faults of a message that should say exactly `edits`; none if it passes.

    `live_before` is the oracle state before the turn. The task's opening, with which the first message
    starts, is not read. `strict` adds the rules that free wordings of a model need and that a good template
    may miss: withdrawals need a word of withdrawal, and a new value must not be the rejected one.
    """
    said = utterance.strip().removeprefix(task.opening.strip()).strip()
    if not said:
        return [Fault("empty", "say something")]
    faults: list[Fault] = []
    for edit in edits:
        own = {goal.id for goal in goals_of([edit])}
        beside = [*live_before.goals, *(g for g in goals_of(edits) if g not in live_before.goals)]
        faults += _edit_faults(edit, said, [goal for goal in beside if goal.id not in own])
        if strict:
            faults += _direction_faults(edit, said, alone=len(edits) == 1)
    return [*faults, *_foreign(edits, said, live_before, task)]


def goals_of(edits: Sequence[Edit]) -> list[Goal]:
    """Return every goal that the edits state, replace or withdraw, in order."""
    found: list[Goal] = []
    for edit in edits:
        match edit:
            case Add(goal) | Delete(goal):
                found.append(goal)
            case Replace(old, new):
                found += [old, new]
    return found


def _edit_faults(edit: Edit, said: str, others: Sequence[Goal]) -> list[Fault]:
    match edit:
        case Add(goal):
            missing = _unsaid(goal, said)
            if not missing and goal.value is not None and not _names(said, goal):
                return [Fault("unnamed_slot", f"say what {goal.value!r} is for: {goal.slot or goal.text!r}")]
            return missing
        case Replace(old, new):
            return [*_unsaid(new, said), *_reference_faults(old, new, said, others)]
        case Delete(goal):
            return _reference_faults(goal, None, said, others)
        case Switch(_, function):
            if mentions(said, function) or mentions(said, function.replace("_", " ")):
                return []
            return [Fault("missing_function", f"name the function `{function}`")]


def _unsaid(goal: Goal, said: str) -> list[Fault]:
    """Return what of a goal's content the message does not state."""
    if bare(goal).casefold() in said.casefold() and (goal.value is None or shows(said, goal.value)):
        return []
    if goal.value is not None:
        if shows(said, goal.value):
            return []
        return [Fault("missing_value", f"say {goal.value!r} exactly as it is written here")]
    missing = numbers_in(goal.text) - numbers_in(said)
    if missing:
        numbers = ", ".join(map(str, sorted(missing)))
        return [Fault("missing_number", f"say all numbers of {goal.text!r}; missing: {numbers}")]
    if overlap(content_words(said), content_words(goal.text)) < TEXT_SHARE:
        return [Fault("missing_text", f"say all of {goal.text!r}, as close to these words as you can")]
    return []


def _reference_faults(goal: Goal, new: Goal | None, said: str, others: Sequence[Goal]) -> list[Fault]:
    """Return a fault unless the message names `goal`, which is replaced by `new` or withdrawn, and no other."""
    text, rest = bare(goal).casefold(), said
    if text in said.casefold() and not (new is not None and text in (new.value or "").casefold()):
        return []
    if new is not None and new.value is not None and not (goal.value and mentions(goal.value, new.value)):
        # In "tomato soup" no "soup" is meant.
        rest = without(said, new.value)
    by_value = goal.value is not None and mentions(rest, goal.value)
    by_slot = goal.slot is not None and goal.value is not None and _slot_named(said, goal.slot)
    by_text = overlap(content_words(rest), _frame(goal)) >= REFERENCE_SHARE and bool(_frame(goal))
    if new is not None and goal.value is None:  # the new text says most of the old one again
        by_text |= overlap(content_words(said), content_words(new.text)) >= REFERENCE_SHARE
    if not (by_value or by_slot or by_text):
        what = repr(goal.value or goal.text) + (f" or {goal.slot!r}" if goal.slot and goal.value else "")
        if new is None:
            return [Fault("unnamed_goal", f"name what is withdrawn: {what}")]
        return [Fault("unmarked_old", f"name what is replaced: {what}")]
    if goal.value is None or not (by_value or by_slot):
        return []
    for other in others:
        same_slot = other.slot == goal.slot if by_slot else True
        same_value = mentions(f"{other.text} {other.value or ''}", goal.value) if by_value else True
        if same_slot and same_value:
            return [Fault("ambiguous", f"quote {goal.text!r}", about=other.text)]
    return []


def _direction_faults(edit: Edit, said: str, alone: bool) -> list[Fault]:
    if isinstance(edit, Delete) and not _WITHDRAWN.search(said):
        return [Fault("no_withdrawal", f"say that this is no longer wanted: {edit.goal.text!r}")]
    if isinstance(edit, Replace) and alone and edit.old.value and edit.new.value:
        new, old = re.escape(edit.new.value), re.escape(edit.old.value)
        rejected = rf"(?<!why )\b(?:not|instead of|rather than|scratch|forget|drop)\s+{new}(?!\w|[.,]\d)"
        turned = rf"\bfrom\s+{new}\s+to\s+{old}(?!\w)|\breplace\s+{new}\s+(?:with|by)\s+{old}(?!\w)"
        if re.search(f"{rejected}|{turned}", said, re.IGNORECASE):
            detail = f"{edit.new.value!r} is the new value, {edit.old.value!r} the one that is given up"
            return [Fault("reversed", detail)]
    return []


def _foreign(edits: Sequence[Edit], said: str, live_before: IntentState, task: SourceTask) -> list[Fault]:
    """Return a fault for each other goal that is named, and for numbers that no edit brings along."""
    own = goals_of(edits)
    functions = [edit.new for edit in edits if isinstance(edit, Switch)]
    # Words that the edits themselves bring along are no leak.
    allowed = " ".join([*(f"{g.text} {g.slot or ''} {g.value or ''}" for g in own), *functions])
    faults: list[Fault] = []
    for goal in dict.fromkeys((*live_before.goals, *task.goals)):
        # Small talk has no slot to name; one of a single word ("time") may stand there by chance.
        slot_alone = (
            not edits
            and goal.value is not None
            and " " in (goal.slot or "")
            and mentions(said, goal.slot or "")
        )
        if goal in own or not (slot_alone or _restated(said, goal, allowed)):
            continue
        kind = "other_goal" if goal in live_before.goals else "leaks_final"
        faults.append(Fault(kind if edits else "names_goal", "say nothing of any other wish", goal.text))
    stray = numbers_in(said) - numbers_in(f"{allowed} {task.opening}")
    if stray:
        numbers = ", ".join(map(str, sorted(stray)))
        faults.append(Fault("stray_number", f"leave out numbers that do not belong here: {numbers}"))
    return faults


def _restated(said: str, goal: Goal, allowed: str) -> bool:
    """Return whether a message says another goal, beyond the words in `allowed`."""
    text = bare(goal).casefold()
    if text in said.casefold() and text not in allowed.casefold() and len(text) > SHORT:
        return True
    if goal.value is not None:
        if len(goal.value) <= SHORT:
            slot = goal.slot or goal.text
            return mentions(said, goal.value) and mentions(said, slot) and not mentions(allowed, slot)
        return mentions(said, goal.value) and not mentions(allowed, goal.value)
    known = set(content_words(allowed))
    rest = [word for word in content_words(goal.text) if word not in known]
    return len(rest) >= 3 and overlap(content_words(said), rest) >= RESTATED_SHARE


def _names(said: str, goal: Goal) -> bool:
    """Return whether the message says what a new value is for: its slot, or the words of the goal around it."""
    if bare(goal).casefold() in said.casefold():
        return True
    if goal.slot is not None and _slot_named(said, goal.slot):
        return True
    frame = _frame(goal)
    return bool(frame) and overlap(content_words(said), frame) >= REFERENCE_SHARE


def _slot_named(said: str, slot: str) -> bool:
    if mentions(said, slot):
        return True
    named = content_words(slot)
    return bool(named) and overlap(content_words(said), named) == 1.0


def _frame(goal: Goal) -> list[str]:
    """Return the content words of a goal's text without its value: "insure it for $90" gives ["insure"]."""
    return content_words(goal.text if goal.value is None else without(goal.text, goal.value))


def shows(said: str, value: str) -> bool:
    """Return whether a value stands in the message letter for letter; its first may have become a capital."""
    capital = value[:1].upper() + value[1:]
    return not value or any(phrase_spans(said, form, exact=True) for form in (value, capital))
