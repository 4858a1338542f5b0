"""Plausible other values for an argument: from its enum, from other items, or near by."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

MOST = 8  # values offered for one argument
_ENOUGH = 5  # the largest budget


class Pools:
    """Strings that the accepted answers of a file use, by argument name and by the last word of that name."""

    def __init__(self, truths: Iterable[list[dict[str, Any]]]) -> None:
        self._by_name: dict[str, dict[str, None]] = {}
        self._by_word: dict[str, dict[str, None]] = {}
        self._by_look: dict[str, dict[str, None]] = {}
        for truth in truths:
            for accepted in truth:
                for arguments in accepted.values():
                    for argument, values in arguments.items():
                        self._take(argument, first_accepted(values))

    def strings(self, argument: str, like: str | None) -> list[list[str]]:
        """Return groups of strings, the best first: same name, same last word, anything of the same look."""
        by_word = list(self._by_word.get(_last_word(argument), ()))
        near = [] if like is None else list(self._by_look.get(_look(like), ()))
        return [list(self._by_name.get(argument, ())), by_word, near]

    def _take(self, argument: str, value: Any) -> None:
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and 0 < len(text) <= 60:
                self._by_name.setdefault(argument, {})[text] = None
                self._by_word.setdefault(_last_word(argument), {})[text] = None
                self._by_look.setdefault(_look(text), {})[text] = None


def first_accepted(values: Any) -> Any:
    """Return the first accepted value that is no `""`; inside dicts each key's first one."""
    value = next((item for item in values if item != ""), "")
    if isinstance(value, dict):
        return {key: first_accepted(items) for key, items in value.items() if "" not in items}
    if isinstance(value, list):
        return [first_accepted([item]) if isinstance(item, dict) else item for item in value]
    return value


def other_values(
    argument: str, value: Any, spec: Mapping[str, Any], pools: Pools, rng: random.Random
) -> list[Any]:
    """Return up to `MOST` values unlike `value`, of its kind (for None: the schema's)."""
    if value is None:
        value = _stand_in(spec)
    match value:
        case bool():
            found: list[Any] = [not value]
        case int() | float():
            found = _numbers(value, rng)
        case str():
            found = _strings(argument, value, spec, pools, rng)
        case list():
            found = _lists(argument, value, spec, pools, rng)
        case dict():
            found = _dicts(value, pools, rng)
        case _:
            found = []
    return [other for other in found if other != value][:MOST]


def _stand_in(spec: Mapping[str, Any]) -> Any:
    """Return a value of the schema's type: the default that it names, or a plain one."""
    default = spec.get("default")
    if default is not None:
        return default
    kind, text = spec.get("type"), str(spec.get("description", ""))
    number = re.search(r"[Dd]efaults?(?: value)? (?:is|to|of) (-?\d+(?:\.\d+)?)", text)
    match kind:
        case "boolean":
            return "true" in text.lower().partition("default")[2]
        case "integer":
            return int(float(number.group(1))) if number else 10
        case "float":
            return float(number.group(1)) if number else 1.5
        case "string":
            return ""
        case _:
            return None


def _numbers(value: int | float, rng: random.Random) -> list[Any]:
    """Return near numbers of the same type and with as many decimals, positive where `value` is."""
    exact = Decimal(str(value))
    decimals = exact.as_tuple().exponent
    unit = Decimal(1).scaleb(decimals if isinstance(decimals, int) and decimals < 0 else 0)
    round_unit = unit
    year = type(value) is int and 1800 <= value <= 2100
    while not year and exact != 0 and exact % (round_unit * 10) == 0 and abs(exact) >= round_unit * 100:
        round_unit *= 10  # 5000 moves by hundreds
    if unit == Decimal("0.1") and exact == exact.to_integral_value():
        round_unit = unit = Decimal(1)  # 6.0
    steps = [round_unit * k for k in (1, 2, 3, 5, 10)]
    near = [exact + sign * step for step in steps for sign in (1, -1)]
    fits = [number for number in near if number > 0 or exact <= 0]
    rng.shuffle(fits)
    return [type(value)(number) for number in fits]


def _strings(
    argument: str, value: str, spec: Mapping[str, Any], pools: Pools, rng: random.Random
) -> list[str]:
    """Return other strings: of the enum alone where there is one, else from the pools."""
    enum = spec.get("enum") or (spec.get("items") or {}).get("enum")
    if enum:
        found = [item for item in enum if isinstance(item, str)]
        rng.shuffle(found)
        return found
    named = _in_quotes(str(spec.get("description", "")))
    groups = [named, *pools.strings(argument, value or None)]
    found: list[str] = []
    for group in groups:
        if len(found) >= _ENOUGH:
            break  # worse groups only fill up what better ones leave open
        rng.shuffle(group)
        fresh = [item for item in group if item not in found and not _contain(item, value)]
        found += fresh if group is named or not found else fresh[: _ENOUGH - len(found)]
    return found


def _lists(
    argument: str, value: list[Any], spec: Mapping[str, Any], pools: Pools, rng: random.Random
) -> list[Any]:
    """Return lists with one item changed, one left out, or one more."""
    found: list[Any] = []
    for at in rng.sample(range(len(value)), len(value)):
        for other in other_values(argument, value[at], spec.get("items") or {}, pools, rng)[:2]:
            found.append([*value[:at], other, *value[at + 1 :]])
    if len(value) > 1:
        found.append(value[:-1])
        found.append(value[1:])
    rng.shuffle(found)
    return found


def _dicts(value: dict[str, Any], pools: Pools, rng: random.Random) -> list[Any]:
    """Return dicts with one entry changed."""
    found = [
        {**value, key: other}
        for key, item in value.items()
        for other in other_values(key, item, {}, pools, rng)[:3]
    ]
    rng.shuffle(found)
    return found


def _in_quotes(description: str) -> list[str]:
    return re.findall(
        r"(?<!\w)['\"\u2018\u201c]([^'\"\u2019\u201d]{1,30})['\"\u2019\u201d](?!\w)", description
    )


def _contain(a: str, b: str) -> bool:
    """Whether one of two texts holds the other: "Microsoft" and "Microsoft Corporation" are no revision."""
    a, b = a.casefold(), b.casefold()
    return b != "" and (a in b or b in a)


def _last_word(argument: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", argument).lower().rstrip("0123456789_").split("_")[-1]


def _look(text: str) -> str:
    """Return the shape of a text: kinds of characters, runs shortened ("New York, NY" is "Aa Aa, A")."""
    return re.sub(r"[A-Z]+", "A", re.sub(r"[a-z]+", "a", re.sub(r"\d+", "0", text)))
