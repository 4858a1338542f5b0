"""`fluxforge audit`: whether a built set has the properties that the numbers rest on, one named check each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from envs.endpoint import Endpoint
from envs.errors import ConfigError
from envs.grading import Grading
from recipes.audit.fidelity import Fidelity, Judge
from recipes.audit.findings import Check, Finding
from recipes.audit.grading_checks import Flips, Gold, Obeyer, OracleAnswer, OracleState
from recipes.audit.material import Material
from recipes.audit.model_reader import ModelReader
from recipes.audit.set_checks import Files, HeldOutKept, Ids, Realised, Rebuild, Twins
from recipes.audit.wording_checks import NeutralRequest, NoLeak, NoRestating, Recoverable
from recipes.progress import Bar

SAMPLE = 200
"""Messages that are judged for fidelity and coherence."""
_SHOWN = 3  # examples of a failed check that are printed; audit.json has more


@dataclass(frozen=True, slots=True)
class AuditSettings:
    sample: int = SAMPLE
    """Messages judged for fidelity and coherence."""
    limit: int | None = None
    """Dialogues of each file that are looked at; all by default."""
    rebuild_jobs: int = 1
    """Processes of the rebuild; 0 leaves it out."""
    cache: Path | None = None
    """Folder of the replies that worded the set, for the rebuild; None: the default one."""
    grading: Grading = field(default_factory=Grading)
    """How answers are graded; the verdict is the set's own."""
    reader: str | None = None
    """Chat model that reads the dialogues in place of the rules, as openai:http://HOST:PORT/v1#MODEL."""


def checks(
    settings: AuditSettings,
    judge: Judge | None = None,
    obeyer: Obeyer | None = None,
    *,
    templates: bool = True,
) -> list[Check]:
    """Return all checks, in the order of the report. `templates`: whether the messages are the templates' own."""
    reader = None
    if settings.reader is not None:
        reader = ModelReader(Endpoint.parse(settings.reader, cache=settings.cache))
    return [
        Files(),
        Ids(),
        Gold(),
        Flips(obeyer),
        OracleState(),
        OracleAnswer(),
        NoRestating(),
        NoLeak(),
        NeutralRequest(),
        Twins(),
        Recoverable(templates, reader),
        Fidelity(settings.sample, judge),
        Realised(),
        HeldOutKept(),
        Rebuild(settings.rebuild_jobs, settings.cache, settings.grading),
    ]


def audit(
    material: Material,
    settings: AuditSettings,
    judge: Judge | None = None,
    obeyer: Obeyer | None = None,
    *,
    quiet: bool = False,
) -> list[Finding]:
    """Run every check over the material and return the findings. Raises `DataError` for unreadable files."""
    if settings.limit is not None and settings.limit < 1:
        raise ConfigError(f"a limit is at least 1 dialogue a file, got {settings.limit}")
    how = (material.manifest or {}).get("settings", {})
    replace(settings.grading, verdict=how.get("grader", Grading().verdict)).apply()
    running = checks(settings, judge, obeyer, templates="wording" not in how)
    with Bar(material.rows, "audit", quiet=quiet) as bar:
        for case in material.cases(settings.limit):
            for check in running:
                check.see(case)
            bar.advance(case.dialogue.family)
    for check in running:
        check.whole(material)
    return [check.finish() for check in running]


def run_audit(path: Path, data: Path | None, settings: AuditSettings, out: Path | None = None) -> int:
    """Audit a built set or a file, print the tables, write audit.json (beside a file, inside a set's folder);
    return 1 when a check fails, else 0.
    """
    material = Material.open(path, data)
    findings = audit(material, settings)
    report = {
        "schema": "fluxforge.audit",
        "path": path.name,
        "set": (material.manifest or {}).get("set"),
        "status": "fail" if any(finding.status == "fail" for finding in findings) else "pass",
        "checks": [finding.to_dict() for finding in findings],
    }
    if out is None:
        out = path / "audit.json" if path.is_dir() else path.with_suffix(".audit.json")
    out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    show(findings)
    Console(soft_wrap=True).print(f"{report['status']}: {out}", markup=False, highlight=False)
    return int(report["status"] == "fail")


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print the findings as tables, and examples of what fails."""
    if console is None:  # a log file has room for the whole table
        console = Console() if Console().is_terminal else Console(width=130)
    table = Table(title="Audit")
    for column in ("check", "status", "looked at", "wrong"):
        table.add_column(column, justify="right" if column in ("looked at", "wrong") else "left")
    table.add_column("what it shows", overflow="fold")
    colours = {"pass": "green", "fail": "red", "not run": "yellow"}
    for finding in findings:
        status = f"[{colours[finding.status]}]{finding.status}[/]"
        says = finding.says + (f" (not run: {finding.why})" if finding.why else "")
        table.add_row(finding.name, status, str(finding.checked), str(finding.failed), _plain(says))
    console.print(table)
    by_name = {finding.name: finding for finding in findings}
    _show_rates(console, by_name)
    _show_realised(console, by_name["realised"].info)
    for finding in findings:
        for example in finding.examples[:_SHOWN]:
            console.print(f"{finding.name}: {example}", markup=False, highlight=False, soft_wrap=True)


def _show_rates(console: Console, findings: dict[str, Finding]) -> None:
    lines = []
    recovered = findings["recoverable"].info
    if findings["recoverable"].checked:
        lines.append(f"recovered {_rate(recovered)}; the paper's audit {recovered['paper']:.2f}")
    sample = findings["fidelity"]
    if sample.checked:
        lines.append(
            f"{sample.checked} messages judged by {sample.info['judge']}: fidelity {_rate(sample.info['fidelity'])}, "
            f"coherence {_rate(sample.info['coherence'])}"
        )
    for key, count in findings["flips"].info.items():
        lines.append(f"flips: {count} {key}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _show_realised(console: Console, info: dict[str, Any]) -> None:
    table = Table(title="Realised (means; the paper: easy 0.95 variants, 0.61 decoys; hard 2.24 and 2.50)")
    columns = ("dialogues", "goals", "variants_per_goal", "decoys", "turns", "tokens")
    for column in ("family", "file", *(name.replace("_per_", " a ") for name in columns)):
        table.add_column(column, justify="left" if column in ("family", "file") else "right", no_wrap=True)
    for row in info["strata"]:
        table.add_row(
            row["family"],
            row["stratum"],
            *(f"{row[c]:.2f}" if c != "dialogues" else str(row[c]) for c in columns),
        )
    console.print(table)


def _rate(info: dict[str, Any]) -> str:
    low, high = info["ci95"]
    return f"{info['rate']:.3f} [{low:.3f}, {high:.3f}]"


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
