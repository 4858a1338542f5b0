"""Run by a new .venv: `python scripts/check_env.py locks/cpu.txt`.

Every pin that applies on this machine must be installed at its version, and the stack must import.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

STACK = ["torch", "transformers", "peft", "accelerate", "datasets", "ray", "wandb"]
PROJECT = ["envs", "rollout", "trainer", "recipes"]


def wrong_pins(lock: Path) -> list[str]:
    """Return the pins of `lock` that apply here and are not what is installed."""
    wrong = []
    for line in lock.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pin = Requirement(line.strip())
        if pin.marker and not pin.marker.evaluate():
            continue
        try:
            version = metadata.version(pin.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{pin.name}{pin.specifier} (not installed)")
            continue
        if not pin.specifier.contains(version, prereleases=True):
            wrong.append(f"{pin.name}{pin.specifier} (installed: {version})")
    return wrong


def main() -> int:
    lock = Path(sys.argv[1])
    wrong = wrong_pins(lock)
    if wrong:
        print(f"not as {lock} says: {'; '.join(wrong)}", file=sys.stderr)
        return 1
    has_vllm = importlib.util.find_spec("vllm") is not None
    for name in STACK + PROJECT + (["vllm"] if has_vllm else []):
        importlib.import_module(name)
    import torch

    if lock.stem == "cuda" and torch.version.cuda is None:
        print("the CUDA lock got a CPU build of torch; check pip's index settings", file=sys.stderr)
        return 1
    vllm = "with vLLM" if has_vllm else "no vLLM for this machine: the local engine is used"
    print(f"torch {torch.__version__}, {vllm}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
