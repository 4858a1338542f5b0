"""LiveCodeBench: contest problems, graded by running the answer on the problem's tests.

Data: release files of LiveCodeBench, `livecodebench/*.jsonl` (each line one problem, upstream's own layout).
The goals are the problem's sentences, formats, samples and constraints. There is no reference solution
upstream: see `gold`. So nothing can execute a state (`structured` is false), and a decoy is shown to matter by
a model's answer: `obey` changes one that passes so that it follows the decoy.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs.code_text import extract
from envs.errors import DataError, GraderError, MissingFiles, unknown_name
from envs.families import _lcb_run as runs
from envs.families._lcb_text import Case, decode_cases, goal_texts
from envs.intent import Goal, IntentState
from envs.jsonl import read_jsonl
from envs.sandbox_code import SandboxConfig, shared
from envs.sharded import shard_goals, text_field
from envs.task import Grade, Quarantined, SourceTask

VERDICTS = ("strict", "official")
SOLUTIONS = "solutions.jsonl"
_FIELDS = (
    "question_id",
    "question_content",
    "starter_code",
    "public_test_cases",
    "private_test_cases",
    "metadata",
)
_ORIGIN = "test.jsonl, test2.jsonl, ... of the data set livecodebench/code_generation_lite"

# ERRATA.md of LiveCodeBench/LiveCodeBench: a right answer may be called wrong, so they are left out.
ERRATA: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("abc311_c", "abc326_d", "abc327_b", "abc333_e", "abc343_e", "abc362_c", "arc185_c", "abc343_a"),
            *("find-words-containing-character", "find-the-peaks"),
            "generate-binary-strings-without-adjacent-zeros",
        ),
        "several answers are right and the tests know one",
    ),
    **dict.fromkeys(("abc337_e", "abc355_e"), "interactive"),
    **dict.fromkeys(
        ("abc350_c", "apply-operations-to-make-string-empty", "most-frequent-ids", "arc189_a"),
        "a test is wrong",
    ),
}

# (slot, wordings, what the result becomes) for programs, and for functions.
_PRINTED = (
    ("last line", ("Print the word done on a line of its own at the end.",), "result + '\\ndone\\n'"),
    ("first line", ("Print a heading line that says Answer before the output.",), "'Answer\\n' + result"),
    ("letter case", ("Print everything in upper case.",), "result.upper()"),
    ("line order", ("Print the lines of the output in reverse order.",), "'\\n'.join(result.split('\\n')[::-1])"),
    ("brackets", ("Put the output in square brackets.",), "'[' + result.strip() + ']'"),
    ("line numbers", ("Number the lines of the output from 1 on.",),
     "''.join(f'{n} {line}\\n' for n, line in enumerate(result.splitlines(), 1))"),
)  # fmt: skip
_RETURNED = (
    ("output format", ("Return the result as a string, with str().",), "str(result) + ' '"),
    ("packaging", ("Put the result in a list of its own.",), "[result]"),
    ("labelling", ("Return a dictionary with the result under the key 'answer'.",), "{'answer': result}"),
    ("printing", ("Print the result and return nothing.",), "print(result)"),
)


@dataclass(frozen=True)
class LiveCodeBench:
    """The family. `timeout_s` is per test: on the clock for `official`; processor time for `strict`."""

    verdict: str = "strict"
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    timeout_s: float = 6.0

    name = "livecodebench"
    structured = False
    splits: tuple[str, ...] = ("test",)

    def with_verdict(self, verdict: str) -> LiveCodeBench:
        """Return a copy that grades by "strict" or "official". Raises `UnknownName`."""
        if verdict not in VERDICTS:
            raise unknown_name("verdict", verdict, VERDICTS)
        return replace(self, verdict=verdict)

    def with_sandbox(self, config: SandboxConfig) -> LiveCodeBench:
        """Return a copy whose answers run in a sandbox of this configuration."""
        return replace(self, sandbox=config)

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        """Yield the tasks that can be graded, files in order of name. Raises `MissingFiles`, `DataError`."""
        return (task for task in self._scan(source, split) if isinstance(task, SourceTask))

    def skipped(self, source: Path | None, split: str) -> list[Quarantined]:
        """Return the items that `load` leaves out (no tests, known errata), each with the reason."""
        return [task for task in self._scan(source, split) if isinstance(task, Quarantined)]

    def from_record(self, record: Mapping[str, Any], source: Path | None = None) -> SourceTask | Quarantined:
        """Return the task of a sharded record, which holds text, tests and starter code; its shards are the goals.

        A solution comes from `livecodebench/solutions.jsonl` below `source`, where there is one. Raises `DataError`.
        """
        id = text_field(record, "task_id")
        number = str(record.get("question_id") or id.rpartition("/")[2].removeprefix("sharded-"))
        made = {
            "private_test_cases": "[]",
            "starter_code": "",
            "metadata": {},
            **record,
            "question_id": number,
        }
        for name in ("public_test_cases", "private_test_cases"):
            made[name] = made[name] if isinstance(made[name], str) else json.dumps(made[name])
        text_field(made, "question_content")
        solutions = {} if source is None else _solutions(source / "livecodebench" / SOLUTIONS)
        task = self._task(id, made, solutions)
        if isinstance(task, Quarantined):
            return replace(task, task_id=id)
        return replace(task, id=id, goals=shard_goals(record))

    def records(self, source: Path | None, split: str) -> Iterator[dict[str, Any]]:
        """Yield records without shards, for `fluxforge shard`: the problem's text is what is to be split."""
        for path in _files(source):
            for _, record in read_jsonl(path, _FIELDS):
                yield {
                    **record,
                    "task": "code",
                    "task_id": f"sharded-lcb/{record['question_id']}",
                    "source": "livecodebench",
                    "prompt": str(record["question_content"]),
                }

    def gold(self, task: SourceTask) -> str:
        """Return the solution of `livecodebench/solutions.jsonl` (`{"question_id", "code"}`), which is yours to fill.

        Raises `GraderError` where there is none; upstream publishes no solutions.
        """
        code = task.payload["solution"]
        if code is None:
            raise GraderError(
                f"{task.id} has no reference solution, since LiveCodeBench publishes none; put one that passes "
                f"into livecodebench/{SOLUTIONS}"
            )
        return f"```python\n{code.strip()}\n```"

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        """Return none: what a changed sentence would make of the tests is not known without a solution."""
        return []

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return extra requirements on output or result. Only `obey` and a passing answer can vouch for them."""
        found = [
            Goal(f"d{n}", rng.choice(wordings), slot)
            for n, (slot, wordings, _) in enumerate(_decoys(task), 1)
        ]
        rng.shuffle(found)
        return found

    def obey(self, task: SourceTask, answer: str, decoy: Goal) -> str:
        """Return `answer` changed so that it also follows `decoy`. Raises `GraderError` for another goal."""
        code = self._code(task, answer)
        for _, wordings, expression in _decoys(task):
            if decoy.text in wordings and code is not None:
                changed = runs.obeying(code, task.payload["function"], expression)
                return f"```python\n{changed.strip()}\n```"
        raise GraderError(f"{task.id}: no known way to carry out {decoy.text!r} in this answer")

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Raise `GraderError`: there is no reference solution to go by."""
        raise GraderError(f"{task.id}: LiveCodeBench has no reference solution, so no state can be executed")

    def grade(self, task: SourceTask, answer: str) -> Grade:
        """Run the answer on the public and private tests, up to the first that fails.

        `detail` holds the verdict's code (see `_lcb_run`), test number and what came out; with the official
        verdict asked for, the strict one is beside it.
        """
        cases = cases_of(task.payload["public"], task.payload["private"], task.id)
        if not cases:
            return Grade(0.0, False, error=f"{task.id} has no tests")
        code = self._code(task, answer)
        if code is None:
            return Grade(0.0, False, {"problem": "no Python code found", "strict": False, "official": False})
        function = task.payload["function"]
        try:
            box = shared(self.sandbox)
            verdict = runs.strict(box, code, cases, function, self.timeout_s)
            detail: dict[str, Any] = {"strict": verdict.passed}
            if self.verdict == "official":
                verdict = runs.official(box, code, cases, function, self.timeout_s)
                detail["official"] = verdict.passed
        except GraderError as error:
            return Grade(0.0, False, {"code": code}, error=str(error))
        detail |= {**runs.summary(verdict), "tests": len(cases), "sandbox": box.level, "answer": code}
        return Grade(float(verdict.passed), verdict.passed, detail)

    def _code(self, task: SourceTask, answer: str) -> str | None:
        return extract(answer, lambda tree: runs.defines(tree, task.payload["function"]))

    def _scan(self, source: Path | None, split: str) -> Iterator[SourceTask | Quarantined]:
        if split not in self.splits:
            raise DataError(f"livecodebench has no split {split!r}; it has {', '.join(self.splits)}")
        paths = _files(source)
        solutions = _solutions(paths[0].with_name(SOLUTIONS))
        for path in paths:
            for row, record in read_jsonl(path, _FIELDS):
                yield self._task(f"{path}, row {row + 1}", record, solutions)

    def _task(
        self, where: str, record: dict[str, Any], solutions: Mapping[str, str]
    ) -> SourceTask | Quarantined:
        number = str(record["question_id"])
        id = f"livecodebench/{number}"
        title = str(record.get("question_title", ""))
        for name in (number, title.lower().replace(" ", "-")):
            if name in ERRATA:
                return Quarantined(id, f"upstream's list of errata: {ERRATA[name]}")
        public, private = str(record["public_test_cases"]), str(record["private_test_cases"])
        if not cases_of(public, private, where):
            return Quarantined(id, "it has no tests, so every answer would pass")
        metadata = record["metadata"]
        try:
            metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
            function = metadata.get("func_name")
        except (json.JSONDecodeError, AttributeError):
            raise DataError(f"{where}: 'metadata' is no JSON object") from None
        starter = str(record["starter_code"] or "")
        texts = goal_texts(str(record["question_content"]))
        if not texts:
            return Quarantined(id, "the problem has no text")
        goals = tuple(Goal(f"g{n}", text, slot) for n, (slot, text) in enumerate(texts, 1))
        if starter:
            context = f"Use this starter code:\n```python\n{starter.strip()}\n```\n"
        else:
            context = "The program reads standard input and prints its answer.\n"
        payload = {
            "public": public,
            "private": private,
            "function": function,
            "solution": solutions.get(number),
            "difficulty": record.get("difficulty"),
        }
        opening = "I need a Python function." if function else "I need a Python program."
        context += "Answer with the whole code in one fenced code block."
        return SourceTask(id, self.name, "test", opening, context, goals, payload)


def _decoys(task: SourceTask) -> tuple[tuple[str, tuple[str, ...], str], ...]:
    return _PRINTED if task.payload["function"] is None else _RETURNED


@lru_cache(maxsize=32)
def cases_of(public: str, private: str, where: str) -> tuple[Case, ...]:
    """Return public and private tests together. Raises `DataError`."""
    return decode_cases(public, where) + decode_cases(private, where)


def _files(source: Path | None) -> list[Path]:
    get = f"Get {_ORIGIN} and put them into <data folder>/livecodebench/; then name that folder with DATA=."
    if source is None:
        raise MissingFiles(f"livecodebench needs a data folder and none was given. {get}")
    for folder in (Path(source) / "livecodebench", Path(source)):
        if folder.name == "livecodebench" and folder.is_dir():
            found = [path for path in sorted(folder.glob("*.jsonl")) if path.name != SOLUTIONS]
            if found:
                return found
    raise MissingFiles(f"no .jsonl file in {Path(source) / 'livecodebench'}. {get}")


def _solutions(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    return {
        str(record["question_id"]): str(record["code"])
        for _, record in read_jsonl(path, ("question_id", "code"))
    }


FAMILY = LiveCodeBench()
