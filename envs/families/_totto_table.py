"""ToTTo tables: where each cell stands once spans are laid out, and which header cells name it."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.errors import DataError

_MAX_CELLS = 200_000


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the grid: rows `top` to `bottom`, columns `left` to `right`, ends not included."""

    row: int
    """Row and place in the file, as `highlighted_cells` counts them."""
    place: int
    text: str
    is_header: bool
    top: int
    bottom: int
    left: int
    right: int


class Table:
    """A table laid out. Raises `DataError` where the record is no ToTTo table."""

    def __init__(self, rows: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        self.rows: list[list[Cell]] = []
        taken: set[tuple[int, int]] = set()
        try:
            for row, cells in enumerate(rows):
                self.rows.append(self._lay_out(row, len(rows), cells, taken))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not shaped as a ToTTo table ({error!r})") from None
        self.width = max((cell.right for cells in self.rows for cell in cells), default=0)

    def _lay_out(
        self, row: int, count: int, cells: Sequence[Mapping[str, Any]], taken: set[tuple[int, int]]
    ) -> list[Cell]:
        laid: list[Cell] = []
        column = 0
        for place, cell in enumerate(cells):
            # Cells of earlier rows reach down into this one.
            while (row, column) in taken:
                column += 1
            # Some spans reach far below the last row.
            high = max(1, min(int(cell["row_span"]), count - row))
            wide = max(1, int(cell["column_span"]))
            if len(taken) + high * wide > _MAX_CELLS:
                raise ValueError(f"more than {_MAX_CELLS} places")
            taken.update((row + y, column + x) for y in range(high) for x in range(wide))
            text = " ".join(str(cell["value"]).split())
            box = (row, row + high, column, column + wide)
            laid.append(Cell(row, place, text, bool(cell["is_header"]), *box))
            column += wide
        return laid

    def at(self, row: int, place: int) -> Cell:
        """Return the cell that `highlighted_cells` calls [row, place]. Raises `DataError`."""
        if not (0 <= row < len(self.rows) and 0 <= place < len(self.rows[row])):
            raise DataError(f"highlighted cell [{row}, {place}] is not in the table")
        return self.rows[row][place]

    def cells(self) -> list[Cell]:
        return [cell for cells in self.rows for cell in cells]

    def path(self, cell: Cell) -> str:
        """Return the column headers above a cell, outermost first, joined by " / "; else the row's header.

        A header as wide as the table names no column. "" where nothing names the cell.
        """
        above = [
            other.text
            for other in self.cells()
            if other.is_header
            and other.bottom <= cell.top
            and other.left < cell.right
            and other.right > cell.left
            and other.text
            and (other.right - other.left < self.width or self.width == 1)
        ]
        if above:
            return " / ".join(dict.fromkeys(above))
        beside = [
            other.text
            for other in self.cells()
            if other.is_header
            and other.right <= cell.left
            and other.top < cell.bottom
            and other.bottom > cell.top
        ]
        return next((text for text in reversed(beside) if text), "")

    def same_column(self, cell: Cell) -> list[Cell]:
        """Return the other data cells with text in exactly the columns of `cell`, top to bottom."""
        return [
            other
            for other in self.cells()
            if (other.left, other.right) == (cell.left, cell.right)
            and other != cell
            and not other.is_header
            and other.text
        ]

    def html(self) -> str:
        """Return the table as HTML, spans written only where a cell has one; nothing is highlighted."""
        lines = ["<table>"]
        for cells in self.rows:
            lines.append(f"<tr>{''.join(_cell_html(cell) for cell in cells)}</tr>")
        return "\n".join([*lines, "</table>"])


def _cell_html(cell: Cell) -> str:
    tag = "th" if cell.is_header else "td"
    wide, high = cell.right - cell.left, cell.bottom - cell.top
    spans = (f' colspan="{wide}"' if wide > 1 else "") + (f' rowspan="{high}"' if high > 1 else "")
    return f"<{tag}{spans}>{html.escape(cell.text, quote=False)}</{tag}>"
