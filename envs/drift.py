"""Scripts: the seeded sequence of edits that leads to a task's intent, and the oracle states on the way.

A drift script holds one queue per goal (variants first, each replaced by the next, the true goal last) and
one queue of decoys (each stated and later withdrawn). The queues are merged in seeded order, one edit a turn;
the last turn has no edit and is the neutral request for the answer. Every merge is executable, because edits
that depend on each other share a queue.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from envs.errors import ConfigError, DataError, GraderError, unknown_name
from envs.intent import EMPTY, Add, Delete, Edit, Goal, IntentState, Replace, apply
from envs.task import Family, SourceTask

BUDGETS = {"easy": 1, "medium": 3, "hard": 5}

# How often a dialogue that must be longer gets a turn of small talk, and a decoy, instead of a revision.
SMALL_TALK_SHARE = 0.15
DECOY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Script:
    """`turns[t]`: the edits of turn t (none: small talk, or the request at the end); `states[t]` is G_t."""

    turns: tuple[tuple[Edit, ...], ...]
    states: tuple[IntentState, ...]


def resolve_budget(budget: int | str) -> int:
    """Return the budget b as a number. Raises `UnknownName` for an unknown word, `ConfigError` below 1."""
    if isinstance(budget, str):
        if budget not in BUDGETS:
            raise unknown_name("budget", budget, BUDGETS)
        return BUDGETS[budget]
    if budget < 1:
        raise ConfigError(f"a drift budget is at least 1, got {budget}; use easy (1), medium (3) or hard (5)")
    return budget


def build_script(
    family: Family, task: SourceTask, budget: int | str, seed: int, *, turns_at_least: int = 0
) -> Script:
    """Return the drift script of a task; the same arguments give the same script.

    `turns_at_least` asks for a longer script: beyond the budget, goals go back and forth between true value
    and variants, decoys come and go again, and turns of small talk are mixed in.
    Raises `DataError` for a task without goals, `GraderError` if the edits do not end in the task's intent.
    """
    budget = resolve_budget(budget)
    if not task.goals:
        raise DataError(f"task {task.id!r} has no goals, so nothing can drift")
    rng = random.Random(f"drift|{task.id}|{budget}|{seed}")
    check = _Check(family, task)

    counts = [_variant_count(budget, rng) for _ in task.goals]
    offered = [
        check.variants(goal, rng, max(count, turns_at_least))
        for goal, count in zip(task.goals, counts, strict=True)
    ]
    decoy_count = _decoy_count(budget, rng)
    decoys = check.decoys(rng, max(decoy_count, turns_at_least // 8))
    # Values each goal takes in turn, the true goal last; and each decoy twice: stated, later withdrawn.
    paths = [
        [*variants[:count], goal] for goal, variants, count in zip(task.goals, offered, counts, strict=True)
    ]
    shown = [decoy for decoy in decoys[:decoy_count] for _ in range(2)]
    missing = turns_at_least - 1 - sum(map(len, paths)) - len(shown)
    neutral = _lengthen(paths, offered, shown, decoys, missing, rng)

    queues: list[list[tuple[Edit, ...]]] = [[(edit,) for edit in _walk(path)] for path in paths]
    queues.append([(edit,) for edit in _come_and_go(shown, rng)])
    queues.append([()] * neutral)
    script = _script([*_merge(queues, rng), ()])
    if script.states[-1] != task.intent:
        raise GraderError(f"the script of task {task.id!r} does not end in the task's intent")
    return script


def turn_matched_script(task: SourceTask, turns: int, seed: int) -> Script:
    """Return a script of `turns` turns without drift: the true goals, small talk between them, the request.

    Raises `ConfigError` when there are fewer turns than the goals need.
    """
    if turns < len(task.goals) + 1:
        raise ConfigError(f"task {task.id!r} needs {len(task.goals) + 1} turns or more, got {turns}")
    rng = random.Random(f"turn_matched|{task.id}|{turns}|{seed}")
    goals = list(task.goals)
    rng.shuffle(goals)
    places = sorted(rng.sample(range(turns - 1), len(goals)))
    edits: list[tuple[Edit, ...]] = [()] * turns
    for place, goal in zip(places, goals, strict=True):
        edits[place] = (Add(goal),)
    return _script(edits)


def clean_script(task: SourceTask) -> Script:
    """Return the one-turn script: all goals at once."""
    return _script([tuple(Add(goal) for goal in task.goals)])


def _variant_count(budget: int, rng: random.Random) -> int:
    """Draw k: 0 with probability 0.05 b, else uniform in 1..b. Means 0.95, 1.70 and 2.25 for b = 1, 3, 5."""
    if rng.random() < min(0.05 * budget, 0.5):
        return 0
    return rng.randint(1, budget)


def _decoy_count(budget: int, rng: random.Random) -> int:
    """Draw the number of decoys, uniform in 0..b; b = 1 leans to a decoy. Means 0.61, 1.5 and 2.5."""
    if budget == 1:
        return int(rng.random() < 0.61)
    return rng.randint(0, budget)


class _Check:
    """What a family offers for a task, kept only where obeying it changes the verdict."""

    def __init__(self, family: Family, task: SourceTask) -> None:
        self.family = family
        self.task = task
        self.trusted = bool(getattr(family, "variants_flip", False))
        self.goal_slots = {goal.slot for goal in task.goals if goal.slot is not None}

    def variants(self, goal: Goal, rng: random.Random, count: int) -> list[Goal]:
        """Return up to `count` distinct variants of `goal`, in the family's (seeded) order."""
        if count == 0:
            return []
        kept: list[Goal] = []
        seen = {goal.text.casefold()}
        for variant in self.family.variants(self.task, goal, rng):
            if variant.text.casefold() in seen:
                continue
            goals = tuple(variant if known is goal else known for known in self.task.goals)
            if self.trusted or self._flips(IntentState(goals)):
                seen.add(variant.text.casefold())
                kept.append(variant)
                if len(kept) == count:
                    break
        return kept

    def decoys(self, rng: random.Random, count: int) -> list[Goal]:
        """Return up to `count` valid decoys, none in a slot that a goal or another decoy holds."""
        if count == 0:
            return []
        kept: list[Goal] = []
        slots = set(self.goal_slots)
        for decoy in self.family.decoys(self.task, rng):
            if decoy.slot is not None and decoy.slot in slots:
                continue
            if self._flips(IntentState((*self.task.goals, decoy))):
                if decoy.slot is not None:
                    slots.add(decoy.slot)
                kept.append(decoy)
                if len(kept) == count:
                    break
        return kept

    def _flips(self, state: IntentState) -> bool:
        """Return whether obeying `state` loses full credit; a failing grader or executor proves nothing."""
        if not self.family.structured:
            return False  # nothing can execute the state, so the grader cannot vouch for it
        try:
            grade = self.family.grade(self.task, self.family.execute(self.task, state))
        except GraderError:
            return False
        return grade.error is None and not grade.full_credit


