"""`play` prints a dialogue with the oracle state beside it: struck through in a terminal, plain elsewhere."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from rich.console import Console

from envs.dialogue import Dialogue, Turn, build
from envs.errors import MissingFiles, UnknownName
from envs.intent import EMPTY, Add, Goal, Replace, Switch, fold
from envs.mix import TaskPool
from envs.task import get_family
from recipes.play import main, play, show

STRUCK = re.compile(r"\x1b\[[\d;]*9[\d;]*m([^\x1b]*)\x1b\[0m")


def plain(**wanted: object) -> tuple[Dialogue, str]:
    out = io.StringIO()
    dialogue = play(**wanted, console=Console(file=out))  # type: ignore[arg-type]
    return dialogue, out.getvalue()


def terminal(dialogue: Dialogue, width: int = 200) -> str:
    out = io.StringIO()
    show(dialogue, Console(file=out, force_terminal=True, width=width, color_system="truecolor", _environ={}))
    return out.getvalue()


def test_it_prints_the_dialogue_that_was_asked_for() -> None:
    dialogue, text = plain(family="calls", split="train", budget=3, seed=4, index=6, condition="drift")
    family = get_family("calls")
    assert dialogue == build(family, TaskPool(family, "train").at(6)[0], "drift", 3, 4)
    assert text.startswith(dialogue.id)
    for t, turn in enumerate(dialogue.turns):
        assert f"{t + 1}. user: {turn.utterance}\n" in text
    final = text.rsplit("state: ", 1)[1]
    assert all(f"{goal.slot}: {goal.value}" in final for goal in dialogue.final.goals)


def test_plain_output_has_no_escapes_and_names_stale_items() -> None:
    dialogue, text = plain(budget="medium", seed=0)
    assert "\x1b" not in text
    stale = text.rsplit("stale: ", 1)[1]
    gone = dialogue.superseded(len(dialogue.turns) - 1)
    assert gone and all(f"{goal.slot}: {goal.value}" in stale for goal in gone)


def test_a_terminal_strikes_exactly_the_stale_items_through() -> None:
    a, b, c = (
        Goal("a", "pay 5", "budget", "5"),
        Goal("b", "pay 6", "budget", "6"),
        Goal("c", "[red]no nuts[/red]"),
    )
    steps = [Add(a), Add(c), Replace(a, b), Switch(None, "f")]
    state, turns = EMPTY, []
    for step in steps:
        state = fold(state, [step])
        turns.append(Turn("said", (step,), state))
    text = terminal(Dialogue("x|drift", "x", "calls", "drift", 1, 0, tuple(turns)))
    assert [item.strip() for item in STRUCK.findall(text)] == ["budget: 5", "budget: 5"]
    assert "budget: 5 -> 6" in text and "> None -> f" in text
    assert "[red]no nuts[/red]" in text  # goals are text, not markup


def test_a_narrow_terminal_still_shows_every_turn() -> None:
    dialogue, _ = plain(budget="easy")
    text = re.sub(r"\x1b\[[\d;]*m", "", terminal(dialogue, width=60))
    assert all(re.search(rf"│\s+{t + 1} │", text) for t in range(len(dialogue.turns)))


@pytest.mark.parametrize("condition", ["clean", "drift", "turn_matched"])
def test_every_condition_plays(condition: str) -> None:
    dialogue, text = plain(condition=condition)
    assert dialogue.condition == condition and ("stale: " in text) == (condition == "drift")


def test_unknown_names_are_refused() -> None:
    for wanted in ({"family": "cals"}, {"split": "tests"}, {"budget": "esy"}, {"condition": "drft"}):
        with pytest.raises(UnknownName):
            plain(**wanted)


def test_a_real_family_without_data_says_what_is_missing() -> None:
    with pytest.raises(MissingFiles):
        plain(family="gsm8k", split="test")


def test_module_runs() -> None:
    command = [sys.executable, "-m", "recipes.play", "--family", "calls", "--index", "2", "--budget", "5"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("calls/heldout/2|drift|b5|s0") and "\x1b" not in ran.stdout


def test_main_takes_budgets_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--budget", "easy", "--seed", "3"]) == 0
    assert "|b1|s3" in capsys.readouterr().out
