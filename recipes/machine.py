"""What a run reports of the machine it ran on: versions, and the memory of its whole process tree."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
import threading
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "vllm", "ray", "peft", "safetensors", "numpy", "wandb")
REPO = Path(__file__).resolve().parents[1]


def versions() -> dict[str, Any]:
    """Return versions by name: Python, machine, packages (null where absent), git commit and whether it is
    dirty.
    """
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
    }
    for package in PACKAGES:
        found[package] = _version(package)
    found["fluxforge"] = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--untracked-files=no")
    found["dirty"] = None if status is None else bool(status)
    return found


class PeakMemory:
    """Samples the resident memory of this process and all below it, in a thread, until `close`.

    Pages that processes share are counted for each of them, so the figure is an upper bound. Where there is
    no /proc, it is this process's own peak plus that of its largest finished child.
    """

    def __init__(self, every_s: float = 0.5) -> None:
        self._peak = tree_rss()
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        self._thread.start()

    def mb(self) -> float:
        """Return the peak so far in MiB."""
        scale = 1 if platform.system() == "Darwin" else 1024  # ru_maxrss is in bytes there, in KiB elsewhere
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
        child = 0 if self._peak else resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * scale
        return max(self._peak, tree_rss(), own + child) / 2**20

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(self._every_s):
            self._peak = max(self._peak, tree_rss())


def tree_rss(root: int | None = None) -> int:
    """Return the summed resident bytes of process `root` (default: this one) and its descendants; 0 without
    /proc.
    """
    children: dict[int, list[int]] = {}
    rss: dict[int, int] = {}
    page = os.sysconf("SC_PAGE_SIZE")
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not entry.isdigit():
            continue
        try:
            # After the command name, which may hold blanks and brackets: state, parent, ..., rss as field 24.
            fields = Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        children.setdefault(int(fields[1]), []).append(int(entry))
        rss[int(entry)] = int(fields[21]) * page
    total, todo = 0, [os.getpid() if root is None else root]
    while todo:
        pid = todo.pop()
        total += rss.get(pid, 0)
        todo += children.get(pid, [])
    return total


def _version(package: str) -> str | None:
    for name in (package, f"{package}-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(REPO), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):  # no git here: the version stays unknown
        return None
    return done.stdout.strip() if done.returncode == 0 else None
