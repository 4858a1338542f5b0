"""Numbers in free text, as exact rationals.

A number starts at a digit (or at a sign, a currency sign or a point directly before one), its thousands
groups are `1,234`, `1{,}234` or `1\\,234`, and it has at most one decimal point. Currency, percent signs and
units are dropped; `a/b`, `1 1/2` and `\\frac{a}{b}` are read as rationals.
"""

from __future__ import annotations

import re
from fractions import Fraction

_MAX_DIGITS = 400  # longer runs of digits are noise, and int() refuses them past 4300
_UINT = r"(?:[0-9]{1,3}(?:(?:,|\{,\}|\\,|\\!)[0-9]{3})+(?![0-9])|[0-9]+)"
_BODY = rf"(?:{_UINT}(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+)"
_SIGN = r"(?<![\w)\]}])[-\u2212]"  # in "9-4" the dash is no sign
_CURRENCY = r"\\?[$\u20ac\u00a3]\s?"
_NUMBER = re.compile(
    rf"(?P<sign>{_SIGN})?(?:{_CURRENCY})?(?P<sign2>{_SIGN})?"
    rf"(?:\\[dt]?frac\{{(?P<fnum>[0-9]+)\}}\{{(?P<fden>[0-9]+)\}}"
    r"|(?P<whole>[0-9]+)\s+(?P<mnum>[0-9]+)/(?P<mden>[0-9]+)(?![0-9/]|\.[0-9])"
    rf"|(?P<num>{_BODY})(?:\s?/\s?(?P<den>[0-9]+)(?![0-9/]|\.[0-9]))?)"
)
_WHOLE = re.compile(rf"\$?(?P<number>{_NUMBER.pattern})\$?\s?(?:\\?%)?[a-zA-Z\s.]*\$?")
_MARKER = re.compile(r"####|\\boxed\s*\{|\banswer\s*(?:\*\*)?\s*(?:is\b|:|=)", re.IGNORECASE)
_SEPARATORS = re.compile(r"[,{}\\!]")


def _value(match: re.Match[str]) -> Fraction | None:
    """Return the rational of a `_NUMBER` match; None for a zero denominator or an absurd length."""
    if match.end() - match.start() > _MAX_DIGITS:
        return None
    group = match.groupdict()
    denominator = int(group["fden"] or group["mden"] or group["den"] or 1)
    if denominator == 0:
        return None
    if group["fnum"]:
        value = Fraction(int(group["fnum"]), denominator)
    elif group["whole"]:
        value = int(group["whole"]) + Fraction(int(group["mnum"]), denominator)
    else:
        value = Fraction(_SEPARATORS.sub("", group["num"])) / denominator
    return -value if group["sign"] or group["sign2"] else value


def _numbers(text: str) -> list[Fraction]:
    values = (_value(match) for match in _NUMBER.finditer(text))
    return [value for value in values if value is not None]


def _marked(text: str, marker: re.Match[str]) -> Fraction | None:
    """Return the number that a final-answer marker points at, if any."""
    rest = text[marker.end() :]
    if marker.group().startswith("\\boxed"):
        rest = _braced(rest)
    else:
        rest = rest.lstrip(" \t\r\n:*").split("\n", 1)[0]
        rest = rest.split("####", 1)[0]
    # "the answer is 5 + 3 = 8": what follows the last equals sign is the result
    for part in (rest.rpartition("=")[2], rest):
        found = _numbers(part)
        if found:
            return found[0]
    return None


def _braced(text: str) -> str:
    """Return `text` up to the brace that closes one opened before it."""
    depth = 1
    for at, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[:at]
    return text


def parse_number(text: str) -> Fraction | None:
    """Return the value of a text that is one number, with or without currency, percent or unit; else None.

    >>> parse_number("$1,250.50"), parse_number("12 miles"), parse_number("5 or 6")
    (Fraction(2501, 2), Fraction(12, 1), None)
    """
    match = _WHOLE.fullmatch(text.strip())
    if match is None:
        return None
    inner = _NUMBER.fullmatch(match.group("number"))
    return None if inner is None else _value(inner)


def extract_number(text: str) -> Fraction | None:
    """Return the final answer of a worked text, or None where it holds no number.

    The last explicit marker (`####`, `\\boxed{}`, "answer is", "Answer:") that is followed by a number wins;
    without one, the last number of the text.
    """
    for marker in reversed(list(_MARKER.finditer(text))):
        value = _marked(text, marker)
        if value is not None:
            return value
    found = _numbers(text)
    return found[-1] if found else None


def format_number(value: Fraction) -> str:
    """Return the shortest exact decimal ("12.5"), or "a/b" where no finite decimal exists."""
    denominator, digits = value.denominator, 0
    while denominator % 10 == 0 or denominator % 5 == 0 or denominator % 2 == 0:
        denominator //= 10 if denominator % 10 == 0 else 5 if denominator % 5 == 0 else 2
        digits += 1
    if denominator != 1:
        return f"{value.numerator}/{value.denominator}"
    if digits == 0:
        return str(value.numerator)
    scaled = str(abs(value.numerator) * 10**digits // value.denominator).rjust(digits + 1, "0")
    text = f"{scaled[:-digits]}.{scaled[-digits:]}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 else text
