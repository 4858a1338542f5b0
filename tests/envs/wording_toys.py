"""A small family and a chat stub for the tests of wordings: nothing here changes when a benchmark does."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.intent import EMPTY, Edit, Goal, IntentState
from envs.task import Grade, SourceTask

OPENING = "I need one call of `send_parcel`."
_VALUES = {
    "delivery address": ("Brooklyn", "Queens", "Harlem", "Astoria", "Flushing", "Corona"),
    "parcel weight": ("12 kilos", "15 kilos", "31 kilos", "44 kilos", "57 kilos", "68 kilos"),
    "pickup day": ("Wednesday", "Thursday", "Saturday", "Sunday", "Monday", "Friday"),
    "insured value": ("$1,250.50", "$90", "$475", "$8,300", "$610", "$777"),
    "gift note": ("Happy Birthday, Tom!", "Get Well", "With Love", "Bon Voyage", "Cheers", "Thanks, Ann"),
}
_TEXTS = {
    "delivery address": "deliver it to {}",
    "parcel weight": "the parcel weight is {}",
    "pickup day": "pick it up on {}",
    "insured value": "insure it for {}",
    "gift note": "print {} on the gift note",
}
_DECOYS = {"courier name": ("use {} as the courier name", "Zippy"), "box color": ("take a {} box", "purple")}


def goal(slot: str, n: int = 0, suffix: str = "") -> Goal:
    """The goal of `slot` with its n-th value."""
    value = _VALUES[slot][n]
    return Goal(f"g{list(_VALUES).index(slot)}{suffix}", _TEXTS[slot].format(value), slot, value)


class Toy:
    """Parcels: the answer is the sorted values of the state; every variant and decoy flips the verdict."""

    name = "toy"
    structured = True
    splits = ("train", "heldout")

    def task(self, split: str, index: int) -> SourceTask:
        slots = list(_VALUES)[: 2 + index % 4]
        goals = tuple(goal(slot, index % 3) for slot in slots)
        payload = {"gold": sorted(g.value or "" for g in goals)}
        return SourceTask(f"toy/{split}/{index}", "toy", split, OPENING, "", goals, payload)

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        return (self.task(split, index) for index in range(1000))

    def gold(self, task: SourceTask) -> str:
        return "|".join(task.payload["gold"])

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        slot = goal.slot or ""
        others = [n for n, value in enumerate(_VALUES[slot]) if value != goal.value]
        rng.shuffle(others)
        return [
            Goal(f"{goal.id}.v{n}", _TEXTS[slot].format(_VALUES[slot][n]), slot, _VALUES[slot][n])
            for n in others
        ]

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        found = [Goal(f"d{slot}", text.format(v), slot, v) for slot, (text, v) in _DECOYS.items()]
        rng.shuffle(found)
        return found

    def execute(self, task: SourceTask, state: IntentState) -> str:
        return "|".join(sorted(g.value or "" for g in state.goals))

    def grade(self, task: SourceTask, answer: str) -> Grade:
        right = answer == self.gold(task)
        return Grade(float(right), right)


class EchoSimulator:
    """Says what it was asked and what it drew, so that a hash of its texts pins every argument."""

    def utter(
        self,
        edits: Sequence[Edit],
        turn_index: int,
        total: int,
        opening: str,
        rng: random.Random,
        live: IntentState = EMPTY,
    ) -> str:
        return (
            f"{turn_index}/{total} {opening} {rng.random():.12f} {[g.id for g in live.goals]} {list(edits)}"
        )


@dataclass(frozen=True)
class Reply:
    text: str


class Model:
    """A chat model that is a pure function of its messages and seed; `asked` keeps every request."""

    model = "stub-1"

    def __init__(self, answer: Callable[[Sequence[Mapping[str, str]], int], str]) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        temperature: float,
        seed: int,
        max_tokens: int,
        schema: Mapping[str, Any],
    ) -> Reply:
        request = {"messages": [dict(m) for m in messages], "temperature": temperature, "seed": seed}
        self.asked.append(request | {"max_tokens": max_tokens, "schema": schema})
        return Reply(self.answer(messages, seed))


def honest(messages: Sequence[Mapping[str, str]], seed: int) -> str:
    """Say what the request asks for, read from its words, in one of three wordings."""
    request = messages[1]["content"]
    slot, value = _named(request, "New|Now|Withdrawn")
    old = _named(request, "Before")[1]
    n = seed % 3
    if "you now want this" in request:
        said = (f"For {slot}: {value}", f"The {slot} would be {value}!", f"Could the {slot} be {value}?")[n]
    elif "another in its place" in request:
        said = (f"Rather {value} than {old} for {slot}.", f"The {slot}: now {value}.", f"{value}, not {old}")[
            n
        ]
    elif "take this back" in request:
        said = (f"Forget {slot}.", f"I no longer want the {slot}.", f"No {slot}, please")[n]
    elif "go ahead" in request:
        said = ("Go on then.", "Please answer.", "Your turn.")[n]
    else:
        said = ("Hm.", "Let me think.", "Nice.")[n]
    return json.dumps({"message": said})


def _named(request: str, head: str) -> tuple[str, str]:
    found = re.search(rf"^(?:{head}): (.*?): <<(.*?)>>", request, re.MULTILINE)
    return (found.group(1), found.group(2)) if found else ("", "")
