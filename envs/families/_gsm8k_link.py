"""Where the numbers of a worked solution come from, so that a changed question can be worked out again.

Every leaf of the calculator annotations is matched with the numbers of the question, with the results of
earlier steps and with constants that the wording explains (a week has 7 days). A question number is *linked*
only when nothing else could explain its leaves, and when everything that it reaches, step by step up to the
last one, is just as certain. Doubt anywhere on that way leaves the number alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from envs.calculator import Exact, Step, evaluate, exact
from envs.families._gsm8k_text import Number, numbers

# Where the wording hints at a constant, it is explained, and a question number of that value is doubtful.
_CONSTANTS: dict[Exact, str] = {
    Fraction(value): hint
    for value, hint in {
        "2": r"half|halve|double|both|couple|pair|weekend|round.?trip|twin|each other|and back|semi|two",
        "3": r"third|triple|thrice|yard|trio|triplet|triangle|three",
        "4": r"quarter|fourth|quadruple|month|square|quart|season",
        "5": r"fifth|weekday|nickel|week|quintuple|school|penta",
        "6": r"sixth|half|hexa|cube",
        "7": r"week|days?\b|daily",
        "8": r"eighth|spider|octo",
        "9": r"ninth",
        "10": r"tenth|dime|decade|decimal|cm|%|percent",
        "12": r"dozen|year|month|annual|foot|feet|inch|o'clock|noon|midnight|[ap]\.?m\b",
        "14": r"week|fortnight",
        "16": r"ounce|pound",
        "20": r"score|nickel",
        "24": r"day|daily|hour",
        "25": r"quarter",
        "30": r"month|half|hour|april|june|september|november",
        "31": r"month|january|march|may|july|august|october|december",
        "36": r"yard|inch|feet|foot",
        "50": r"half|halve",
        "52": r"week|year|annual",
        "60": r"minute|hour|second",
        "90": r"angle",
        "100": r"%|percent|cent|dollar|\$|century|meter",
        "180": r"angle|half",
        "360": r"angle|circle|year|day",
        "365": r"year|day|annual",
        "1000": r"kilo|kg|km|\bml\b|milli|thousand|ton|gram",
        "2000": r"ton",
        "5280": r"mile",
        "0.5": r"half|halve|mid|-hour",
        "0.25": r"quarter",
        "0.75": r"quarter",
        "0.2": r"fifth",
        "0.01": r"%|percent|cent",
        "0.05": r"nickel",
        "0.1": r"tenth|dime|%|percent",
        "1.5": r"half|-hour",
        "2.5": r"half",
        "3.5": r"half",
    }.items()
}


@dataclass(frozen=True, slots=True)
class Source:
    """One possible origin of a leaf: an earlier step, or a question number in one of its forms."""

    step: int | None = None
    goal: int = -1
    number: int = -1
    form: int = -1


@dataclass(frozen=True, slots=True)
class Links:
    """`sources[(step, leaf)]` for every certain leaf; `linked`: the (goal, number) that may be changed."""

    sources: Mapping[tuple[int, int], Source]
    linked: frozenset[tuple[int, int]]
    reason: str | None
    """Why nothing is linked, or None."""


def forms(text: str, number: Number, value: Exact) -> tuple[Exact, ...]:
    """Return the values a number of the question may take in a calculation, in a fixed order.

    40% may stand as 40, 0.4, 60, 0.6, 140 or 1.4; 50 cents as 50 or 0.5.
    """
    if len(number.forms) == 1:
        return (exact(value),)
    value = Fraction(value)
    if re.match(r"\s*(?:%|percent)", text[number.end :]):
        return value, value / 100, 100 - value, 1 - value / 100, 100 + value, 1 + value / 100
    return value, value / 100


def link(texts: Sequence[str], steps: Sequence[Step], answer: Fraction) -> Links:
    """Match the leaves of `steps` with the numbers of the sentences `texts`."""
    if not steps:
        return Links({}, frozenset(), "the solution holds no calculator annotation")
    if any(evaluate(step, step.leaves) != step.result for step in steps):
        return Links({}, frozenset(), "an annotation does not evaluate to what it states")
    if steps[-1].result != answer:
        return Links({}, frozenset(), "the last annotation is not the answer")
    question = " ".join(texts).lower()
    said: dict[Exact, list[Source]] = {}
    plain: set[tuple[int, int]] = set()
    for g, text in enumerate(texts):
        for n, number in enumerate(numbers(text)):
            if number.plain:
                plain.add((g, n))
            for f, value in enumerate(forms(text, number, number.value)):
                said.setdefault(value, []).append(Source(None, g, n, f))

    sources: dict[tuple[int, int], Source] = {}
    doubtful: set[Source] = set()
    for s, step in enumerate(steps):
        for at, value in enumerate(step.leaves):
            candidates = list(said.get(value, []))
            candidates += [Source(step=j) for j in range(s) if steps[j].result == value]
            hinted = value in _CONSTANTS and re.search(_CONSTANTS[value], question) is not None
            if len(candidates) == 1 and not hinted:
                sources[s, at] = candidates[0]
            elif candidates:
                doubtful.update(candidates)
            elif not hinted and value != 1:
                return Links(
                    {}, frozenset(), f"{value} in step {s + 1} is neither stated nor computed before"
                )
    linked = {number for number in plain if _certain(number, sources, doubtful, len(steps) - 1)}
    reason = None if linked else "no number of the question can be followed to the answer without doubt"
    return Links(sources, frozenset(linked), reason)


def _certain(
    number: tuple[int, int], sources: Mapping[tuple[int, int], Source], doubtful: set[Source], last: int
) -> bool:
    """Whether all that `number` reaches is certain and leads on to the last step."""
    doubted_numbers = {(source.goal, source.number) for source in doubtful if source.step is None}
    doubted_steps = {source.step for source in doubtful if source.step is not None}
    reached: set[int] = set()
    edge = {s for (s, _), source in sources.items() if (source.goal, source.number) == number}
    if not edge or number in doubted_numbers:
        return False
    while edge:
        reached |= edge
        edge = {s for (s, _), source in sources.items() if source.step in edge} - reached
    if last not in reached or reached & doubted_steps:
        return False
    used = {source.step for source in sources.values()}
    return all(step in used or step == last for step in reached)
