"""The data card of a built set: a README.md that people read and whose head tells `datasets` the configurations."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from envs.families import is_procedural
from envs.task import Family, Quarantined
from recipes.realised import PAPER
from recipes.sets import all_sets

_NUMBER = re.compile(r"\d+(?:[./,]\d+)*")
_LISTED = 20  # quarantined tasks that the card names; quarantine.jsonl has them all


def source_files(family: Family, data: Path | None) -> list[dict[str, Any]]:
    """Return path below the data folder, size and sha256 of the files of a family, sorted by path."""
    if data is None or is_procedural(family):
        return []
    folder = data / family.name if (data / family.name).is_dir() else data
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return [
        {
            "path": path.relative_to(data).as_posix(),
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
        }
        for path in paths
    ]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of what decides the bytes of a set."""
    return {name: metadata.version(name) for name in ("fluxforge", "pyarrow")}


def reasons(items: Iterable[Quarantined]) -> dict[str, int]:
    """Return how many items have each kind of reason, the most frequent first.

    Kinds differ in more than numbers and what comes after a colon.
    """
    counted = Counter(_NUMBER.sub("#", item.reason.split(":")[0]) for item in items)
    return dict(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])))


def card(manifest: Mapping[str, Any], about: str, quarantined: Mapping[str, Sequence[Quarantined]]) -> str:
    """Return the text of README.md."""
    name, settings, families = manifest["set"], manifest["settings"], manifest["families"]
    head = {
        "pretty_name": f"FluxForge {name}",
        "license": "other",
        "configs": _configs(list(families), list(dict.fromkeys(f["stratum"] for f in _dialogues(manifest)))),
    }
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# FluxForge: {name}",
        about,
        "Dialogues whose intent drifts, built from source tasks that have an automatic grader. One row is one "
        "dialogue: the user's messages, the edits that each realises, and the oracle state after it.",
        _use(list(families), manifest),
        "## Settings\n\n" + _table(("key", "value"), [(k, _shown(v)) for k, v in settings.items()]),
        "Rebuilt with `fluxforge build --set "
        + _command(name, settings)
        + "`, byte for byte, on any number of "
        "processes. Versions: " + ", ".join(f"{k} {v}" for k, v in manifest["versions"].items()) + ".",
        "## Families\n\n" + _families(families),
        "## What the budgets realise\n\n" + _realised(manifest),
        "## Left out\n\n" + _left_out(families, quarantined, manifest["skipped"]),
        "## Sources\n\n" + _sources(families),
    ]
    return "\n\n".join(parts) + "\n"


def _configs(families: Sequence[str], strata: Sequence[str]) -> list[dict[str, Any]]:
    """Return the configurations for `datasets`: all families together, each alone, and the source tasks."""

    def one(name: str, folder: str) -> dict[str, Any]:
        files = [{"split": stratum, "path": f"{folder}/{stratum}.parquet"} for stratum in strata]
        return {"config_name": name, "data_files": files}

    tasks = {"config_name": "tasks", "data_files": [{"split": "tasks", "path": "*/tasks.parquet"}]}
    return [one("all", "*") | {"default": True}, *(one(name, name) for name in families), tasks]


def _use(families: Sequence[str], manifest: Mapping[str, Any]) -> str:
    strata = [entry["stratum"] for entry in _dialogues(manifest)]
    return (
        "```python\n"
        "from datasets import load_dataset\n\n"
        f'load_dataset("PATH", "all", split="{strata[-1]}")     # PATH: this folder\n'
        f'load_dataset("PATH", "{families[0]}", split="{strata[-1]}")\n'
        'load_dataset("PATH", "tasks", split="tasks")     # source tasks: context, goals, grader payload, gold\n'
        "```\n\n"
        "`ids.txt` lists the source tasks, `quarantine.jsonl` what was left out and why, `manifest.json` every "
        "file with its sha256. A clean dialogue is the same under every budget and stands once."
    )


def _families(families: Mapping[str, Any]) -> str:
    rows = [
        (
            name,
            ", ".join(entry["splits"]),
            entry["tasks"],
            entry["quarantined"],
            entry["unusable"],
            entry["near_copies"],
        )
        for name, entry in families.items()
    ]
    head = ("family", "splits", "tasks", "gold rejected", "not usable", "near copies left out")
    return _table(head, rows)


def _realised(manifest: Mapping[str, Any]) -> str:
    rows = []
    for entry in _dialogues(manifest):
        means = entry["realised"]
        columns = ("dialogues", "goals", "variants_per_goal", "decoys", "turns", "tokens")
        rows.append((entry["family"], entry["stratum"], *(means[column] for column in columns)))
    (easy_v, easy_d), (hard_v, hard_d) = PAPER["easy"], PAPER["hard"]
    return (
        _table(("family", "file", "dialogues", "goals", "variants a goal", "decoys", "turns", "tokens"), rows)
        + f"\n\nMeans. The paper's drift dialogues hold {easy_v} to {hard_v} variants a goal and {easy_d:.2f} to "
        f"{hard_d:.2f} decoys from easy to hard. Tokens are words and punctuation marks of the user's messages."
    )


def _left_out(
    families: Mapping[str, Any], quarantined: Mapping[str, Sequence[Quarantined]], skipped: Mapping[str, str]
) -> str:
    lines: list[str] = []
    for name, reason in skipped.items():
        lines.append(f"- `{name}`: the whole family, its files are not there. {reason}")
    for name, items in quarantined.items():
        for item in items[:_LISTED]:
            lines.append(f"- `{item.task_id}`: {item.reason[:300]}")
        if len(items) > _LISTED:
            lines.append(f"- {len(items) - _LISTED} more of `{name}`")
    for name, entry in families.items():
        for reason, count in entry["unusable_reasons"].items():
            lines.append(f"- {count} items of `{name}` cannot be made into tasks: {reason}")
    return "\n".join(lines) or "Nothing."


def _sources(families: Mapping[str, Any]) -> str:
    known = all_sets().sources
    licences = [
        (name, known[name].licence, known[name].origin) if name in known else (name, "not recorded", "")
        for name in families
    ]
    files = [
        (f"`{file['path']}`", file["bytes"], f"`{file['sha256']}`")
        for entry in families.values()
        for file in entry["sources"]
    ]
    text = _table(("family", "licence of the source", "origin"), licences)
    return text + (f"\n\n{_table(('file', 'bytes', 'sha256'), files)}" if files else "")


def _dialogues(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [entry for entry in manifest["files"] if "stratum" in entry]


def _command(name: str, settings: Mapping[str, Any]) -> str:
    words = [name, "--data DATA --out OUT"]
    for key in ("families", "budgets", "conditions"):
        if settings[key] is not None:
            words.append(f"--{key} {','.join(settings[key])}")
    words.append(f"--seed {settings['seed']}")
    if settings["limit"] is not None:
        words.append(f"--limit {settings['limit']}")
    if "grader" in settings:
        words.append(f"--grader {settings['grader']}")
    for key, value in settings.get("wording", {}).items():
        flag = "wording" if key == "endpoint" else "wording-seed" if key == "seed" else key.replace("_", "-")
        if value is True:
            words.append(f"--{flag}")
        elif value not in (None, False):
            words.append(f"--{flag} '{value}'" if isinstance(value, str) else f"--{flag} {value:g}")
    return " ".join(words)


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
