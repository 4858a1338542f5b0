"""Compare harnesses from their graded cases: statistics, tables, files, and a page to read them in.

grid.py      cases as arrays        resample.py  bootstrap over tasks
rows.py      one row's figures      pairs.py     paired differences and tests      gaps.py  where credit is lost
summary.py   all of it              tables.py    in words
terminal.py  files.py  page.py      what shows it
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from recipes.cases import Case
from recipes.compare.files import differences_csv, latex, rows_csv
from recipes.compare.grid import distinct
from recipes.compare.page import write_page
from recipes.compare.resample import RESAMPLES
from recipes.compare.summary import Summary, summarize
from recipes.compare.terminal import show

__all__ = ["Summary", "show", "summarize", "write_outputs"]


def write_outputs(
    run_folder: Path,
    cases: Sequence[Case],
    *,
    summary: Summary | None = None,
    name: str | None = None,
    status: str = "done",
    reference: str | None = None,
    facts: Mapping[str, str] | None = None,
    config: str | None = None,
    warnings: Sequence[str] = (),
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Summary:
    """Write `table.csv`, `differences.csv`, `table.tex` and `report.html` of the cases; return their statistics.

    `Summary.block()` is what belongs in `result.json` as `comparison`, `show(summary)` prints the tables. A `summary`
    of the cases that is there already is not computed again; then `reference`, `seed` and `resamples` are not used.
    `facts` are named set-up values for the page (model, temperature, prompt hashes), `config` the resolved settings,
    `warnings` sentences for its top. Each file appears whole or not at all. Raises `DataError` for cases that
    contradict each other, `UnknownName` for a reference that is no row.
    """
    if summary is None:
        summary = summarize(cases, reference=reference, seed=seed, resamples=resamples)
    run_folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "table.csv": rows_csv(summary),
        "differences.csv": differences_csv(summary),
        "table.tex": latex(summary),
    }
    for file, text in texts.items():
        aside = run_folder / f".{file}.part"
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, run_folder / file)
    write_page(
        run_folder / "report.html",
        summary,
        distinct(cases),
        name=name or run_folder.name,
        status=status,
        facts=facts,
        config=config,
        warnings=warnings,
    )
    return summary
