"""A grade is a pure function of task and answer: neither order nor repetition changes it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.task import SourceTask, get_family

PROCEDURAL = ("calls", "math", "sql")


def _answers(name: str) -> list[tuple[SourceTask, str]]:
    family = get_family(name)
    tasks = [family.task("train", index) for index in range(4)]  # type: ignore[attr-defined]
    golds = [family.gold(task) for task in tasks]
    return [(task, answer) for task in tasks for answer in (*golds, "", "no idea")]


@pytest.mark.parametrize("name", PROCEDURAL)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000))
def test_grades_do_not_depend_on_order_or_repetition(name: str, seed: int) -> None:
    family, items = get_family(name), _answers(name)
    first = [family.grade(task, answer) for task, answer in items]
    order = [*range(len(items)), *range(len(items))]
    random.Random(seed).shuffle(order)
    for at in order:
        assert family.grade(*items[at]) == first[at]
