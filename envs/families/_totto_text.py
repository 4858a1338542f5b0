"""Where a reference sentence says a goal's value, and the same sentence with values changed or left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

Span = tuple[int, int]


def mentions(sentence: str, value: str) -> list[Span]:
    """Return where `value` stands as whole words, in any case; "1" does not stand in "1.5" or "21"."""
    pattern = rf"(?<!\w)(?<!\d[.,]){re.escape(value)}(?!\w|[.,]\d)"
    return [match.span() for match in re.finditer(pattern, sentence, re.IGNORECASE)]


def locate(sentence: str, values: Mapping[str, Sequence[str]]) -> dict[str, list[Span]]:
    """Return goal id -> where its value stands; `values` holds the forms of each goal's value, best first.

    Longer values are placed first, and no place belongs to two goals. A form that two goals share is not
    looked for: which place is whose cannot be known.
    """
    shared = Counter(form for forms in values.values() for form in {form.casefold() for form in forms})
    found: dict[str, list[Span]] = {}
    taken: list[Span] = []
    for id in sorted(values, key=lambda id: -len(values[id][0])):
        for form in values[id]:
            if shared[form.casefold()] > 1:
                continue
            free = [span for span in mentions(sentence, form) if not any(_overlap(span, t) for t in taken)]
            if free:
                found[id] = free
                taken += free
                break
    return found


def rewrite(sentence: str, changes: Sequence[tuple[Span, str]]) -> str:
    """Return the sentence with each span set to its new text; "" takes the words out."""
    for (start, end), new in sorted(changes, reverse=True):
        sentence = sentence[:start] + new + sentence[end:]
    sentence = re.sub(r"\(\s*\)", "", sentence)
    return re.sub(r"\s+([.,;:!?)])", r"\1", re.sub(r"\s+", " ", sentence)).strip()


def extend(sentence: str, clause: str) -> str:
    """Return the sentence with a clause before its full stop."""
    body = sentence.rstrip()
    end = body[-1] if body.endswith((".", "!", "?")) else ""
    return f"{body.removesuffix(end)}, {clause}{end}"


def _overlap(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]
