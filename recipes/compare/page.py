"""Write `report.html` of a comparison: one file that opens from disk and asks no network for anything.

Figures and tables are plain HTML and SVG; a small script, named by its hash in the page's policy, shows single
cases. No text of a run can become markup or script: templates escape it, the index is escaped JSON, dialogues are
packed, and the script only ever sets text.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from recipes.cases import Case
from recipes.compare import casedata, charts, tables
from recipes.compare.grid import ALL
from recipes.compare.summary import Summary

_TEMPLATES = Path(__file__).parents[1] / "templates"


@dataclass(frozen=True, slots=True)
class Page:
    """What the template shows."""

    name: str
    status: str
    cases: int
    summary: Summary
    has_reference: bool
    warnings: list[str]
    notes: list[str]
    facts: list[tuple[str, str]]
    config: str | None
    panels: list[charts.Panel]
    heat_heads: list[tuple[str, list[str]]]
    heat_lines: list[tuple[str, list[charts.Cell]]]
    gaps: list[charts.Panel]
    more_gaps: list[charts.Panel]
    controls: list[charts.Line]
    control_table: tables.Sheet
    tests: list[tables.Sheet]
    more_tests: list[tables.Sheet]
    idg: tables.Sheet | None
    tables: list[tables.Sheet]
    verdicts: Sequence[str] = casedata.VERDICTS
    flags: Sequence[str] = casedata.FLAGS


def write_page(
    path: Path,
    summary: Summary,
    cases: Sequence[Case],
    *,
    name: str,
    status: str = "done",
    facts: Mapping[str, str] | None = None,
    config: str | None = None,
    warnings: Sequence[str] = (),
) -> Path:
    """Write the page of `summary` and its distinct `cases` to `path`, whole or not at all, and return it."""
    page = _page(summary, cases, name, status, facts or {}, config, list(warnings))
    style = (_TEMPLATES / "compare.css").read_text(encoding="utf-8")
    script = (_TEMPLATES / "compare.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    stream = environment.get_template("compare.html.j2").stream(
        page=page,
        style=Markup(style),
        style_hash=Markup(_hash(style)),
        script=Markup(script),
        script_hash=Markup(_hash(script)),
        index=Markup(casedata.inline_json(casedata.index(summary, cases))),
        chunks=(casedata.pack(found) for found in casedata.by_pair(cases).values()),
    )
    aside = path.with_name(f".{path.name}.part")
    with aside.open("w", encoding="utf-8") as file:
        file.writelines(stream)
    os.replace(aside, path)
    return path


def _page(
    summary: Summary,
    cases: Sequence[Case],
    name: str,
    status: str,
    facts: Mapping[str, str],
    config: str | None,
    warnings: list[str],
) -> Page:
    by_budget = [
        tables.score_sheet(summary, condition, stratum)
        for condition in summary.conditions
        for stratum in summary.strata
    ]
    falls = [(gap.stratum, charts.waterfall(gap, summary.reference)) for gap in summary.gaps]
    heads, lines = charts.heat(summary)
    idg = tables.strata_sheet(summary)
    ungraded = sum(count for *_, count in summary.ungraded)
    if ungraded:
        warnings.append(f"{ungraded} cases are ungraded; they count nowhere, and never as zero.")
    if not summary.differences:
        warnings.append(
            f"Nothing is compared: no row has cases beside {summary.reference or 'a reference row'}."
        )
    return Page(
        name=name,
        status=status,
        cases=len(cases),
        summary=summary,
        has_reference=bool(summary.differences),
        warnings=warnings,
        notes=tables.notes(summary),
        facts=[(str(key), str(value)) for key, value in facts.items()],
        config=config,
        panels=charts.bar_panels(summary),
        heat_heads=heads,
        heat_lines=lines,
        gaps=[panel for stratum, panel in falls if stratum == ALL],
        more_gaps=[panel for stratum, panel in falls if stratum != ALL],
        controls=[charts.control(turn) for turn in summary.turns if turn.stratum == ALL],
        control_table=tables.turn_sheet(summary),
        tests=[tables.score_sheet(summary, condition) for condition in summary.conditions],
        more_tests=[sheet for sheet in by_budget if sheet.lines] if len(summary.strata) > 1 else [],
        idg=idg if idg.lines else None,
        tables=[sheet for sheet in (tables.slip_sheet(summary), tables.cost_sheet(summary)) if sheet.lines],
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
