"""What this package needs of a chat model, and the prompts that it sends.

Any object with such an `ask` will do: an OpenAI-compatible endpoint, or a stub in tests. Retries after network
errors and the cache on disk are the endpoint's.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from envs.errors import ConfigError

PROMPTS = Path(__file__).parent / "prompts"


class ChatReply(Protocol):
    """`text` is what the model wrote: JSON, where a schema was asked for and the model kept to it."""

    @property
    def text(self) -> str: ...


class Chat(Protocol):
    """A chat model; the same arguments should give the same reply (a seed, a cache)."""

    def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        temperature: float,
        seed: int,
        max_tokens: int,
        schema: Mapping[str, Any],
    ) -> ChatReply: ...


@functools.cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Plain text, not HTML: nothing is escaped. A field that a template lacks is an error.
    return Environment(
        loader=FileSystemLoader(PROMPTS),
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=False,
    )


def render(name: str, **fields: Any) -> str:
    """Return the prompt `name` (a file of `envs/prompts`, without its suffix) with its fields filled in."""
    return _environment().get_template(f"{name}.j2").render(**fields).strip()


def prompt_hash(names: Sequence[str], schema: Mapping[str, Any]) -> str:
    """Return 16 hex digits that change whenever a prompt's text or the answer's schema does."""
    digest = hashlib.sha256()
    for name in names:
        digest.update((PROMPTS / f"{name}.j2").read_bytes() + b"\0")
    digest.update(json.dumps(schema, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def parsed_reply(text: str) -> dict[str, Any] | None:
    """Return the JSON object of a reply, also where a fence or words stand around it; None if there is none."""
    start, end = text.find("{"), text.rfind("}")
    if not 0 <= start < end:
        return None
    try:
        found = json.loads(text[start : end + 1])
    except (json.JSONDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def model_name(endpoint: object, given: str | None) -> str:
    """Return the model's name for the records. Raises `ConfigError` where nobody says it."""
    name = given or getattr(endpoint, "model", None)
    if not isinstance(name, str) or not name:
        raise ConfigError("the endpoint does not say which model it is; pass model=, so that it is recorded")
    return name


def derived_seed(*parts: object) -> int:
    """Return a seed from 0 to 2**31 - 1 that follows from `parts` alone, on every machine."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF
