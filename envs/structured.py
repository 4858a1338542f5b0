"""Replies that are one JSON object: unwrapped, checked against a schema, and asked for once more if wrong."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.endpoint import Endpoint, Message, Reply
from envs.errors import DataError


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of one question: the checked object, or None and the `problem`; every reply is kept."""

    value: dict[str, Any] | None
    problem: str | None
    replies: tuple[Reply, ...]


def ask_json(
    endpoint: Endpoint,
    messages: Sequence[Message],
    schema: Mapping[str, Any],
    *,
    tidy: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    check: Callable[[dict[str, Any]], str | None] | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    max_tokens: int = 512,
) -> Asked:
    """Ask for one JSON object that satisfies `schema`; a reply that does not is sent back once for repair.

    `tidy` rewrites harmless differences before the check ("3" for 3). `check` returns what is wrong with an
    object that fits the schema, or None. Raises `EndpointError` from the endpoint.
    """
    settings: dict[str, Any] = {
        "temperature": temperature,
        "seed": seed,
        "max_tokens": max_tokens,
        "schema": schema,
    }
    first = endpoint.ask(messages, **settings)
    value, problem = _read(first, schema, tidy, check)
    if problem is None:
        return Asked(value, None, (first,))
    repair = (
        f"That reply cannot be used: {problem}. Answer the same question again with one JSON object in the "
        "form that was asked for, and nothing else."
    )
    talk = [*messages, {"role": "assistant", "content": first.text}, {"role": "user", "content": repair}]
    second = endpoint.ask(talk, **settings)
    value, problem = _read(second, schema, tidy, check)
    return Asked(value, problem, (first, second))


def _read(
    reply: Reply,
    schema: Mapping[str, Any],
    tidy: Callable[[dict[str, Any]], dict[str, Any]] | None,
    check: Callable[[dict[str, Any]], str | None] | None,
) -> tuple[dict[str, Any] | None, str | None]:
    try:
        value = read_json(reply.text)
    except DataError as error:
        return None, f"{error}{' (it was cut short by max_tokens)' if reply.cut_short else ''}"
    if tidy is not None:
        value = tidy(value)
    problem = _mismatch(value, schema)
    if problem is None and check is not None:
        problem = check(value)
    return (value, None) if problem is None else (None, problem)


def _mismatch(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return how a value breaks a schema, or None."""
    error = next(_validator(json.dumps(schema, sort_keys=True)).iter_errors(value), None)
    return None if error is None else f"at {error.json_path}: {error.message[:200]}"


@functools.lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    import jsonschema  # here, so that importing the environment stays quick

    return jsonschema.Draft202012Validator(json.loads(schema))


def read_json(text: str) -> dict[str, Any]:
    """Return the one JSON object of a model's reply: bare, in a code fence, after thinking, or amid prose.

    Raises `DataError` when there is none, when there are several that differ, or when a key comes twice.
    """
    # What stands before the end of thinking is no answer, unless nothing but an answer holds that tag.
    found = _objects(text.rpartition("</think>")[2]) or _objects(text)
    if not found:
        raise DataError(f"the reply holds no JSON object: {text.strip()[:200]!r}")
    if len(found) > 1:
        raise DataError(f"the reply holds {len(found)} different JSON objects")
    return found[0]


def _objects(text: str) -> list[dict[str, Any]]:
    """Return the outermost JSON objects in a text, each different one once."""
    decoder = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)
    found: list[dict[str, Any]] = []
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            end = at + 1
        except RecursionError:
            raise DataError("the reply holds JSON that is nested too deeply") from None
        else:
            if value not in found:
                found.append(value)
        at = text.find("{", end)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise DataError(f"a key comes twice in one JSON object: {[name for name, _ in pairs]}")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise DataError(f"the reply holds {name}, which is no JSON")
