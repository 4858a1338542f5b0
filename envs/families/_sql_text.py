"""SQL text of the `sql` family: what each slot and value adds to a query."""

from __future__ import annotations

import functools
import itertools

from envs.errors import GraderError
from envs.families._sql_data import Condition, condition_sql
from envs.numbers import parse_number
from envs.vocab.sql_slots import FILTERS, schema_of, slots_of
from envs.vocab.sql_words import Style

Pair = tuple[str | None, str | None]  # slot and value of a goal
Pairs = tuple[Pair, ...]


@functools.lru_cache(maxsize=10_000)
def query(split: str, table: str, state: Pairs) -> str:
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
        sql = fragment(split, table, one.slot.name, value)
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
def condition(split: str, table: str, name: str, value: str) -> Condition:
    """Return what a filter goal asks for. Raises `GraderError` for a value that the slot cannot take."""
    one, style = slots_of(split, table)[name], schema_of(split, table).style
    column = one.column.sql if one.column is not None else ""
    match one.role:
        case "least" | "most":
            return column, one.role, integer(name, value)
        case "between":
            low, _, high = value.partition(style.between_value.replace("{}", ""))
            return column, one.role, (integer(name, low), integer(name, high))
    return column, one.role, value.strip()


@functools.lru_cache(maxsize=50_000)
def fragment(split: str, table: str, name: str, value: str) -> str:
    """Return what one goal adds to a query. Raises `GraderError` for a value that the slot cannot take."""
    role = slots_of(split, table)[name].role
    if role in FILTERS:
        return condition_sql(condition(split, table, name, value))
    if role == "limit":
        return f" LIMIT {integer(name, value)}"
    if role == "unique" and value in ("yes", "no"):
        return "DISTINCT " if value == "yes" else ""
    known = shapes(split, table)[role]
    if value not in known:
        raise GraderError(f"slot {name!r} of {table!r} cannot be {value!r}")
    return known[value]


@functools.cache
def shapes(split: str, table: str) -> dict[str, dict[str, str]]:
    """Return, for the roles with a closed list of values, value -> SQL."""
    schema = schema_of(split, table)
    style = schema.style
    columns = {column.name: column for column in (*schema.columns, *schema.parent_columns)}
    found: dict[str, dict[str, str]] = {"sort": {}, "summary": {style.count: "COUNT(*)"}, "unique": {}}
    for column in schema.columns:
        if column.kind == "number":
            found["sort"][style.down.format(column.name)] = f" ORDER BY {column.sql} DESC"
            found["sort"][style.up.format(column.name)] = f" ORDER BY {column.sql}"
            for template, function in functions(style):
                found["summary"][template.format(column.name)] = f"{function}({column.sql})"
    found["group"] = {name: column.sql for name, column in columns.items()}
    pairs = itertools.permutations(columns, 2)
    found["output"] = found["group"] | {
        f"{a} and {b}": f"{columns[a].sql}, {columns[b].sql}" for a, b in pairs
    }
    return found


def functions(style: Style) -> tuple[tuple[str, str], ...]:
    return (style.mean, "AVG"), (style.top, "MAX"), (style.bottom, "MIN"), (style.total, "SUM")


def integer(name: str, value: str) -> int:
    digits, _, unit = value.partition(" ")
    if digits.isdecimal() and digits.isascii() and len(digits) < 19 and (not unit or unit.isalpha()):
        return int(digits)  # nearly all values; the rest takes a parser
    number = parse_number(value)
    if number is None or number.denominator != 1:
        raise GraderError(f"slot {name!r} takes a whole number, got {value!r}")
    return int(number)
