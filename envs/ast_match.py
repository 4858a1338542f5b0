"""Compare function calls with a set of accepted ones, as the Berkeley Function-Calling Leaderboard does.

Two verdicts. `official` is the one of the leaderboard's Python checker (ShishirPatil/gorilla, Apache-2.0; its
behaviour written anew, no code shared), leniencies included: strings are compared without case and without
` ,./-_*^`, calls are matched greedily in order, positional arguments are dropped, `""` or `[]` may stand for an
optional argument. `strict` mends what is wrong there (`envs/call_values.py` compares the values): it finds the best
one-to-one matching, refuses positional arguments and blank values, knows `math_factorial` for `math.factorial`,
and lets an argument be left out or written where its value is the schema's own default.
Truth is written as in BFCL, `[{function: {argument: [accepted values]}}]`, where `""` among the values means that
the argument may be left out. What is compared is the real shape of an item (how many calls are due), not the name of
its category.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.call_syntax import Call, NameMap
from envs.call_values import official_fault, same_value, strict_fault
from envs.errors import GraderError, unknown_name

MODES = ("strict", "official")
Truth = Sequence[Mapping[str, Mapping[str, Sequence[Any]]]]


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one call: the leaderboard's kind of error ("unexpected_param"), and in words."""

    kind: str
    message: str
    argument: str | None = None


def match(
    functions: Sequence[Mapping[str, Any]], calls: Sequence[Call], truth: Truth, mode: str = "strict"
) -> Fault | None:
    """Return None if `calls` are the accepted ones in any order, else what is wrong first.

    Raises `GraderError` for an item without truth or with a schema that cannot be read, `UnknownName` for an
    unknown mode.
    """
    schemas, calls = _prepared(functions, calls, truth, mode)
    if len(calls) != len(truth):
        return Fault("wrong_count", f"{len(calls)} calls where {len(truth)} are due")
    faults = [
        [next(_call_faults(name, schemas[name], call, arguments, mode), None) for call in calls]
        for name, arguments in map(_only, truth)
    ]
    return _greedy(faults) if mode == "official" else _bipartite(faults)


def argument_faults(
    functions: Sequence[Mapping[str, Any]], calls: Sequence[Call], truth: Truth, mode: str = "strict"
) -> list[dict[str, Any]]:
    """Return all that is wrong, argument by argument, with each accepted call beside the call that is nearest.

    An entry holds `call` (index of the accepted call), `kind`, `message`, where they apply `argument`, `given` and
    `accepted`, and `belongs_to`: the other arguments ("size", "size of call 2") for which the given value is right.
    Raises as `match`.
    """
    schemas, calls = _prepared(functions, calls, truth, mode)
    accepted = [_only(one) for one in truth]

    def faults(t: int, c: int) -> Iterator[Fault]:
        name, arguments = accepted[t]
        return _call_faults(name, schemas[name], calls[c], arguments, mode)

    pairs: dict[int, int] = {}
    for t, c in itertools.product(range(len(truth)), range(len(calls))):
        if t not in pairs and c not in pairs.values() and next(faults(t, c), None) is None:
            pairs[t] = c
    found = {
        (t, c): list(faults(t, c))
        for t, c in itertools.product(range(len(truth)), range(len(calls)))
        if t not in pairs and c not in pairs.values()
    }
    pairs |= _nearest_pairs(found)
    entries: list[dict[str, Any]] = []
    for t, (name, arguments) in enumerate(accepted):
        if t not in pairs:
            entries.append(
                {"call": t, "kind": "missing_call", "message": f"no call of {name!r} for call {t + 1}"}
            )
            continue
        call = calls[pairs[t]]
        for fault in found.get((t, pairs[t]), ()):
            entry: dict[str, Any] = {"call": t, "kind": fault.kind, "message": fault.message}
            if fault.argument is not None:
                entry["argument"] = fault.argument
                entry["accepted"] = list(arguments.get(fault.argument, ()))
                if fault.argument in call.arguments:
                    entry["given"] = given = call.arguments[fault.argument]
                    entry["belongs_to"] = _owners(given, (t, fault.argument), truth, schemas)
            entries.append(entry)
    for c in sorted(set(range(len(calls))) - set(pairs.values())):
        message = f"call {c + 1} of the answer, of {calls[c].name!r}, is one too many"
        entries.append({"call": None, "kind": "extra_call", "message": message})
    return entries


