"""Named sets: what the YAML may say, which splits a family gives, how cases are shared, near copies."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.errors import ConfigError, UnknownName
from envs.families import is_procedural, registry
from envs.intent import Goal
from envs.task import SourceTask
from recipes.neardup import HeldOut, grams
from recipes.sets import all_sets, families_of, get_set, read_sets, share, splits_of

PLAIN = "evaluation_splits: [test]\nsources: {}\nsets:\n"
ONE = "  a: {about: x, role: evaluation, families: all, tasks: all, procedural_tasks: 3}\n"


def family(*splits: str) -> Any:
    return SimpleNamespace(name="f", splits=splits)


def test_the_three_sets_are_as_the_paper_has_them() -> None:
    assert set(all_sets().sets) == {"calibration", "general-test", "train"}
    assert get_set("general-test").tasks == 125
    assert get_set("calibration").tasks == get_set("train").tasks == "all"
    assert set(get_set("train").disjoint_from) == {"calibration", "general-test"}
    for recipe in all_sets().sets.values():
        assert recipe.budgets == ("easy", "medium", "hard")
        assert recipe.conditions == ("clean", "drift", "turn_matched")


def test_a_set_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="general-test"):
        get_set("generaltest")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (ONE.replace("about", "abuot"), "sets.a.abuot"),
        (ONE.replace("3}", "3, budgets: [esay]}"), "Did you mean 'easy'"),
        (ONE.replace("3}", "3, conditions: []}"), "at least one condition"),
        (ONE.replace("3}", "3, disjoint_from: [b]}"), "Known: a"),
        (ONE.replace("3}", "0}"), "procedural_tasks"),
        (ONE.replace("role: evaluation", "role: train") + ONE.replace("  a:", "  b:").replace(
            "3}", "3, disjoint_from: [a]}"), "only be kept disjoint from evaluation sets"),
    ],
)  # fmt: skip
def test_what_a_recipe_may_not_say_is_named(line: str, says: str) -> None:
    read_sets(PLAIN + ONE)
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")):
        read_sets(PLAIN + line)


def test_training_and_evaluation_never_read_the_same_split() -> None:
    assert splits_of(family("train", "test"), "evaluation") == ("test",)
    assert splits_of(family("train", "heldout"), "evaluation") == ("heldout",)
    assert splits_of(family("simple", "parallel", "test"), "evaluation") == ("test",)
    assert splits_of(family("math", "code", "train"), "evaluation") == ("math", "code")
    assert splits_of(family("test"), "train") == ()
    for found in registry().values():
        assert not set(splits_of(found, "train")) & set(splits_of(found, "evaluation")), found.name
        assert splits_of(found, "evaluation"), found.name


def test_procedural_families_are_trained_on_and_not_part_of_the_benchmark() -> None:
    procedural = {name for name, found in registry().items() if is_procedural(found)}
    assert procedural >= {"calls", "sql", "math"}
    assert procedural <= set(families_of(get_set("train"), registry()))
    for name in ("calibration", "general-test"):
        assert not procedural & set(families_of(get_set(name), registry()))


@given(st.integers(0, 300), st.lists(st.integers(0, 60), min_size=1, max_size=12))
def test_cases_are_shared_evenly_up_to_what_each_family_has(total: int, capacities: list[int]) -> None:
    given_ = share(total, capacities)
    assert sum(given_) == min(total, sum(capacities))
    assert all(0 <= one <= most for one, most in zip(given_, capacities, strict=True))
    open_ = [one for one, most in zip(given_, capacities, strict=True) if one < most]
    if open_:  # who could give more gives at most one less than anybody
        assert max(given_) - min(open_) <= 1


def task(id: str, *texts: str, **payload: str) -> SourceTask:
    goals = tuple(Goal(f"g{n}", text) for n, text in enumerate(texts))
    return SourceTask(id, "f", "test", "", "", goals, payload)


LONG = "The gardener plants 12 rows of tulips beside the old stone wall and waters them twice a day in June"


def test_the_same_story_with_other_numbers_is_a_near_copy() -> None:
    held_out = HeldOut([task("t/1", LONG)])
    copy = held_out.near_copy(task("x", LONG.replace("12", "1,300")), 0.9)
    assert copy is not None and (copy.held_out_id, copy.similarity) == ("t/1", 1.0)


def test_one_changed_word_is_still_a_near_copy_and_another_story_is_not() -> None:
    held_out = HeldOut(
        [task("t/1", LONG), task("t/2", "A sailor counts the ropes on each of his 3 boats today")]
    )
    copy = held_out.near_copy(task("x", LONG.replace("gardener", "farmer")), 0.3)
    assert copy is not None and copy.held_out_id == "t/1" and 0.3 < copy.similarity < 1
    assert (
        held_out.near_copy(task("x", "The gardener sells 12 tulips and goes home by the river at night"), 0.3)
        is None
    )
    assert held_out.near_copy(task("t/2", "anything"), 0.3) is not None  # by id


def test_shards_are_compared_by_the_whole_question_too() -> None:
    held_out = HeldOut([task("t/1", *LONG.split(" ", 8))])
    assert held_out.near_copy(task("x", "shard one", "shard two", question=LONG), 0.3) is not None


def test_short_texts_are_one_gram() -> None:
    assert len(grams("take 3 eggs")) == 1 and grams("Take 4 eggs!") == grams("take 3 eggs")
    assert grams("?!") == frozenset()
    assert HeldOut([task("t", "")]).near_copy(replace(task("x", "")), 0.1) is None
