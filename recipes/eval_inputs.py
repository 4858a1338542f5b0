"""The cases of a run: which source tasks, and the dialogues that they are shown as."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envs.dialogue import Dialogue, build
from envs.task import Family, Quarantined, SourceTask, get_family
from recipes.eval_schema import EvalConfig, Row
from recipes.selection import quarantine_of, select
from recipes.sets import get_set, splits_of
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

    They are drawn as those of the set `general-test` are (docs/dataset.md): with all benchmark families, 125 cases
    and seed 0 they are the tasks of that set.
    """
    recipe = get_set("general-test")
    pool = max(recipe.procedural_tasks, config.cases)
    recipe = recipe.model_copy(update={"tasks": config.cases, "procedural_tasks": pool})
    families: list[tuple[Family, tuple[str, ...]]] = []
    for name in sorted(config.families):
        family = get_family(name)
        families.append((family, splits_of(family, recipe.role)))

    def grade_golds(name: str, batches: Sequence[Sequence[SourceTask]]) -> Iterator[list[Quarantined | None]]:
        return (quarantine_of(get_family(name), batch) for batch in batches)

    chosen = select(recipe, families, config.data, config.seed, None, grade_golds)
    return [(selection.family, task) for selection in chosen for task in selection.tasks]


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
