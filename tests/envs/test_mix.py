"""Streams: dialogue i is a pure function, families take turns, bad golds are counted and left out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from envs.errors import ConfigError, DataError, UnknownName
from envs.intent import Goal, IntentState
from envs.mix import TaskPool, dialogue_stream
from envs.task import Grade, SourceTask

MIX = {"drift": 0.85, "turn_matched": 0.15}


class Finite:
    """Seven tasks read from nowhere; the gold of `bad` ones is rejected, that of "5" crashes the grader."""

    name = "finite"
    structured = True
    splits = ("test",)
    bad: tuple[str, ...] = ("2", "5")

    def __init__(self) -> None:
        self.loads = 0

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        self.loads += 1
        for n in range(7):
            goals = (Goal(f"g{n}", f"take number {n}", "number", str(n)),)
            yield SourceTask(f"finite/test/{n}", "finite", split, "Hello.", "", goals, {"n": str(n)})

    def gold(self, task: SourceTask) -> str:
        return task.payload["n"]

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        return [Goal(f"{goal.id}.v1", "take number 99", "number", "99")]

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        return []

    def execute(self, task: SourceTask, state: IntentState) -> str:
        return state.goals[-1].value or ""

    def grade(self, task: SourceTask, answer: str) -> Grade:
        n = task.payload["n"]
        if n == "5" and n in self.bad:
            raise OSError("no database")
        right = answer == n and n not in self.bad
        return Grade(float(right), right)


def test_a_stream_is_indexable_and_resumes_at_its_cursor() -> None:
    stream = dialogue_stream(["calls"], "train", 3, "easy", MIX)
    first = list(islice(stream, 12))
    assert stream.index == 12
    assert [stream.dialogue_at(i) for i in reversed(range(12))] == first[::-1]
    resumed = dialogue_stream(["calls"], "train", 3, "easy", MIX, start=7)
    assert list(islice(resumed, 5)) == first[7:]
    assert len({d.id for d in first}) == 12


def test_families_take_turns_and_conditions_follow_the_mix() -> None:
    class Other(Finite):
        name = "other"

    finite = dialogue_stream([Finite(), Other()], "test", 0, 1, MIX)
    assert [finite.pools[i % 2].at(i // 2)[0] for i in range(6)] == [finite.task_at(i) for i in range(6)]
    assert len({finite.task_at(i).id for i in range(0, 10, 2)}) == 5
    conditions = Counter(d.condition for d in islice(dialogue_stream(["calls"], "train", 0, 1, MIX), 400))
    assert set(conditions) == set(MIX)
    assert conditions["turn_matched"] / 400 == pytest.approx(0.15, abs=0.06)


def test_seeds_give_other_dialogues() -> None:
    a, b = (list(islice(dialogue_stream(["calls"], "train", seed, 3), 5)) for seed in (0, 1))
    assert all(x.turns != y.turns for x, y in zip(a, b, strict=True))


def test_longer_dialogues() -> None:
    longer = dialogue_stream(["calls"], "heldout", 0, "easy", MIX, turns_at_least=20)
    assert all(len(d.turns) >= 20 for d in islice(longer, 20))


def test_finite_families_go_round_over_their_usable_tasks() -> None:
    family = Finite()
    stream = dialogue_stream([family], "test", 0, 1, MIX)
    ids = [stream.dialogue_at(i).task_id for i in range(10)]
    usable = {f"finite/test/{n}" for n in (0, 1, 3, 4, 6)}
    assert set(ids[:5]) == set(ids[5:]) == usable
    assert set(stream.quarantined) == {"finite/test/2", "finite/test/5"}
    assert "no database" in stream.quarantined["finite/test/5"].reason
    assert family.loads == 1
    # Jumping back and forth over rounds changes nothing, and a task that comes again has another seed.
    assert [stream.dialogue_at(i).task_id for i in (9, 0, 7)] == [ids[9], ids[0], ids[7]]
    again = {stream.dialogue_at(i).seed for i in range(10) if ids[i] == ids[0]}
    assert len(again) == 2
    orders = {
        tuple(TaskPool(Finite(), "test", None, seed).at(i)[0].id for i in range(5)) for seed in range(6)
    }
    assert len(orders) > 1


def test_a_family_whose_golds_all_fail_is_a_data_error() -> None:
    family = Finite()
    family.bad = tuple("0123456")
    with pytest.raises(DataError, match="7 quarantined"):
        dialogue_stream([family], "test", 0, 1).dialogue_at(0)


def test_procedural_families_skip_quarantined_tasks_purely_by_index() -> None:
    class Endless(Finite):
        def task(self, split: str, index: int) -> SourceTask:
            n = str(index % 10)
            return SourceTask(
                f"endless/test/{index}", "endless", split, "", "", (Goal("g", n, "number", n),), {"n": n}
            )

    pool = TaskPool(Endless(), "test")
    assert pool.at(1)[0].id == "endless/test/1"
    assert pool.at(2)[0].id == "endless/test/1000000009" == TaskPool(Endless(), "test").at(2)[0].id
    assert set(pool.quarantined) == {"endless/test/2"}
    broken = Endless()
    broken.bad = tuple("0123456789")
    with pytest.raises(DataError, match="in a row"):
        TaskPool(broken, "test").at(0)


def test_bad_arguments() -> None:
    with pytest.raises(UnknownName, match="'calls'"):
        dialogue_stream(["cals"], "train", 0, 1)
    with pytest.raises(UnknownName, match="'heldout'"):
        dialogue_stream(["calls"], "held-out", 0, 1)
    with pytest.raises(UnknownName, match="'drift'"):
        dialogue_stream(["calls"], "train", 0, 1, {"drif": 1.0})
    with pytest.raises(ConfigError, match="at least one family"):
        dialogue_stream([], "train", 0, 1)
    for weights in ({}, {"drift": 0.0}, {"drift": 1.0, "clean": -0.1}):
        with pytest.raises(ConfigError, match="weights"):
            dialogue_stream(["calls"], "train", 0, 1, weights)
    with pytest.raises(ConfigError, match="index"):
        dialogue_stream(["calls"], "train", 0, 1).dialogue_at(-1)
