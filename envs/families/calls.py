"""`calls`: one or two function calls with typed arguments; each argument is a goal, graded by structure."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.call_parsing import Call, match_calls, read_calls, type_matches
from envs.errors import GraderError, unknown_name
from envs.intent import Goal, IntentState
from envs.numbers import parse_number
from envs.task import Grade, SourceTask
from envs.vocab import Function, Slot, calls_heldout, calls_train, items_of

_FUNCTIONS = {"train": calls_train.FUNCTIONS, "heldout": calls_heldout.FUNCTIONS}
_GOALS = (3, 3, 4, 4, 4, 5, 6)  # mean 4.1
_VARIANTS = 6
_DECOYS = 8
_MIN_DECOYS = 5
_ANSWER_FORMAT = (
    'Answer with a JSON list of calls, each {"name": ..., "arguments": {...}}. Set exactly the arguments '
    "that were asked for and leave out the others. The order of calls and of list items does not matter."
)


@functools.cache
def _by_name(split: str) -> dict[str, Function]:
    return {function.name: function for function in _FUNCTIONS[split]}


@functools.cache
def _slots(split: str, names: tuple[str, ...]) -> dict[str, tuple[int, Slot]]:
    """Return slot name -> (index of its function, slot); a shared name stays with the first function."""
    found: dict[str, tuple[int, Slot]] = {}
    for index, name in enumerate(names):
        for slot in _by_name(split)[name].slots:
            found.setdefault(slot.name, (index, slot))
    return found


@functools.cache
def _texts(split: str, names: tuple[str, ...]) -> tuple[str, str]:
    """Return (opening, context) for the functions of a task."""
    functions = [_by_name(split)[name] for name in names]
    purposes = " and ".join(function.purpose for function in functions)
    calls = "one call" if len(names) == 1 else f"{len(names)} calls"
    opening = f"Help me {purposes}: I need {calls}, of {' and '.join(f'`{name}`' for name in names)}."
    schemas = [json.dumps(_schema(function)) for function in functions]
    return opening, "\n".join(["Functions:", *schemas, _ANSWER_FORMAT])


def _schema(function: Function) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for slot in function.slots:
        properties[slot.arg] = {"type": slot.pool.kind, "description": slot.name}
        if slot.pool.kind == "array":
            properties[slot.arg]["items"] = {"type": "string"}
    parameters = {"type": "object", "properties": properties, "required": [], "additionalProperties": False}
    return {"name": function.name, "description": function.purpose, "parameters": parameters}


def _typed(slot: Slot, value: str) -> Any:
    """Return the argument for a slot's value. Raises `GraderError` if the text is no such value."""
    match slot.pool.kind:
        case "string":
            return value.strip()
        case "array":
            return items_of(value)
        case "boolean" if value in ("yes", "no"):
            return value == "yes"
        case "integer" | "number" as kind:
            number = parse_number(value)
            if number is not None and (kind == "number" or number.denominator == 1):
                return int(number) if number.denominator == 1 else float(number)
    raise GraderError(f"slot {slot.name!r} takes {slot.pool.kind} values, got {value!r}")


