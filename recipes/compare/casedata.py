"""The page's data: a small index of all cases, and for each pair id one packed chunk that a browser opens on demand.

The same utterances and oracle states come back in every row, so a chunk holds each text once, and the rest points
at it. Chunks are gzip in base64, which no browser takes for markup; the index is JSON with every character escaped
that could end its element.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from recipes.cases import Case
from recipes.compare.grid import CONDITIONS, is_graded, row_order
from recipes.compare.summary import Summary

VERDICTS = ("ungraded", "full", "partial", "wrong")
FLAGS = ("deleted goal obeyed", "value misbound", "stale leak", "tracker slip")


def index(summary: Summary, cases: Sequence[Case]) -> dict[str, Any]:
    """Return the index: names once, and one short list a case.

    A case is [pair, row, condition, verdict, score or null, flags as bits, turns].
    """
    pairs = by_pair(cases)
    rows = {row: place for place, row in enumerate(summary.rows)}
    conditions = {name: place for place, name in enumerate(summary.conditions)}
    return {
        "rows": summary.rows,
        "reference": summary.reference,
        "conditions": summary.conditions,
        "strata": summary.strata,
        "families": summary.families,
        "verdicts": VERDICTS,
        "flags": FLAGS,
        "pairs": [[pair, found[0].stratum, found[0].family] for pair, found in pairs.items()],
        "cases": [
            [
                place,
                rows[case.harness],
                conditions[case.condition],
                VERDICTS.index(verdict(case)),
                None if not is_graded(case) else round(float(case.score or 0), 4),
                _flags(case),
                case.turns,
            ]
            for place, found in enumerate(pairs.values())
            for case in found
        ],
    }


def by_pair(cases: Sequence[Case]) -> dict[str, list[Case]]:
    """Return the cases of each pair id, ids sorted; in each, conditions and rows as in the tables."""
    found: dict[str, list[Case]] = {}
    order = sorted(
        cases, key=lambda case: (case.case, CONDITIONS.index(case.condition), row_order(case.harness))
    )
    for case in order:
        found.setdefault(case.case, []).append(case)
    return found


def pack(cases: Sequence[Case]) -> str:
    """Return cases as base64 of gzip of `{"texts": [...], "cases": [...]}`; texts of turns are places in `texts`."""
    texts: dict[str, int] = {}

    def place(text: str) -> int:
        return texts.setdefault(text, len(texts))

    packed = []
    for case in cases:
        plain = case.model_dump(mode="json", exclude={"history"})
        plain["verdict"] = verdict(case)
        plain["history"] = [
            {
                "utterance": place(turn.utterance),
                "edits": [place(text) for text in turn.edits],
                "oracle": [place(text) for text in turn.oracle],
                "tracker": None if turn.tracker is None else [place(text) for text in turn.tracker],
                "derived": [place(text) for text in turn.derived],
                "slip": turn.slip,
                "shown": None if turn.shown is None else place(turn.shown),
                "reply": place(turn.reply),
            }
            for turn in case.history
        ]
        packed.append(plain)
    data = json.dumps(finite({"texts": list(texts), "cases": packed}), allow_nan=False)
    return base64.b64encode(gzip.compress(data.encode(), mtime=0)).decode()


def verdict(case: Case) -> str:
    """Return one of `VERDICTS`."""
    if not is_graded(case):
        return "ungraded"
    return "full" if case.full_credit else "partial" if (case.score or 0) > 0 else "wrong"


def inline_json(data: Any) -> str:
    """Return JSON that can stand in a script element: no character in it ends one or opens a comment."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def finite(value: Any) -> Any:
    """Return JSON data in which NaN and infinities, which JSON lacks, stand as words."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _flags(case: Case) -> int:
    slipped = any(turn.slip for turn in case.history)
    marks = (case.delete_obeyed, case.misbound, case.stale_leak, slipped)
    return sum(1 << place for place, mark in enumerate(marks) if mark)
