"""Families: one module each, with one instance named `FAMILY`. Adding a module adds the family."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from envs.task import Family

PROCEDURAL_SPLITS = frozenset({"train", "heldout"})
"""Splits of a family that makes its own tasks without end, the second from words the first never uses."""


def is_procedural(family: Family) -> bool:
    """Say whether a family makes its own tasks; the others read benchmark files."""
    return set(family.splits) >= PROCEDURAL_SPLITS


@functools.cache
def registry() -> dict[str, Family]:
    """Return every family by name: each module of this package that holds a `FAMILY`."""
    found: dict[str, Family] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        family = getattr(importlib.import_module(f"{__name__}.{info.name}"), "FAMILY", None)
        if family is not None:
            found[family.name] = family
    return found
