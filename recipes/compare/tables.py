"""The comparison's tables in words, for the terminal and the page alike."""

from __future__ import annotations

from dataclasses import dataclass

from recipes.compare.grid import ALL
from recipes.compare.rows import RowStats
from recipes.compare.summary import Summary
from recipes.compare.words import CONDITION_WORDS, NONE, amount, p_value, percent, points


@dataclass(frozen=True, slots=True)
class SheetLine:
    row: str
    cells: list[str]
    reference: bool = False


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of text; the first column, the row's name, has no head of its own."""

    title: str
    heads: list[str]
    lines: list[SheetLine]


def notes(summary: Summary) -> list[str]:
    """Return what a reader of the tables must know, a sentence each."""
    lines = [
        f"Brackets: 95% BCa bootstrap intervals, {summary.resamples:,} resamples of whole tasks, seed {summary.seed}."
    ]
    if summary.differences:
        lines.append(
            f"Differences: paired by case, to {summary.reference}, in percentage points. p: exact McNemar test of CAR, "
            "whole tasks flipped; Holm-corrected over the rows of its table."
        )
    left = [one.left_out for one in summary.differences if one.stratum == ALL]
    if any(left):
        lines.append(
            f"Pairs: cases graded in both rows. Up to {max(left)} a row are left out, for one side has no verdict; "
            "differences.csv has the number of each."
        )
    total = sum(count for *_, count in summary.ungraded)
    if total:
        lines.append(f"Ungraded: {total} cases, which count nowhere as zero. The most frequent reasons:")
        lines += [
            f"  {count} x {row}, {CONDITION_WORDS[condition]}: {_printable(reason[:160])}"
            for row, condition, reason, count in summary.ungraded[:3]
        ]
    for one in summary.power[-1:]:
        parts = [
            f"{'no difference' if least is None else f'{100 * least:.1f} points'} where {share:.0%} of them differ"
            for share, least in one.smallest.items()
        ]
        lines.append(f"Power: what {one.cases} pairs, one a task, show with 80% chance: {'; '.join(parts)}.")
    return lines


def score_sheet(summary: Summary, condition: str, stratum: str = ALL) -> Sheet:
    """Return scores, CAR and the tests against the reference row."""
    reference = summary.reference
    heads = [
        "n",
        "ungraded",
        "score",
        "macro",
        "CAR %",
        "pairs",
        f"CAR vs {reference}",
        "p",
        "p Holm",
        f"score vs {reference}",
    ]
    lines = []
    for one in _each(summary, condition, stratum):
        against = summary.against(one.row, condition, stratum)
        test = against.test if against else None
        cells = [
            str(one.cases - one.ungraded),
            str(one.ungraded),
            percent(one.scores.score),
            percent(one.scores.score_macro, interval=False),
            percent(one.scores.car),
            str(against.car.n) if against else NONE,
            points(against.car if against else None),
            p_value(test.p if test else None),
            p_value(test.p_holm if test else None),
            points(against.score if against else None),
        ]
        lines.append(SheetLine(one.row, cells, one.row == reference))
    words = CONDITION_WORDS[condition]
    return Sheet(f"{words}, {'all budgets' if stratum == ALL else stratum}", heads, lines)


def strata_sheet(summary: Summary) -> Sheet:
    """Return CAR under drift and IDG by stratum."""
    strata = [ALL, *summary.strata]
    heads = [f"CAR {stratum}" for stratum in summary.strata] + [f"IDG {stratum}" for stratum in strata]
    lines = []
    for row in summary.rows:
        found = [summary.row(row, "drift", stratum) for stratum in summary.strata]
        gaps = [summary.gap(row, stratum) for stratum in strata]
        if any(gaps):
            cells = [percent(one.scores.car if one else None, interval=False) for one in found]
            cells += [points(gap.car if gap else None) for gap in gaps]
            lines.append(SheetLine(row, cells, row == summary.reference))
    return Sheet("By budget: CAR under drift, and IDG = CAR(clean) − CAR(drift)", heads, lines)


def slip_sheet(summary: Summary) -> Sheet:
    """Return the shares of slips, each with its number of cases."""
    heads = ["deleted goal obeyed", "new value misbound", "stale leak in last state", "last state exact"]
    lines = []
    for one in _each(summary):
        if one.slips is not None:
            shares = [getattr(one.slips, name) for name in type(one.slips).__dataclass_fields__]
            cells = [f"{percent(share)} n={share.n}" if share.n else percent(share) for share in shares]
            lines.append(SheetLine(one.row, cells, one.row == summary.reference))
    return Sheet("Slips under drift, % of the n cases that can tell", heads, lines)


def cost_sheet(summary: Summary) -> Sheet:
    """Return turns, tokens and seconds."""
    heads = ["turns", "prompt tokens/turn", "cached %", "output tokens/turn"]
    heads += ["tracker tokens/turn", "seconds/turn", "overhead ms/turn", "retries"]
    lines = []
    for one in _each(summary):
        if (costs := one.costs) is not None:
            cells = [
                amount(costs.turns),
                amount(costs.prompt_tokens),
                amount(None if costs.cached_share is None else 100 * costs.cached_share),
                amount(costs.output_tokens),
                amount(costs.tracker_tokens),
                amount(costs.seconds),
                amount(costs.overhead_ms),
                str(costs.retries),
            ]
            lines.append(SheetLine(one.row, cells, one.row == summary.reference))
    return Sheet("Costs under drift, of graded cases", heads, lines)


def gap_sheet(summary: Summary) -> Sheet:
    """Return the gap decomposition, a line for each tracked row and stratum."""
    reference = summary.reference
    heads = ["stratum", "n", "clean", "not state (clean − oracle)", "state error (oracle − row)"]
    heads += [f"recovered (row − {reference})", reference]
    lines = [
        SheetLine(
            one.row,
            [
                one.stratum,
                str(one.n),
                percent(one.clean, interval=False),
                points(one.not_state.car),
                points(one.state_error.car),
                points(one.recovered.car),
                percent(one.bare, interval=False),
            ],
        )
        for one in summary.gaps
    ]
    return Sheet(f"Where CAR is lost: clean − oracle − row − {reference}, same cases", heads, lines)


def turn_sheet(summary: Summary) -> Sheet:
    """Return the turn-matched control, all budgets."""
    heads = ["n", "clean", "turn-matched", "drift", "lost to length", "lost to drift", "p"]
    lines = []
    for one in summary.turns:
        if one.stratum == ALL:
            cells = [
                str(one.n),
                percent(one.clean, interval=False),
                percent(one.turn_matched, interval=False),
                percent(one.drift, interval=False),
                points(one.length.car if one.length else None),
                points(one.drifting.car),
                p_value(one.drifting.test.p if one.drifting.test else None),
            ]
            lines.append(SheetLine(one.row, cells, one.row == summary.reference))
    return Sheet("Turn-matched control, CAR on the same cases", heads, lines)


def _printable(text: str) -> str:
    """Return text without what a terminal would obey."""
    return "".join(char if char.isprintable() else " " for char in text)


def _each(summary: Summary, condition: str = "drift", stratum: str = ALL) -> list[RowStats]:
    found = [summary.row(row, condition, stratum) for row in summary.rows]
    return [one for one in found if one is not None]
