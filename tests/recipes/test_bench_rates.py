"""The rates of building and grading: what is counted, not how fast it is."""

from __future__ import annotations

import pytest

from envs.errors import UnknownName
from envs.task import get_family
from recipes.bench import KEYS
from recipes.bench.dialogues import by_the_clock
from recipes.bench.grading import answers, main, measure


@pytest.mark.parametrize("name", ["calls", "sql", "math"])
def test_half_of_the_graded_answers_are_right(name: str) -> None:
    family = get_family(name)
    made = answers(family, [family.task("heldout", at) for at in range(4)])  # type: ignore[attr-defined]
    grades = [family.grade(task, answer) for task, answer in made]
    assert [grade.full_credit for grade in grades] == [True, False] * 4
    row = measure(name, seconds=0.05, at_once=2, tasks=4)
    assert all(key in row for key in KEYS)
    assert row["answers"] >= 16 and row["answers"] % 16 == 0 and row["ungraded"] == 0 and row["right"] == 0.5
    assert row["ours"] > 0 and "2 at once" in row["row"]


def test_several_processes_build_their_own_dialogues() -> None:
    row = by_the_clock("calls", 2, seconds=0.2)
    assert all(key in row for key in KEYS) and "2 processes" in row["row"]
    assert row["dialogues"] >= 2 and row["ours"] > 0


def test_a_family_that_is_not_there_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownName, match="calls"):
        main(["--families", "cals"])
    assert main(["--families", "calls", "--seconds", "0.05"]) == 0
    assert "graded answers/s, calls, 1 at once" in capsys.readouterr().out
