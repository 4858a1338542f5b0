"""Tiny models for the tests of engines, collectors and trackers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


def _builders():
    """Import tinymodel.py by its path: tests are no package (importmode=importlib)."""
    name = "fluxforge_tinymodel"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("tinymodel.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def tinymodel():
    """The module of builders: save_tiny_llama, save_tiny_qwen35."""
    return _builders()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _builders().save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny_qwen35(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _builders().save_tiny_qwen35(tmp_path_factory.mktemp("tiny-qwen35"))
