"""Several edits in one message: neighbouring turns of a script become one, the edits and their order stay.

What is merged is drawn on the drift script, as a list of group sizes over its turns. The turn-matched twin is
cut into the same groups, so both keep as many turns.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from envs.drift import Script
from envs.errors import ConfigError
from envs.intent import Add, Delete, Edit, Replace, Switch


@dataclass(frozen=True, slots=True)
class Merging:
    """`rate`: the chance that a turn joins the one before it, where it can; `cap`: the most edits a message.

    Raises `ConfigError` for a rate outside 0..1 or a cap below 2.
    """

    rate: float
    cap: int = 3

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ConfigError(f"a merge rate is a chance from 0 to 1, got {self.rate}")
        if self.cap < 2:
            raise ConfigError(f"merged messages hold 2 edits or more, got a cap of {self.cap}")


def draw_groups(drift: Script, merging: Merging, rng: random.Random) -> list[int]:
    """Return the sizes of the groups that the turns of a drift script are merged into; they sum to its length.

    Edits of one message never touch the same goal or slot, so that any order of them means the same and no
    reference depends on what the same message says before. Small talk and the final request stay alone.
    """
    sizes: list[int] = []
    touched: set[str] = set()
    for edits in drift.turns[:-1]:
        own = _touches(edits)
        joins = bool(sizes and touched and own) and sizes[-1] < merging.cap and not own & touched
        if joins and rng.random() < merging.rate:
            sizes[-1] += 1
            touched |= own
        else:
            sizes.append(1)
            touched = own
    return [*sizes, 1]


def merge_script(script: Script, sizes: Sequence[int]) -> Script:
    """Return the script with its turns merged into groups of these sizes; each state is that of a group's end.

    Raises `ValueError` where the sizes do not sum to the turns of the script.
    """
    ends = list(itertools.accumulate(sizes))
    if not ends or ends[-1] != len(script.turns) or min(sizes) < 1:
        raise ValueError(f"groups of {list(sizes)} do not cut {len(script.turns)} turns")
    starts = [0, *ends[:-1]]
    return Script(
        tuple(
            tuple(itertools.chain(*script.turns[start:end])) for start, end in zip(starts, ends, strict=True)
        ),
        tuple(script.states[end - 1] for end in ends),
    )


def _touches(edits: Sequence[Edit]) -> set[str]:
    """Return marks of the goals and slots that edits touch."""
    marks: set[str] = set()
    for edit in edits:
        match edit:
            case Add(goal) | Delete(goal):
                goals = [goal]
            case Replace(old, new):
                goals = [old, new]
            case Switch():
                goals = []
                marks.add("function")
        for goal in goals:
            marks.add(f"id {goal.id}")
            if goal.slot is not None:
                marks.add(f"slot {goal.slot.casefold()}")
    return marks
