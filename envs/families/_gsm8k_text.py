"""What a word problem says: its sentences, and the numbers in them with how each is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_WORD = re.compile(r"\w+")
_UNITS = _WORD.findall(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    " seventeen eighteen nineteen"
)
_TENS_WORDS = _WORD.findall("twenty thirty forty fifty sixty seventy eighty ninety")
_TENS = {word: 10 * n for n, word in enumerate(_TENS_WORDS, 2)}
WORDS: dict[str, int] = {word: value for value, word in enumerate(_UNITS)} | _TENS
_SMALL = {value: word for word, value in WORDS.items() if value <= 20}

_TENS_UNIT = rf"(?:{'|'.join(_TENS)})-(?:{'|'.join(_UNITS[1:10])})"
_TOKEN = re.compile(
    rf"(?P<word>\b(?:{_TENS_UNIT}|{'|'.join(sorted(WORDS, key=len, reverse=True))})\b)"
    r"|(?P<twice>\btwice\b)"
    r"|(?P<digits>(?<![\d.])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\d\w.])\.\d+)",
    re.IGNORECASE,
)
# What may touch a digit token without making it a name, an ordinal, a time, a date or a fraction.
_UNIT_AFTER = re.compile(
    r"-?(?:mph|mpg|gb|mb|kg|km|lbs?|oz|ml|cm|mm|ft|kb|g|l|m)\b|%|-(?=[a-z])|[\s.,;?!)]|$", re.IGNORECASE
)
_MAGNITUDE = re.compile(
    r"[\s-]+(?:hundred|thousand|million|billion|and\s+(?:a\s+half|one[\s-]half|\d+/\d+)|\d+/\d+"
    r"|(?:half|halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|twent\w+ths?)\b"
    r"|(?:point|o'clock|a\.?m\b|p\.?m\b))",
    re.IGNORECASE,
)
_ABBREVIATION = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|vs|etc|approx|No|in|oz|lbs?|ft|a\.m|p\.m|U\.S|[A-Z])\.$"
)
_STOP = frozenset(
    _WORD.findall(
        "the a an of to in on at for from with and or but if then than that this these those it its he"
        " she they them his her their him is are was were be been has have had does do did will would can"
        " could should each every all also as so by into per there which who what how many much more less"
        " most some any not only after before when while since because out up down about over under again"
        " same other another i you we my your our"
    )
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a sentence: text[start:end], its value, and whether it may be rewritten.

    `plain` is False for ordinals, times, fractions, "two hundred" and the like: they are seen, so that their
    values count as taken, but never changed. `forms` are the values that it may have in a calculation (40% is
    also 0.4, 50 cents also 0.5).
    """

    start: int
    end: int
    value: Fraction
    plain: bool
    forms: tuple[Fraction, ...]


def sentences(text: str) -> list[str]:
    """Split a question into its sentences. Decimals, "$1.50", "Mr." and initials do not end one.

    >>> sentences("Mr. Lee has $1.50. How much is left?")
    ['Mr. Lee has $1.50.', 'How much is left?']
    """
    found: list[str] = []
    start = 0
    for match in re.finditer(r"[.?!]+[\"')\u201d\u2019]*(?=\s|$)|\n+", text):
        piece = text[start : match.end()]
        following = text[match.end() :].lstrip()
        quoted = match.group()[-1] in "\"')\u201d\u2019"
        if quoted and following[:1].islower():
            continue
        if match.group().strip() == ".":
            if _ABBREVIATION.search(piece) and not _starts_sentence(piece, following):
                continue
            if following[:1].islower():
                continue
        if piece.strip():
            found.append(re.sub(r"\s+", " ", piece).strip())
        start = match.end()
    if text[start:].strip():
        found.append(re.sub(r"\s+", " ", text[start:]).strip())
    return found


def _starts_sentence(piece: str, following: str) -> bool:
    """Whether what follows an abbreviation that is also a unit ("5 ft. He ...") begins a sentence."""
    unit = re.search(r"\d\s*(?:in|oz|lbs?|ft|a\.m|p\.m)\.$|(?:a|p)\.m\.$", piece)
    return bool(unit) and following[:1].isupper()


@lru_cache(maxsize=1 << 15)
def numbers(text: str) -> tuple[Number, ...]:
    """Return the numbers of a sentence in order, written in digits or in words ("twice" is 2)."""
    return tuple(_number(text, match) for match in _TOKEN.finditer(text))


def rewrite(text: str, number: Number, value: int | Fraction) -> str:
    """Return `text` with `number` set to `value`, written in the manner of the original."""
    old = text[number.start : number.end]
    if old.lower() == "twice":
        new = f"{_SMALL.get(int(value), str(value))} times"
    elif old[0].isalpha():
        new = _SMALL.get(int(value), str(int(value)))
    else:
        decimals = len(old.partition(".")[2])
        new = f"{float(value):.{decimals}f}"
        if "," in old or ("$" in text[: number.start][-1:] and value >= 10_000):
            new = f"{float(value):,.{decimals}f}"
    if old[0].isupper():
        new = new[0].upper() + new[1:]
    return text[: number.start] + new + text[number.end :]


def decimals(text: str, number: Number) -> int:
    """Return how many digits the number shows behind its point."""
    return len(text[number.start : number.end].partition(".")[2])


def slots(texts: list[str]) -> list[str]:
    """Return a short distinct key for each sentence, of content words that set it apart."""
    contents = [_content(text) for text in texts]
    keys: list[str] = []
    for words in contents:
        counts = {word: sum(word in other for other in contents) for word in words}
        rare = sorted(words, key=lambda word: counts[word])[:3]  # stable: early words first among equals
        key = " ".join(word for word in words if word in rare) or "note"
        while key in keys:
            key = f"{key} {sum(known.startswith(key) for known in keys) + 1}"
        keys.append(key)
    return keys


def _content(text: str) -> list[str]:
    words = re.findall(r"[a-z]{3,}", re.sub(r"['\u2019]s\b", "", text.lower()))
    return list(dict.fromkeys(word for word in words if word not in _STOP and word not in WORDS))


def _number(text: str, match: re.Match[str]) -> Number:
    written = match.group()
    before, after = text[: match.start()], text[match.end() :]
    magnitude = _MAGNITUDE.match(after)
    if match.group("digits"):
        value = Fraction(written.replace(",", ""))
        touches = (
            re.search(r"[\w/:\-\u2013]$", before) is not None or re.search(r"\d\s*/\s*$", before) is not None
        )
        plain = (
            not touches
            and _UNIT_AFTER.match(after) is not None
            and re.match(r"\s*/\s*\d|[.,]\d", after) is None
        )
    else:
        lowered = written.lower()
        tens, _, unit = lowered.partition("-")
        value = Fraction(2) if lowered == "twice" else Fraction(WORDS[tens] + (WORDS[unit] if unit else 0))
        # "one" and "zero" are seldom quantities to change, and "two-thirds" is no two
        plain = (
            value >= 2 and re.search(r"[-\w]$", before) is None and re.match(r"-(?!\w*\b)|'", after) is None
        )
    if magnitude is not None or re.search(r"\b(?:hundred|thousand|million)(?:\s+and)?\s*$", before):
        plain = False
    forms = [value]
    if re.match(r"\s*(?:%|percent|cents?\b|\u00a2)", after):
        forms.append(value / 100)
    return Number(match.start(), match.end(), value, plain, tuple(forms))
