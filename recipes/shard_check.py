"""Do shards say exactly what their prompt says? Rules first; they are cheap, and right about what they refuse.

Every number, quoted string and identifier of the prompt must be in some shard, and no shard may hold one that the
prompt lacks. What else a prompt says is left to a model (`recipes/shard.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    " seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS = {word: value for value, word in enumerate(_UNITS.split())}
_WORDS |= {word: 10 * n for n, word in enumerate(_TENS.split(), 2)}
_WORDS |= {
    "once": 1,
    "twice": 2,
    "double": 2,
    "doubles": 2,
    "doubled": 2,
    "thrice": 3,
    "triple": 3,
    "triples": 3,
}
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000, "dozen": 12}
# "one" is a pronoun as often as a number, and nothing may rest on "zero" ("none", "empty").
_VAGUE = {Fraction(0), Fraction(1)}
_DIGITS = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?![\w]|\.\d)|(?<![\w.])\.\d+")
_UNIT_DIGITS = re.compile(
    r"(?<![\w.])(\d+(?:\.\d+)?)(?=(?:st|nd|rd|th|%|x|s|k?m|k?g|cm|mm|mph|lbs?|oz|am|pm)\b)", re.I
)
_LONGEST_QUOTE = 100  # some prompts stand in quotation marks as a whole
_WORD = re.compile(r"[a-z]+", re.I)
_QUOTED = re.compile(r"\"([^\"\n]+)\"|\u201c([^\u201d\n]+)\u201d|`([^`\n]+)`|(?<!\w)'([^'\n]+)'(?!\w)")
_IDENTIFIER = re.compile(
    r"(?<![\w.])(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|[A-Za-z]*_\w+|\w+_\w*|[a-z]+[A-Z]\w*|[A-Za-z]+\d\w*)(?!\w)"
)


def rule_faults(prompt: str, shards: Sequence[str]) -> list[str]:
    """Return what is missing from the shards or added by them, a sentence each; none if the rules find nothing.

    Numbers are compared by value, in digits or in words (0 and 1 are left out, "one" being a pronoun too);
    quoted strings and identifiers letter by letter but for case, the quotation marks being free.
    """
    faults: list[str] = []
    if len(shards) < 2:
        faults.append(f"{len(shards)} shards; a prompt is split into two or more")
    blank = [n for n, shard in enumerate(shards, 1) if not shard.strip()]
    faults += [f"shard {n} is empty" for n in blank]
    plain = [" ".join(shard.casefold().split()) for shard in shards]
    faults += [
        f"shard {n} is said twice" for n, text in enumerate(plain, 1) if text and text in plain[: n - 1]
    ]
    together = "\n".join(shards)
    stated, kept = _numbers(prompt), _numbers(together)
    faults += [f"no shard holds the number {_shown(value)}" for value in sorted(stated - kept)]
    faults += [
        f"shard {n} adds the number {_shown(value)}"
        for n, shard in enumerate(shards, 1)
        for value in sorted(_numbers(shard) - stated)
    ]
    for name, find in (("text", _quotes), ("identifier", _identifiers)):
        faults += [f"no shard holds the {name} {word!r}" for word in _unsaid(find(prompt), together)]
        for n, shard in enumerate(shards, 1):
            faults += [f"shard {n} adds the {name} {word!r}" for word in _unsaid(find(shard), prompt)]
    return faults


def _numbers(text: str) -> set[Fraction]:
    found = {Fraction(match.group().replace(",", "")) for match in _DIGITS.finditer(text)}
    found |= {Fraction(match.group(1)) for match in _UNIT_DIGITS.finditer(text)}
    found |= set(_spelled(text))
    return found - _VAGUE


def _spelled(text: str) -> Iterator[Fraction]:
    """Yield numbers written in words: "twenty-five", "two hundred", "a dozen"."""
    value, end = 0, -1  # the number being read and where it ends; end < 0: none
    for match in _WORD.finditer(text):
        word = match.group().lower()
        goes_on = end >= 0 and not text[end : match.start()].strip(" -")
        if goes_on and word in _SCALES:
            value, end = value * _SCALES[word], match.end()
        elif goes_on and value % 10 == 0 and value >= 20 and 0 < _WORDS.get(word, 0) < 10:
            value, end = value + _WORDS[word], match.end()
        else:
            if end >= 0:
                yield Fraction(value)
            value = _WORDS.get(word, _SCALES.get(word, 0))
            end = match.end() if word in _WORDS or word in _SCALES else -1
    if end >= 0:
        yield Fraction(value)


def _quotes(text: str) -> list[str]:
    found = (next(part for part in match.groups() if part) for match in _QUOTED.finditer(text))
    return _distinct(text for text in found if len(text) <= _LONGEST_QUOTE)


def _identifiers(text: str) -> list[str]:
    found = (match.group() for match in _IDENTIFIER.finditer(text))
    return _distinct(word for word in found if max(map(len, word.split("."))) > 1)  # "e.g" is none


def _distinct(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in words if word.strip()))


def _unsaid(words: Sequence[str], text: str) -> list[str]:
    """Return the words that do not stand in `text` as whole words, in any case."""
    folded = " ".join(text.casefold().split())
    return [
        w
        for w in words
        if not re.search(rf"(?<!\w){re.escape(' '.join(w.casefold().split()))}(?!\w)", folded)
    ]


def _shown(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):g}"
