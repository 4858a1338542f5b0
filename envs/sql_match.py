"""When two query results are the same: the official rules of Spider and BIRD, and the strict one.

`suite_match` and `suite_text` follow taoyds/test-suite-sql-eval (exec_eval.py, parse.py; Apache-2.0 project),
`bird_match` follows bird-bench/mini_dev (evaluation_ex.py). All code here is our own.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from envs.sandbox_sql import Row

TOLERANCE = 1e-6
"""Relative, below 1 absolute: sums of floats differ in their last digits with the order of the scan."""
_MAX_STEPS = 20_000  # of the search for a column order; results that need more are alike in most columns

# One token that `suite_text` must not look into: a string, a quoted name, a comment; else a word or a sign.
_TOKEN = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|\w+|.", re.DOTALL
)
_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)


def suite_text(sql: str, keep_distinct: bool) -> str:
    """Return the text that the test-suite evaluator runs for a query.

    `> =`, `< =` and `! =` are closed up, `YEAR(CURDATE())` is 2020, and unless `keep_distinct` every DISTINCT
    goes, with all that follows the first semicolon (its tokeniser keeps the first statement only).
    """
    for split, closed in (("> =", ">="), ("< =", "<="), ("! =", "!=")):
        sql = sql.replace(split, closed)
    if not keep_distinct:
        kept: list[str] = []
        for token in _TOKEN.findall(sql):
            if token.lower() != "distinct":
                kept.append(token)
            if token == ";":
                break
        sql = "".join(kept)
    return _YEAR.sub("2020", sql)


def suite_match(gold: Sequence[Row], found: Sequence[Row], ordered: bool) -> bool:
    """Compare as the test-suite evaluator does: some order of the columns makes the rows equal.

    Rows as a list if `ordered`, else as a multiset; cells by Python's `==`, so 42 is 42.0 and not "42".
    """
    if not gold or not found:
        return not gold and not found
    if len(gold) != len(found) or len(gold[0]) != len(found[0]):
        return False
    # Its quick rejection compares rows sorted by the text and type of their cells; it decides first.
    sorted_gold, sorted_found = [_cells(row) for row in gold], [_cells(row) for row in found]
    if sorted_gold != sorted_found if ordered else set(sorted_gold) != set(sorted_found):
        return False
    groups = [(len(gold), gold)] if not ordered else [(1, [row]) for row in gold]
    return _column_order(groups, found) is not None


def _cells(row: Row) -> Row:
    return tuple(sorted(row, key=lambda cell: str(cell) + str(type(cell))))


def bird_match(gold: Sequence[Row], found: Sequence[Row]) -> bool:
    """Compare as BIRD does: as sets of rows. Order and duplicates of rows do not count, columns do."""
    return set(gold) == set(found)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the gold asks for. `groups` holds, in order, how many rows are wanted and of which rows.

    Without ORDER BY it is one group. With it, rows that the sort keys cannot tell apart are a group, in any
    order; where a limit cuts through such rows, fewer are wanted than the group has.
    """

    rows: Sequence[Row]
    groups: Sequence[tuple[int, Sequence[Row]]]

    @property
    def tied(self) -> bool:
        """Whether a limit cuts rows that the sort keys cannot tell apart and that differ."""
        return any(count < len(rows) and len(set(rows)) > 1 for count, rows in self.groups)


def wanted(rows: Sequence[Row], ordered: bool) -> Wanted:
    """Return what a gold with these rows asks for, each place fixed if `ordered`."""
    return Wanted(rows, [(1, [row]) for row in rows] if ordered else [(len(rows), rows)])


