"""Write `report.html` of a run: one file, no network, no scripts, in words, tables and inline SVG.

`python -m recipes.report RUN_DIR`, or `make report`. What cannot be read is said on the page, so that a
crashed run still has a report.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from envs.errors import DataError, MissingFiles
from recipes.compare.rewrite import is_comparison, rewrite_outputs
from recipes.report_charts import Chart, Dots, chart, dots
from recipes.report_dialogues import Sample, sample_dialogues

_TEMPLATES = Path(__file__).parent / "templates"
_HEADLINE = ("edit_accuracy", "final_exact", "state_f1", "stale_leaks")
_TIMES = (("before", "before"), ("after_warmup", "after warm-up"), ("after", "after"))
_COUNTS = ("n", "errors")
_NOT_CURVES = ("step",)
LOWER_IS_BETTER = ("stale_leaks", "loss", "malformed", "truncated", "errors")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95% interval, where it is known."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one held-out set: an estimate (or None) for each time, and paired differences."""

    metric: str
    cells: list[Estimate | None]
    differences: list[Estimate | None]
    dots: Dots | None
    lower_is_better: bool


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    times: list[str]
    differences: list[str]
    rows: list[Row]
    note: str


@dataclass(slots=True)
class Page:
    """Everything that the template shows."""

    name: str
    status: str
    facts: list[tuple[str, str]]
    tables: list[Table]
    charts: list[Chart]
    config: str | None
    versions: list[tuple[str, str]]
    samples: list[Sample]
    notes: list[str] = field(default_factory=list)
    error: str | None = None


def write_report(run_dir: Path) -> Path:
    """Write `run_dir/report.html` and return its path; a comparison's tables are written with it.

    A folder with `cases.jsonl` holds a comparison (recipes/compare); of any other run this reads
    `config.yaml`, `metrics.jsonl`, `result.json` and `dialogues.parquet`, each if it is there. Raises `MissingFiles`
    if there is none of the files.
    """
    run_dir = Path(run_dir)
    if is_comparison(run_dir):
        return rewrite_outputs(run_dir)
    known = [name for name in ("config.yaml", "metrics.jsonl", "result.json") if (run_dir / name).is_file()]
    if not known:
        raise MissingFiles(
            f"{run_dir} is no run folder: it holds no config.yaml, metrics.jsonl or result.json. "
            "Name a folder below runs/, or start a run with `make opd`."
        )
    page = read_run(run_dir)
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    text = environment.get_template("report.html.j2").render(page=page)
    aside = run_dir / ".report.html.part"
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, run_dir / "report.html")
    return run_dir / "report.html"


def read_run(run_dir: Path) -> Page:
    """Return what a report shows. Faults of the files become notes."""
    notes: list[str] = []
    result = _result(run_dir / "result.json", notes)
    records = _metrics(run_dir / "metrics.jsonl", notes)
    config = run_dir / "config.yaml"
    samples, note = sample_dialogues(run_dir / "dialogues.parquet")
    notes += [note] if note else []
    status = str(result.get("status", "not ended"))
    if not result:
        notes.append("There is no result.json yet: the run has not ended, or it was killed.")
    versions = result.get("versions")
    return Page(
        name=str(result.get("name") or run_dir.name),
        status=status,
        facts=_facts(result, records),
        tables=_tables(result),
        charts=_charts(records),
        config=config.read_text(encoding="utf-8", errors="replace") if config.is_file() else None,
        versions=[(str(k), _plain(v)) for k, v in versions.items()] if isinstance(versions, Mapping) else [],
        samples=samples,
        notes=notes,
        error=str(result["error"]) if result.get("error") else None,
    )


