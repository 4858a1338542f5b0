"""Harnesses: what stands between a dialogue and the model that answers it. One file each.

A module of this package that holds a `HARNESS` class adds the harness under its `name`; see `base.py` for what the
class must offer.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from envs.errors import unknown_name
from rollout.harness.base import Harness


@functools.cache
def registry() -> dict[str, type[Harness]]:
    """Return every harness class by name."""
    found: dict[str, type[Harness]] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        harness = getattr(importlib.import_module(f"{__name__}.{info.name}"), "HARNESS", None)
        if harness is not None:
            found[harness.name] = harness
    return found


def get_harness(name: str) -> type[Harness]:
    """Return the harness registered under `name`. Raises `UnknownName`, naming the nearest."""
    known = registry()
    if name not in known:
        raise unknown_name("harness", name, known)
    return known[name]