def wanted_by_keys(rows: Sequence[Row], keyed: Sequence[Row], keys: int, offset: int) -> Wanted | None:
    """Return what a sorted gold asks for, from its rows without the limit, followed by `keys` sort keys each.

    None if the two do not fit together.
    """
    groups: list[tuple[int, Sequence[Row]]] = []
    start = 0
    stop = offset + len(rows)
    width = len(keyed[0]) - keys if keyed else 0
    for _, same in itertools.groupby(keyed, key=lambda row: row[width:]):
        group = [row[:width] for row in same]
        count = min(start + len(group), stop) - max(start, offset)
        if count > 0:
            groups.append((count, group))
        start += len(group)
    found = Wanted(rows, groups)
    return found if strict_match(found, rows, permute=False) else None


def strict_match(want: Wanted, found: Sequence[Row], permute: bool) -> bool:
    """Return whether `found` is a right answer: the wanted rows, in order only as far as the gold sorts.

    Numbers agree within `TOLERANCE`, text and numbers never. With `permute` the columns may stand in another
    order, the same for all rows.
    """
    if len(found) != len(want.rows):
        return False
    if not found or list(found) == list(want.rows):
        return True
    if len(found[0]) != len(want.rows[0]):
        return False
    rows = [row for _, group in want.groups for row in group]
    if any(type(cell) is float for row in itertools.chain(rows, found) for cell in row):
        snap = _Snap(rows)
        groups = [(count, [snap.row(row) for row in group]) for count, group in want.groups]
        found = [snap.row(row) for row in found]
    else:
        groups = list(want.groups)
    if _fits(groups, found, range(len(found[0]))):
        return True
    return permute and len(found[0]) > 1 and _column_order(groups, found) is not None


class _Snap:
    """Makes numbers that agree within the tolerance equal, so that rows can be counted by hashing."""

    def __init__(self, rows: Sequence[Row]) -> None:
        numbers = sorted({cell for row in rows for cell in row if isinstance(cell, int | float)})
        self.points: list[float] = []
        for number in numbers:
            if not self.points or not _near(self.points[-1], number):
                self.points.append(number)

    def row(self, row: Row) -> Row:
        return tuple(self._cell(cell) if isinstance(cell, int | float) else cell for cell in row)

    def _cell(self, cell: float) -> float:
        at = bisect.bisect_left(self.points, cell)
        near = [point for point in self.points[max(0, at - 1) : at + 1] if _near(point, cell)]
        return min(near, key=lambda point: abs(point - cell)) if near else cell


def _near(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= TOLERANCE * max(1.0, abs(a), abs(b))


def _fits(groups: Sequence[tuple[int, Sequence[Row]]], found: Sequence[Row], columns: Sequence[int]) -> bool:
    """Return whether the first columns of the groups hold these columns of `found`, group by group."""
    width, start = len(columns), 0
    for count, rows in groups:
        here = found[start : start + count]
        start += count
        if count == 1 and len(rows) == 1:
            if any(rows[0][k] != here[0][column] for k, column in enumerate(columns)):
                return False
            continue
        have = Counter(tuple(row[column] for column in columns) for row in here)
        offered = Counter(row[:width] for row in rows)
        if any(offered[row] < number for row, number in have.items()):
            return False
    return True


def _column_order(groups: Sequence[tuple[int, Sequence[Row]]], found: Sequence[Row]) -> list[int] | None:
    """Return the columns of `found`, in the gold's order, that make the rows fit; None if there are none.

    One column after the other, each checked together with those before it: wrong starts end early, where
    trying all permutations of a wide result would take for ever.
    """
    width = len(found[0])
    single = [
        [
            j
            for j in range(width)
            if _fits([(n, [(row[k],) for row in rows]) for n, rows in groups], found, [j])
        ]
        for k in range(width)
    ]
    steps = 0

    def search(chosen: list[int]) -> list[int] | None:
        nonlocal steps
        k = len(chosen)
        if k == width:
            return chosen
        for j in single[k]:
            if j not in chosen:
                steps += 1
                if steps > _MAX_STEPS:
                    return None
                if (k == 0 or _fits(groups, found, [*chosen, j])) and (done := search([*chosen, j])):
                    return done
        return None

    return search([])
