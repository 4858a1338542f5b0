"""A small client for any OpenAI-compatible chat endpoint; judges and user simulators talk through it.

One request at a time, with a deadline, bounded retries and a disk cache keyed by all inputs, so that a run
that is repeated or resumed asks nothing twice. Wire format: `POST {url}/chat/completions`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from envs.errors import ConfigError, EndpointError, unknown_name

Message = Mapping[str, Any]

_KINDS = ("openai",)
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_LONGEST_WAIT_S = 30.0
_MAX_BYTES = 16 << 20
_CACHE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Reply:
    """What the endpoint said. `raw` is the body as it came, `key` the hash of everything that was asked."""

    text: str
    finish_reason: str | None
    model: str
    """The model as the server names it."""
    usage: Mapping[str, int]
    """Tokens as the server counts them: prompt_tokens, completion_tokens, ..."""
    raw: str
    key: str
    cached: bool
    attempts: int

    @property
    def cut_short(self) -> bool:
        """Whether `max_tokens` ended the reply."""
        return self.finish_reason == "length"


class Usage:
    """Counts of one endpoint; safe with threads. Replies from the cache cost nothing and count apart."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        names = ("replies", "cached", "retries", "failures", "prompt_tokens", "completion_tokens")
        self._counts: dict[str, int] = dict.fromkeys(names, 0)

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def as_dict(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


@dataclass(frozen=True)
class Endpoint:
    """Where to ask and how patiently. `ask` may be called from several threads and processes at once."""

    url: str
    """The base, with its version: "http://127.0.0.1:8000/v1"."""
    model: str
    key_env: str = "FLUXFORGE_API_KEY"
    """The environment variable that holds the API key; unset means that none is sent."""
    timeout_s: float = 120.0
    """Limit of one attempt, from connecting to the last byte."""
    deadline_s: float = 300.0
    """Limit of one `ask` with all its retries and waits."""
    retries: int = 5
    """Further attempts after 408, 409, 425, 429, 5xx, a lost connection or a body that is no reply."""
    backoff_s: float = 0.5
    """Wait before the first retry; doubled each time, up to 30 s, with jitter. `Retry-After` goes first."""
    structured: bool = True
    """Whether `response_format` is sent with a schema. Set False for servers that refuse it."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the request body, such as {"chat_template_kwargs": {"enable_thinking": False}}. One that
    is None is left out: {"seed": None} for a server that refuses seeds."""
    cache: Path | None = None
    """Folder of the cache; None asks anew each time."""
    usage: Usage = field(default_factory=Usage, compare=False, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"an endpoint needs an http(s) address with a host, got {self.url!r}")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                f"the endpoint at {parts.hostname!r} carries more than an address (user, password, query or "
                f"fragment); put the key in the environment variable {self.key_env}"
            )
        if not self.model:
            raise ConfigError(f"endpoint {self.url!r} names no model; write openai:{self.url}#MODEL")
        if min(self.timeout_s, self.deadline_s) <= 0 or self.retries < 0 or self.backoff_s < 0:
            raise ConfigError(
                "an endpoint's timeout and deadline are positive, retries and backoff at least 0"
            )
        object.__setattr__(self, "url", self.url.rstrip("/"))

    @classmethod
    def parse(cls, spec: str, **settings: Any) -> Endpoint:
        """Return the endpoint of "openai:http://127.0.0.1:8000/v1#model"; `settings` are its other fields.

        Raises `ConfigError` for a spec of another shape, `UnknownName` for another kind.
        """
        kind, colon, rest = spec.partition(":")
        url, sharp, model = rest.partition("#")
        if not colon or not sharp or not url:
            raise ConfigError(
                "an endpoint is written KIND:URL#MODEL, as in openai:http://127.0.0.1:8000/v1#my-model; got "
                + ("one with an @" if "@" in spec else repr(spec))  # what stands before it may be a secret
            )
        if kind not in _KINDS:
            raise unknown_name("endpoint kind", kind, _KINDS)
        return cls(url, model, **settings)

    @property
    def name(self) -> str:
        """The spec that `parse` reads; it holds no secret."""
        return f"openai:{self.url}#{self.model}"

    def ask(
        self,
        messages: Sequence[Message],
        *,
        temperature: float = 0.0,
        seed: int = 0,
        max_tokens: int = 512,
        schema: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Return the reply to `messages`; with `schema`, a JSON schema, the server is asked to keep to it.

        The reply is not checked against the schema here. Blocks; in async code go through
        `asyncio.to_thread`. Raises `EndpointError` when the server refuses or retries or deadline run out.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "temperature": temperature,
            "seed": seed,
            "max_tokens": max_tokens,
            **self.extra,
        }
        body = {name: value for name, value in body.items() if value is not None}
        if schema is not None and self.structured:
            wanted = {"name": "reply", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": wanted}
        request = {"version": _CACHE_VERSION, "url": self.url, "body": body}
        key = hashlib.sha256(_canonical(request).encode()).hexdigest()
        raw = self._recall(key, request)
        if raw is not None:
            self.usage.add(cached=1)
            return _reply(raw, key, cached=True, attempts=0)
        try:
            raw, attempts = self._persist(body)
        except EndpointError:
            self.usage.add(failures=1)
            raise
        reply = _reply(self._keep(key, request, raw), key, cached=False, attempts=attempts)
        tokens = {name: reply.usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens")}
        self.usage.add(replies=1, **tokens)
        return reply

    def _persist(self, body: Mapping[str, Any]) -> tuple[str, int]:
        """Return the raw body of a usable reply and the number of attempts."""
        start = time.monotonic()
        payload = json.dumps(body, ensure_ascii=False).encode()
        secret = os.environ.get(self.key_env, "")
        attempt = 0
        while True:
            attempt += 1
            left = self.deadline_s - (time.monotonic() - start)
            outcome = _run(_post(self.url, payload, secret, min(self.timeout_s, max(left, 0.01))))
            if outcome.problem is None:
                return outcome.text, attempt
            said = outcome.problem.replace(secret, "***") if secret else outcome.problem
            where = f"{self.name} {said}"
            if not outcome.passing:
                raise EndpointError(f"{where}{self._advice(outcome.status)}")
            if attempt > self.retries:
                raise EndpointError(f"{where} (attempt {attempt}, no retry left)")
            wait = min(self.backoff_s * 2 ** (attempt - 1), _LONGEST_WAIT_S) * random.uniform(0.5, 1.0)
            if outcome.retry_after_s is not None:
                wait = max(wait, outcome.retry_after_s)
            left = self.deadline_s - (time.monotonic() - start)
            if wait >= left:
                raise EndpointError(
                    f"{where} (attempt {attempt}, and the deadline of {self.deadline_s:g} s is over)"
                )
            self.usage.add(retries=1)
            time.sleep(wait)

    def _advice(self, status: int | None) -> str:
        if status in (401, 403):
            return f"; put the API key in the environment variable {self.key_env}"
        if status == 404:
            return "; is the address right (it ends in /v1 on most servers), and does it serve this model?"
        if status in (400, 422) and self.structured:
            return "; if the server does not know response_format, set structured=False"
        return ""

    def _recall(self, key: str, request: Mapping[str, Any]) -> str | None:
        """Return the stored body for a request; a damaged or foreign file counts as none."""
        if self.cache is None:
            return None
        try:
            entry = json.loads(_cache_path(self.cache, key).read_text(encoding="utf-8"))
            if _canonical(entry["request"]) != _canonical(request) or _problem(entry["raw"]) is not None:
                return None
            return entry["raw"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep(self, key: str, request: Mapping[str, Any], raw: str) -> str:
        """Store a body and return the one that counts: of several writers the first, so that all agree."""
        if self.cache is None:
            return raw
        path = _cache_path(self.cache, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")
        aside = Path(name)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                json.dump({"request": request, "raw": raw}, file, ensure_ascii=False, sort_keys=True)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(aside, path)  # fails if another process was first
            except OSError:
                kept = self._recall(key, request)
                if kept is not None:
                    return kept
                os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        return raw


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One attempt: the body, or what went wrong and whether that may pass."""

    text: str = ""
    problem: str | None = None
    passing: bool = False
    status: int | None = None
    retry_after_s: float | None = None


async def _post(url: str, payload: bytes, secret: str, limit_s: float) -> _Outcome:
    import asyncio  # these two here, so that importing the environment stays quick

    import httpx

    headers = {"Content-Type": "application/json"}
    if secret:
        headers["Authorization"] = f"Bearer {secret}"
    host = urlsplit(url).hostname or ""
    local = host == "localhost" or host == "::1" or host.startswith("127.")
    try:
        async with asyncio.timeout(limit_s):
            # A proxy for the outside world is not asked for this machine's own servers.
            async with httpx.AsyncClient(timeout=None, trust_env=not local, verify=_tls()) as client:
                request = client.stream("POST", f"{url}/chat/completions", content=payload, headers=headers)
                async with request as response:
                    chunks, size = [], 0
                    async for chunk in response.aiter_bytes():
                        chunks.append(chunk)
                        size += len(chunk)
                        if size > _MAX_BYTES:
                            return _Outcome(problem=f"sent more than {_MAX_BYTES} bytes")
                    text = b"".join(chunks).decode("utf-8", "replace")
                    status, waiting = response.status_code, response.headers.get("Retry-After")
    except TimeoutError:
        return _Outcome(problem=f"did not answer within {limit_s:.3g} s", passing=True)
    except (httpx.HTTPError, OSError) as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        return _Outcome(problem=f"could not be reached ({what})", passing=True)
    if status != 200:
        return _Outcome(
            problem=f"answered {status}: {' '.join(text.split())[:300]}",
            passing=status in _RETRIED,
            status=status,
            retry_after_s=_seconds(waiting),
        )
    problem = _problem(text)
    return _Outcome(text) if problem is None else _Outcome(problem=f"answered {problem}", passing=True)


def _problem(raw: str) -> str | None:
    """Return why a body is no chat completion, or None."""
    try:
        message = json.loads(raw)["choices"][0]["message"]
        if not isinstance(message.get("content"), str | None):
            return "with content that is no text"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return f"with what is no chat completion: {' '.join(raw.split())[:200]!r}"
    return None


def _reply(raw: str, key: str, *, cached: bool, attempts: int) -> Reply:
    body = json.loads(raw)
    choice, usage = body["choices"][0], body.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    return Reply(
        text=choice["message"].get("content") or "",
        finish_reason=choice.get("finish_reason"),
        model=str(body.get("model", "")),
        usage={name: count for name, count in counts.items() if isinstance(count, int)},
        raw=raw,
        key=key,
        cached=cached,
        attempts=attempts,
    )


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _cache_path(folder: Path, key: str) -> Path:
    return Path(folder) / key[:2] / f"{key}.json"


def _seconds(header: str | None) -> float | None:
    """Return `Retry-After` in seconds; its other form, a date, is left to the backoff."""
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:
        return None


@functools.cache
def _tls() -> Any:
    import httpx

    return httpx.create_ssl_context()


def _run(work: Coroutine[Any, Any, _Outcome]) -> _Outcome:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:  # the caller's own loop cannot be entered again
        return pool.submit(asyncio.run, work).result()
