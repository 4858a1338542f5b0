"""The geometry of the comparison's drawings, in thousandths of their width; the template draws them.

A drawing is a list of lines, each a label, one or more bars from `start` to `end` with a whisker, and its numbers in
words, so that nothing is said by colour or length alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from recipes.compare.gaps import Decomposition, TurnControl
from recipes.compare.grid import ALL
from recipes.compare.resample import Estimate
from recipes.compare.summary import Summary
from recipes.compare.words import CONDITION_WORDS, percent, points

SPAN = 1000


@dataclass(frozen=True, slots=True)
class Bar:
    start: float
    width: float
    low: float
    high: float
    tone: str
    """A class of the style sheet."""
    mark: float | None = None
    """A tick on the bar: the mean score beside CAR."""


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    bars: list[Bar]
    number: str
    interval: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    note: str
    lines: list[Line]
    guide: float | None = None
    """Where a vertical line stands: the reference row's CAR."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the table by family and stratum; `shade` runs from 0 to 10."""

    car: str
    score: str
    n: int
    title: str
    shade: int | None


def bar_panels(summary: Summary) -> list[Panel]:
    """Return CAR by row with intervals, a panel for drift, each of its strata, and the other conditions."""
    scopes = [(condition, ALL) for condition in summary.conditions if condition == "drift"]
    if "drift" in summary.conditions and len(summary.strata) > 1:
        scopes += [("drift", stratum) for stratum in summary.strata]
    scopes += [(condition, ALL) for condition in summary.conditions if condition != "drift"]
    return [panel for scope in scopes if (panel := _panel(summary, *scope)).lines]


def heat(summary: Summary) -> tuple[list[tuple[str, list[str]]], list[tuple[str, list[Cell]]]]:
    """Return the heads (family, its strata) and the lines (row, cells) of CAR under drift by family and stratum."""
    strata = [*summary.strata, ALL] if len(summary.strata) > 1 else [ALL]
    families = [*summary.families, ALL] if len(summary.families) > 1 else [ALL]
    heads = [(family, strata) for family in families]
    lines = []
    for row in summary.rows:
        cells = [_heat_cell(summary, row, stratum, family) for family in families for stratum in strata]
        if any(cell.n for cell in cells):
            lines.append((row, cells))
    return heads, lines


def waterfall(gap: Decomposition, reference: str) -> Panel:
    """Return clean, the three parts on the way down, and the reference, on one scale."""
    clean, oracle, tracked, bare = (
        float(level.value or 0) for level in (gap.clean, gap.oracle, gap.tracked, gap.bare)
    )
    lines = [
        Line("clean", [_level(gap.clean, "was")], percent(gap.clean, interval=False)),
        _step("not state: clean − oracle", oracle, clean, gap.not_state.car, "mid"),
        _step("state error: oracle − row", tracked, oracle, gap.state_error.car, "bad"),
        _step(f"recovered: row − {reference}", bare, tracked, gap.recovered.car, "good"),
        Line(reference, [_level(gap.bare, "was")], percent(gap.bare, interval=False)),
    ]
    left = f", {gap.left_out} left out" if gap.left_out else ""
    return Panel(
        f"{gap.row}, {'all budgets' if gap.stratum == ALL else gap.stratum}", f"{gap.n} cases{left}", lines
    )


def control(turn: TurnControl) -> Line:
    """Return three bars, clean, turn-matched and drift, of one row."""
    bars = [_level(turn.clean, "was")] if turn.clean is not None else []
    bars += [_level(turn.turn_matched, "mid"), _level(turn.drift, "series")]
    return Line(turn.row, bars, *_split(points(turn.drifting.car)))


def _panel(summary: Summary, condition: str, stratum: str) -> Panel:
    lines, guide, sizes = [], None, []
    for row in summary.rows:
        one = summary.row(row, condition, stratum)
        if one is None or one.scores.car.value is None:
            continue
        is_reference = row == summary.reference
        score = one.scores.score.value
        mark = None if score is None else SPAN * min(1.0, max(0.0, score))
        bar = _level(one.scores.car, "was" if is_reference else "series", mark)
        lines.append(Line(row, [bar], *_split(percent(one.scores.car))))
        sizes.append(one.cases - one.ungraded)
        guide = bar.width if is_reference else guide
    words = CONDITION_WORDS[condition]
    title = words if stratum == ALL else f"{words}, {stratum}"
    sizes = sorted(set(sizes))
    note = f"n = {sizes[0]}" if len(sizes) == 1 else f"n = {sizes[0]} to {sizes[-1]}" if sizes else ""
    return Panel(title, note, lines, guide)


def _heat_cell(summary: Summary, row: str, stratum: str, family: str) -> Cell:
    one = summary.row(row, "drift", stratum, ALL if len(summary.families) == 1 else family)
    if one is None or one.scores.car.value is None:
        return Cell("–", "", 0, "no graded case", None)
    car, score = one.scores.car, one.scores.score
    title = f"CAR {percent(car)}, mean score {percent(score)}, n = {car.n}"
    if one.ungraded:
        title += f", {one.ungraded} ungraded"
    short = percent(car, interval=False), percent(score, interval=False)
    return Cell(*short, car.n, title, round(10 * float(car.value or 0)))


def _level(estimate: Estimate, tone: str, mark: float | None = None) -> Bar:
    value = float(estimate.value or 0)
    low, high = (value if bound is None else bound for bound in (estimate.low, estimate.high))
    return Bar(0, _scaled(value), _scaled(low), _scaled(high), tone, mark)


def _step(label: str, lower: float, upper: float, part: Estimate, tone: str) -> Line:
    """Return a bar between two levels; a negative part is drawn in the other direction's tone."""
    start, end = sorted((lower, upper))
    if upper < lower:
        tone = "bad" if tone == "good" else "good"
    low, high = (min(1.0, max(0.0, lower + float(bound or 0))) for bound in (part.low, part.high))
    bar = Bar(_scaled(start), _scaled(end - start), _scaled(low), _scaled(high), tone)
    return Line(label, [bar], *_split(points(part)))


def _scaled(share: float) -> float:
    return round(SPAN * share, 1)


def _split(text: str) -> tuple[str, str]:
    """Return a number and its interval, written as 61.2 [53.0, 69.1], apart."""
    number, _, interval = text.partition(" ")
    return number, interval
