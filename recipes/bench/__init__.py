"""`make bench`: ours beside the reference, measured in one run, one module a subject.

A module of this package that has `rows()` takes part; it returns entries
`{"row": name, "ours": number, "other": number or null, "ratio": number or null, "goal": text or number}`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.errors import FluxForgeError, unknown_name

KEYS = ("row", "ours", "other", "ratio", "goal")


def modules() -> list[str]:
    """Return the names of the bench modules, sorted; none is imported."""
    return sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))


def run(names: Sequence[str] = (), out: Path = Path("runs/bench")) -> Path:
    """Measure the modules `names` (default: all), print a line a row, and return `out/result.json`.

    Rows of modules that were not measured now stay in the file. Raises `UnknownName` for a module.
    """
    known = modules()
    for name in names:
        if name not in known:
            raise unknown_name("bench", name, known)
    path = out / "result.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    for name in names or known:
        module = importlib.import_module(f"{__name__}.{name}")
        if not hasattr(module, "rows"):
            if names:
                raise FluxForgeError(f"bench module {name!r} has no rows()")
            continue
        started = time.monotonic()
        found: list[dict[str, Any]] = module.rows()
        for entry in found:
            missing = [key for key in KEYS if key not in entry]
            if missing:
                raise FluxForgeError(
                    f"bench module {name!r} returned a row without {', '.join(missing)}: {entry}"
                )
            print(_line(entry), flush=True)
        print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)
        fresh = {entry["row"] for entry in found}
        kept = [entry for entry in kept if entry["row"] not in fresh] + found
        out.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.part")
        aside.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        aside.replace(path)
    return path


def _line(entry: dict[str, Any]) -> str:
    ours, other, ratio = (_short(entry[key]) for key in ("ours", "other", "ratio"))
    return f"{entry['row']}: ours {ours}, other {other}, ratio {ratio}, goal {entry['goal']}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else "-" if value is None else str(value)
