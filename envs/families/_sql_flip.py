"""Whether a changed goal of the `sql` family changes the rows, mostly without running a query.

Building a dialogue asks this some thirty times, hence the short cuts: the same shape and filtered rows,
results of another size, shapes that `Database.evaluate` knows. The tests hold them against execution.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence

from envs.errors import GraderError
from envs.families._sql_data import Database
from envs.families._sql_text import Pairs, condition, fragment, query
from envs.intent import Goal
from envs.sandbox_sql import Row, same_rows
from envs.vocab.sql_slots import FILTERS, slots_of

_FEWER_ROWS = frozenset({"unique", "group", "summary"})  # with these, filtered rows are not the result's rows

Shape = dict[str, str]  # role -> SQL of what is no filter
Effect = tuple[str | None, int | str]
"""What one goal does: (None, ids of the rows that pass) for a filter, else (role, SQL)."""


class Gold:
    """A state whose rows those of others are compared with."""

    def __init__(self, split: str, table: str, base: Database, pairs: Pairs) -> None:
        self.split, self.table, self.base, self.pairs = split, table, base, pairs
        self.shape, self.mask = split_state(split, table, base, pairs)
        self.plain = _FEWER_ROWS.isdisjoint(self.shape)
        self.size = _size(self.shape, self.mask) if self.plain else (0, 0)

    def beside(self, pairs: Pairs) -> Beside:
        return Beside(self, pairs)


class Beside:
    """Other states beside a gold: those of `pairs`, alone or with one more goal."""

    def __init__(self, gold: Gold, pairs: Pairs) -> None:
        self.gold, self.pairs = gold, pairs
        self.shape, self.mask = split_state(gold.split, gold.table, gold.base, pairs)
        self._same_shape = self.shape == gold.shape

    def differ(self) -> bool:
        """Return whether the state gives other rows than the gold."""
        if self._same_shape and self.mask == self.gold.mask:
            return False
        return self._differ(self.shape, self.mask, None)

    def differ_with(self, name: str, value: str) -> bool:
        """Return whether the state with one more goal gives other rows than the gold."""
        gold = self.gold
        role, what = effect(gold.split, gold.table, gold.base, name, value)
        if role is None:
            mask = self.mask & what  # type: ignore[operator]
            if self._same_shape and mask == gold.mask:
                return False
            return self._differ(self.shape, mask, (name, value))
        shape = {**self.shape, role: str(what)} if what else self.shape
        if self.mask == gold.mask and shape == gold.shape:
            return False
        return self._differ(shape, self.mask, (name, value))

    def _differ(self, shape: Shape, mask: int, one: tuple[str, str] | None) -> bool:
        gold = self.gold
        if gold.plain and ((shape is self.shape and self._same_shape) or _FEWER_ROWS.isdisjoint(shape)):
            height, width = _size(shape, mask)
            if height != gold.size[0] or (height and width != gold.size[1]):
                return True
        rows = gold.base.evaluate(shape, mask)
        if rows is None:
            pairs = self.pairs if one is None else (*self.pairs, one)
            rows = gold.base.trusted(query(gold.split, gold.table, pairs))
        wanted, counted = _rows(gold.split, gold.table, gold.base, gold.pairs)
        if "AVG(" in gold.shape.get("summary", "") or "AVG(" in shape.get("summary", ""):
            return not same_rows(wanted, rows, "sort" in gold.shape)
        # Without averages no cell is a float, and rows are equal or not.
        if len(wanted) != len(rows) or "sort" in gold.shape:
            return wanted != rows
        return counted != Counter(rows)


def pairs_of(goals: Sequence[Goal]) -> Pairs:
    """Return the slot and value of each goal."""
    return tuple([(goal.slot, goal.value) for goal in goals])


@functools.lru_cache(maxsize=1000)
def _rows(split: str, table: str, base: Database, pairs: Pairs) -> tuple[list[Row], Counter[Row]]:
    """Return the rows of a state that others are compared with, and how often each occurs."""
    rows = base.evaluate(*split_state(split, table, base, pairs))
    rows = base.trusted(query(split, table, pairs)) if rows is None else rows
    return rows, Counter(rows)


def _size(shape: Shape, mask: int) -> tuple[int, int]:
    """Return rows and columns of the result where each filtered row is one of its rows."""
    rows = mask.bit_count()
    if "limit" in shape:
        rows = min(rows, int(shape["limit"].removeprefix(" LIMIT ")))
    return rows, shape["output"].count(",") + 1 if "output" in shape else 0


@functools.lru_cache(maxsize=10_000)
def split_state(split: str, table: str, base: Database, pairs: Pairs) -> tuple[Shape, int]:
    """Return what shapes the result, and the rows that pass the filters as a bit set of ids."""
    shape: Shape = {}
    mask = base.mask(None)
    for name, value in pairs:
        role, what = effect(split, table, base, name, value)
        if role is None:
            mask &= what  # type: ignore[operator]
        elif what:
            shape[role] = str(what)
    return shape, mask


@functools.lru_cache(maxsize=200_000)
def effect(split: str, table: str, base: Database, name: str | None, value: str | None) -> Effect:
    """Return what a goal does to a query. Raises `GraderError` for a foreign one."""
    slots = slots_of(split, table)
    if name not in slots or value is None:
        raise GraderError(
            f"no slot {name!r} with value {value!r} in schema {table!r}; known: {sorted(slots)}"
        )
    role = slots[name].role
    if role in FILTERS:
        return None, base.mask(condition(split, table, name, value))
    return role, fragment(split, table, name, value)
