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
from envs.families._sql_data import DATABASES, Condition, Database, condition_sql, database, ddl
from envs.intent import Goal, IntentState
from envs.numbers import parse_number
from envs.sandbox_sql import Refused, Row, extract_sql, same_rows
from envs.task import Grade, SourceTask
from envs.vocab.sql_slots import FILTERS, SqlSlot, grid, schema_of, slots_of, with_unit
from envs.vocab.sql_words import SCHEMAS, Column, Style

Pairs = tuple[tuple[str | None, str | None], ...]  # (slot, value) of each goal

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
            "sql": _query(split, schema.table, tuple(chosen)),
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
        for value in one.slot.pool.others(goal.value, _CANDIDATES, rng):
            state = tuple((g.slot, value if g == goal else g.value) for g in task.goals)
            if self._flips(task, state):
                found.append(
                    Goal(f"{goal.id}.v{len(found) + 1}", one.slot.say(value, rng), one.slot.name, value)
                )
                if len(found) == _VARIANTS:
                    break
        return found

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return extra conditions (and a limit for a list of rows) that change the rows when obeyed."""
        state = tuple((goal.slot, goal.value) for goal in task.goals)
        slots = slots_of(task.split, task.payload["table"])
        roles = {slots[name].role for name, _ in state if name}
        used = {name for name, _ in state}
        shape = {"limit"} if "summary" not in roles else set()
        shape |= {"unique"} if not roles & {"summary", "sort"} else set()
        free = [one for one in slots.values() if one.slot.name not in used and one.role in FILTERS | shape]
        found: list[Goal] = []
        for one in rng.sample(free, len(free)):
            value = one.slot.pool.draw(rng)
            if self._flips(task, (*state, (one.slot.name, value))):
                found.append(Goal(f"d{len(found) + 1}", one.slot.say(value, rng), one.slot.name, value))
                if len(found) == _DECOYS:
                    break
        return found

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Return the query that the state describes; of two goals for one slot the later one counts.

        Without an output or a summary it selects every column. Raises `GraderError` for what it cannot read.
        """
        return _query(
            task.split, task.payload["table"], tuple((goal.slot, goal.value) for goal in state.goals)
        )

    def grade(self, task: SourceTask, answer: str) -> Grade:
        """Score 1 iff the answer's query returns the gold's rows (in order where the gold sorts)."""
        sql = extract_sql(answer)
        if sql is None:
            return Grade(0.0, False, {"problem": "no SQL statement found"})
        base = self._database(task)
        try:
            gold = base.trusted(task.payload["sql"])
        except GraderError as error:
            return Grade(0.0, False, {"sql": sql}, error=str(error))
        found = base.database.run(sql)
        if isinstance(found, Refused):
            return Grade(0.0, False, {"sql": sql, "problem": found.reason})
        if same_rows(gold, found, task.payload["ordered"]):
            return Grade(1.0, True, {"sql": sql, "rows": len(found)})
        return Grade(0.0, False, {"sql": sql, "problem": f"other rows: {len(found)}, gold {len(gold)}"})

    def _database(self, task: SourceTask) -> Database:
        return database(task.split, task.payload["table"], task.payload["database"])

    def _flips(self, task: SourceTask, pairs: Pairs) -> bool:
        gold = tuple((goal.slot, goal.value) for goal in task.goals)
        return _differ(task.split, task.payload["table"], self._database(task), gold, pairs)


def _differ(split: str, table: str, base: Database, a: Pairs, b: Pairs) -> bool:
    """Return whether two states give different rows.

    Nothing is executed where the answer is certain without: same shape and same rows after the filters,
    results of another size, or a shape that `Database.evaluate` knows.
    """
    shape_a, mask_a = _split_state(split, table, base, a)
    shape_b, mask_b = _split_state(split, table, base, b)
    if shape_a == shape_b and mask_a == mask_b:
        return False
    if not (shape_a.keys() | shape_b.keys()) & {"unique", "group", "summary"}:
        (height_a, width_a), (height_b, width_b) = _size(shape_a, mask_a), _size(shape_b, mask_b)
        if height_a != height_b or (height_a and width_a != width_b):
            return True
    rows_a, rows_b = _rows(split, table, base, a), base.evaluate(shape_b, mask_b)
    if rows_b is None:
        rows_b = base.trusted(_query(split, table, b))
    return not same_rows(rows_a, rows_b, "sort" in shape_a)


@functools.lru_cache(maxsize=1000)
def _rows(split: str, table: str, base: Database, pairs: Pairs) -> list[Row]:
    """Return the rows of a state that others are compared with."""
    rows = base.evaluate(*_split_state(split, table, base, pairs))
    return base.trusted(_query(split, table, pairs)) if rows is None else rows


def _size(shape: dict[str, str], mask: int) -> tuple[int, int]:
    """Return rows and columns of the result where each filtered row is one of its rows."""
    rows = mask.bit_count()
    if "limit" in shape:
        rows = min(rows, int(shape["limit"].removeprefix(" LIMIT ")))
    return rows, shape["output"].count(",") + 1 if "output" in shape else 0


