"""Split task prompts into shards with a model, and keep only those that say exactly what the prompt says.

A record in the sharded layout (`envs/sharded.py`) comes in without shards and goes out with them. For each the model
is asked for shards; rules look for numbers, texts and identifiers that were lost or added (`recipes/shard_check.py`);
then the model is asked in both directions, in two requests, what the shards leave out and what they add. Shards that
fail are asked for again with the reasons, a few times; then the record is refused, with the reasons.

The work is resumable: each finished record is a line of `<out>.partial.jsonl`, keyed by all that went into it, and
`<out>` itself is written at the end in one step, with `<out>.refused.json` beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from envs.chat import Chat, derived_seed, parsed_reply
from envs.errors import ConfigError, DataError
from envs.sharded import sharded_record
from recipes.shard_check import rule_faults

MAX_TOKENS = 4096
VERSION = 1
"""Of the rules and of what is asked in which order; another one means that finished records are asked for anew."""

_SPLIT = """Split the task below into shards: short messages that a user could send one after another, each stating
exactly one thing that the task asks for or tells. Together they must say all that the task says, and nothing else.
- The first shard says what is wanted in the end, without the details.
- Keep every number, quoted text, name and identifier as it is. Work nothing out, explain nothing, leave nothing out.
- Each shard is understood without the others' wording: write the noun, not "it" or "that one".
- No shard repeats another. Between 3 and 12 shards; fewer only if the task has fewer things to say.

Task:
{prompt}"""
_AGAIN = "Shards of an earlier try were refused for these reasons; avoid them:\n{reasons}"
_COMPLETE = """Here is a task, and a list of messages that should say all of it between them.
List everything that a reader of the messages alone would not know or could get wrong, compared with a reader of the
task: a missing fact, condition, number, name or example, or a looser statement. Wording and order do not matter.
If nothing is missing, the list is empty.

Task:
{prompt}

Messages:
{shards}"""
_FAITHFUL = """Here is a task, and a list of messages that should say nothing beyond it.
List everything that the messages state or ask for and the task does not: an added fact, condition or number, something
worked out, or a statement that contradicts the task. Wording and order do not matter.
If nothing is added, the list is empty.

Task:
{prompt}

Messages:
{shards}"""

_WORDING = hashlib.sha256("\0".join((_SPLIT, _AGAIN, _COMPLETE, _FAITHFUL)).encode()).hexdigest()[:16]


def _list_schema(key: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {key: {"type": "array", "items": {"type": "string"}}},
        "required": [key],
        "additionalProperties": False,
    }


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How to ask. `model` only names the model in the output and in the keys of finished records."""

    model: str
    attempts: int = 3
    """Tries a record before it is refused; each has a seed of its own."""
    temperature: float = 0.7
    seed: int = 0
    workers: int = 4
    """Records in work at once."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.workers < 1:
            raise ConfigError(f"attempts and workers are at least 1, got {self.attempts} and {self.workers}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A record with shards, or the reasons of every try for which it was refused."""

    task_id: str
    record: dict[str, Any] | None
    reasons: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ShardCounts:
    """How many records got shards, how many were refused, and how many of both were found finished."""

    sharded: int
    refused: int
    resumed: int


def prompt_of(record: Mapping[str, Any]) -> str:
    """Return the text that is to be split. Raises `ConfigError` for kinds that structure splits, `DataError`."""
    task = record.get("task")
    if task in ("data2text", "summary"):
        raise ConfigError(f"{task} records are split by structure (cells, documents), not by a model")
    try:
        match task:
            case "code":
                prompt = record.get("prompt") or record["question_content"]
            case "database":
                prompt = record["fully_specified_question"]
            case "actions":
                prompt = record["fully_specified_question"][0][0]["content"]
            case "math":
                prompt = record["question"]
            case _:
                raise DataError(f"{record.get('task_id')}: unknown kind of record {task!r}")
    except (KeyError, IndexError, TypeError) as error:
        raise DataError(
            f"{record.get('task_id')}: no prompt where a {task} record has it ({error!r})"
        ) from None
    if not isinstance(prompt, str) or not prompt.strip():
        raise DataError(f"{record.get('task_id')}: the prompt is empty")
    return prompt


def shard_record(record: Mapping[str, Any], endpoint: Chat, settings: ShardSettings) -> Outcome:
    """Split one record. Raises what `prompt_of` and the endpoint raise; a useless reply is a failed try."""
    prompt, task_id = prompt_of(record), str(record.get("task_id"))
    tried: list[list[str]] = []
    for attempt in range(settings.attempts):
        seed = derived_seed("shard", settings.seed, task_id, attempt)  # whatever the order of the work
        reasons = _try(prompt, tried, endpoint, settings, seed)
        if isinstance(reasons, list):
            tried.append(reasons)
            continue
        made = sharded_record(record, reasons.shards)
        made["sharding"] = {
            "model": settings.model,
            "prompts": _WORDING,
            "version": VERSION,
            "seed": seed,
            "attempt": attempt + 1,
        }
        return Outcome(task_id, made, tried)
    return Outcome(task_id, None, tried)


