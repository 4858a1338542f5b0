"""Build `.venv` from a lock file; called by scripts/setup.sh, standard library only.

    scripts/setup.sh              build .venv anew
    scripts/setup.sh --if-needed  do nothing when .venv was built from the lock as it is now

The last thing written is a stamp with the lock's hash, so a set-up that was interrupted never passes for
done. Packages come as pip is configured, with pinned versions and --no-deps: nothing is resolved here.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "fluxforge-lock.json"
KINDS = ("cpu", "cuda")

# PyPI's torch for Linux is a CUDA build of several GB; PyTorch keeps the CPU build on an index of its own.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def lock_kind() -> str:
    """Return "cuda" where a GPU is found, else "cpu"; LOCK= in the environment overrides."""
    asked = os.environ.get("LOCK", "")
    if asked and asked not in KINDS:
        raise SystemExit(f"setup: LOCK={asked} is unknown; use LOCK=cpu or LOCK=cuda.")
    if asked:
        return asked
    if shutil.which("nvidia-smi"):
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
        if found.returncode == 0 and "GPU" in found.stdout:
            return "cuda"
    return "cpu"


def stamp_of(kind: str) -> dict[str, str]:
    lock = ROOT / "locks" / f"{kind}.txt"
    return {"lock": kind, "sha256": hashlib.sha256(lock.read_bytes()).hexdigest()}


def is_current() -> bool:
    """Is .venv built from the lock that it was built from, as that lock is now?

    The kind is the one that was built: a login node without a GPU may share the .venv of the GPU nodes.
    """
    try:
        stamp = json.loads(STAMP.read_text())
        asked = os.environ.get("LOCK") or stamp["lock"]
        return PYTHON.exists() and stamp == stamp_of(asked)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def run(command: list[str], what: str) -> str:
    """Run a step with its output kept back; raise `SystemExit` with the end of that output when it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        end = "\n".join(done.stdout.strip().splitlines()[-40:])
        raise SystemExit(
            f"{end}\nsetup: {what} failed (exit status {done.returncode}; the reason stands above). "
            "The unfinished .venv is not used; run `make setup` again."
        )
    return done.stdout.strip()


def pip(*arguments: str) -> list[str]:
    return [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]


def install_torch_cpu(version: str) -> None:
    """Install the CPU build of torch: as pip is configured, else from PyTorch's own index."""
    install = pip("install", "--quiet", "--progress-bar", "off", "--no-deps")
    if platform.system() != "Linux":
        run([*install, f"torch=={version}"], "installing torch")
        return
    wanted = f"torch=={version}+cpu"
    say(f"installing {wanted}")
    first = subprocess.run(
        [*install, wanted], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if first.returncode == 0:
        return
    if "No matching distribution" not in first.stderr:
        print(first.stderr.strip(), file=sys.stderr)
    say(f"pip's own sources have no {wanted}; taking it from PyTorch's CPU index")
    run([*install, "--index-url", TORCH_CPU_INDEX, wanted], f"installing {wanted}")


def pinned_version(lock: Path, package: str) -> str:
    for line in lock.read_text().splitlines():
        name, _, rest = line.partition("==")
        if name == package:
            return rest.split(";")[0].strip()
    raise SystemExit(f"setup: {lock} pins no {package}; run `make lock`.")


def build(kind: str) -> None:
    lock = ROOT / "locks" / f"{kind}.txt"
    stamp = stamp_of(kind)  # of the lock as it is read now, should it change meanwhile
    if platform.system() == "Darwin" and platform.machine() != "arm64":
        raise SystemExit("setup: torch has no wheels for Intel Macs; use Linux or an Apple silicon Mac.")
    started = time.monotonic()
    if VENV.is_symlink():
        VENV.unlink()
    elif VENV.exists():
        say("removing the old .venv")
        STAMP.unlink(missing_ok=True)
        shutil.rmtree(VENV)
    torch = pinned_version(lock, "torch")
    base = Path(sys.executable).resolve()  # not the python of a .venv that was active, and is gone now
    say(f"making .venv with Python {platform.python_version()} for {kind.upper()} ({platform.machine()})")
    run([str(base), "-m", "venv", str(VENV)], "making .venv")
    if kind == "cpu":
        install_torch_cpu(torch)
    say(f"installing locks/{kind}.txt (some minutes)")
    quiet = ("install", "--quiet", "--progress-bar", "off", "--no-deps")
    run(pip(*quiet, "-r", str(lock)), f"installing locks/{kind}.txt")
    run(pip(*quiet, "--no-build-isolation", "--editable", str(ROOT)), "installing fluxforge itself")
    say("checking versions and imports")
    say(run([str(PYTHON), "scripts/check_env.py", str(lock)], "the check of .venv").splitlines()[-1])
    aside = STAMP.with_suffix(".part")
    aside.write_text(json.dumps(stamp) + "\n")
    aside.replace(STAMP)
    say(f"done in {time.monotonic() - started:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build .venv from locks/cpu.txt or locks/cuda.txt.")
    parser.add_argument("--if-needed", action="store_true", help="do nothing when .venv matches its lock")
    options = parser.parse_args()
    if options.if_needed and is_current():
        return 0
    with (ROOT / "pyproject.toml").open() as lockable:
        fcntl.flock(lockable, fcntl.LOCK_EX)  # two `make` at once: the second waits, then finds it done
        if options.if_needed and is_current():
            return 0
        build(lock_kind())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nsetup: interrupted; the unfinished .venv is not used. Run `make setup` to build it.")
