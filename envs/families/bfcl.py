"""BFCL: function calls of the Berkeley Function-Calling Leaderboard; each argument of each call is a goal.

Goals come from the accepted answers: an argument that must be given is one goal with its first accepted
value. Other values come from the schema's enum, from the same argument in other items, or lie near the true
number; each is rejected by both verdicts. Data: ShishirPatil/gorilla (Apache-2.0), `bfcl/BFCL_v4_*.json` and the files
of the same names below `possible_answer/`; sharded records (`envs/sharded.py`), whose shards are the goals instead.
The verdicts `strict` and `official` are described in `envs/ast_match.py`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs.ast_match import MODES, argument_faults, match
from envs.call_syntax import Call, parse_calls, render_calls
from envs.errors import DataError, GraderError, unknown_name
from envs.families._bfcl_item import decoy_data, goal_data, read_item, shown, text_of, with_argument
from envs.families._bfcl_shards import apply_shards, link_shards, shard_variants
from envs.families._bfcl_values import Pools, other_values
from envs.intent import Goal, IntentState
from envs.jsonl import benchmark_file, read_jsonl
from envs.sharded import shard_goals, text_field
from envs.task import Grade, Quarantined, SourceTask

CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple")
_SPLITS = {category: (category,) for category in CATEGORIES} | {"test": CATEGORIES}
_ORIGIN = "berkeley-function-call-leaderboard/bfcl_eval/data of ShishirPatil/gorilla"


class Bfcl:
    name = "bfcl"
    structured = True
    splits = tuple(_SPLITS)
    variants_flip = True
    """Every variant was matched against the accepted calls at load, by both verdicts."""

    def __init__(self, verdict: str = "strict") -> None:
        if verdict not in MODES:
            raise unknown_name("verdict of bfcl:", verdict, MODES)
        self.verdict = verdict

    def with_verdict(self, verdict: str) -> Bfcl:
        """Return the family with `Grade.score` from this verdict. Raises `UnknownName`."""
        return Bfcl(verdict)

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        """Yield the tasks in which some argument has another value that changes the verdict, in file order.

        Raises `MissingFiles`, `DataError`, `UnknownName`. `skipped` tells the others apart.
        """
        for task in self._scan(source, split):
            if isinstance(task, SourceTask):
                yield task

    def skipped(self, source: Path | None, split: str) -> list[Quarantined]:
        """Return the items that `load` leaves out, each with the reason."""
        return [task for task in self._scan(source, split) if isinstance(task, Quarantined)]

    def gold(self, task: SourceTask) -> str:
        return render_calls([Call(call["name"], call["arguments"]) for call in task.payload["calls"]])

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        """Return the goal with other values, all rejected by the grader; ids are fixed, order is `rng`'s."""
        if "shards" in task.payload:
            found = shard_variants(task.payload["shards"], goal)
            rng.shuffle(found)
            return found
        base = goal.id.split(".")[0]
        known = task.payload["goals"].get(base)
        if known is None:
            return []
        found = [
            Goal(f"{base}.v{n}", text, goal.slot, value)
            for n, (text, value) in enumerate(known["variants"], 1)
        ]
        rng.shuffle(found)
        return found

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return wishes beyond the task: an optional argument that was not asked for, or one call more."""
        found = [
            Goal(id, text_of(decoy, decoy["value"]), decoy["slot"], shown(decoy["value"]))
            for id, decoy in task.payload["decoys"].items()
        ]
        rng.shuffle(found)
        return found

    def grade(self, task: SourceTask, answer: str) -> Grade:
        """Match the calls of `answer` with the accepted ones.

        `detail` holds both verdicts and, where one is no, `kind` and `message` of the first fault and `arguments`:
        every fault by argument (`envs.ast_match.argument_faults`), all by the family's own verdict.
        """
        calls = parse_calls(answer)
        if calls is None:
            return Grade(
                0.0, False, {"strict": False, "official": False, "extracted": None, "kind": "unparsable"}
            )
        detail: dict[str, Any] = {"extracted": [[c.name, dict(c.arguments)] for c in calls]}
        functions, truth = task.payload["functions"], task.payload["truth"]
        try:
            faults = {mode: match(functions, calls, truth, mode) for mode in MODES}
            detail |= {mode: fault is None for mode, fault in faults.items()}
            fault = faults[self.verdict]
            if fault is None:
                return Grade(1.0, True, detail)
            arguments = argument_faults(functions, calls, truth, self.verdict)
        except GraderError as error:
            return Grade(0.0, False, detail, error=str(error))
        first = {"kind": fault.kind, "message": fault.message, "argument": fault.argument}
        if self.verdict == "strict" and fault.kind != "wrong_count":
            first |= arguments[0]  # of the two calls that are nearest to each other
        named = {key: first[key] for key in ("kind", "message", "argument")}
        return Grade(0.0, False, {**detail, **named, "arguments": arguments})

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Write the calls with exactly the arguments of `state`.

        Raises `GraderError` for a foreign goal, and for a missing shard that is linked to no argument.
        """
        calls = [Call(call["name"], {}) for call in task.payload["calls"]]
        shards: Mapping[str, Any] = task.payload.get("shards", {})
        if shards:
            calls = apply_shards(task.id, shards, _calls(task), state)
        extra: list[tuple[int, str, Any]] = []
        for goal in state.goals:
            base = goal.id.split(".")[0]
            if base in shards:
                continue
            known = task.payload["goals"].get(base) or task.payload["decoys"].get(goal.id)
            if known is None or goal.value is None:
                raise GraderError(f"{task.id}: goal {goal.id!r} ({goal.text!r}) is no argument of this task")
            value = _read(known, goal.value, task.id)
            if known.get("more"):
                extra.append((known["call"], known["argument"], value))
            else:
                calls[known["call"]] = with_argument(calls[known["call"]], known["argument"], value)
        calls += [with_argument(calls[at], argument, value) for at, argument, value in extra]
        return render_calls(calls)

    def from_record(self, record: Mapping[str, Any], source: Path | None = None) -> SourceTask | Quarantined:
        """Return the task of a sharded record: `function`, `reference_answer`, `task_id`, `shards` are read.

        A shard that shows the value of an argument has variants. Other values come from the record alone, or also
        from the BFCL files below `source` where they are there. Raises `DataError`.
        """
        if record.get("language", "Python") != "Python":
            raise DataError(f"only Python calls can be graded, not {record['language']}")
        id, truth = text_field(record, "task_id"), record["reference_answer"]
        if not _is_truth(truth):
            raise DataError("reference_answer is no [{function: {argument: [values]}}]")
        goals = shard_goals(record)
        pools = _pools(source) if source is not None else Pools([truth])
        item = read_item(id.rpartition("/")[2], record["function"], truth)
        if isinstance(item, str):
            return Quarantined(id, item)

        def others(places: Sequence[tuple[int, str]], value: Any) -> list[Any]:
            at, argument = places[0]
            rng = random.Random(f"{id}|{at}|{argument}")
            return item.others(places, other_values(argument, value, item.spec(at, argument), pools, rng))

        shards = link_shards([goal.text for goal in goals], item.calls, truth, others)
        payload = item.payload() | {
            "goals": {},
            "shards": shards,
            "decoys": decoy_data(id, item, pools, unmentioned=True),
        }
        return SourceTask(id, self.name, "sharded", item.opening(), item.context(), goals, payload)

    def records(self, source: Path | None, split: str) -> Iterator[dict[str, Any]]:
        """Yield the items of a split in the sharded layout, still without shards. Raises as `load` does."""
        for category in _categories(split):
            for record, truth, _ in _items(source, category):
                yield {
                    "task": "actions",
                    "task_id": f"sharded-BFCL/{record['id']}",
                    "fully_specified_question": record["question"],
                    "function": record["function"],
                    "reference_answer": truth,
                    "language": "Python",
                    "test_category": category,
                }

    def _scan(self, source: Path | None, split: str) -> Iterator[SourceTask | Quarantined]:
        for category in _categories(split):
            pools: Pools | None = None
            for record, truth, where in _items(source, category):
                pools = pools or _pools(source)
                try:
                    yield self._task(record, truth, split, pools)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise DataError(f"{where}: not shaped as a BFCL item ({error!r})") from error

    def _task(
        self, record: Mapping[str, Any], truth: list[dict[str, Any]], split: str, pools: Pools
    ) -> SourceTask | Quarantined:
        id = f"bfcl/{record['id']}"
        item = read_item(record["id"], record["function"], truth)
        if isinstance(item, str):
            return Quarantined(id, item)
        goals = goal_data(id, item, pools)
        if not any(goal["variants"] for goal in goals.values()):
            return Quarantined(id, "no argument has another value that changes the verdict")
        payload = item.payload() | {"goals": goals, "decoys": decoy_data(id, item, pools)}
        listed = tuple(
            Goal(goal, text_of(known, known["value"]), known["slot"], shown(known["value"]))
            for goal, known in goals.items()
        )
        return SourceTask(id, self.name, split, item.opening(), item.context(), listed, payload)