def shard_file(
    records: Iterable[Mapping[str, Any]], endpoint: Chat, out: Path, settings: ShardSettings
) -> ShardCounts:
    """Split `records` and write those that pass to `out`, a JSON array in their order; return the counts.

    `<out>.refused.json` lists `{"task_id", "reasons"}` of the others. Stopped at any point, a second call with the
    same arguments goes on where the first one was. Raises `DataError` for a missing task_id or one that comes
    twice, and what `shard_record` raises.
    """
    jobs = [(dict(record), _key(record, settings)) for record in records]
    for record, _ in jobs:
        prompt_of(record)  # a record that cannot be split is told before anything is asked
    ids = [str(record.get("task_id")) for record, _ in jobs]
    if not all(isinstance(record.get("task_id"), str) for record, _ in jobs):
        raise DataError("a record has no text task_id")
    twice = next((id for id in ids if ids.count(id) > 1), None)
    if twice is not None:
        raise DataError(f"the task_id {twice!r} occurs twice; ids tell the records apart")
    out.parent.mkdir(parents=True, exist_ok=True)
    journal = out.with_name(out.name + ".partial.jsonl")
    done = _read_journal(journal)
    pending = [(record, key) for record, key in jobs if key not in done]
    resumed = len(jobs) - len(pending)
    with journal.open("a", encoding="utf-8") as file:
        for key, outcome in _work(pending, endpoint, settings):
            done[key] = outcome
            file.write(json.dumps({"key": key, **_plain(outcome)}, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
    outcomes = [done[key] for _, key in jobs]
    passed = [outcome.record for outcome in outcomes if outcome.record is not None]
    refused = [{"task_id": o.task_id, "reasons": o.reasons} for o in outcomes if o.record is None]
    _write(out.with_name(out.name + ".refused.json"), refused)
    _write(out, passed)
    journal.unlink()
    return ShardCounts(len(passed), len(refused), resumed)


@dataclass(frozen=True, slots=True)
class _Shards:
    shards: list[str]


def _try(
    prompt: str, tried: Sequence[Sequence[str]], endpoint: Chat, settings: ShardSettings, seed: int
) -> _Shards | list[str]:
    """Return shards that pass every check, or why they do not."""
    request = _SPLIT.format(prompt=prompt)
    if tried:
        request += "\n\n" + _AGAIN.format(reasons="\n".join(f"- {reason}" for reason in tried[-1]))
    shards = _ask(endpoint, request, "shards", settings.temperature, seed)
    if shards is None:
        return ["the model gave no list of shards"]
    shards = [" ".join(shard.split()) for shard in shards]
    faults = rule_faults(prompt, shards)
    if faults:
        return faults
    listed = "\n".join(f"{n}. {shard}" for n, shard in enumerate(shards, 1))
    for question, key, verb in ((_COMPLETE, "missing", "leave out"), (_FAITHFUL, "added", "add")):
        found = _ask(endpoint, question.format(prompt=prompt, shards=listed), key, 0.0, seed)
        if found is None:
            return [f"the model did not say what the shards {verb}"]
        faults += [f"the shards {verb}: {what}" for what in found if what.strip()]
    return faults or _Shards(shards)


def _ask(endpoint: Chat, request: str, key: str, temperature: float, seed: int) -> list[str] | None:
    """Return the list of texts under `key` of the reply; None where the reply has none."""
    reply = endpoint.ask(
        [{"role": "user", "content": request}],
        temperature=temperature,
        seed=seed,
        max_tokens=MAX_TOKENS,
        schema=_list_schema(key),
    )
    data = parsed_reply(reply.text)
    found = None if data is None else data.get(key)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        return None
    return found


def _work(
    pending: Sequence[tuple[dict[str, Any], str]], endpoint: Chat, settings: ShardSettings
) -> Iterator[tuple[str, Outcome]]:
    """Yield records as they are finished. After an error no new one is begun, and those begun are still yielded."""
    stop = Event()

    def work(record: dict[str, Any]) -> Outcome | None:
        return None if stop.is_set() else shard_record(record, endpoint, settings)

    failed: BaseException | None = None
    with ThreadPoolExecutor(settings.workers, thread_name_prefix="shard") as pool:
        try:
            keys = {pool.submit(work, record): key for record, key in pending}
            for future in as_completed(keys):
                error = future.exception()
                outcome = future.result() if error is None else None
                if error is not None:
                    stop.set()
                    failed = failed or error
                elif outcome is not None:
                    yield keys[future], outcome
        finally:
            stop.set()
    if failed is not None:
        raise failed


def _key(record: Mapping[str, Any], settings: ShardSettings) -> str:
    """Return the fingerprint of all that the outcome of a record depends on."""
    asked = [
        VERSION,
        _WORDING,
        settings.model,
        settings.attempts,
        settings.temperature,
        settings.seed,
        record,
    ]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:24]


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {"task_id": outcome.task_id, "record": outcome.record, "reasons": outcome.reasons}


def _read_journal(path: Path) -> dict[str, Outcome]:
    """Return the finished records by key; a last line that was cut short is taken off the file."""
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8", errors="replace")
    whole, newline, _ = text.rpartition("\n")
    if whole + newline != text:
        path.write_text(whole + newline, encoding="utf-8")
    done: dict[str, Outcome] = {}
    for number, line in enumerate(whole.split("\n") if whole else [], 1):
        try:
            entry = json.loads(line)
            done[entry["key"]] = Outcome(entry["task_id"], entry["record"], entry["reasons"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}, line {number}: not of this job ({error!r}); remove the file to begin anew"
            ) from None
    return done


def _write(path: Path, data: Any) -> None:
    """Write JSON aside, then rename: a reader sees the old file or the new one, never half."""
    aside = path.with_name(path.name + ".tmp")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(data, file, ensure_ascii=False, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
