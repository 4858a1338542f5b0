"""The cases of a run: which source tasks, and the dialogues that they are shown as."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from envs.dialogue import Dialogue, build
from envs.errors import ConfigError
from envs.families import is_procedural
from envs.mix import TaskPool
from envs.task import Family, SourceTask, get_family
from recipes.eval_schema import EvalConfig, Row
from recipes.sets import share, splits_of
from rollout.harness import get_harness


@dataclass(frozen=True, slots=True)
class Shown:
    """A task as it is shown under one condition, budget and seed."""

    family: Family
    task: SourceTask
    condition: str
    budget: int
    seed: int

    @property
    def case(self) -> str:
        """The id that pairs it with its counterparts in other conditions and rows."""
        return f"{self.task.id}|b{self.budget}|s{self.seed}"

    def dialogue(self) -> Dialogue:
        return _dialogue(self)


@functools.lru_cache(maxsize=4096)
def _dialogue(shown: Shown) -> Dialogue:
    return build(shown.family, shown.task, shown.condition, shown.budget, shown.seed)


@dataclass(frozen=True, slots=True)
class Play:
    """One thing to do: a row of the table plays a shown task."""

    row: Row
    shown: Shown

    @property
    def key(self) -> tuple[str, str, str]:
        return self.row.name, self.shown.condition, self.shown.case


def tasks_of(config: EvalConfig) -> list[tuple[Family, SourceTask]]:
    """Return the source tasks, shared out over the families, each once. Raises what reading the files raises.

    Of a benchmark they are drawn by the run's seed from its evaluation split; of a procedural family they are the
    first ones of its held-out split, whose words no training dialogue has.
    """
    pools: list[list[TaskPool]] = []
    for name in config.families:
        family = get_family(name)
        splits = splits_of(family, "evaluation")
        if not splits:
            raise ConfigError(f"family {name!r} has nothing to evaluate on, its splits are {family.splits}")
        pools.append([TaskPool(family, split, config.data, config.seed) for split in splits])
    capacities = [
        config.cases if is_procedural(one[0].family) else sum(len(pool.all()) for pool in one)
        for one in pools
    ]
    return [
        (one[0].family, task)
        for one, count in zip(pools, share(config.cases, capacities), strict=True)
        for task in _drawn(one, count)
    ]


def plays(config: EvalConfig) -> Iterator[Play]:
    """Yield all that the run consists of, the rows of one shown task next to each other."""
    rows = config.rows()
    own = {row.name: get_harness(row.harness).condition for row in rows}
    for family, task in tasks_of(config):
        for budget in config.budgets:
            for seed in config.seeds:
                for condition in ("clean", *(c for c in config.conditions if c != "clean")):
                    shown = Shown(family, task, condition, budget, seed)
                    for row in rows:
                        wanted = (own[row.name],) if own[row.name] else config.conditions
                        if condition in wanted and can_play(row, family):
                            yield Play(row, shown)


def can_play(row: Row, family: Family) -> bool:
    """Say whether a row can play a family: the executor needs states that can be executed."""
    return row.harness != "executor" or family.structured


def _drawn(pools: list[TaskPool], count: int) -> list[SourceTask]:
    found: list[SourceTask] = []
    for pool in pools:
        size = count if is_procedural(pool.family) else len(pool.all())
        found += [pool.at(at)[0] for at in range(min(size, count - len(found)))]
    return found
