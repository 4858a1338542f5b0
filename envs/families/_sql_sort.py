"""Sort keys of a gold query: which of its rows ORDER BY cannot tell apart, and whether a limit cuts them."""

from __future__ import annotations

from sqlglot import exp

_MORE = 1000  # rows looked at beyond the limit


def sort_keys(root: exp.Expr) -> tuple[str, int, int] | None:
    """Return (query, number of keys, offset): the gold without its limit, each row followed by its sort keys.

    None where there is nothing to tell (neither order nor limit) or the keys cannot be shown: a set
    operation sorted by more than its outputs, DISTINCT rows sorted by something else.
    """
    order, limit, offset = (root.args.get(name) for name in ("order", "limit", "offset"))
    if order is None and limit is None:
        return None
    count, skipped = _whole(limit), _whole(offset)
    if (limit is not None and count is None) or (offset is not None and skipped is None):
        return None
    keys = _keys(root, order)
    if keys is None:
        return None
    keyed = root.copy()
    keyed.set("offset", None)
    if count is not None:
        keyed.set("limit", exp.Limit(expression=exp.Literal.number((skipped or 0) + count + _MORE)))
    if keys and not isinstance(keyed, exp.Select):
        return None
    for at, key in enumerate(keys):
        keyed.append("expressions", exp.alias_(key.copy(), f"sort_key_{at}"))
    return keyed.sql("sqlite"), len(keys), skipped or 0


def _keys(root: exp.Expr, order: exp.Expr | None) -> list[exp.Expr] | None:
    if order is None:
        return []
    if not isinstance(root, exp.Select):
        return None
    aliases = {node.alias.lower(): node.this for node in root.expressions if isinstance(node, exp.Alias)}
    outputs = [node.this if isinstance(node, exp.Alias) else node for node in root.expressions]
    shown = {node.sql("sqlite").lower() for node in outputs}
    keys: list[exp.Expr] = []
    for ordered in order.expressions:
        key = ordered.this
        if isinstance(key, exp.Literal) and not key.is_string:
            at = int(key.this) - 1 if str(key.this).isdigit() else -1
            if not 0 <= at < len(outputs) or any(isinstance(node, exp.Star) for node in outputs):
                return None
            key = outputs[at]
        elif isinstance(key, exp.Column) and not key.table:
            key = aliases.get(key.name.lower(), key)
        if root.args.get("distinct") and key.sql("sqlite").lower() not in shown:
            return None
        keys.append(key)
    return keys


def _whole(clause: exp.Expr | None) -> int | None:
    number = clause.expression if clause is not None else None
    return int(number.this) if isinstance(number, exp.Literal) and str(number.this).isdigit() else None