class Calls:
    """Function calls over invented services; argument schemas, values and function names differ by split."""

    name = "calls"
    structured = True
    splits: tuple[str, ...] = ("train", "heldout")

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        """Yield tasks without end; `source` is not used. Raises `UnknownName` for an unknown split."""
        if split not in self.splits:
            raise unknown_name("split", split, self.splits)
        return (self.task(split, index) for index in itertools.count())

    def task(self, split: str, index: int) -> SourceTask:
        """Return task number `index`, a pure function of its arguments."""
        if split not in self.splits:
            raise unknown_name("split", split, self.splits)
        id = f"{self.name}/{split}/{index}"
        rng = random.Random(id)
        functions = rng.sample(_FUNCTIONS[split], 2 if rng.random() < 0.25 else 1)
        names = tuple(function.name for function in functions)
        slots = _slots(split, names)
        chosen = self._choose(functions, slots, rng)
        goals = tuple(
            _goal(f"g{number}", slot, slot.pool.draw(rng), rng) for number, slot in enumerate(chosen, 1)
        )
        opening, context = _texts(split, names)
        payload = {
            "functions": list(names),
            "calls": [call.to_dict() for call in _calls(slots, names, goals)],
        }
        return SourceTask(id, self.name, split, opening, context, goals, payload)

    def _choose(
        self, functions: list[Function], slots: Mapping[str, tuple[int, Slot]], rng: random.Random
    ) -> list[Slot]:
        count = min(_GOALS[int(rng.random() * len(_GOALS))], len(slots) - _MIN_DECOYS)
        if len(functions) == 1:
            return rng.sample(functions[0].slots, count)
        pools = [[slot for at, slot in slots.values() if at == index] for index in range(len(functions))]
        first = count // 2
        chosen = rng.sample(pools[0], first) + rng.sample(pools[1], count - first)
        rng.shuffle(chosen)
        return chosen

    def gold(self, task: SourceTask) -> str:
        return self.execute(task, task.intent)

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        """Return other values of the goal's slot: each is another argument, so each flips the verdict."""
        _, slot = self._slot(task, goal)
        if goal.value is None:
            raise GraderError(f"goal {goal.id!r} of {task.id} has no value")
        values = slot.pool.others(goal.value, _VARIANTS, rng)
        return [_goal(f"{goal.id}.v{number}", slot, value, rng) for number, value in enumerate(values, 1)]

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return values for arguments that the task leaves out: obeying one adds an argument."""
        used = {goal.slot for goal in task.goals}
        slots = _slots(task.split, tuple(task.payload["functions"]))
        free = [slot for _, slot in slots.values() if slot.name not in used]
        chosen = rng.sample(free, min(_DECOYS, len(free)))
        return [_goal(f"d{number}", slot, slot.pool.draw(rng), rng) for number, slot in enumerate(chosen, 1)]

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Return the calls that the state asks for; of two goals for one slot the later one counts.

        Raises `GraderError` for a goal without value, of an unknown slot, or whose value has the wrong type.
        """
        for goal in state.goals:
            self._slot(task, goal)
        names = tuple(task.payload["functions"])
        calls = _calls(_slots(task.split, names), names, state.goals)
        return json.dumps([call.to_dict() for call in calls], ensure_ascii=False)

    def grade(self, task: SourceTask, answer: str) -> Grade:
        """Score 1 iff the answer holds exactly the task's calls: names, arguments, types, values."""
        functions = _by_name(task.split)
        gold = [Call(call["name"], call["arguments"]) for call in task.payload["calls"]]
        if not gold or any(call.name not in functions for call in gold):
            return Grade(0.0, False, error=f"{task.id} has no call, or one of a function that does not exist")
        found = read_calls(answer)
        if isinstance(found, str):
            return Grade(0.0, False, {"problem": found})
        detail: dict[str, Any] = {"calls": [call.to_dict() for call in found]}
        for call in found:
            problem = _type_problem(functions.get(call.name), call)
            if problem is not None:
                return Grade(0.0, False, {**detail, "problem": problem})
        wrong = match_calls(gold, found)
        if wrong is None:
            return Grade(1.0, True, detail)
        return Grade(0.0, False, {**detail, "problem": wrong})

    def _slot(self, task: SourceTask, goal: Goal) -> tuple[int, Slot]:
        slots = _slots(task.split, tuple(task.payload["functions"]))
        if goal.slot not in slots or goal.value is None:
            raise GraderError(
                f"{task.id}: goal {goal.id!r} ({goal.slot!r} = {goal.value!r}) fits none of {sorted(slots)}"
            )
        return slots[goal.slot]


def _goal(id: str, slot: Slot, value: str, rng: random.Random) -> Goal:
    return Goal(id, slot.say(value, rng), slot.name, value)


def _calls(
    slots: Mapping[str, tuple[int, Slot]], names: tuple[str, ...], goals: tuple[Goal, ...]
) -> list[Call]:
    calls = [Call(name, {}) for name in names]
    for goal in goals:
        index, slot = slots[goal.slot or ""]
        calls[index].arguments[slot.arg] = _typed(slot, goal.value or "")
    return calls


def _type_problem(function: Function | None, call: Call) -> str | None:
    if function is None:
        return f"no function is called {call.name!r}"
    kinds = {slot.arg: slot.pool.kind for slot in function.slots}
    for arg, value in call.arguments.items():
        if arg not in kinds:
            return f"{call.name} has no argument {arg!r}"
        if not type_matches(kinds[arg], value):
            return f"{call.name}.{arg} takes {kinds[arg]}, got {type(value).__name__}"
    return None


FAMILY = Calls()
