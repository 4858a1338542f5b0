"""The comparison in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from recipes.compare import tables
from recipes.compare.summary import Summary

_WIDTH = 160  # of logs and pipes


def show(summary: Summary, console: Console | None = None) -> None:
    """Print the tables of a summary: scores and tests, budgets, slips, costs, gaps, and what was left out."""
    if console is None:
        console = Console()
        console = console if console.is_terminal else Console(width=_WIDTH)
    sheets = [tables.score_sheet(summary, condition) for condition in summary.conditions]
    sheets += [make(summary) for make in (tables.strata_sheet, tables.slip_sheet, tables.cost_sheet)]
    sheets += [tables.gap_sheet(summary), tables.turn_sheet(summary)]
    for sheet in sheets:
        if sheet.lines:
            console.print(_table(sheet))
    for line in tables.notes(summary):
        console.print(Text(line))


def _table(sheet: tables.Sheet) -> Table:
    table = Table(title=Text(sheet.title), title_justify="left")
    table.add_column("row", overflow="fold")
    for head in sheet.heads:
        table.add_column(Text(head), justify="right")
    for line in sheet.lines:
        # a name may hold brackets, which rich would read as markup
        table.add_row(Text(line.row), *(Text(cell) for cell in line.cells))
    return table
