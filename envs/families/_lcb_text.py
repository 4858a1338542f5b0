"""LiveCodeBench records: tests decoded without unpickling, and the problem text split into goals."""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import re
import zlib
from dataclasses import dataclass
from typing import Any

from envs.errors import DataError

_MOST_BYTES = 1 << 30
# The private tests are a pickled string. Its opcodes are read, never run: a string and bookkeeping, no more.
_STRINGS = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_BOOKKEEPING = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"})

_HEAD = re.compile(
    r"^(?:-+)?\s*\**(input|output|constraints?|notes?|problem statement|task|scoring|partial score|follow[- ]up)\**"
    r"\s*:?\s*(?:-+)?$",
    re.IGNORECASE,
)
_SAMPLE = re.compile(r"^\**(?:sample (?:input|output)|example)s?\s*#?\d*\**\s*:?\s*\**$", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[\"'(`$]?[A-Z])")
_BULLET = re.compile(r"^(?:[-*•]|\d+[.)])\s+(?=\S)")


@dataclass(frozen=True, slots=True)
class Case:
    """One test: the text that goes in and the text that must come out."""

    input: str
    output: str


def decode_cases(text: str, where: str) -> tuple[Case, ...]:
    """Return the tests of a field: JSON text, or base64 of zlib of a pickled JSON text. Raises `DataError`.

    Nothing is unpickled: a pickle that holds anything but one string is refused.
    """
    try:
        cases = json.loads(text)
    except json.JSONDecodeError:
        cases = _parse(_unpacked(text, where), where)
    if not isinstance(cases, list):
        raise DataError(f"{where}: the tests are no list but {type(cases).__name__}")
    found = []
    for number, case in enumerate(cases, 1):
        if not (isinstance(case, dict) and isinstance(case.get("input"), str)):
            raise DataError(f"{where}: test {number} has no text under 'input'")
        if not isinstance(case.get("output"), str):
            raise DataError(f"{where}: test {number} has no text under 'output'")
        found.append(Case(case["input"], case["output"]))
    return tuple(found)


def _unpacked(text: str, where: str) -> str:
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise DataError(f"{where}: neither JSON nor base64 of zlib ({error})") from None
    if unzip.unconsumed_tail:
        raise DataError(f"{where}: more than {_MOST_BYTES} bytes when unpacked")
    found: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _STRINGS:
                found.append(str(argument))
            elif opcode.name not in _BOOKKEEPING:
                raise DataError(f"{where}: a pickle with {opcode.name}, where only a string is safe")
    except (ValueError, IndexError) as error:
        raise DataError(f"{where}: no pickled string ({error})") from None
    if len(found) != 1:
        raise DataError(f"{where}: a pickle of {len(found)} strings, where one is expected")
    return found[0]


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: the pickled string is no JSON ({error.msg})") from None


def goal_texts(content: str) -> list[tuple[str, str]]:
    """Split a problem text into (slot, text): sentences, one goal a sample, an input format or a constraint."""
    found: list[tuple[str, str]] = []
    counts: dict[str, int] = {}

    def add(slot: str, lines: list[str]) -> None:
        if slot in ("point", "constraint"):
            pieces = _sentences(lines)
        else:
            pieces = [" ".join(lines)] if lines else []
        for piece in pieces:
            counts[slot] = counts.get(slot, 0) + 1
            found.append((f"{slot} {counts[slot]}", piece))

    slot, lines = "point", []
    for raw in [*content.splitlines(), "\0"]:
        line = raw.strip()
        head, sample = _HEAD.match(line), _SAMPLE.match(line)
        if not (head or sample or line == "\0"):
            if line:
                lines.append(line)
            elif slot == "point":
                lines.append("")
            continue
        if sample and "output" in line.lower() and slot == "sample":
            lines.append("gives")
            continue
        add(slot, lines)
        slot, lines = "point", []
        if sample:
            slot = "sample"
        elif head:
            word = head.group(1).lower()
            slot = {"input": "input format", "output": "output format"}.get(word, "point")
            if word.startswith("constraint"):
                slot = "constraint"
    return found


def _sentences(lines: list[str]) -> list[str]:
    """Return the sentences of lines; a blank line or a bullet ends one."""
    groups: list[list[str]] = [[]]
    for line in lines:
        if not line or _BULLET.match(line):
            groups.append([])
        if line:
            groups[-1].append(_BULLET.sub("", line))
    pieces = [piece.strip() for group in groups for piece in _SENTENCE.split(" ".join(group))]
    return [piece for piece in pieces if re.search(r"\w", piece)]
