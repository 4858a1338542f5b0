"""Frames of JSON over file descriptors: four bytes of length, then the text. Standard library only."""

from __future__ import annotations

import json
import os
from typing import Any

MAX_FRAME = 1 << 30


class Closed(EOFError):
    """The other side is gone."""


class BadFrame(ValueError):
    """Bytes that are no frame, or one above the limit."""


def pack(message: Any) -> bytes:
    """Return the frame of a message."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return len(body).to_bytes(4, "big") + body


def write_all(fd: int, data: bytes) -> None:
    """Write every byte. Raises `OSError`."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_frame(fd: int, limit: int = MAX_FRAME) -> Any:
    """Read exactly one frame, no byte more. Raises `Closed`, `BadFrame`."""
    size = int.from_bytes(_exactly(fd, 4), "big")
    if size > limit:
        raise BadFrame(f"a frame of {size} bytes")
    return unpack(_exactly(fd, size))


def unpack(body: bytes) -> Any:
    """Return the message of a frame's body. Raises `BadFrame`."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"no JSON: {error}") from None


def _exactly(fd: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise Closed("end of file in the middle of a frame")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
