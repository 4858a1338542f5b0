"""The comparison as files: two CSV tables for scripts, one LaTeX table (booktabs) for a paper."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterator
from typing import Any

from recipes.compare.grid import ALL
from recipes.compare.pairs import Difference
from recipes.compare.resample import Estimate
from recipes.compare.summary import Summary
from recipes.compare.words import CONDITION_WORDS, NONE, p_value, percent, points

_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
}


def rows_csv(summary: Summary) -> str:
    """Return one line for each row, condition, stratum and family: shares in [0, 1] with their intervals."""

    def lines() -> Iterator[dict[str, Any]]:
        for one in summary.stats:
            line: dict[str, Any] = {
                "row": one.row,
                "condition": one.condition,
                "stratum": one.stratum,
                "family": one.family,
                "cases": one.cases,
                "ungraded": one.ungraded,
            }
            for name in type(one.scores).__dataclass_fields__:
                line |= _columns(name, getattr(one.scores, name))
            for block in (one.slips, one.costs):
                for name in type(block).__dataclass_fields__ if block is not None else ():
                    value = getattr(block, name)
                    line |= _columns(name, value) if isinstance(value, Estimate) else {name: value}
            yield line

    return _csv(list(lines()))


def differences_csv(summary: Summary) -> str:
    """Return one line for each paired difference: to the reference, IDG, parts of the gap, turn-matched control."""
    kinds: list[tuple[str, Difference | None]] = [("reference", one) for one in summary.differences]
    kinds += [("idg", one) for one in summary.idg]
    for gap in summary.gaps:
        kinds += [(name, getattr(gap, name)) for name in ("not_state", "state_error", "recovered")]
    for control in summary.turns:
        kinds += [("length", control.length), ("drifting", control.drifting)]
    lines = []
    for kind, one in kinds:
        if one is None:
            continue
        line: dict[str, Any] = {
            "kind": kind,
            "row": one.row,
            "against": one.against,
            "condition": one.condition,
            "stratum": one.stratum,
            "left_out": one.left_out,
            **_columns("car", one.car),
        }
        if one.score is not None:
            line |= _columns("score", one.score)
        for name in type(one.test).__dataclass_fields__ if one.test is not None else ():
            line[name] = getattr(one.test, name)
        lines.append(line)
    return _csv(lines)


def latex(summary: Summary) -> str:
    r"""Return the table of the drift condition; it needs `\usepackage{booktabs}` and a T1 font encoding."""
    strata = [*summary.strata, ALL]
    head = ["Row", "$n$", "Score", "Macro", r"CAR (95\% CI)", r"$\Delta$CAR (95\% CI)", r"$p_\mathrm{Holm}$"]
    head += [f"IDG {tex(stratum)}" for stratum in strata]
    head += ["Del.", "Misb.", "Stale"]
    body = []
    for row in summary.rows:
        one = summary.row(row)
        if one is None:
            continue
        against = summary.against(row)
        gaps = [summary.gap(row, stratum) for stratum in strata]
        slips = one.slips
        shares = [slips.delete_obeyed, slips.misbound, slips.stale_leak] if slips else [None] * 3
        cells = [
            str(one.cases - one.ungraded),
            percent(one.scores.score, interval=False),
            percent(one.scores.score_macro, interval=False),
            percent(one.scores.car),
            points(against.car if against else None),
            p_value(against.test.p_holm if against and against.test else None),
            *(points(gap.car if gap else None, interval=False) for gap in gaps),
            *(percent(share, interval=False) for share in shares),
        ]
        body.append(" & ".join([tex(row), *(_cell(cell) for cell in cells)]) + r" \\")
    ungraded = sum(count for *_, count in summary.ungraded)
    caption = (
        f"Rows under {CONDITION_WORDS['drift']}, in percent; differences to {tex(summary.reference)} are paired by "
        f"case, in percentage points. Intervals: BCa bootstrap over tasks, {summary.resamples} resamples. "
        f"$p$: exact McNemar test of CAR, Holm-corrected. {ungraded} cases of all conditions are ungraded and left out."
    )
    return "\n".join(
        [
            r"% needs \usepackage[T1]{fontenc} and \usepackage{booktabs}",
            r"\begin{table*}",
            r"\centering\scriptsize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            " & ".join(head) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
            "",
        ]
    )


def tex(text: str) -> str:
    """Return text with every character that LaTeX reads as a command escaped.

    Control characters become spaces; what pdfLaTeX's fonts lack loses its accents, or becomes a question mark.
    """
    plain = "".join(char if char.isprintable() else " " for char in text)
    plain = "".join(char if char < "\u0180" else unicodedata.normalize("NFKD", char) for char in plain)
    return "".join(_TEX.get(char, char if char < "\u0180" else "?") for char in plain)


def _cell(text: str) -> str:
    """Return a number in maths, so that its sign is a minus, and its interval smaller behind it."""
    if text == NONE:
        return "--"
    number, _, interval = text.partition(" [")
    low, _, high = interval.rstrip("]").partition(", ")
    return f"${number}$" + (rf" {{\tiny [${low}$, ${high}$]}}" if interval else "")


def _columns(name: str, estimate: Estimate) -> dict[str, float | int | None]:
    return {
        name: estimate.value,
        f"{name}_low": estimate.low,
        f"{name}_high": estimate.high,
        f"{name}_n": estimate.n,
    }


def _csv(lines: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    names = list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
