"""`make play`: print one dialogue, the user's messages on the left, edits and oracle state beside them.

In a terminal a table, with stale items struck through; elsewhere plain lines, with them under "stale".
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from envs.dialogue import Dialogue, build
from envs.drift import BUDGETS
from envs.intent import Add, Delete, Edit, Goal, Replace, Switch
from envs.mix import TaskPool
from envs.task import get_family


def play(
    family: str = "calls",
    split: str = "heldout",
    budget: int | str = "easy",
    seed: int = 0,
    index: int = 0,
    condition: str = "drift",
    source: Path | None = None,
    console: Console | None = None,
) -> Dialogue:
    """Print the dialogue of usable task number `index` and return it.

    Raises `UnknownName` for family, split, budget or condition, `MissingFiles` or `DataError` for the source.
    """
    found = get_family(family)
    pool = TaskPool(found, split, source, seed)
    task, _ = pool.at(index)
    dialogue = build(found, task, condition, budget, seed)
    show(dialogue, console or Console())
    return dialogue


def show(dialogue: Dialogue, console: Console) -> None:
    """Print a dialogue: a table where `console` is a terminal, else plain lines, not wrapped."""
    if not console.is_terminal:
        for line in _lines(dialogue):
            console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
        return
    table = Table(title=Text(dialogue.id), show_lines=True, expand=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("user", ratio=5)
    table.add_column("edits", ratio=4)
    table.add_column("oracle state", ratio=4)
    for t, turn in enumerate(dialogue.turns):
        edits = Text("\n").join(Text(_edit(edit), style=_STYLES[type(edit)]) for edit in turn.edits)
        items = [Text(_goal(goal)) for goal in turn.state.goals]
        items += [Text(_goal(goal), style="strike dim red") for goal in dialogue.superseded(t)]
        table.add_row(str(t + 1), Text(turn.utterance), edits, Text("\n").join(items))
    console.print(table)


_STYLES = {Add: "green", Delete: "red", Replace: "yellow", Switch: "magenta"}


def _lines(dialogue: Dialogue) -> list[str]:
    lines = [dialogue.id]
    for t, turn in enumerate(dialogue.turns):
        lines += ["", f"{t + 1}. user: {turn.utterance}"]
        lines += [f"   edit: {_edit(edit)}" for edit in turn.edits]
        lines.append(f"   state: {'; '.join(map(_goal, turn.state.goals)) or '(empty)'}")
        if stale := dialogue.superseded(t):
            lines.append(f"   stale: {'; '.join(map(_goal, stale))}")
    return lines


def _edit(edit: Edit) -> str:
    match edit:
        case Add(goal):
            return f"+ {_goal(goal)}"
        case Delete(goal):
            return f"- {_goal(goal)}"
        case Replace(old, new) if new.slot is not None and new.value is not None and old.value is not None:
            return f"~ {new.slot}: {old.value} -> {new.value}"
        case Replace(old, new):
            return f"~ {old.text} -> {new.text}"
        case Switch(old, new):
            return f"> {old} -> {new}"


def _goal(goal: Goal) -> str:
    return goal.text if goal.slot is None or goal.value is None else f"{goal.slot}: {goal.value}"


def main(argv: list[str] | None = None) -> int:
    """Command line of `python -m recipes.play`; returns the exit code."""
    parser = argparse.ArgumentParser(description="Print one dialogue with the oracle state beside it.")
    parser.add_argument("--family", default="calls")
    parser.add_argument("--split", default="heldout")
    parser.add_argument("--budget", default="easy", help=f"{', '.join(BUDGETS)} or a number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--index", type=int, default=0, help="number of the task, from 0")
    parser.add_argument("--condition", default="drift")
    parser.add_argument(
        "--data", type=Path, default=None, help="folder of benchmark files, for real families"
    )
    args = parser.parse_args(argv)
    budget = int(args.budget) if args.budget.isdigit() else args.budget
    play(args.family, args.split, budget, args.seed, args.index, args.condition, args.data)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
