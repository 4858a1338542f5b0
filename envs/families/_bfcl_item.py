"""A BFCL item ready for drift: the first accepted calls, and for each argument what else it may be set to."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.ast_match import MODES, match
from envs.call_syntax import Call
from envs.errors import GraderError
from envs.families._bfcl_flags import flags_of
from envs.families._bfcl_values import Pools, first_accepted, other_values

_FORMAT = (
    'Answer with the calls alone, as a Python list: [name(argument="text", other=3), ...]. A JSON list of '
    '{"name", "arguments"} will do as well. Give exactly the arguments that were asked for.'
)
_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
_WORDINGS = (
    "set {noun} to {value}",
    "use {value} for {noun}",
    "make {noun} {value}",
    "let {noun} be {value}",
)
_MORE = 3  # wishes for one more call; the count of calls is graded, so each is wrong


@dataclass(frozen=True, slots=True)
class Item:
    """An item whose gold passes: the functions on offer, the accepted calls, and the first accepted ones."""

    functions: list[Any]
    truth: list[dict[str, Any]]
    calls: list[Call]
    flags: list[str]

    def spec(self, at: int, argument: str) -> Mapping[str, Any]:
        name = self.calls[at].name
        return next(f for f in self.functions if f["name"] == name)["parameters"]["properties"][argument]

    def others(self, places: Sequence[tuple[int, str]], values: Sequence[Any]) -> list[Any]:
        """Return those of `values` which, written at all `places`, both verdicts reject."""
        return [value for value in values if self._is_rejected(places, value)]

    def _is_rejected(self, places: Sequence[tuple[int, str]], value: Any) -> bool:
        changed = list(self.calls)
        for at, argument in places:
            changed[at] = with_argument(changed[at], argument, value)
        return all(match(self.functions, changed, self.truth, mode) is not None for mode in MODES)

    def opening(self) -> str:
        names = " and ".join(f"`{name}`" for name in dict.fromkeys(call.name for call in self.calls))
        count = _COUNTS[len(self.calls)] if len(self.calls) < len(_COUNTS) else str(len(self.calls))
        return f"I need {count} call{'s' if len(self.calls) > 1 else ''} of {names}."

    def context(self) -> str:
        return "\n".join(["Functions:", *(json.dumps(function) for function in self.functions), _FORMAT])

    def payload(self) -> dict[str, Any]:
        return {
            "functions": self.functions,
            "truth": self.truth,
            "calls": [{"name": call.name, "arguments": dict(call.arguments)} for call in self.calls],
            "flags": self.flags,
        }


def read_item(name: str, functions: list[Any], truth: list[dict[str, Any]]) -> Item | str:
    """Return an item by its upstream id, or why it cannot be used."""
    schemas = {function["name"]: function["parameters"] for function in functions}
    calls: list[Call] = []
    for accepted in truth:
        ((function, arguments),) = accepted.items()
        required = schemas[function]["required"] if function in schemas else []
        given = {a: first_accepted(v) for a, v in arguments.items() if a in required or "" not in v}
        calls.append(Call(function, given))
    if not truth or any(call.name not in schemas for call in calls):
        return "the item holds no accepted call of a function that it offers"
    for mode in MODES:
        try:
            fault = match(functions, calls, truth, mode)
        except GraderError as error:
            return f"the grader failed on the first accepted values: {error}"
        if fault is not None:
            return f"the {mode} grader rejects the first accepted values: {fault.message}"
    return Item(functions, truth, calls, flags_of(name, schemas, truth))


def goal_data(id: str, item: Item, pools: Pools) -> dict[str, dict[str, Any]]:
    """Return goal id -> what `execute` and `variants` need to know of it (plain JSON data)."""
    goals: dict[str, dict[str, Any]] = {}
    for at, call in enumerate(item.calls):
        for argument, value in call.arguments.items():
            rng = random.Random(f"{id}|{at}|{argument}")
            spec = item.spec(at, argument)
            others = item.others([(at, argument)], other_values(argument, value, spec, pools, rng))
            known = _describe(at, len(item.calls), argument, spec, rng)
            variants = [[text_of(known, other), shown(other)] for other in others]
            goals[f"g{len(goals) + 1}"] = known | {"value": value, "variants": variants}
    _make_unique(goals)
    return goals


def decoy_data(id: str, item: Item, pools: Pools, unmentioned: bool = False) -> dict[str, dict[str, Any]]:
    """Return decoy id -> the same data as for goals; each was seen to change both verdicts.

    `unmentioned` keeps to arguments for which no value is accepted: shards may well say the others, and a decoy
    must not contradict a goal.
    """
    rng = random.Random(f"{id}|decoys")
    calls = item.calls
    found: list[dict[str, Any]] = []
    for at, call in enumerate(calls):
        properties = next(f for f in item.functions if f["name"] == call.name)["parameters"]["properties"]
        for argument, spec in properties.items():
            accepted = item.truth[at][call.name].get(argument, [])
            if argument in call.arguments or (unmentioned and any(value != "" for value in accepted)):
                continue
            values = item.others([(at, argument)], other_values(argument, None, spec, pools, rng))
            if values:
                found.append(_describe(at, len(calls), argument, spec, rng) | {"value": values[0]})
    rng.shuffle(found)
    found = found[:5]
    places = {a: at for at, call in enumerate(calls) for a, v in call.arguments.items() if _is_scalar(v)}
    for argument in rng.sample(sorted(places), min(_MORE, len(places))):
        at = places[argument]
        values = other_values(argument, calls[at].arguments[argument], item.spec(at, argument), pools, rng)
        if values:
            words, like = _words(argument), f" like call {at + 1}" if len(calls) > 1 else ""
            wording = f"make one more call{like} with {{value}} as the {words}"
            more = {"call": at, "argument": argument, "slot": f"{words} of one more call", "more": True}
            found.append(more | {"wording": wording, "value": rng.choice(values)})
    return {f"d{n}": decoy for n, decoy in enumerate(found, 1)}


def _is_scalar(value: Any) -> bool:
    return type(value) in (str, int, float)


def _describe(
    at: int, count: int, argument: str, spec: Mapping[str, Any], rng: random.Random
) -> dict[str, Any]:
    """Return where an argument stands, the slot's name, and how a wish for it is worded."""
    words = _words(argument)
    slot = words if count == 1 else f"{words} of call {at + 1}"
    noun = f"the {slot}"
    text = str(spec.get("description", "")).strip()
    short = re.fullmatch(r"The ([a-zA-Z][\w' -]{2,40})\.?", text)
    if count == 1 and short is not None and len(short.group(1).split()) <= 6:
        noun = f"the {short.group(1)}"
    wording = rng.choice(_WORDINGS).replace("{noun}", noun)
    return {"call": at, "argument": argument, "slot": slot, "wording": wording}


def _words(argument: str) -> str:
    """Return an argument's name as words: "startDate" and "start_date" are "start date"."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", argument).replace("_", " ").split()
    return " ".join(word if word.isupper() and len(word) > 1 else word.lower() for word in spaced)


def _make_unique(goals: dict[str, dict[str, Any]]) -> None:
    """Tell apart arguments whose names come out as the same words ("to_unit" and "toUnit")."""
    slots = [goal["slot"] for goal in goals.values()]
    for goal in goals.values():
        if slots.count(goal["slot"]) > 1:
            goal["slot"] = f"{goal['slot']} ({goal['argument']})"


def shown(value: Any) -> str:
    """Return a value as text: strings as they are, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def text_of(known: Mapping[str, Any], value: Any) -> str:
    """Return the wish that sets an argument to `value`."""
    text = shown(value)
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        text = ", ".join(shown(item) for item in value) or "an empty list"
    return known["wording"].replace("{value}", text)


def with_argument(call: Call, argument: str, value: Any) -> Call:
    return Call(call.name, {**call.arguments, argument: value})
