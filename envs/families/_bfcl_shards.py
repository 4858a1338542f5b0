"""BFCL items whose goals are shards: which argument's value a shard states, and what changes with it.

A shard is linked to an argument when it is the only one that shows an accepted value of it, shows it once, and no
other argument of the item has a value that looks the same. The same argument of several calls may share a value
("each histogram has 5 bins"); it is then changed in all of them. All else in a shard is left alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs.call_syntax import Call
from envs.errors import GraderError
from envs.families._bfcl_item import shown
from envs.intent import Goal, IntentState

Others = Callable[[Sequence[tuple[int, str]], Any], list[Any]]
"""(places, value) -> other values that change the verdict when written at all places (call, argument)."""


def link_shards(
    texts: Sequence[str], calls: Sequence[Call], truth: Sequence[Mapping[str, Any]], others: Others
) -> dict[str, dict[str, Any]]:
    """Return goal id -> `{"text", "links": [{"places", "start", "end", "value", "others"}]}`, plain JSON data."""
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for at, call in enumerate(calls):
        for argument, value in call.arguments.items():
            groups.setdefault((argument, json.dumps(value, sort_keys=True)), []).append((at, argument))
    surfaces = {
        key: list(dict.fromkeys(form for at, argument in places for form in _surfaces(truth[at], argument)))
        for key, places in groups.items()
    }
    found: dict[str, dict[str, Any]] = {
        f"g{n}": {"text": text, "links": []} for n, text in enumerate(texts, 1)
    }
    for key, places in groups.items():
        rivals = {form.casefold() for other, forms in surfaces.items() if other != key for form in forms}
        hits = {
            (n, span)
            for form in surfaces[key]
            if form.casefold() not in rivals
            for n, text in enumerate(texts, 1)
            for span in _spans(text, form)
        }
        hits = {(n, a) for n, a in hits if not any(n == m and a != b and _inside(a, b) for m, b in hits)}
        if len(hits) != 1:
            continue
        ((n, (start, end)),) = hits
        value = calls[places[0][0]].arguments[key[0]]
        link = {"places": [list(place) for place in places], "start": start, "end": end, "value": value}
        found[f"g{n}"]["links"].append(link | {"others": others(places, value)})
    return found


def shard_variants(shards: Mapping[str, Any], goal: Goal) -> list[Goal]:
    """Return the shard with one linked value changed, in a fixed order with fixed ids."""
    base = goal.id.split(".")[0]
    if base not in shards:
        return []
    return [Goal(f"{base}.v{n}", text) for n, (text, _, _) in enumerate(_changes(shards[base]), 1)]


def apply_shards(
    task_id: str, shards: Mapping[str, Any], calls: Sequence[Call], state: IntentState
) -> list[Call]:
    """Return the calls that the shards of `state` ask for; goals that are no shards are passed over.

    A missing shard takes its linked arguments with it. Raises `GraderError` where it has none: what is left
    without it cannot be known.
    """
    made = [dict(call.arguments) for call in calls]
    held = {goal.id.split(".")[0]: goal for goal in state.goals}
    for base, shard in shards.items():
        goal = held.get(base)
        if goal is None:
            if not shard["links"]:
                raise GraderError(f"{task_id}: without {shard['text']!r} it cannot be known what to call")
            for link in shard["links"]:
                for at, argument in link["places"]:
                    made[at].pop(argument, None)
        elif goal.id != base:
            number = goal.id.partition(".v")[2]
            changes = _changes(shard)
            if not number.isdigit() or not 1 <= int(number) <= len(changes):
                raise GraderError(f"{task_id}: goal {goal.id!r} ({goal.text!r}) is no variant of this task")
            _, link, value = changes[int(number) - 1]
            for at, argument in link["places"]:
                made[at][argument] = value
    return [Call(call.name, arguments) for call, arguments in zip(calls, made, strict=True)]


def _changes(shard: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], Any]]:
    """Return (text, link, value) of every variant of a shard."""
    text = shard["text"]
    return [
        (text[: link["start"]] + shown(value) + text[link["end"] :], link, value)
        for link in shard["links"]
        for value in link["others"]
    ]


def _surfaces(accepted: Mapping[str, Mapping[str, Sequence[Any]]], argument: str) -> list[str]:
    """Return how the accepted values of an argument look in a text; booleans and dicts have no look of their own."""
    ((_, arguments),) = accepted.items()
    forms: list[str] = []
    for value in arguments.get(argument, ()):
        if value in ("", [], None) or isinstance(value, bool | dict):
            continue
        forms.append(shown(value))
        if isinstance(value, list):
            forms.append(", ".join(map(shown, value)))
        if isinstance(value, int | float) and abs(value) >= 1000:
            forms.append(f"{value:,}")
        if isinstance(value, float) and value.is_integer():
            forms.append(str(int(value)))
    return forms


def _spans(text: str, form: str) -> list[tuple[int, int]]:
    """Return where `form` stands in `text` as a whole word or number, in any case."""
    if not form.strip():
        return []
    before = r"(?<![\w.,-])" if form[0].isdigit() else r"(?<!\w)"
    after = r"(?!\w|[.,]\d)"
    pattern = re.compile(f"{before}{re.escape(form)}{after}", re.IGNORECASE)
    return [match.span() for match in pattern.finditer(text)]


def _inside(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return b[0] <= a[0] and a[1] <= b[1]
