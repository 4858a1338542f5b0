"""How numbers are written, the same in the terminal, in LaTeX and on the page."""

from __future__ import annotations

from recipes.compare.resample import Estimate

NONE = "–"
CONDITION_WORDS = {"drift": "drift", "turn_matched": "turn-matched", "clean": "clean"}


def percent(estimate: Estimate | None, *, interval: bool = True) -> str:
    """Return a share as 61.2 [53.0, 69.1], in percent."""
    return _scaled(estimate, "{:.1f}", interval)


def points(estimate: Estimate | None, *, interval: bool = True) -> str:
    """Return a difference of shares as +12.0 [+4.1, +20.3], in percentage points."""
    return _scaled(estimate, "{:+.1f}", interval)


def p_value(p: float | None) -> str:
    """Return a p-value with three decimals; smaller ones as <0.001."""
    if p is None:
        return NONE
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def amount(value: float | None) -> str:
    """Return a plain amount: 1240, 31.5, 0.42."""
    if value is None:
        return NONE
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _scaled(estimate: Estimate | None, form: str, interval: bool) -> str:
    if estimate is None or estimate.value is None:
        return NONE
    text = _number(form, estimate.value)
    if not interval or estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{_number(form, estimate.low)}, {_number(form, estimate.high)}]"


def _number(form: str, share: float) -> str:
    # rounded first: a negative zero would show its sign
    return form.format(round(100 * share, 1) + 0.0)
