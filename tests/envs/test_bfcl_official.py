"""BFCL against the leaderboard's own checker: the same verdict on every gold and on thousands of spoiled answers."""

from __future__ import annotations

import copy
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.ast_match import match
from envs.call_syntax import Call, parse_calls, render_calls
from envs.families._bfcl_values import first_accepted
from envs.families.bfcl import CATEGORIES, FAMILY
from tests.envs.official import bfcl_checker

MUTATED = 1200  # a category
Arguments = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def check() -> Iterator[Callable[..., dict[str, Any]]]:
    with bfcl_checker() as checker:
        yield checker


def other_form(value: Any, rng: random.Random) -> Any:
    """Return the value in another form or of another type, right or wrong."""
    match value:
        case bool():
            return rng.choice([not value, int(value), str(value), None])
        case int():
            return rng.choice([float(value), str(value), value + 1, -value, bool(value), [value]])
        case float():
            return rng.choice([int(value), str(value), value + 0.5, -value, value * 10])
        case str():
            forms = [
                value.upper(),
                value.lower(),
                f" {value} ",
                value.replace(" ", ""),
                value.replace(",", ""),
            ]
            forms += [
                f"-{value}",
                f"{value}.",
                f"{value}s",
                "",
                "- .",
                value.replace(".", ""),
                [value],
                '"' + value,
            ]
            forms += [value.replace(" ", "_"), value.replace("'", '"'), value + "\n", value[:-1], value[::-1]]
            return rng.choice(forms)
        case list():
            forms = [value[1:], value[::-1], value * 2, [], tuple(value), "", value[0] if value else 0]
            if value:
                at = rng.randrange(len(value))
                forms += [[*value[:at], other_form(value[at], rng), *value[at + 1 :]]] * 4
            return rng.choice(forms)
        case dict():
            changed = dict(value)
            if changed and rng.random() < 0.8:
                key = rng.choice(sorted(changed))
                if rng.random() < 0.3:
                    del changed[key]
                else:
                    changed[key] = other_form(changed[key], rng)
            else:
                changed["other"] = 1
            return changed
    return rng.choice([0, "", None])


def spoil(calls: Arguments, item: dict[str, Any], rng: random.Random) -> None:
    """Change the calls in place in one way, which may or may not matter."""
    at = rng.randrange(len(calls)) if calls else 0
    if not calls or rng.random() < 0.1:
        match rng.randrange(5):
            case 0 if calls:
                del calls[at]
            case 1 if calls:
                calls.append(copy.deepcopy(calls[at]))
            case 2 if calls:
                name, arguments = calls[at]
                names = [name.replace(".", "_"), name + "s", rng.choice(item["functions"])["name"]]
                calls[at] = (rng.choice(names), arguments)
            case _:
                rng.shuffle(calls)
        return
    name, arguments = calls[at]
    accepted = next((t[name] for t in rng.sample(item["truth"], len(item["truth"])) if name in t), {})
    keys = sorted(arguments)
    kind = rng.random()
    if keys and kind < 0.5:
        key = rng.choice(keys)
        arguments[key] = other_form(arguments[key], rng)
    elif keys and kind < 0.6:
        del arguments[rng.choice(keys)]
    elif len(keys) > 1 and kind < 0.7:
        a, b = rng.sample(keys, 2)
        arguments[a], arguments[b] = arguments[b], arguments[a]
    elif kind < 0.9 and accepted:
        key = rng.choice(sorted(accepted))
        arguments[key] = first_accepted([rng.choice(accepted[key])])
    else:
        known = sorted({k for f in item["functions"] for k in f["parameters"]["properties"]})
        arguments[rng.choice([*known, "other"])] = rng.choice([1, "x", 2.5, True, [], "", ["a"], {"a": 1}])


@functools.cache
def payloads(category: str, data: Path) -> list[dict[str, Any]]:
    return [dict(task.payload) for task in FAMILY.load(data, category)]


def answers(category: str, data: Path) -> Iterator[tuple[dict[str, Any], Arguments]]:
    """Yield (payload, calls): every gold, then spoiled ones."""
    items = payloads(category, data)
    golds: list[Arguments] = [[(c["name"], c["arguments"]) for c in item["calls"]] for item in items]
    yield from zip(items, copy.deepcopy(golds))
    rng = random.Random(category)
    for n in range(MUTATED):
        calls = copy.deepcopy(golds[n % len(items)])
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            spoil(calls, items[n % len(items)], rng)
        yield items[n % len(items)], calls


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_official_verdict_is_the_checkers_own(
    category: str, check: Callable[..., dict[str, Any]], benchmark_data: Path
) -> None:
    seen, kinds, strict = 0, Counter[bool](), Counter[tuple[bool, bool]]()
    for item, calls in answers(category, benchmark_data):
        theirs = check(
            item["functions"], [{name: arguments} for name, arguments in calls], item["truth"], category
        )
        written = [Call(name, arguments) for name, arguments in calls]
        ours = match(item["functions"], written, item["truth"], "official")
        assert (ours is None) == theirs["valid"], (calls, item["truth"], ours, theirs)
        # and through text: what is written is read back as it was
        assert not calls or parse_calls(render_calls(written)) == written
        seen += 1
        kinds[theirs["valid"]] += 1
        strict[theirs["valid"], match(item["functions"], written, item["truth"], "strict") is None] += 1
    print(
        f"{category}: {seen} answers, {kinds[True]} accepted; strict differs {strict[True, False]} + "
        f"{strict[False, True]} times"
    )
    assert seen >= 1200 and min(kinds.values()) >= 150


@pytest.mark.parametrize("category", CATEGORIES)
def test_where_the_verdicts_differ_it_is_for_a_known_reason(category: str, benchmark_data: Path) -> None:
    for item, calls in answers(category, benchmark_data):
        written = [Call(name, arguments) for name, arguments in calls]
        official = match(item["functions"], written, item["truth"], "official")
        strict = match(item["functions"], written, item["truth"], "strict")
        if (
            official is None and strict is not None
        ):  # forgiven: what a string standardisation drops, blanks, greed
            assert strict.kind.startswith("value_error") or strict.kind == "cannot_find_match", (
                calls,
                strict,
            )
        if strict is None and official is not None:
            # a whole number in a list of floats, a dotted name, a default, or greedy matching
            assert (
                official.kind
                in {"type_error:nested", "wrong_func_name", "unexpected_param", "missing_optional"}
                or len(calls) > 1
            ), (calls, official)
