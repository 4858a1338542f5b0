"""What a set takes of a family: with a limit no more tasks are made than are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from envs.task import Quarantined, SourceTask, get_family
from recipes.build import BuildSettings, build_set
from recipes.selection import Selection, select
from recipes.sets import SetRecipe


def _graded(_: str, batches: Sequence[Sequence[SourceTask]]) -> Iterator[list[Quarantined | None]]:
    return ([None] * len(batch) for batch in batches)


def _select(tasks: str | int, limit: int | None, procedural_tasks: int = 60) -> Selection:
    recipe = SetRecipe(
        about="x",
        role="train",
        families="all",
        tasks=tasks,  # type: ignore[arg-type]
        procedural_tasks=procedural_tasks,
    )
    return select(recipe, [(get_family("calls"), ("train",))], None, 0, limit, _graded)[0]


@pytest.mark.parametrize("tasks", ["all", 50])
def test_a_limit_makes_only_the_tasks_that_are_wanted(
    tasks: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, made = get_family("calls"), []
    make = family.task  # type: ignore[attr-defined]

    def counted(split: str, index: int) -> SourceTask:
        made.append(index)
        return make(split, index)

    monkeypatch.setattr(type(family), "task", lambda _, split, index: counted(split, index))
    chosen = _select(tasks, 3, procedural_tasks=1_000_000)
    assert len(chosen.tasks) == 3 and len(made) == 3
    if tasks == "all":
        assert made == [0, 1, 2]


def test_a_limit_takes_the_first_tasks_of_the_whole_set() -> None:
    assert [t.id for t in _select("all", 7).tasks] == [t.id for t in _select("all", None).tasks][:7]


def test_a_sample_of_a_procedural_family_is_in_order_and_without_repeats() -> None:
    ids = [task.id for task in _select(50, None).tasks]
    assert len(set(ids)) == 50
    assert ids == sorted(ids, key=lambda id: int(id.rsplit("/", 1)[1]))


def test_the_same_bytes_on_one_core_and_on_two_for_every_procedural_family(tmp_path: Path) -> None:
    settings = BuildSettings(
        "train", families=("calls", "math", "sql"), budgets=("hard",), conditions=("clean", "drift"), limit=40
    )
    one, two = (
        build_set(settings, None, tmp_path / str(jobs) / "train", jobs=jobs, quiet=True) for jobs in (1, 2)
    )
    parquet = sorted(file.relative_to(one) for file in one.rglob("*.parquet"))
    assert len(parquet) == 9
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in parquet)