def _lengthen(
    paths: list[list[Goal]],
    offered: Sequence[Sequence[Goal]],
    shown: list[Goal],
    decoys: Sequence[Goal],
    missing: int,
    rng: random.Random,
) -> int:
    """Extend `paths` and `shown` in place by about `missing` edits; return the turns of small talk to add."""
    revisable = [at for at, variants in enumerate(offered) if variants]
    neutral = 0
    while missing > 0:
        draw = rng.random()
        if draw < SMALL_TALK_SHARE or not (revisable or decoys):
            neutral += 1
            missing -= 1
        elif decoys and (draw < SMALL_TALK_SHARE + DECOY_SHARE or not revisable):
            shown += [rng.choice(decoys)] * 2
            missing -= 2
        else:
            at = rng.choice(revisable)
            # Variants that were not shown yet come first; then the user goes back and forth.
            fresh = [variant for variant in offered[at] if variant not in paths[at]]
            paths[at] += [rng.choice(fresh or offered[at]), paths[at][-1]]
            missing -= 2
    return neutral


def _walk(path: Sequence[Goal]) -> list[Edit]:
    """Return the edits that state the first goal and replace it by each next one."""
    replaced: list[Edit] = [Replace(old, new) for old, new in itertools.pairwise(path)]
    return [Add(path[0]), *replaced]


def _come_and_go(shown: Sequence[Goal], rng: random.Random) -> list[Edit]:
    """Return Add and Delete of each decoy in seeded order; the 1st, 3rd, ... showing of a decoy adds it."""
    order = list(shown)
    rng.shuffle(order)
    live: set[Goal] = set()
    edits: list[Edit] = []
    for decoy in order:
        edits.append(Delete(decoy) if decoy in live else Add(decoy))
        live ^= {decoy}
    return edits


def _merge(queues: Sequence[list[tuple[Edit, ...]]], rng: random.Random) -> list[tuple[Edit, ...]]:
    """Interleave the queues, each kept in order; every interleaving is equally likely."""
    order = [at for at, queue in enumerate(queues) for _ in queue]
    rng.shuffle(order)
    heads = [iter(queue) for queue in queues]
    return [next(heads[at]) for at in order]


def _script(turns: Sequence[tuple[Edit, ...]]) -> Script:
    states: list[IntentState] = []
    state = EMPTY
    for edits in turns:
        for edit in edits:
            state = apply(state, edit)
        states.append(state)
    return Script(tuple(turns), tuple(states))
