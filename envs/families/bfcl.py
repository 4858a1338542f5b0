"""BFCL: function calls of the Berkeley Function-Calling Leaderboard; each argument of each call is a goal.

Goals come from the accepted answers: an argument that must be given is one goal with its first accepted
value. Other values come from the schema's enum, from the same argument in other items, or lie near the true
number. Data: ShishirPatil/gorilla (Apache-2.0), `bfcl/BFCL_v4_{simple_python,parallel}.json` and the files of
the same names below `possible_answer/`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.ast_match import Call, match, parse_calls, render_calls
from envs.errors import DataError, GraderError, unknown_name
from envs.families._bfcl_values import Pools, first_accepted, other_values
from envs.intent import Goal, IntentState
from envs.jsonl import benchmark_file, read_jsonl
from envs.task import Grade, Quarantined, SourceTask

_FILES = {"simple": ("simple_python",), "parallel": ("parallel",), "test": ("simple_python", "parallel")}
_POOLS = ("simple_python", "multiple", "parallel", "parallel_multiple")
_ORIGIN = "berkeley-function-call-leaderboard/bfcl_eval/data of ShishirPatil/gorilla"
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


class Bfcl:
    name = "bfcl"
    structured = True
    splits = tuple(_FILES)
    variants_flip = True
    """Every variant was matched against the accepted calls at load."""

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
        base = goal.id.split(".")[0]
        known = task.payload["goals"].get(base)
        if known is None:
            return []
        found = [
            Goal(f"{base}.v{n}", _text(known, value), goal.slot, _shown(value))
            for n, value in enumerate(known["others"], 1)
        ]
        rng.shuffle(found)
        return found

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return wishes beyond the task: an optional argument that was not asked for, or one call more."""
        found = [
            Goal(id, _text(decoy, decoy["value"]), decoy["slot"], _shown(decoy["value"]))
            for id, decoy in task.payload["decoys"].items()
        ]
        rng.shuffle(found)
        return found

    def grade(self, task: SourceTask, answer: str, mode: str = "official") -> Grade:
        """Match the calls of `answer` with the accepted ones; `mode` is "official" or "strict"."""
        calls = parse_calls(answer)
        if calls is None:
            return Grade(0.0, False, {"mode": mode, "extracted": None, "kind": "unparsable"})
        detail: dict[str, Any] = {"mode": mode, "extracted": [[c.name, dict(c.arguments)] for c in calls]}
        try:
            fault = match(task.payload["functions"], calls, task.payload["truth"], mode)
        except GraderError as error:
            return Grade(0.0, False, detail, error=str(error))
        if fault is None:
            return Grade(1.0, True, detail)
        detail |= {"kind": fault.kind, "message": fault.message, "argument": fault.argument}
        return Grade(0.0, False, detail)

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Write the calls with exactly the arguments of `state`. Raises `GraderError` for a foreign goal."""
        calls = [Call(call["name"], {}) for call in task.payload["calls"]]
        extra: list[tuple[int, str, Any]] = []
        for goal in state.goals:
            known = task.payload["goals"].get(goal.id.split(".")[0]) or task.payload["decoys"].get(goal.id)
            if known is None or goal.value is None:
                raise GraderError(f"{task.id}: goal {goal.id!r} ({goal.text!r}) is no argument of this task")
            value = _read(known, goal.value, task.id)
            if known.get("more"):
                extra.append((known["call"], known["argument"], value))
            else:
                calls[known["call"]] = _with(calls[known["call"]], known["argument"], value)
        calls += [_with(calls[at], argument, value) for at, argument, value in extra]
        return render_calls(calls)

    def _scan(self, source: Path | None, split: str) -> Iterator[SourceTask | Quarantined]:
        if split not in _FILES:
            raise unknown_name("split of bfcl:", split, _FILES)
        for name in _FILES[split]:
            yield from self._file(source, split, f"BFCL_v4_{name}.json")

    def _file(self, source: Path | None, split: str, name: str) -> Iterator[SourceTask | Quarantined]:
        questions = benchmark_file(source, "bfcl", name, _ORIGIN)
        answers = benchmark_file(source, "bfcl", f"possible_answer/{name}", _ORIGIN)
        truths = dict(_truths(answers))
        records = list(read_jsonl(questions, ("id", "question", "function")))
        # Other values come from every category in the folder: a full folder gives the richest drift.
        beside = [answers.parent / f"BFCL_v4_{category}.json" for category in _POOLS]
        pools = Pools(truth for path in beside if path.is_file() for _, truth in _truths(path))
        for row, record in records:
            if record["id"] not in truths:
                raise DataError(f"{questions}, row {row + 1}: {record['id']!r} has no answer in {answers}")
            try:
                yield self._task(record, truths[record["id"]], split, pools)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise DataError(
                    f"{questions}, row {row + 1}: not shaped as a BFCL item ({error!r})"
                ) from error

    def _task(
        self, record: Mapping[str, Any], truth: list[dict[str, Any]], split: str, pools: Pools
    ) -> SourceTask | Quarantined:
        id, functions = f"bfcl/{record['id']}", record["function"]
        schemas = {function["name"]: function["parameters"] for function in functions}
        calls: list[Call] = []
        for accepted in truth:
            ((name, arguments),) = accepted.items()
            required = schemas[name]["required"] if name in schemas else []
            given = {a: first_accepted(v) for a, v in arguments.items() if a in required or "" not in v}
            calls.append(Call(name, given))
        if not truth or any(call.name not in schemas for call in calls):
            return Quarantined(id, "the item holds no accepted call of a function that it offers")
        fault = match(functions, calls, truth)
        if fault is not None:
            return Quarantined(id, f"the grader rejects the first accepted values: {fault.message}")
        goals = self._goals(id, functions, schemas, calls, truth, pools)
        if not any(goal["others"] for goal in goals.values()):
            return Quarantined(id, "no argument has another value that changes the verdict")
        payload = {
            "functions": functions,
            "truth": truth,
            "calls": [{"name": call.name, "arguments": dict(call.arguments)} for call in calls],
            "goals": goals,
            "decoys": self._decoys(id, functions, schemas, calls, truth, pools),
        }
        names = " and ".join(f"`{name}`" for name in dict.fromkeys(call.name for call in calls))
        count = _COUNTS[len(calls)] if len(calls) < len(_COUNTS) else str(len(calls))
        opening = f"I need {count} call{'s' if len(calls) > 1 else ''} of {names}."
        context = "\n".join(["Functions:", *(json.dumps(function) for function in functions), _FORMAT])
        listed = tuple(
            Goal(goal, _text(known, known["value"]), known["slot"], _shown(known["value"]))
            for goal, known in goals.items()
        )
        return SourceTask(id, self.name, split, opening, context, listed, payload)

    def _goals(
        self,
        id: str,
        functions: list[Any],
        schemas: Mapping[str, Any],
        calls: list[Call],
        truth: list[dict[str, Any]],
        pools: Pools,
    ) -> dict[str, dict[str, Any]]:
        """Return goal id -> what `execute` and `variants` need to know of it (plain JSON data)."""
        goals: dict[str, dict[str, Any]] = {}
        for at, call in enumerate(calls):
            for argument, value in call.arguments.items():
                rng = random.Random(f"{id}|{at}|{argument}")
                spec = schemas[call.name]["properties"][argument]
                others = []
                for other in other_values(argument, value, spec, pools, rng):
                    changed = [*calls[:at], _with(call, argument, other), *calls[at + 1 :]]
                    if match(functions, changed, truth) is not None:
                        others.append(other)
                known = _describe(at, len(calls), argument, spec, rng)
                goals[f"g{len(goals) + 1}"] = known | {"value": value, "others": others}
        _make_unique(goals)
        return goals

    def _decoys(
        self,
        id: str,
        functions: list[Any],
        schemas: Mapping[str, Any],
        calls: list[Call],
        truth: list[dict[str, Any]],
        pools: Pools,
    ) -> dict[str, dict[str, Any]]:
        """Return decoy id -> the same data as for goals; each was seen to change the verdict."""
        rng = random.Random(f"{id}|decoys")
        found: list[dict[str, Any]] = []
        for at, call in enumerate(calls):
            for argument, spec in schemas[call.name]["properties"].items():
                if argument in call.arguments:
                    continue
                for value in other_values(argument, None, spec, pools, rng):
                    changed = [*calls[:at], _with(call, argument, value), *calls[at + 1 :]]
                    if match(functions, changed, truth) is not None:
                        found.append(_describe(at, len(calls), argument, spec, rng) | {"value": value})
                        break
        rng.shuffle(found)
        found = found[:5]
        places = {a: at for at, call in enumerate(calls) for a, v in call.arguments.items() if _is_scalar(v)}
        for argument in rng.sample(sorted(places), min(_MORE, len(places))):
            at = places[argument]
            spec = schemas[calls[at].name]["properties"][argument]
            values = other_values(argument, calls[at].arguments[argument], spec, pools, rng)
            if values:
                words, like = _words(argument), f" like call {at + 1}" if len(calls) > 1 else ""
                wording = f"make one more call{like} with {{value}} as the {words}"
                more = {"call": at, "argument": argument, "slot": f"{words} of one more call", "more": True}
                found.append(more | {"wording": wording, "value": rng.choice(values)})
        return {f"d{n}": decoy for n, decoy in enumerate(found, 1)}


def _is_scalar(value: Any) -> bool:
    return type(value) in (str, int, float)


def _truths(path: Path) -> Iterator[tuple[str, list[dict[str, dict[str, list[Any]]]]]]:
    """Yield (item id, accepted calls). Raises `DataError` for a row that is not shaped so."""
    for row, record in read_jsonl(path, ("id", "ground_truth")):
        truth = record["ground_truth"]
        sound = isinstance(truth, list) and all(isinstance(call, dict) and len(call) == 1 for call in truth)
        given = [arguments for call in truth for arguments in call.values()] if sound else [None]
        if not all(isinstance(a, dict) and all(isinstance(v, list) for v in a.values()) for a in given):
            raise DataError(
                f"{path}, row {row + 1}: ground_truth is no [{{function: {{argument: [values]}}}}]"
            )
        yield record["id"], truth


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


def _shown(value: Any) -> str:
    """Return a value as text: strings as they are, the rest as JSON. `_read` is its inverse."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _read(known: Mapping[str, Any], shown: str, task_id: str) -> Any:
    if isinstance(known["value"], str):
        return shown
    try:
        return json.loads(shown)
    except ValueError:
        raise GraderError(f"{task_id}: {shown!r} is no value for {known['slot']!r}") from None


def _text(known: Mapping[str, Any], value: Any) -> str:
    shown = _shown(value)
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        shown = ", ".join(_shown(item) for item in value) or "an empty list"
    return known["wording"].replace("{value}", shown)


def _with(call: Call, argument: str, value: Any) -> Call:
    return Call(call.name, {**call.arguments, argument: value})


FAMILY = Bfcl()
