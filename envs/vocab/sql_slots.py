"""Slots of the `sql` family, derived from its schemas: what each one means in SQL, its values and wordings."""

# ruff: noqa: E501
from __future__ import annotations

import functools
import itertools
import random
from dataclasses import dataclass
from typing import Literal

from envs.vocab import BOOLEAN, Pool, Slot, slot, strings
from envs.vocab.sql_words import SCHEMAS, Column, Schema, Style

Role = Literal["output", "equal", "other", "least", "most", "between", "initial", "sort", "limit", "unique",
               "summary", "group"]  # fmt: skip

FILTERS = frozenset({"equal", "other", "least", "most", "between", "initial"})


@dataclass(frozen=True, slots=True)
class SqlSlot:
    """A slot with its role in a query and, for filters, its column."""

    slot: Slot
    role: Role
    column: Column | None = None


@functools.cache
def slots_of(split: str, table: str) -> dict[str, SqlSlot]:
    """Return slot name -> slot for one schema of a split."""
    schema = schema_of(split, table)
    found: list[SqlSlot] = []
    for column in (*schema.columns, *schema.parent_columns):
        found += _filters(column, schema.style)
    found += _shape(schema)
    return {one.slot.name: one for one in found}


@functools.cache
def schema_of(split: str, table: str) -> Schema:
    return next(schema for schema in SCHEMAS[split] if schema.table == table)


def all_slots(split: str) -> list[Slot]:
    return [one.slot for schema in SCHEMAS[split] for one in slots_of(split, schema.table).values()]


def names(split: str) -> frozenset[str]:
    """Return table and column names and the values in the databases."""
    found: set[str] = set()
    for schema in SCHEMAS[split]:
        found |= {schema.table, schema.parent}
        for column in (*schema.columns, *schema.parent_columns):
            found |= {column.name, *(column.values.values if column.values else ())}
    return frozenset(found)


def with_unit(number: int, column: Column) -> str:
    return f"{number} {column.unit}" if column.unit else str(number)


def grid(column: Column) -> range:
    """Return about 24 thresholds that cover the column's values."""
    return range(column.low, column.high + 1, max(1, (column.high - column.low) // 24))


def _filters(column: Column, style: Style) -> list[SqlSlot]:
    name = column.name
    if column.kind == "number":
        points = grid(column)
        single = Pool("string", tuple(with_unit(point, column) for point in points))
        pairs = [
            (a, b) for a, b in itertools.combinations(points, 2) if b - a >= (column.high - column.low) // 4
        ]
        random.Random(name).shuffle(pairs)
        spans = tuple(
            with_unit(b, column).join(style.between_value.format(a, "|").split("|")) for a, b in pairs[:150]
        )
        return [
            SqlSlot(slot(style.least.format(name), single, f"the {name} must be {{}} or more",
                         f"keep only {name} from {{}} up"), "least", column),
            SqlSlot(slot(style.most.format(name), single, f"the {name} must be {{}} or less",
                         f"keep only {name} up to {{}}"), "most", column),
            SqlSlot(slot(style.between.format(name), Pool("string", spans), f"the {name} must be from {{}}",
                         f"keep only {name} of {{}}"), "between", column),
        ]  # fmt: skip
    assert column.values is not None
    if column.kind == "label":
        letters = sorted({value[0].upper() for value in column.values.values})
        name_slot = style.initial if column.name.count(" ") else f"{name} {style.initial.split()[-1]}"
        return [SqlSlot(slot(name_slot, Pool("string", tuple(letters)), f"the {name} starts with {{}}",
                             f"keep only a {name} beginning with {{}}"), "initial", column)]  # fmt: skip
    return [
        SqlSlot(slot(name, column.values, f"the {name} is {{}}", f"keep only {{}} as {name}"), "equal", column),
        SqlSlot(slot(style.other.format(name), column.values, f"leave out {{}} as {name}",
                     f"the {name} is not {{}}"), "other", column),
    ]  # fmt: skip


def _shape(schema: Schema) -> list[SqlSlot]:
    style = schema.style
    own = [column.name for column in schema.columns]
    numbers = [column.name for column in schema.columns if column.kind == "number"]
    categories = [column.name for column in schema.columns if column.kind == "category"]
    outputs = [*own, *(f"{a} and {b}" for a, b in itertools.combinations(own, 2))]
    sorts = [template.format(name) for name in numbers for template in (style.down, style.up)]
    kinds = (style.mean, style.top, style.bottom, style.total)
    summaries = [style.count, *(template.format(name) for name in numbers for template in kinds)]
    limits = Pool("string", tuple(style.limit_value.format(count) for count in range(2, 10)))
    groups = " | ".join(
        [*categories, *(column.name for column in schema.parent_columns if column.kind == "category")]
    )
    return [
        SqlSlot(slot(style.output, strings(" | ".join(outputs)), "show the {}", "list the {}"), "output"),
        SqlSlot(slot(style.sort, strings(" | ".join(sorts)), "sort by {}", "order the result by {}"), "sort"),
        SqlSlot(slot(style.limit, limits, "return only {}", "stop after {}"), "limit"),
        SqlSlot(slot(style.unique, BOOLEAN, "{} to " + style.unique), "unique"),
        SqlSlot(slot(style.summary, strings(" | ".join(summaries)), "compute the {}", "I want to know the {}"), "summary"),
        SqlSlot(slot(style.group, strings(groups), "one figure per {}", "group it by {}"), "group"),
    ]  # fmt: skip
