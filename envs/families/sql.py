"""`sql`: questions to small SQLite databases that the family builds; graded by executing."""

from __future__ import annotations

import functools
import itertools
import operator
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from envs.errors import GraderError, unknown_name
from envs.families._sql_data import DATABASES, Database, database, ddl
from envs.families._sql_flip import Gold, pairs_of
from envs.families._sql_text import condition, integer, query
from envs.intent import Goal, IntentState
from envs.sandbox_sql import Refused, extract_sql, same_rows
from envs.task import Grade, SourceTask
from envs.vocab import sample
from envs.vocab.sql_slots import FILTERS, SqlSlot, grid, schema_of, slots_of, with_unit
from envs.vocab.sql_words import SCHEMAS, Column, Style

_GOALS = (3, 3, 4, 4, 4, 5, 6)
_VARIANTS, _DECOYS = 6, 6
_CANDIDATES = 14  # values tried to find them
_TRIES = 300
_ANSWER_FORMAT = (
    "Answer with one SQLite SELECT statement that returns exactly the columns asked for, in that order."
)


class Sql:
    """Queries over one table and its parent. A goal is a column, condition, order, limit or summary."""

    name = "sql"
    structured = True
    splits: tuple[str, ...] = ("train", "heldout")
    variants_flip = True
    """`variants` compares the rows of each."""

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        """Yield tasks without end; `source` is not used. Raises `UnknownName` for an unknown split."""
        if split not in self.splits:
            raise unknown_name("split", split, self.splits)
        return (self.task(split, index) for index in itertools.count())

    def task(self, split: str, index: int) -> SourceTask:
        """Return task number `index`, a pure function of its arguments.

        Each filter matters (without it the rows differ), the gold has rows, and no limit cuts a tie.
        """
        if split not in self.splits:
            raise unknown_name("split", split, self.splits)
        id = f"{self.name}/{split}/{index}"
        rng = random.Random(id)
        schema = SCHEMAS[split][int(rng.random() * len(SCHEMAS[split]))]
        number = int(rng.random() * DATABASES)
        base, slots = database(split, schema.table, number), slots_of(split, schema.table)
        count = _GOALS[int(rng.random() * len(_GOALS))]
        for _ in range(_TRIES):
            chosen = _draw(split, schema.table, base, count, rng)
            if len(chosen) == count and _sound(split, schema.table, base, chosen):
                break
        else:
            raise GraderError(f"no sound query found for {id} in {_TRIES} tries")
        rng.shuffle(chosen)
        goals = tuple(
            Goal(f"g{at}", slots[name].slot.say(value, rng), name, value)
            for at, (name, value) in enumerate(chosen, 1)
        )
        payload = {
            "table": schema.table,
            "database": number,
            "sql": query(split, schema.table, tuple(chosen)),
            "ordered": any(slots[name].role == "sort" for name, _ in chosen),
        }
        opening = f"Write me one query over the {schema.table} database."
        return SourceTask(
            id, self.name, split, opening, f"{ddl(split, schema.table)}\n{_ANSWER_FORMAT}", goals, payload
        )

    def gold(self, task: SourceTask) -> str:
        return self.execute(task, task.intent)

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        """Return other values of the goal's slot; each was executed and gives other rows than the gold."""
        one = slots_of(task.split, task.payload["table"]).get(goal.slot or "")
        if one is None or goal.value is None:
            raise GraderError(
                f"{task.id}: goal {goal.id!r} has no slot {goal.slot!r} of this schema, or no value"
            )
        found: list[Goal] = []
        gold = Gold(task.split, task.payload["table"], self._database(task), pairs_of(task.goals))
        others = gold.beside(pairs_of(tuple(other for other in task.goals if other != goal)))
        for value in one.slot.pool.others(goal.value, _CANDIDATES, rng):
            if others.differ_with(one.slot.name, value):
                found.append(
                    Goal(f"{goal.id}.v{len(found) + 1}", one.slot.say(value, rng), one.slot.name, value)
                )
                if len(found) == _VARIANTS:
                    break
        return found

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return extra conditions (and a limit for a list of rows) that change the rows when obeyed."""
        state = pairs_of(task.goals)
        slots = slots_of(task.split, task.payload["table"])
        gold = Gold(task.split, task.payload["table"], self._database(task), state)
        others = gold.beside(state)
        roles = {slots[name].role for name, _ in state if name}
        used = {name for name, _ in state}
        shape = {"limit"} if "summary" not in roles else set()
        shape |= {"unique"} if not roles & {"summary", "sort"} else set()
        free = [one for one in slots.values() if one.slot.name not in used and one.role in FILTERS | shape]
        found: list[Goal] = []
        for one in sample(free, len(free), rng):
            value = one.slot.pool.draw(rng)
            if others.differ_with(one.slot.name, value):
                found.append(Goal(f"d{len(found) + 1}", one.slot.say(value, rng), one.slot.name, value))
                if len(found) == _DECOYS:
                    break
        return found

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Return the query that the state describes; of two goals for one slot the later one counts.

        Without an output or a summary it selects every column. Raises `GraderError` for what it cannot read.
        """
        return query(task.split, task.payload["table"], pairs_of(state.goals))

    def grade(self, task: SourceTask, answer: str) -> Grade:
        """Score 1 iff the answer's query returns the gold's rows (in order where the gold sorts).

        A query that is refused is a wrong answer with the reason; an `error` is a fault of ours alone.
        """
        sql = extract_sql(answer)
        if sql is None:
            return Grade(0.0, False, {"problem": "no SQL statement found"})
        base = self._database(task)
        try:
            gold = base.trusted(task.payload["sql"])
        except GraderError as error:
            return Grade(0.0, False, {"sql": sql}, error=str(error))
        # The gold itself was run for its rows just now, and the database never changes. Whatever else an
        # answer holds, a model wrote it: it runs in a process of its own.
        try:
            found = gold if sql == task.payload["sql"] else base.apart(sql)
        except GraderError as error:
            return Grade(0.0, False, {"sql": sql}, error=str(error))
        if isinstance(found, Refused):
            return Grade(0.0, False, {"sql": sql, "problem": found.reason})
        if same_rows(gold, found, task.payload["ordered"]):
            return Grade(1.0, True, {"sql": sql, "rows": len(found)})
        return Grade(0.0, False, {"sql": sql, "problem": f"other rows: {len(found)}, gold {len(gold)}"})

    def _database(self, task: SourceTask) -> Database:
        return database(task.split, task.payload["table"], task.payload["database"])