def _categories(split: str) -> tuple[str, ...]:
    if split not in _SPLITS:
        raise unknown_name("split of bfcl:", split, _SPLITS)
    return _SPLITS[split]


def _items(source: Path | None, category: str) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]], str]]:
    """Yield (question record, accepted calls, where it stands) of one file."""
    name = f"BFCL_v4_{category}.json"
    questions = benchmark_file(source, "bfcl", name, _ORIGIN)
    answers = benchmark_file(source, "bfcl", f"possible_answer/{name}", _ORIGIN)
    truths = dict(_truths(answers))
    for row, record in list(read_jsonl(questions, ("id", "question", "function"))):
        where = f"{questions}, row {row + 1}"
        if record["id"] not in truths:
            raise DataError(f"{where}: {record['id']!r} has no answer in {answers}")
        yield record, truths[record["id"]], where


def _pools(source: Path | None) -> Pools:
    """Return the strings of every category below `source`: a full folder gives the richest drift."""
    folders = [Path(source) / "bfcl", Path(source)] if source is not None else []
    paths = [folder / "possible_answer" / f"BFCL_v4_{c}.json" for folder in folders for c in CATEGORIES]
    stamps = tuple((path, path.stat().st_mtime_ns) for path in paths if path.is_file())
    return _read_pools(stamps)


