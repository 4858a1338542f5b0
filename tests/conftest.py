"""What all tests share: no network, a quiet Ray, the benchmark folder, and skipping what needs a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before anything imports these libraries. A test that reached for a hub would hang or pass by luck.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is no CUDA device; torch is only imported when there are some."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, there is none here"))


@pytest.fixture(scope="session")
def benchmark_data() -> Path:
    """The folder of upstream benchmark files: FLUXFORGE_DATA, else ../shared/data; skips where absent."""
    folder = Path(os.environ.get("FLUXFORGE_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no benchmark files in {folder}; set FLUXFORGE_DATA to their folder")
    return folder
