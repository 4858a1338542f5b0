"""Make the files and the page of a comparison again from its run folder, whatever became of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.errors import DataError
from recipes.cases import read_cases
from recipes.compare import write_outputs
from recipes.compare.resample import RESAMPLES

CASES = "cases.jsonl"
BLOCK = "comparison"
"""Where `result.json` holds `Summary.block()`."""
_SHOWN = ("name", "status", "error", BLOCK)


def is_comparison(run_folder: Path) -> bool:
    """Whether a folder holds graded cases to compare."""
    return (run_folder / CASES).is_file()


def rewrite_outputs(run_folder: Path) -> Path:
    """Write the outputs of `run_folder/cases.jsonl` again and return the path of the page.

    `result.json` and `config.yaml` are shown where they can be read; reference row, seed and resamples are those of
    `result.json`. Raises `DataError` for a file of cases that cannot be read, or that holds none.
    """
    cases = read_cases(run_folder / CASES)
    if not cases:
        raise DataError(f"{run_folder / CASES} holds no finished case yet; there is nothing to report")
    warnings: list[str] = []
    result = _result(run_folder / "result.json", warnings)
    block = result.get(BLOCK)
    block = block if isinstance(block, Mapping) else {}
    config = run_folder / "config.yaml"
    rows = {case.harness for case in cases}
    write_outputs(
        run_folder,
        cases,
        name=str(result.get("name") or run_folder.name),
        status=str(result.get("status", "not ended")),
        reference=block.get("reference") if block.get("reference") in rows else None,
        facts=facts_of(result),
        config=config.read_text(encoding="utf-8", errors="replace") if config.is_file() else None,
        warnings=warnings,
        seed=_count(block.get("seed"), 0),
        resamples=_count(block.get("resamples"), RESAMPLES),
    )
    return run_folder / "report.html"


def facts_of(result: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return what result.json says beside the comparison, nested names joined by a slash, values in words."""
    found: dict[str, str] = {}
    for key, item in result.items():
        if not prefix and key in _SHOWN:
            continue
        if isinstance(item, Mapping):
            found |= facts_of(item, f"{prefix}{key}/")
        elif item is not None and item != "":
            text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
            found[f"{prefix}{key}".replace("_", " ")] = text[:500]
    return found


def _result(path: Path, warnings: list[str]) -> dict[str, Any]:
    if not path.is_file():
        warnings.append("There is no result.json: the run has not ended, or it was killed.")
        return {}
    try:
        result = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        warnings.append(f"result.json cannot be read ({error}).")
        return {}
    if not isinstance(result, dict):
        warnings.append("result.json holds no JSON object.")
        return {}
    if result.get("error"):
        warnings.append(f"The run ended with an error: {result['error']}")
    return result


def _count(value: Any, otherwise: int) -> int:
    return value if type(value) is int and value >= 0 else otherwise
