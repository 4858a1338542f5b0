"""Streams of dialogues over several families: dialogue number i is a pure function of the stream's arguments.

So a data cursor is one integer: a run that stops at dialogue i goes on at i and sees the same dialogues.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.alias import Aliased
from envs.dialogue import CONDITIONS, Dialogue, build
from envs.drift import resolve_budget
from envs.errors import ConfigError, DataError, unknown_name
from envs.simulator import Simulator
from envs.task import Family, Quarantined, SourceTask, checked, get_family

DRIFT_ONLY: Mapping[str, float] = {"drift": 1.0}

# A procedural family whose tasks all fail their own grader is broken; this many in a row settle it.
_MAX_QUARANTINED = 100


class TaskPool:
    """The usable tasks of one family and split, by number. Tasks that their own grader rejects are left out.

    Procedural families (those with `task(split, index)`) have a task at every index. Of the others all tasks
    are read once; index runs over them again and again, each round in a seeded order of its own.
    Raises `UnknownName` for a split, `MissingFiles` or `DataError` for the source.
    """

    def __init__(self, family: Family, split: str, source: Path | None = None, seed: int = 0) -> None:
        if split not in family.splits:
            raise unknown_name(f"split of family {family.name!r}:", split, family.splits)
        self.family = family
        self.split = split
        self.source = source
        self.seed = seed
        self.quarantined: dict[str, Quarantined] = {}
        self._task: Any = getattr(family, "task", None)
        self._finite: list[SourceTask] = []
        self._orders: dict[int, list[int]] = {}

    def at(self, index: int) -> tuple[SourceTask, int]:
        """Return task number `index` and its round: how often all tasks were gone through before it."""
        if index < 0:
            raise ConfigError(f"a task index is at least 0, got {index}")
        if self._task is not None:
            return self._procedural(index), 0
        tasks = self.all()
        past, place = divmod(index, len(tasks))
        if past not in self._orders:
            order = list(range(len(tasks)))
            random.Random(f"order|{self.family.name}|{self.split}|{self.seed}|{past}").shuffle(order)
            self._orders = {past: order}
        return tasks[self._orders[past][place]], past

    def all(self) -> list[SourceTask]:
        """Return every usable task of a finite family in the order of its files."""
        if self._task is not None:
            raise ConfigError(f"family {self.family.name!r} is procedural, its tasks never end; ask by index")
        if not self._finite:
            for item in checked(self.family, self.source, self.split):
                if isinstance(item, Quarantined):
                    self.quarantined[item.task_id] = item
                else:
                    self._finite.append(item)
            if not self._finite:
                raise DataError(
                    f"family {self.family.name!r}, split {self.split!r}, source {self.source}: "
                    f"no usable task, {len(self.quarantined)} quarantined"
                )
        return self._finite

    def _procedural(self, index: int) -> SourceTask:
        # In place of a quarantined task comes one from far off, so that index stays a pure function.
        for attempt in range(_MAX_QUARANTINED):
            task: SourceTask = self._task(self.split, index + attempt * 1_000_000_007)
            item = next(checked(_Just(self.family, task), None, self.split))  # type: ignore[arg-type]
            if isinstance(item, SourceTask):
                return item
            self.quarantined[item.task_id] = item
        raise DataError(
            f"family {self.family.name!r}: {_MAX_QUARANTINED} tasks in a row fail their own grader"
        )


class _Just:
    """A family seen through one task, for `checked`."""

    def __init__(self, family: Family, task: SourceTask) -> None:
        self._item = task
        self.gold = family.gold
        self.grade = family.grade

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        return iter((self._item,))


class DialogueStream(Iterator[Dialogue]):
    """Dialogues of several families in turn. `index` is the cursor: the number of the next dialogue.

    Dialogue i is of family i mod F and its task i div F; its condition is drawn by i from `condition_mix`, and
    `alias_share` of the dialogues get made-up slot names and values (`envs/alias.py`).
    """

    def __init__(
        self,
        families: Sequence[str | Family],
        split: str,
        seed: int,
        budget: int | str,
        condition_mix: Mapping[str, float] = DRIFT_ONLY,
        start: int = 0,
        source: Path | None = None,
        turns_at_least: int = 0,
        simulator: Simulator | None = None,
        alias_share: float = 0.0,
    ) -> None:
        if not families:
            raise ConfigError("a stream of dialogues needs at least one family")
        for condition in condition_mix:
            if condition not in CONDITIONS:
                raise unknown_name("condition", condition, CONDITIONS)
        if min(condition_mix.values(), default=0) < 0 or sum(condition_mix.values()) <= 0:
            raise ConfigError(
                f"condition weights must be non-negative and not all zero: {dict(condition_mix)}"
            )
        found = [get_family(family) if isinstance(family, str) else family for family in families]
        self.pools = [TaskPool(family, split, source, seed) for family in found]
        self.seed = seed
        self.budget = resolve_budget(budget)
        self.turns_at_least = turns_at_least
        self.simulator = simulator
        self.alias_share = alias_share
        self.split = split
        self.index = start
        self._conditions = list(condition_mix)
        self._bounds = list(itertools.accumulate(condition_mix.values()))

    @property
    def quarantined(self) -> dict[str, Quarantined]:
        """Tasks left out so far, by id; `len` counts them."""
        return {id: item for pool in self.pools for id, item in pool.quarantined.items()}

    def task_at(self, index: int) -> SourceTask:
        """Return the source task of dialogue number `index`."""
        at, family_at = divmod(index, len(self.pools))
        return self.pools[family_at].at(at)[0]

    def dialogue_at(self, index: int) -> Dialogue:
        """Return dialogue number `index`, a pure function of it."""
        at, family_at = divmod(index, len(self.pools))
        pool = self.pools[family_at]
        task, past = pool.at(at)
        seed = self.seed + 1_000_003 * past  # a task that comes again drifts in another way
        family: Family = pool.family
        if self._is_aliased(index):
            aliased = Aliased(family, task, alias_words(self.split), self.seed)
            family, task = aliased, aliased.task
        return build(
            family, task, self._condition(index), self.budget, seed, self.simulator, self.turns_at_least
        )

    def _is_aliased(self, index: int) -> bool:
        return (
            self.alias_share > 0 and random.Random(f"alias|{self.seed}|{index}").random() < self.alias_share
        )

    def __iter__(self) -> DialogueStream:
        return self

    def __next__(self) -> Dialogue:
        dialogue = self.dialogue_at(self.index)
        self.index += 1
        return dialogue

    def _condition(self, index: int) -> str:
        if len(self._conditions) == 1:
            return self._conditions[0]
        rng = random.Random(f"condition|{self.seed}|{index}")
        return rng.choices(self._conditions, cum_weights=self._bounds)[0]


@functools.cache
def alias_words(split: str) -> tuple[str, ...]:
    """Return the words that made-up slot names of a split are drawn from, sorted."""
    from envs.vocab import content_words, words_of

    known = words_of(split)
    return tuple(sorted(content_words([*known.slots, *known.values])))


def dialogue_stream(
    families: Sequence[str | Family],
    split: str,
    seed: int,
    budget: int | str,
    condition_mix: Mapping[str, float] = DRIFT_ONLY,
    start: int = 0,
    source: Path | None = None,
    turns_at_least: int = 0,
) -> DialogueStream:
    """Return the endless stream of dialogues from number `start` on; see `DialogueStream`."""
    return DialogueStream(families, split, seed, budget, condition_mix, start, source, turns_at_least)
