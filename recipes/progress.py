"""A progress bar with rate and time left; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

LINE_EVERY_S = 10.0
"""Seconds between two plain lines of a `Bar`."""


class Progress:
    """Counts `total` units of `label`; a context manager.

    With a terminal: one bar that stays at the bottom while lines scroll above it. Without: one plain line a
    call of `advance` that has text, with count, rate and time left. `done` units were done by an earlier
    attempt: they count, but not for the rate.
    """

    def __init__(self, total: int, label: str, *, done: int = 0, console: Console | None = None) -> None:
        self.total = total
        self.label = label
        self.done = done
        self._first = done
        self._console = console or Console(file=sys.stdout, soft_wrap=True)
        self._started = time.monotonic()
        self._bar: RichProgress | None = None

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        if self._console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                _Speed(self),
                console=self._console,
            )
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.done)
            self._bar.start()
        return self

    def advance(self, text: str = "", n: int = 1) -> None:
        """Count `n` more units; `text` is printed as a line of its own."""
        self.done += n
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done)
        if text:
            self.print(f"{self.label} {self.done}/{self.total} ({self.speed()}): {text}")

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, highlight=False)

    def speed(self) -> str:
        """Return rate and time left, as in "3.2/min, 4:10 left"."""
        finished, elapsed = self.done - self._first, time.monotonic() - self._started
        if finished <= 0 or elapsed <= 0:
            return "rate not known yet"
        rate = finished / elapsed
        shown = f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"
        return f"{shown}, {_clock((self.total - self.done) / rate)} left"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class Bar(Progress):
    """A progress bar for many small steps: where there is no terminal, a line now and then; `quiet`, nothing."""

    def __init__(self, total: int, label: str, *, done: int = 0, quiet: bool = False) -> None:
        super().__init__(total, label, done=done, console=Console(quiet=True) if quiet else None)
        self._said = time.monotonic()

    def advance(self, text: str = "", n: int = 1) -> None:
        late = time.monotonic() - self._said > LINE_EVERY_S
        self._said = time.monotonic() if late else self._said
        super().advance(text if late else "", n)


class _Speed(ProgressColumn):
    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        return Text(self._progress.speed())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
