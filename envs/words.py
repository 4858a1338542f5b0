"""Words and numbers of a message, for the checks that read wordings by rule."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_GOES_ON = re.compile(r"(?<=\d)[.,]\d")
_WENT_BEFORE = re.compile(r"\d[.,]$")
_DIGITS = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")

# Words that carry no requirement: function words, and the verbs and fillers that any wording may use.
_STOP = """
a about above after again all also am an and any are as at be been before being but by can could did do does
doing down each every few for from get give go had has have having he her here hers him his how i if in into is it
its just let like make may me might more most must my no nor not now of off on once only or other our out over own
per please put same set shall she should so some such take than that the their them then there these they this
those through to too under until up upon us use very want was we were what when where which while who whom why
will with without would yes you your
"""
STOP = frozenset(_STOP.split())

# "one" is left out: it is a pronoun more often than a number.
_UNITS = """two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NAMED = {word: n for n, word in enumerate(_UNITS.split(), start=2)}
_NAMED |= {word: 10 * n for n, word in enumerate(_TENS.split(), start=2)}
_NAMED |= {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 1_000_000}


def phrase_spans(text: str, phrase: str, *, exact: bool = False) -> list[tuple[int, int]]:
    """Return where `phrase` stands in `text` as whole words, as (start, end).

    In any case, unless `exact`; then a number is no part of a longer one either ("5" is not in "5.5").

    >>> phrase_spans("Soup, tomato soup, soups", "soup")
    [(0, 4), (13, 17)]
    """
    if not phrase:
        return []
    if not exact and len(text.lower()) == len(text) and len(phrase.lower()) == len(phrase):
        text, phrase = text.lower(), phrase.lower()
    found: list[tuple[int, int]] = []
    at = text.find(phrase)
    while at >= 0:  # a search by hand: patterns would have to be compiled for each phrase
        end = at + len(phrase)
        whole = not (at and _is_word(text[at - 1])) and not (end < len(text) and _is_word(text[end]))
        if whole and not (
            exact and (_GOES_ON.match(text, end) or _WENT_BEFORE.search(text[max(at - 2, 0) : at]))
        ):
            found.append((at, end))
        at = text.find(phrase, at + 1)
    return found


def mentions(text: str, phrase: str) -> bool:
    """Return whether `phrase` stands in `text` as whole words, in any case; nothing stands everywhere."""
    return not phrase or bool(phrase_spans(text, phrase))


def without(text: str, phrase: str) -> str:
    """Return `text` with each standing of `phrase` taken out."""
    at, kept = 0, []
    for start, end in phrase_spans(text, phrase):
        kept.append(text[at:start])
        at = max(at, end)
    return " ".join([*kept, text[at:]])


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, in order.

    >>> words("Don't use book_table!")
    ["don't", 'use', 'book', 'table']
    """
    return _WORD.findall(text.lower())


def content_words(text: str) -> list[str]:
    """Return the words that carry a requirement: no function words, no fillers; numbers count."""
    return [word for word in words(text) if word not in STOP]


def alike(one: str, other: str) -> bool:
    """Return whether two words share their stem, by a common beginning.

    >>> alike("deliver", "delivery"), alike("song", "songs"), alike("cat", "car")
    (True, True, False)
    """
    if one == other:
        return True
    short = min(len(one), len(other))
    needed = max(4, short - 2)
    return short >= needed and one[:needed] == other[:needed]


def overlap(said: Iterable[str], wanted: Iterable[str]) -> float:
    """Return the share of the `wanted` words that have a like among the `said` ones; 1.0 of nothing."""
    found = list(said)
    needed = list(wanted)
    if not needed:
        return 1.0
    return sum(any(alike(word, other) for other in found) for word in needed) / len(needed)


def numbers_in(text: str) -> set[Fraction]:
    """Return every number of a text, in digits or in words, without sign and unit.

    "JV-544" holds 544, "12:30" holds 12 and 30, "forty-nine" is 49; "one" is not taken for a number.
    """
    found = {Fraction(digits.replace(",", "")) for digits in _DIGITS.findall(text)}
    before = 0
    for word in words(text.replace("-", " ")):
        number = _NAMED.get(word, 0)
        if number and before in range(20, 100, 10) and number < 10:
            found.discard(Fraction(before))
            number += before
        if number:
            found.add(Fraction(number))
        before = number
    return found
