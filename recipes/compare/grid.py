"""Cases as arrays: one place a pair id, the same in every row and condition, NaN where nothing is known.

A case without a verdict is NaN in every measure, never zero, and counted as ungraded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from envs.errors import DataError, unknown_name
from recipes.cases import STRATA, Case

ALL = "all"
CONDITIONS = ("drift", "turn_matched", "clean")
MEASURES = ("score", "car", "delete_obeyed", "misbound", "stale_leak", "state_exact")
AMOUNTS = (
    "turns",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "tracker_tokens",
    "seconds",
    "engine_seconds",
    "retries",
)
_ORDER = ("bare", "clean", "recap", "summary", "compact", "", "stateforge", "executor", "oracle")
ABSENT, GRADED, UNGRADED = 0, 1, 2


class Grid:
    """All cases of a run. Arrays are float64 [pairs] or bool [pairs]; `pairs` is sorted."""

    def __init__(self, cases: Sequence[Case], reference: str | None = None) -> None:
        """Raises `DataError` for contradicting cases, `UnknownName` for a reference that is no row."""
        kept = distinct(cases)
        self.cases = kept
        self.rows = sorted({case.harness for case in kept}, key=row_order)
        self.reference = _reference(self.rows, reference)
        self.conditions = [name for name in CONDITIONS if any(case.condition == name for case in kept)]
        facts = _facts(kept)
        self.pairs = sorted(facts)
        self._place = {pair: index for index, pair in enumerate(self.pairs)}
        self.tasks = [facts[pair][0] for pair in self.pairs]
        self.family = np.array([facts[pair][1] for pair in self.pairs], dtype=object)
        self.stratum = np.array([STRATA[facts[pair][2]] for pair in self.pairs], dtype=object)
        self.families = sorted(set(self.family))
        self.strata = [name for name in STRATA.values() if name in set(self.stratum)]
        self._values: dict[tuple[str, str, str], np.ndarray] = {}
        self._state: dict[tuple[str, str], np.ndarray] = {}
        for case in kept:
            self._enter(case)

    def values(self, row: str, condition: str, measure: str) -> np.ndarray:
        """Return a measure, or an amount of graded cases; NaN where the row has no graded case or it is unknown."""
        found = self._values.get((row, condition, measure))
        return np.full(len(self.pairs), np.nan) if found is None else found

    def state(self, row: str, condition: str) -> np.ndarray:
        """Return ABSENT, GRADED or UNGRADED for each pair."""
        found = self._state.get((row, condition))
        return np.zeros(len(self.pairs), dtype=np.int8) if found is None else found

    def has(self, row: str, condition: str) -> bool:
        """Whether the row has a case, graded or not, in the condition."""
        return (row, condition) in self._state

    def where(self, stratum: str = ALL, family: str = ALL) -> np.ndarray:
        """Return which pairs lie in a stratum and a family."""
        inside = np.full(len(self.pairs), True)
        if stratum != ALL:
            inside &= self.stratum == stratum
        if family != ALL:
            inside &= self.family == family
        return inside

    def clean_of(self, row: str) -> tuple[str, str] | None:
        """Return the (row, condition) that holds what the agent does when it is given G* in one turn.

        The row's own clean condition; where it was not run so, that of the harness `clean`, then the
        reference's: without drift there is nothing for a harness to repair.
        """
        for place in ((row, "clean"), ("clean", "clean"), ("clean", "drift"), (self.reference, "clean")):
            if self.has(*place):
                return place
        return None

    def _enter(self, case: Case) -> None:
        here, place = self._place[case.case], (case.harness, case.condition)
        if place not in self._state:
            self._state[place] = np.zeros(len(self.pairs), dtype=np.int8)
            for name in (*MEASURES, *AMOUNTS):
                self._values[(*place, name)] = np.full(len(self.pairs), np.nan)
        graded = is_graded(case)
        self._state[place][here] = GRADED if graded else UNGRADED
        if not graded:
            return
        known = {
            "score": case.score,
            "car": case.full_credit,
            "delete_obeyed": case.delete_obeyed if case.deletes else None,
            "misbound": case.misbound if case.replaces else None,
            "stale_leak": case.stale_leak,
            "state_exact": case.state_exact,
            **{name: getattr(case, name) for name in AMOUNTS},
        }
        for name, value in known.items():
            if value is not None:
                self._values[(*place, name)][here] = float(value)


def is_graded(case: Case) -> bool:
    """Whether the case has a verdict."""
    return (
        case.error is None
        and case.score is not None
        and case.full_credit is not None
        and math.isfinite(case.score)
    )


def row_order(row: str) -> tuple[int, str]:
    """Sort key of rows: baselines first, then StateForge, then what knows the oracle."""
    ranks = [rank for rank, name in enumerate(_ORDER) if name and row.startswith(name)]
    return (ranks[0] if ranks else _ORDER.index(""), row)


def distinct(cases: Sequence[Case]) -> list[Case]:
    """Return one case a key, sorted: a graded one stands in for tries that could not be graded."""
    found: dict[tuple[str, str, str], Case] = {}
    for case in cases:
        other = found.get(case.key)
        if other is not None and is_graded(case) and is_graded(other):
            raise DataError(
                f"case {case.case!r} of {case.harness!r} ({case.condition}) is graded twice; one of the lines must go"
            )
        if other is None or (not is_graded(other) and (is_graded(case) or _text(case) < _text(other))):
            found[case.key] = case
    return [found[key] for key in sorted(found)]


def _text(case: Case) -> str:
    return case.model_dump_json()


def _facts(cases: Sequence[Case]) -> dict[str, tuple[str, str, int]]:
    """Return (task, family, budget) of each pair id; raises `DataError` where two cases disagree."""
    facts: dict[str, tuple[str, str, int]] = {}
    for case in cases:
        mine = (case.task_id, case.family, int(case.budget))
        if facts.setdefault(case.case, mine) != mine:
            raise DataError(
                f"case {case.case!r} is {facts[case.case]} in one row and {mine} in {case.harness!r}: "
                "rows of a comparison must have the same cases"
            )
    return facts


def _reference(rows: Sequence[str], wanted: str | None) -> str:
    if wanted is not None and wanted not in rows:
        raise unknown_name("reference row", wanted, rows)
    if wanted is not None or not rows:
        return wanted or ""
    return "bare" if "bare" in rows else rows[0]
