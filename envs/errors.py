"""The error tree. Every error that FluxForge raises on purpose is a `FluxForgeError`.

Each class is also the closest standard exception, so callers may catch either. A message says what is
wrong, where, and what to do about it. Add a class only when a caller needs to tell it apart.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FluxForgeError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(FluxForgeError, ValueError):
    """A recipe, flag or combination of settings that cannot run."""


class UnknownName(ConfigError):
    """A name (tracker, family, loss, flag, ...) that is not registered. Made by `unknown_name`."""


class DataError(FluxForgeError, ValueError):
    """A file or record that cannot be read as what it should be; names the file and the row."""


class MissingFiles(FluxForgeError, FileNotFoundError):
    """A model or data folder is absent; says what to get and where to put it."""


class UnknownGoal(FluxForgeError, LookupError):
    """A strict fold met an edit that names a goal which is not in the state."""


class DuplicateGoal(FluxForgeError, ValueError):
    """A strict fold met an edit that adds a goal which is already in the state."""


class GraderError(FluxForgeError, RuntimeError):
    """The grader itself failed (crash, timeout, missing database). Never a wrong answer."""


class EndpointError(FluxForgeError, ConnectionError):
    """A chat endpoint refused, failed until retries or deadline ran out, or answered with what is no reply."""


class EngineError(FluxForgeError, RuntimeError):
    """An engine answered wrongly or cannot do what was asked."""


class EngineDied(EngineError):
    """The engine's process is gone; the caller may resend the request to another replica."""


class EngineTimeout(EngineError, TimeoutError):
    """An engine did not answer before the deadline."""


class CheckpointError(FluxForgeError, RuntimeError):
    """A checkpoint is incomplete, of another run, or could not be written; older ones are untouched."""


class TrainingError(FluxForgeError, ArithmeticError):
    """A loss or gradient is not finite. The step was refused and the weights are unchanged."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """Return the error for an unknown `name` of a `kind`; it lists the known ones and names the nearest."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return UnknownName(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names) or 'none'}.")