def _draw(split: str, table: str, base: Database, count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Draw (slot, value) pairs of a query whose filters all hold for one row."""
    slots, style = slots_of(split, table), schema_of(split, table).style
    chosen: list[tuple[str, str]] = []

    def take(name: str) -> None:
        chosen.append((name, slots[name].slot.pool.draw(rng)))

    if rng.random() < 0.3:
        take(style.summary)
        if rng.random() < 0.4:
            take(style.group)
    else:
        take(style.output)
        if rng.random() < 0.5:
            take(style.sort)
            if count > 3 and rng.random() < 0.5:
                take(style.limit)
        elif rng.random() < 0.25:
            chosen.append((style.unique, "yes"))
    filters = [one for one in slots.values() if one.role in FILTERS]
    row = base.rows[int(rng.random() * len(base.rows))]
    columns: set[str] = set()
    for one in sample(filters, len(filters), rng):
        if len(chosen) >= count:
            break
        if one.column is not None and one.column.name not in columns:
            value = _holding(style, one, one.column, row[one.column.name], rng)
            if value is not None:
                columns.add(one.column.name)
                chosen.append((one.slot.name, value))
    return chosen


def _holding(style: Style, one: SqlSlot, column: Column, cell: Any, rng: random.Random) -> str | None:
    """Return a value of a filter that `cell` satisfies; None if no value on the grid does."""
    match one.role:
        case "equal":
            return cell
        case "initial":
            return cell[0].upper()
        case "other":
            return one.slot.pool.others(cell, 1, rng)[0]
    below = [point for point in grid(column) if point <= cell]
    above = [point for point in grid(column) if point >= cell]
    match one.role:
        case "least" if below:
            return with_unit(rng.choice(below), column)
        case "most" if above:
            return with_unit(rng.choice(above), column)
        case "between" if below and above and above[-1] > below[0]:
            low, high = rng.choice(below), rng.choice(above)
            if low < high:
                return style.between_value.format(low, with_unit(high, column))
    return None


def _sound(split: str, table: str, base: Database, chosen: Sequence[tuple[str, str]]) -> bool:
    """Return whether the query has rows and each filter, `unique`, limit or order makes a difference."""
    slots = slots_of(split, table)
    roles = {slots[name].role: value for name, value in chosen}
    masks = [base.mask(condition(split, table, *pair)) for pair in chosen if slots[pair[0]].role in FILTERS]
    passed = functools.reduce(operator.and_, masks, base.mask(None))
    at_least = 1 + integer("", roles["limit"]) if "limit" in roles else 2 if "sort" in roles else 1
    if passed.bit_count() < at_least:
        return False
    for at in range(len(masks)):  # cheap, and rejects most draws before anything is executed
        if functools.reduce(operator.and_, masks[:at] + masks[at + 1 :], base.mask(None)) == passed:
            return False
    pairs = tuple(chosen)
    gold = Gold(split, table, base, pairs)
    return all(
        gold.beside((*pairs[:at], *pairs[at + 1 :])).differ()
        for at, (name, _) in enumerate(pairs)
        if slots[name].role in FILTERS or slots[name].role == "unique"
    )


FAMILY = Sql()