@lru_cache(maxsize=4)
def _read_pools(stamps: tuple[tuple[Path, int], ...]) -> Pools:
    return Pools(truth for path, _ in stamps for _, truth in _truths(path))


def _is_truth(truth: Any) -> bool:
    sound = isinstance(truth, list) and all(isinstance(call, dict) and len(call) == 1 for call in truth)
    given = [arguments for call in truth for arguments in call.values()] if sound else [None]
    return all(isinstance(a, dict) and all(isinstance(v, list) for v in a.values()) for a in given)


def _calls(task: SourceTask) -> list[Call]:
    return [Call(call["name"], call["arguments"]) for call in task.payload["calls"]]


def _truths(path: Path) -> Iterator[tuple[str, list[dict[str, dict[str, list[Any]]]]]]:
    """Yield (item id, accepted calls). Raises `DataError` for a row that is not shaped so."""
    for row, record in read_jsonl(path, ("id", "ground_truth")):
        truth = record["ground_truth"]
        if not _is_truth(truth):
            raise DataError(
                f"{path}, row {row + 1}: ground_truth is no [{{function: {{argument: [values]}}}}]"
            )
        yield record["id"], truth


def _read(known: Mapping[str, Any], written: str, task_id: str) -> Any:
    if isinstance(known["value"], str):
        return written
    try:
        return json.loads(written)
    except ValueError:
        raise GraderError(f"{task_id}: {written!r} is no value for {known['slot']!r}") from None


FAMILY = Bfcl()
