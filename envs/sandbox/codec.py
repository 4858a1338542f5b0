"""Plain data between processes: values go over as tagged JSON, so no code, class or `__eq__` comes along.

Standard library only: the sandbox runs this file without any package.
"""

from __future__ import annotations

import math
from collections.abc import KeysView
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 100
_SMALL = 2**63


class NotPlain(ValueError):
    """A message that is no encoded value."""


class Opaque:
    """Stands for a value that is no plain data (a generator, an object of a class of the answer's own).

    It is equal to nothing but itself; it keeps the truth value, and the length where there was one.
    """

    def __init__(self, kind: str, truth: bool, length: int | None) -> None:
        self.kind, self.truth, self.length = kind, truth, length

    def __bool__(self) -> bool:
        return self.truth

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError(f"object of type {self.kind!r} has no len()")
        return self.length

    def __repr__(self) -> str:
        return f"<{self.kind}>"


class Encoder:
    """`encode` turns a value into JSON data. `odd` says whether anything was not exactly a built-in value."""

    def __init__(self) -> None:
        self.odd = False

    def encode(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_SMALL < value < _SMALL else {"i": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"f": repr(value)}
        if depth >= MAX_DEPTH:
            return self._opaque(value)
        deeper = depth + 1
        if kind is list:
            return [self.encode(item, deeper) for item in value]
        if kind is tuple:
            return {"t": [self.encode(item, deeper) for item in value]}
        if kind is dict:
            return {"d": [[self.encode(k, deeper), self.encode(v, deeper)] for k, v in value.items()]}
        if kind is set or kind is frozenset:
            return {"s" if kind is set else "z": [self.encode(item, deeper) for item in value]}
        if kind is bytes or kind is bytearray:
            return {"b" if kind is bytes else "y": value.hex()}
        if kind is complex:
            return {"c": [repr(value.real), repr(value.imag)]}
        if kind is range:
            return {"r": [value.start, value.stop, value.step]}
        if kind is Decimal:
            return {"D": str(value)}
        if kind is Fraction:
            return {"F": [hex(value.numerator), hex(value.denominator)]}
        return self._subclass(value, deeper)

    def _subclass(self, value: Any, depth: int) -> Any:
        """Read a value of a derived class as its base class would, whatever the class overrides."""
        self.odd = True
        for base in (int, float, str, bytes, Fraction, Decimal):
            if isinstance(value, base):
                plain = {int: int.__int__, float: float.__float__, str: str.__str__}.get(base, base)(value)
                return self.encode(plain, depth)
        if isinstance(value, list):
            return self.encode(list(list.__iter__(value)), depth)
        if isinstance(value, tuple):
            return self.encode(tuple(tuple.__iter__(value)), depth)
        if isinstance(value, dict):
            return self.encode(dict(dict.items(value)), depth)
        if isinstance(value, set | frozenset):
            base = set if isinstance(value, set) else frozenset
            return self.encode(base(base.__iter__(value)), depth)  # type: ignore[arg-type]
        if isinstance(value, KeysView):
            return self.encode(set(value), depth)
        return self._opaque(value)

    def _opaque(self, value: Any) -> Any:
        self.odd = True
        try:
            truth = bool(value)
        except Exception:
            truth = True
        try:
            length = len(value)
        except Exception:
            length = None
        return {"o": [type(value).__name__, truth, length]}


def encode(value: Any) -> Any:
    """Return `value` as JSON data."""
    return Encoder().encode(value)


def decode(data: Any) -> Any:
    """Return the value of JSON data that `encode` made. Raises `NotPlain` for anything else."""
    try:
        return _decode(data)
    except (TypeError, ValueError, ArithmeticError, KeyError, RecursionError) as error:
        raise NotPlain(f"no encoded value: {error}") from None


def _decode(data: Any) -> Any:
    if data is None or isinstance(data, bool | str | int | float):
        return data
    if isinstance(data, list):
        return [_decode(item) for item in data]
    ((tag, body),) = data.items()
    match tag:
        case "i":
            return int(body, 16)
        case "f":
            return float(body)
        case "t":
            return tuple(_decode(item) for item in body)
        case "d":
            return {_decode(key): _decode(item) for key, item in body}
        case "s":
            return {_decode(item) for item in body}
        case "z":
            return frozenset(_decode(item) for item in body)
        case "b":
            return bytes.fromhex(body)
        case "y":
            return bytearray.fromhex(body)
        case "c":
            return complex(float(body[0]), float(body[1]))
        case "r":
            return range(*body)
        case "D":
            return Decimal(body)
        case "F":
            return Fraction(int(body[0], 16), int(body[1], 16))
        case "o":
            return Opaque(str(body[0]), bool(body[1]), None if body[2] is None else int(body[2]))
    raise NotPlain(f"unknown tag {tag!r}")
