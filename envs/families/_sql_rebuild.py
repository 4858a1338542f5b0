"""SQL from goals: the parts of a state put together into one query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HOLE = "\x00"


def rebuild(parts: Sequence[Mapping[str, Any]], tables: Sequence[str]) -> str:
    """Return the query that consists of `parts`, in any order (see `Part.data`).

    Of two parts for one place the later one counts. Without an output all columns are shown; without a part
    "from" the data come from `tables[0]`. Conditions of a second list that is not wanted are left out.
    """
    one: dict[str, str] = {}
    many: dict[str, dict[int, str]] = {"output": {}, "having": {}, "with": {}}
    where: dict[int, dict[int, str]] = {}
    combine: dict[int, str] = {}
    for part in parts:
        kind, core, place, sql = part["kind"], part["core"], part["place"], part["sql"]
        if kind == "where":
            where.setdefault(core, {})[place] = sql
        elif kind == "combine":
            combine[core] = sql
        elif kind in many:
            many[kind][place] = sql
        else:
            one[kind] = sql
    distinct = "DISTINCT " if one.get("distinct") else ""
    outputs = ", ".join(sql for _, sql in sorted(many["output"].items())) or "*"
    source = one.get("from", tables[0])
    sql = f"SELECT {distinct}{outputs}"
    sql += f" FROM {source}" if source else ""
    sql += _where(where.get(0, {}))
    sql += f" GROUP BY {one['group']}" if "group" in one else ""
    if many["having"]:
        sql += f" HAVING {' AND '.join(text for _, text in sorted(many['having'].items()))}"
    for core, text in sorted(combine.items()):
        sql += f" {text.replace(HOLE, _where(where.get(core, {})))}"
    sql += f" ORDER BY {one['order']}" if "order" in one else ""
    sql += f" LIMIT {one['limit']}" if "limit" in one else ""
    if many["with"]:
        sql = f"WITH {', '.join(text for _, text in sorted(many['with'].items()))} {sql}"
    return sql


def _where(conditions: Mapping[int, str]) -> str:
    return f" WHERE {' AND '.join(sql for _, sql in sorted(conditions.items()))}" if conditions else ""
