"""Whether a message names a goal: by its text, by slot and value, or by a value of its own. Plain rules on words."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from envs.intent import Goal
from recipes.audit.template_match import own_words

_TOKEN = re.compile(r"\w+(?:[.,:]\d+)*(?:'\w+)?|[^\w\s]")
_MARKS = re.compile(r"[^\w]")
_LONG, _GRAM, _SHARE = 8, 4, 0.5  # of a text of 8 words and more, half of its 4-grams tell it
Words = tuple[str | None, ...]


@functools.lru_cache(maxsize=100_000)
def words(text: str) -> tuple[str, ...]:
    """Return the words and numbers of a text in lower case, without punctuation."""
    return tuple(token for token in _TOKEN.findall(text.casefold()) if not _MARKS.fullmatch(token))


def masked(message: str, phrases: Iterable[str]) -> Words:
    """Return the words of a message with those of the phrases blanked out, the longest phrase first."""
    rest: list[str | None] = list(words(message))
    for phrase in sorted({words(phrase) for phrase in phrases if phrase}, key=lambda p: (-len(p), p)):
        for at in _places(rest, phrase):
            rest[at : at + len(phrase)] = [None] * len(phrase)
    return tuple(rest)


def parts(goal: Goal) -> list[str]:
    """Return the texts by which a message may rightly name a goal that its edit is about."""
    return [text for text in (goal.text, goal.slot, goal.value) if text]


def states(message: Words, goal: Goal) -> str | None:
    """Return how a message states a goal: "text", "slot and value"; None if it does not."""
    text = words(goal.text)
    if _holds(message, text) or _tells(message, text):
        return "text"
    if goal.slot and goal.value and _holds(message, words(goal.slot)) and _holds(message, words(goal.value)):
        return "slot and value"
    return None


def names(message: Words, goal: Goal, kind: str | None = None) -> str | None:
    """Return how a message states a goal or only its value or slot, "value" or "slot"; None if in no way.

    Values and slots that consist of words of the wording templates (of a kind) name nothing ("now", "better").
    """
    stated = states(message, goal)
    if stated is not None:
        return stated
    for part, text in (("value", goal.value), ("slot", goal.slot)):
        found = words(text or "")
        if found and not set(found) <= own_words(kind) and _holds(message, found):
            return part
    return None


def names_value(message: Words, goal: Goal) -> str | None:
    """Return how a message states a goal or only its value; the slot alone restates nothing."""
    found = names(message, goal)
    return None if found == "slot" else found


def _holds(message: Words, phrase: Sequence[str]) -> bool:
    return bool(phrase) and next(iter(_places(message, phrase)), None) is not None


def _places(message: Sequence[str | None], phrase: Sequence[str]) -> Iterable[int]:
    size = len(phrase)
    if not size:
        return
    first = phrase[0]
    for at in range(len(message) - size + 1):
        if message[at] == first and tuple(message[at : at + size]) == tuple(phrase):
            yield at


def _tells(message: Words, text: Sequence[str]) -> bool:
    """Return whether a message holds so much of a long text that it restates it in part."""
    if len(text) < _LONG:
        return False
    grams = {tuple(text[at : at + _GRAM]) for at in range(len(text) - _GRAM + 1)}
    have = {tuple(message[at : at + _GRAM]) for at in range(len(message) - _GRAM + 1)}
    return len(grams & have) >= _SHARE * len(grams)
