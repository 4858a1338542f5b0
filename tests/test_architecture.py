"""The rules of the layout that a reader relies on: who imports whom, file sizes, nothing of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("envs", "rollout", "trainer", "recipes")  # each may import itself and those before it
MAX_LINES = 400

# envs/ builds and grades dialogues on machines that have none of these, and in well under a second.
NOT_IN_ENVS = {"torch", "ray", "vllm", "transformers", "datasets", "wandb", "peft", "accelerate"}
# Run by path inside the sandbox, where the project cannot be imported: they import their neighbours by bare name.
SANDBOX_SCRIPTS = {"worker.py", "keeper.py", "guest.py"}


def tracked_files() -> list[Path]:
    """The files of the project: those git tracks or would track, or all of a source copy without git."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode == 0:
        files = [ROOT / name for name in listing.stdout.splitlines()]
    else:
        skipped = {".venv", "runs", "__pycache__", ".git"}
        files = [path for path in ROOT.rglob("*") if not skipped & set(path.relative_to(ROOT).parts)]
    return [path for path in files if path.is_file()]


FILES = tracked_files()
SOURCES = [path for path in FILES if path.suffix == ".py"]


def imported_modules(source: str, package: str) -> set[str]:
    """Every module that `source` imports, in functions and under TYPE_CHECKING too, in full names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            found.add(".".join([*parts, node.module or ""]).strip("."))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            first = node.args[0] if node.args else None
            if name in ("importlib.import_module", "import_module", "__import__") and isinstance(
                first, ast.Constant
            ):
                found.add(str(first.value))
    return found


def roots(path: Path) -> set[str]:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    return {name.split(".")[0] for name in imported_modules(path.read_text(), package)}


def test_the_import_reader_sees_every_way_to_import() -> None:
    source = (
        "import a.b\nfrom c.d import e\nfrom . import f\nfrom .g import h\nfrom ..i import j\n"
        "def late():\n    import k\n    importlib.import_module('l.m')\n"
    )
    assert imported_modules(source, "top.sub") == {"a.b", "c.d", "top.sub", "top.sub.g", "top.i", "k", "l.m"}


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_one_way(layer: str) -> None:
    files = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == layer]
    assert files, f"{layer}/ holds no Python file"
    later = set(LAYERS[LAYERS.index(layer) + 1 :]) | {"tests", "scripts"}
    wrong = {
        str(path.relative_to(ROOT)): sorted(roots(path) & later) for path in files if roots(path) & later
    }
    assert not wrong, f"{layer} must not import later layers: {wrong}"


def test_envs_names_no_heavy_package() -> None:
    files = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == "envs"]
    heavy = {str(path.relative_to(ROOT)): sorted(roots(path) & NOT_IN_ENVS) for path in files}
    heavy = {path: names for path, names in heavy.items() if names}
    assert not heavy, f"envs must import none of {sorted(NOT_IN_ENVS)}: {heavy}"


def test_envs_imports_in_under_a_second_and_without_heavy_packages() -> None:
    names = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] == "envs" and path.name not in SANDBOX_SCRIPTS
    )
    script = (
        "import importlib, sys, time\n"
        "start = time.process_time()\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print(time.process_time() - start, *sorted(set(sys.modules) & {NOT_IN_ENVS!r}))\n"
    )
    seconds = []
    for _ in range(3):  # CPU seconds, the best of three: the first may write byte code
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        time_used, *loaded = done.stdout.split()
        assert not loaded, f"importing envs loads {loaded}"
        seconds.append(float(time_used))
    assert min(seconds) < 1.0, f"importing envs takes {min(seconds):.2f} s of CPU"


def test_files_stay_short() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    long = {path: count for path, count in lines.items() if count > MAX_LINES}
    assert not long, f"split these, one idea a file, at most {MAX_LINES} lines: {long}"


# A folder of someone's machine, or a host that packages are fetched from.
MACHINE = re.compile(
    r"(?<![\w.$}/])/(?:home/\w|root/|Users/\w|work/\w|opt/(?:pypi|wheels)|mnt/\w)"
    r"|(?:pypi\.org|pythonhosted\.org|registry\.npmjs|deb\.debian|conda\.anaconda|\bmirror[s]?\.)"
    r"|(?:--(?:extra-)?index-url|--find-links)[= ]+(?:http|file)"
    r"|download\.pytorch\.org"
)
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # the one address that set-up may know


def machine_traces(text: str) -> list[str]:
    return [match.group() for match in MACHINE.finditer(text)]


def test_traces_of_a_machine_are_recognised() -> None:
    home = "/" + "home/ann/models"
    assert machine_traces(f"load {home}") == ["/" + "home/a"]
    assert machine_traces("see https://" + "pypi" + ".org/simple") == ["pypi" + ".org"]
    assert machine_traces("$HOME/models, runs/x, and/or, ~/.cache, /tmp/scratch, a/home/b") == []


def test_no_file_knows_a_machine_or_a_package_host() -> None:
    found: dict[str, list[str]] = {}
    for path in FILES:
        name = str(path.relative_to(ROOT))
        if name == "tests/test_architecture.py" or path.stat().st_size > 5_000_000:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # not text
        if name.startswith("scripts/"):
            text = text.replace(TORCH_INDEX, "")
        if traces := machine_traces(text):
            found[name] = traces
    assert not found, f"paths or hosts of one machine: {found}"
