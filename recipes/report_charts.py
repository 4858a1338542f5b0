"""The geometry of the report's drawings; the template draws them. All coordinates are SVG user units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 340, 170
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 26
_MOST_POINTS = 300


@dataclass(frozen=True, slots=True)
class Mark:
    """A labelled position: a tick, a point with its tooltip, or the start of a phase."""

    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One metric by step. `line` is the d of a path; `points` carry tooltips and are few enough to draw."""

    name: str
    latest: str
    line: str
    points: list[Mark]
    x_ticks: list[Mark]
    y_ticks: list[Mark]
    phases: list[Mark]
    thinned: bool


@dataclass(frozen=True, slots=True)
class Dots:
    """Estimates of one metric on a common scale, one below the other."""

    rows: list[tuple[str, float, float, float]]
    """(label, x of the mean, x of the low end, x of the high end)"""
    zero: float
    one: float


def chart(name: str, values: Sequence[tuple[float, float, str]]) -> Chart:
    """Return the drawing of `values`, at least one (step, value, phase)."""
    ordered = sorted(values, key=lambda value: value[0])
    kept = _thin(ordered)
    xs, ys = [x for x, _, _ in ordered], [y for _, y, _ in kept]
    x_low, x_high = min(xs), max(xs)
    y_ticks = nice_ticks(min(ys), max(ys))
    y_low, y_high = min(y_ticks[0], *ys), max(y_ticks[-1], *ys)

    def px(x: float) -> float:
        share = 0.5 if x_high == x_low else (x - x_low) / (x_high - x_low)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def py(y: float) -> float:
        share = 0.5 if y_high == y_low else (y - y_low) / (y_high - y_low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    line = " ".join(f"{'L' if n else 'M'}{px(x)},{py(y)}" for n, (x, y, _) in enumerate(kept))
    points = [Mark(px(x), py(y), f"step {x:g}{f', {p}' if p else ''}: {number(y)}") for x, y, p in kept]
    phases = [
        Mark(px(x), TOP, phase)
        for n, (x, _, phase) in enumerate(ordered)
        if phase and (n == 0 or phase != ordered[n - 1][2])
    ]
    steps = [x_low] if x_low == x_high else [x_low, x_high]
    return Chart(
        name=name,
        latest=number(ordered[-1][1]),
        line=line,
        points=points,
        x_ticks=[Mark(px(x), HEIGHT - 8, f"{x:g}") for x in steps],
        y_ticks=[Mark(LEFT - 6, py(y), number(y)) for y in y_ticks],
        phases=phases if len({mark.label for mark in phases}) > 1 else [],
        thinned=len(kept) < len(ordered),
    )


def dots(estimates: Sequence[tuple[str, float, float | None, float | None]]) -> Dots | None:
    """Place (label, mean, low, high) on the scale from 0 to 1; None where a value lies outside it."""
    values = [v for _, *part in estimates for v in part if v is not None]
    if not values or min(values) < 0 or max(values) > 1:
        return None
    left, right = 6.0, 154.0

    def px(value: float) -> float:
        return round(left + value * (right - left), 1)

    rows = [
        (label, px(mean), px(mean if low is None else low), px(mean if high is None else high))
        for label, mean, low, high in estimates
    ]
    return Dots(rows, left, right)


def nice_ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers that span low to high.

    >>> nice_ticks(0.1, 0.93)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if low == high:
        low, high = (low - 0.5, high + 0.5) if low == 0 else (low - abs(low) / 2, high + abs(high) / 2)
    rough = (high - low) / 4
    if rough == 0 or not math.isfinite(rough):
        return [low, high]
    magnitude = 10.0 ** math.floor(math.log10(rough))
    if magnitude == 0:  # beyond the range of floats
        return [low, high]
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= rough * 0.999)
    start = math.floor(low / step + 1e-9)
    stop = math.ceil(high / step - 1e-9)
    return [round(n * step, 12) if step > 1e-9 else n * step for n in range(start, stop + 1)]


def number(value: float) -> str:
    """Return a number in few characters: 0.934, 12.5, 48.2k, 3.1e-05."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e9 or size < 1e-3:
        return f"{value:.1e}"
    for limit, suffix in ((1e6, "M"), (1e4, "k")):
        if size >= limit:
            scale = 1e6 if suffix == "M" else 1e3
            return f"{value / scale:.3g}{suffix}"
    return f"{value:.3g}" if size < 1000 else f"{value:.0f}"


def _thin(values: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Return at most about `_MOST_POINTS` values: means of neighbours of one phase."""
    if len(values) <= _MOST_POINTS:
        return values
    size = math.ceil(len(values) / _MOST_POINTS)
    groups: list[list[tuple[float, float, str]]] = []
    for value in values:
        if groups and len(groups[-1]) < size and groups[-1][0][2] == value[2]:
            groups[-1].append(value)
        else:
            groups.append([value])
    return [(sum(v[0] for v in g) / len(g), sum(v[1] for v in g) / len(g), g[0][2]) for g in groups]