@functools.lru_cache(maxsize=10_000)
def _split_state(split: str, table: str, base: Database, pairs: Pairs) -> tuple[dict[str, str], int]:
    """Return what shapes the result, by role, and the rows that pass the filters, as a bit set."""
    slots = slots_of(split, table)
    shape: dict[str, str] = {}
    mask = -1
    for name, value in pairs:
        if name not in slots or value is None:
            raise GraderError(
                f"no slot {name!r} with value {value!r} in schema {table!r}; known: {sorted(slots)}"
            )
        role = slots[name].role
        if role in FILTERS:
            mask &= base.mask(_condition(split, table, name, value))
        elif sql := _fragment(split, table, name, value):
            shape[role] = sql
    return shape, mask if mask != -1 else base.mask(None)


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
    for one in rng.sample(filters, len(filters)):
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
    masks = [base.mask(_condition(split, table, *pair)) for pair in chosen if slots[pair[0]].role in FILTERS]
    passed = functools.reduce(operator.and_, masks, base.mask(None))
    at_least = 1 + _integer("", roles["limit"]) if "limit" in roles else 2 if "sort" in roles else 1
    if passed.bit_count() < at_least:
        return False
    for at in range(len(masks)):  # cheap, and rejects most draws before anything is executed
        if functools.reduce(operator.and_, masks[:at] + masks[at + 1 :], base.mask(None)) == passed:
            return False
    pairs = tuple(chosen)
    return all(
        _differ(split, table, base, pairs, (*pairs[:at], *pairs[at + 1 :]))
        for at, (name, _) in enumerate(pairs)
        if slots[name].role in FILTERS or slots[name].role == "unique"
    )


@functools.lru_cache(maxsize=10_000)
def _query(split: str, table: str, state: Pairs) -> str:
    """Return the SQL for (slot, value) pairs. Raises `GraderError`."""
    schema, slots = schema_of(split, table), slots_of(split, table)
    parts: dict[str, str] = {}
    where: dict[str, str] = {}
    joined = False
    for name, value in state:
        one = slots.get(name or "")
        if one is None or value is None:
            raise GraderError(
                f"no slot {name!r} with value {value!r} in schema {table!r}; known: {sorted(slots)}"
            )
        sql = _fragment(split, table, one.slot.name, value)
        if one.role in FILTERS:
            where[one.slot.name] = sql
            joined |= one.column in schema.parent_columns
        else:
            parts[one.role] = sql
            joined |= one.role == "group" and any(column.sql == sql for column in schema.parent_columns)
    select = [parts[role] for role in ("group", "output", "summary") if role in parts]
    sql = f"SELECT {parts.get('unique', '')}{', '.join(select) or f'{table}.*'} FROM {table}"
    if joined:
        sql += f" JOIN {schema.parent} ON {table}.{schema.parent}_id = {schema.parent}.id"
    if where:
        sql += f" WHERE {' AND '.join(where.values())}"
    if "group" in parts:
        sql += f" GROUP BY {parts['group']}"
    return sql + parts.get("sort", "") + parts.get("limit", "")


@functools.lru_cache(maxsize=50_000)
def _condition(split: str, table: str, name: str, value: str) -> Condition:
    """Return what a filter goal asks for. Raises `GraderError` for a value that the slot cannot take."""
    one, style = slots_of(split, table)[name], schema_of(split, table).style
    column = one.column.sql if one.column is not None else ""
    match one.role:
        case "least" | "most":
            return column, one.role, _integer(name, value)
        case "between":
            low, _, high = value.partition(style.between_value.replace("{}", ""))
            return column, one.role, (_integer(name, low), _integer(name, high))
    return column, one.role, value.strip()


@functools.lru_cache(maxsize=50_000)
def _fragment(split: str, table: str, name: str, value: str) -> str:
    """Return what one goal adds to a query. Raises `GraderError` for a value that the slot cannot take."""
    role = slots_of(split, table)[name].role
    if role in FILTERS:
        return condition_sql(_condition(split, table, name, value))
    if role == "limit":
        return f" LIMIT {_integer(name, value)}"
    if role == "unique" and value in ("yes", "no"):
        return "DISTINCT " if value == "yes" else ""
    known = _shapes(split, table)[role]
    if value not in known:
        raise GraderError(f"slot {name!r} of {table!r} cannot be {value!r}")
    return known[value]


@functools.cache
def _shapes(split: str, table: str) -> dict[str, dict[str, str]]:
    """Return, for the roles with a closed list of values, value -> SQL."""
    schema = schema_of(split, table)
    style = schema.style
    columns = {column.name: column for column in (*schema.columns, *schema.parent_columns)}
    found: dict[str, dict[str, str]] = {"sort": {}, "summary": {style.count: "COUNT(*)"}, "unique": {}}
    for column in schema.columns:
        if column.kind == "number":
            found["sort"][style.down.format(column.name)] = f" ORDER BY {column.sql} DESC"
            found["sort"][style.up.format(column.name)] = f" ORDER BY {column.sql}"
            for template, function in _functions(style):
                found["summary"][template.format(column.name)] = f"{function}({column.sql})"
    found["group"] = {name: column.sql for name, column in columns.items()}
    pairs = itertools.permutations(columns, 2)
    found["output"] = found["group"] | {
        f"{a} and {b}": f"{columns[a].sql}, {columns[b].sql}" for a, b in pairs
    }
    return found


def _functions(style: Style) -> tuple[tuple[str, str], ...]:
    return (style.mean, "AVG"), (style.top, "MAX"), (style.bottom, "MIN"), (style.total, "SUM")


def _integer(name: str, value: str) -> int:
    number = parse_number(value)
    if number is None or number.denominator != 1:
        raise GraderError(f"slot {name!r} takes a whole number, got {value!r}")
    return int(number)


FAMILY = Sql()
