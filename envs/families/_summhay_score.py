"""SummHay's arithmetic: bullets, citations, and coverage times citation F1; as published, and done right.

The published rules (salesforce/summary-of-a-haystack, microsoft/lost_in_conversation) are kept to the letter
under `official_*`, defects included; the others are ours. docs/text-families.md lists the differences.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

PARTIAL = 0.5
WORDS = 300
_COVERED = {"FULL_COVERAGE": 1.0, "PARTIAL_COVERAGE": PARTIAL}
_WIDEST = 1000  # documents in a range; more is no citation

_MARK = re.compile(r"\s*(?:[-*+•‣◦▪–—]|\(?[0-9]{1,3}[.)])\s+")
_HEADING = re.compile(r"\s*(?:#{1,6}\s.*|(\*\*|__)[^*_\[\]]+(\*\*|__):?\s*|[^\[\]]*:\s*|[-*_=]{3,}\s*)$")
_GROUP = re.compile(r"[\[【]([^\[\]【】]*)[\]】]")
_WORD = r"(?:(?:docs?|documents?|articles?|conversations?|sources?|refs?)\.?\s*|#|\^|no\.\s*)*"
_ITEM = re.compile(
    rf"\s*{_WORD}([0-9]{{1,6}})(?:\s*(?:[-–—]|\bto\b)\s*{_WORD}([0-9]{{1,6}}))?"
    r"(?:(?:\s*(?:[,;&]|\band\b))+\s*|\s+|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Score:
    """Means over the insights of one summary, in [0, 1]. `citation` is over the covered ones, None without."""

    coverage: float
    citation: float | None
    joint: float
    joints: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"coverage": self.coverage, "citation": self.citation, "joint": self.joint}


def bullets_of(summary: str) -> list[str]:
    """Return the points of a summary: list items with their continuation lines, or else its lines.

    Blank lines, headings, rules and lines that only introduce a list ("The main points:") are no points.
    """
    lines = summary.splitlines()
    listed = any(_MARK.match(line) for line in lines)
    found: list[str] = []
    goes_on = False  # whether the next plain line belongs to the last point
    for line in lines:
        if not line.strip():
            goes_on = False
        elif mark := _MARK.match(line):
            found.append(line[mark.end() :].strip())
            goes_on = True
        elif _HEADING.fullmatch(line):
            goes_on = False
        elif found and listed and (goes_on or line[:1].isspace()):
            found[-1] += f" {line.strip()}"
        else:
            found.append(line.strip())
    return [text for text in found if text]


def official_bullets(summary: str, layout: str) -> list[str]:
    """Return the lines that the published code numbers from 1.

    "topics": all lines with text, headings too. "sharded": all lines, blank ones too; a summary of more than
    300 words is cut, each line by the same share.
    """
    if layout == "topics":
        return [line.strip() for line in summary.split("\n") if line.strip()]
    lines = summary.split("\n")
    total = sum(len(line.split()) for line in lines)
    if total <= WORDS:
        return lines
    kept = 1 - (total - WORDS) / total
    return [
        " ".join(words[: max(1, int(len(words) * kept))]) if (words := line.split()) else line
        for line in lines
    ]


def same_bullets(own: Sequence[str], published: Sequence[str]) -> bool:
    """Return whether both ways number the same points, list marks aside."""
    marks = [_MARK.match(line) for line in published]
    return list(own) == [
        line[mark.end() if mark else 0 :].strip() for line, mark in zip(published, marks, strict=True)
    ]


def citations_of(bullet: str) -> set[int]:
    """Return the documents that a bullet cites: [1], [1, 4], [1][4], [2-5], [Doc 3; Doc 7], 【3】.

    Square brackets that hold anything else ("[300 words]") are no citation.
    """
    found: set[int] = set()
    for group in _GROUP.findall(bullet):
        cited = _group(group)
        found |= cited
    return found


def _group(text: str) -> set[int]:
    found: set[int] = set()
    at = 0
    while at < len(text):
        match = _ITEM.match(text, at)
        if match is None:
            return set()
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + _WIDEST:
            return set()
        found.update(range(first, last + 1))
        at = match.end()
    return found


def official_citations(bullet: str) -> set[int]:
    """Return what the published pattern finds: numbers, commas and blanks in square brackets."""
    groups = re.findall(r"\[([\d, ]+)\]", bullet)
    return {int(part.strip()) for group in groups for part in group.split(",") if part.strip()}


def f1(cited: Set[int], wanted: Set[int]) -> float:
    """Return the F1 of cited against wanted documents; 0 where either is empty."""
    if not cited or not wanted:
        return 0.0
    hits = len(cited & wanted)
    precision, recall = hits / len(cited), hits / len(wanted)
    return 2 * precision * recall / (precision + recall) if hits else 0.0


def score(
    bullets: Sequence[str],
    verdicts: Sequence[tuple[str, int | None]],
    wanted: Sequence[Set[int]],
) -> Score:
    """Return the score of a summary: mean over insights of coverage times citation F1 of the chosen bullet.

    `verdicts` and `wanted` go by insight: (level, bullet from 1), and the documents that support it.
    """
    f1s = [
        f1(citations_of(bullets[bullet - 1]), documents) if bullet is not None else 0.0
        for (_, bullet), documents in zip(verdicts, wanted, strict=True)
    ]
    return _means([_COVERED.get(level, 0.0) for level, _ in verdicts], f1s)


def official_score(
    bullets: Sequence[str],
    evals: Sequence[Mapping[str, Any]],
    wanted: Mapping[str, Set[int]],
    offset: int = 0,
) -> Score:
    """Return the published score of judge verdicts {"insight_id", "coverage", "bullet_id"}.

    A bullet id that is no number counts as -1 and scores the last bullet but one. Where the published code
    crashes, so does this: `KeyError`, `IndexError`, `ValueError`.
    """
    levels: list[float] = []
    f1s: list[float] = []
    for verdict in evals:
        level, found = _COVERED.get(verdict["coverage"], 0.0), 0.0
        if level:
            try:
                chosen = int(verdict["bullet_id"])
            except (TypeError, ValueError):
                chosen = -1
            cited = {number + offset for number in official_citations(bullets[chosen - 1])}
            found = f1(cited, wanted[verdict["insight_id"]])
        levels.append(level)
        f1s.append(found)
    return _means(levels, f1s)


def ceiling(bullets: Sequence[str], wanted: Sequence[Set[int]]) -> float:
    """Return the highest joint score that these bullets can get, whatever a judge says of them."""
    cited = [citations_of(bullet) for bullet in bullets]
    best = [max((f1(numbers, documents) for numbers in cited), default=0.0) for documents in wanted]
    return math.fsum(best) / len(best)


def verbatim(insight: str, bullets: Sequence[str]) -> int | None:
    """Return the number of the first bullet that is the insight word for word, citations aside; else None."""
    plain = _plain(insight)
    return next((n for n, bullet in enumerate(bullets, 1) if _plain(bullet) == plain), None)


def _plain(text: str) -> str:
    return " ".join(_GROUP.sub(" ", text).casefold().split()).strip(" .*_-")


def _means(levels: list[float], f1s: list[float]) -> Score:
    covered = [found for level, found in zip(levels, f1s, strict=True) if level]
    joints = tuple(level * found for level, found in zip(levels, f1s, strict=True))
    count = len(levels)
    return Score(
        math.fsum(levels) / count,
        math.fsum(covered) / len(covered) if covered else None,
        math.fsum(joints) / count,
        joints,
    )