def _prepared(
    functions: Sequence[Mapping[str, Any]], calls: Sequence[Call], truth: Truth, mode: str
) -> tuple[dict[str, Mapping[str, Any]], list[Call]]:
    """Return the schemas by function, and the calls by their real names. Raises as `match`."""
    if mode not in MODES:
        raise unknown_name("verdict", mode, MODES)
    if not truth:
        raise GraderError("the item holds no accepted call, so nothing can be graded")
    schemas = {function["name"]: function["parameters"] for function in functions}
    for name, _ in map(_only, truth):
        if name not in schemas:
            raise GraderError(f"the truth names {name!r}, which is no function of the item")
    if mode == "official":
        return schemas, list(calls)
    names = NameMap(schemas)
    return schemas, [Call(names.real(call.name), call.arguments, call.positional) for call in calls]


def _only(accepted: Mapping[str, Mapping[str, Sequence[Any]]]) -> tuple[str, Mapping[str, Sequence[Any]]]:
    ((name, arguments),) = accepted.items()
    return name, arguments


def _nearest_pairs(found: Mapping[tuple[int, int], Sequence[Fault]]) -> dict[int, int]:
    """Pair accepted calls with calls, those with the fewest faults first; a wrong function is the worst."""

    def distance(pair: tuple[int, int]) -> int:
        return sum(100 if fault.kind == "wrong_func_name" else 1 for fault in found[pair])

    pairs: dict[int, int] = {}
    for t, c in sorted(found, key=lambda pair: (distance(pair), pair)):
        if t not in pairs and c not in pairs.values():
            pairs[t] = c
    return pairs


def _owners(
    given: Any, place: tuple[int, str], truth: Truth, schemas: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the other arguments that `given` would be right for: a revision that landed in the wrong slot."""
    owners: list[str] = []
    for t, (name, arguments) in enumerate(map(_only, truth)):
        for argument, accepted in arguments.items():
            spec = schemas[name]["properties"].get(argument)
            if (t, argument) != place and spec is not None and strict_fault(given, accepted, spec) is None:
                owners.append(argument if t == place[0] else f"{argument} of call {t + 1}")
    return owners


def _greedy(faults: list[list[Fault | None]]) -> Fault | None:
    """Give each accepted call the first free call that fits it, without looking ahead."""
    free = list(range(len(faults)))
    for row in faults:
        fit = next((at for at in free if row[at] is None), None)
        if fit is None:
            return _nearest([row[at] for at in free])
        free.remove(fit)
    return None


def _bipartite(faults: list[list[Fault | None]]) -> Fault | None:
    """Find a perfect matching by augmenting paths."""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for at, fault in enumerate(faults[row]):
            if fault is None and at not in seen:
                seen.add(at)
                if at not in owner or place(owner[at], seen):
                    owner[at] = row
                    return True
        return False

    for row in range(len(faults)):
        if not place(row, set()):
            return _nearest([fault for fault in faults[row] if fault is not None]) or Fault(
                "cannot_find_match",
                f"another accepted call already takes the calls that fit number {row + 1}",
            )
    return None


def _nearest(faults: Sequence[Fault | None]) -> Fault | None:
    """Prefer a wrong value over a wrong shape: that call came closest."""
    known = [fault for fault in faults if fault is not None]
    return max(known, key=lambda fault: fault.kind.startswith("value_error"), default=None)


def _call_faults(
    name: str, schema: Mapping[str, Any], call: Call, accepted: Mapping[str, Sequence[Any]], mode: str
) -> Iterator[Fault]:
    """Yield what is wrong with a call, in the order in which the leaderboard's checker looks."""
    if call.name != name:
        yield Fault("wrong_func_name", f"the call is of {call.name!r}, not of {name!r}")
        return
    strict = mode == "strict"
    if strict and call.positional:
        yield Fault("positional", f"{call.positional} arguments of {name} have no name")
    required, properties = schema["required"], schema["properties"]
    for argument in required:
        if argument not in call.arguments:
            yield Fault("missing_required", f"the required argument {argument!r} is missing", argument)
    for argument, value in call.arguments.items():
        if argument not in properties or argument not in accepted:
            if not (strict and argument in properties and _is_default(value, properties[argument])):
                yield Fault("unexpected_param", f"the argument {argument!r} was not asked for", argument)
            continue
        fault = strict_fault if strict else official_fault
        kind = fault(value, accepted[argument], properties[argument])
        if kind is not None:
            yield Fault(kind, f"{argument}={value!r}, accepted: {list(accepted[argument])!r}", argument)
    for argument, values in accepted.items():
        if argument in call.arguments or argument in required or "" in values:
            continue
        spec = properties.get(argument, {})
        if not (strict and "default" in spec and strict_fault(spec["default"], values, spec) is None):
            yield Fault("missing_optional", f"the argument {argument!r} is missing", argument)


def _is_default(value: Any, spec: Mapping[str, Any]) -> bool:
    return "default" in spec and same_value(value, spec["default"], spec)