def _result(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        notes.append(f"result.json cannot be read ({error}).")
        return {}
    if not isinstance(data, dict):
        notes.append("result.json holds no JSON object.")
        return {}
    return data


def _metrics(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl that can be read; the others are noted by line number."""
    if not path.is_file():
        return []
    records: list[dict[str, Any]] = []
    broken: list[int] = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif line.strip():
            broken.append(number)
    if broken == [len(lines)]:
        notes.append(f"The last line of metrics.jsonl ({broken[0]}) was cut short and is left out.")
    elif broken:
        notes.append(
            f"Lines of metrics.jsonl that cannot be read are left out: {', '.join(map(str, broken))}."
        )
    return records


def _charts(records: list[dict[str, Any]]) -> list[Chart]:
    """Return a curve for each numeric metric, by step (line number where there is no step)."""
    series: dict[str, list[tuple[float, float, str]]] = {}
    for number, record in enumerate(records, start=1):
        step = record.get("step")
        x = float(step) if _is_number(step) else float(number)
        for key, value in _flat(record).items():
            if key not in _NOT_CURVES and _is_number(value):
                series.setdefault(key, []).append((x, float(value), str(record.get("phase", ""))))
    first = ("loss", "sampled_edit_accuracy", "edit_accuracy")
    order = sorted(series, key=lambda key: first.index(key) if key in first else len(first))
    return [chart(key, series[key]) for key in order]


def _tables(result: Mapping[str, Any]) -> list[Table]:
    """Return one table for each held-out set; the sets are the nested objects of before and after."""
    blocks = {key: _block(result.get(key)) for key, _ in _TIMES}
    names = list(dict.fromkeys(name for block in blocks.values() for name in _sets(block)))
    if not names:
        return list(filter(None, [_table(None, True, blocks, result)]))
    # the metrics at the top level are those of the first set and are not shown twice
    return list(filter(None, [_table(name, name == names[0], blocks, result) for name in names]))


def _table(
    name: str | None, headline: bool, blocks: Mapping[str, Mapping[str, Any]], result: Mapping[str, Any]
) -> Table | None:
    chosen = {key: block if name is None else _block(block.get(name)) for key, block in blocks.items()}
    estimates = {key: _estimates(block) for key, block in chosen.items()}
    times = [(key, label) for key, label in _TIMES if estimates[key]]
    metrics = dict.fromkeys(metric for key, _ in times for metric in estimates[key])
    if not metrics:
        return None
    paired = [
        ("after − before", _block(result.get("paired"))),
        ("after − warm-up", _block(result.get("paired_opd"))),
    ]
    paired = [(label, block) for label, block in paired if block]
    rows = []
    for metric in [*(m for m in _HEADLINE if m in metrics), *(m for m in metrics if m not in _HEADLINE)]:
        cells = [estimates[key].get(metric) for key, _ in times]
        keys = [f"{name}/{metric}"] if name else []
        keys += [metric] if headline else []
        differences = [_difference(block, keys) for _, block in paired]
        shown = dots([(label, c.mean, c.low, c.high) for (_, label), c in zip(times, cells) if c is not None])
        rows.append(Row(metric, cells, differences, shown, metric in LOWER_IS_BETTER))
    last = chosen[times[-1][0]]
    note = f"{last['n']} dialogues" if _is_number(last.get("n")) else ""
    if _is_number(last.get("errors")) and last["errors"]:
        note += f"; {last['errors']} could not be finished and count as wrong"
    return Table(
        name or "held-out", [label for _, label in times], [label for label, _ in paired], rows, note
    )


def _estimates(block: Mapping[str, Any]) -> dict[str, Estimate]:
    """Return the metrics of a block. A value is a number or [mean, low, high]; `ci95` may hold intervals."""
    found: dict[str, Estimate] = {}
    intervals = _block(block.get("ci95"))
    for key, value in block.items():
        if key in _COUNTS:
            continue
        if _is_number(value):
            found[key] = Estimate(float(value), *_floats(intervals.get(key), 2))
        elif whole := _floats(value, 3):
            found[key] = Estimate(*whole)
    return found


def _difference(paired: Mapping[str, Any], keys: list[str]) -> Estimate | None:
    for key in keys:
        entry = _block(paired.get(key))
        if _is_number(entry.get("diff")):
            return Estimate(float(entry["diff"]), *_floats(entry.get("ci95"), 2))
    return None


def _floats(value: Any, count: int) -> list[float]:
    """Return `count` numbers, or nothing where `value` is no such list."""
    if isinstance(value, list) and len(value) == count and all(map(_is_number, value)):
        return [float(item) for item in value]
    return []


def _sets(block: Mapping[str, Any]) -> list[str]:
    return [key for key, value in block.items() if key != "ci95" and isinstance(value, Mapping)]


def _facts(result: Mapping[str, Any], records: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the scalars of result.json, with times and sizes in readable units."""
    shown = {"name", "status", "error", "versions", "before", "after", "after_warmup", "paired", "paired_opd"}
    facts: list[tuple[str, str]] = []
    for key, value in result.items():
        if key in shown:
            continue
        if key == "wall_s" and _is_number(value):
            facts.append(("wall time", f"{value / 60:.1f} min"))
        elif key == "peak_rss_mb" and _is_number(value):
            facts.append(("peak memory", f"{value / 1024:.1f} GiB"))
        else:
            facts += [(name.replace("_", " "), _plain(item)) for name, item in _flat({key: value}).items()]
    if not result and records:
        facts.append(("last step", _plain(records[-1].get("step", "unknown"))))
    return facts


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested objects as one, keys joined by a slash."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            found |= _flat(item, f"{prefix}{key}/")
        else:
            found[f"{prefix}{key}"] = item
    return found


def _block(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and value == value and abs(value) != float("inf")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m recipes.report RUN_DIR")
    try:
        print(write_report(Path(sys.argv[1])))
    except (DataError, MissingFiles) as error:
        sys.exit(str(error))
