"""One child process for a batch of untrusted queries: what a query does to it, it does to nobody else.

The child opens databases read-only (`envs/sandbox_sql.py`) under limits on memory, files and processes, with
an empty environment and in a session of its own. Requests and replies are JSON lines; nothing is unpickled.
A query past its deadline is ended by killing the child, which is then replaced, as it is after a crash and
after `BATCH` queries.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from envs.errors import FluxForgeError, GraderError
from envs.sandbox_sql import WALL_PER_CPU, ReadOnlyDatabase, Refused, Row

BATCH = 5000
"""Queries that one child answers before a fresh one takes over."""
MEMORY = 1 << 30
"""Bytes of address space of the child."""
_GRACE_S = 5.0  # on top of the query's own deadline, before the child is killed
_START_S = 60.0  # a loaded machine may take long to start an interpreter
_MAX_REPLY = 200_000_000
_OPEN = 16  # databases that the child keeps open
_ROOT = Path(__file__).resolve().parents[1]
_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from envs.sql_process import child; child()"


class SqlProcess:
    """A child that runs queries, started at the first one. Safe to share between threads: they take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._left = 0
        self._known: set[str] = set()  # images that the child holds

    def run(
        self,
        database: Path | bytes,
        sql: str,
        *,
        deadline_s: float = 1.0,
        errors: str = "replace",
        **limits: int,
    ) -> list[Row] | Refused:
        """Return the rows of one SELECT on a database file, or on the image of one, or why there are none.

        `deadline_s`, `errors` and `limits` are those of `ReadOnlyDatabase`. A query that brings its process
        down twice is refused. Raises `GraderError` if no process can be had or the database cannot be read.
        """
        if isinstance(database, bytes):
            source: dict[str, Any] = {"image": hashlib.sha256(database).hexdigest()}
        else:
            source = {"path": str(database), "errors": errors}
        request = source | {"sql": sql, "limits": {"deadline_s": deadline_s, **limits}}
        with self._lock:
            for _ in range(2):
                if self._left <= 0 or self._process is None or self._process.poll() is not None:
                    self._start()
                if isinstance(database, bytes) and request["image"] not in self._known:
                    request["bytes"] = base64.b64encode(database).decode()
                reply = self._ask(request, WALL_PER_CPU * deadline_s + _GRACE_S)
                if reply is not None:
                    self._known.add(request.get("image", ""))
                    break
            else:
                return Refused("it ended its process twice, by a crash or for lack of memory")
        if "late" in reply:
            return Refused(f"stopped after {deadline_s} s, its process was killed")
        if "fault" in reply:
            raise GraderError(f"the query could not be tried: {reply['fault']}")
        if "refused" in reply:
            return Refused(reply["refused"])
        return [tuple(_from_json(cell) for cell in row) for row in reply["rows"]]

    def close(self) -> None:
        """End the child. The next `run` starts another one."""
        with self._lock:
            self._kill()

    def _start(self) -> None:
        self._kill()
        command = [sys.executable, "-I", "-S", "-B", "-c", _CHILD, str(_ROOT)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                cwd=os.sep,
                start_new_session=True,
            )
        except OSError as error:
            raise GraderError(f"no process for queries could be started: {error}") from error
        self._buffer, self._left, self._known = b"", BATCH, set()
        if self._read(_START_S) != {"ready": True}:
            self._kill()
            raise GraderError(f"the process for queries did not come up within {_START_S:g} s")

    def _ask(self, request: dict[str, Any], wait_s: float) -> dict[str, Any] | None:
        """Return the reply, {"late": True} after killing a child that gives none, None if the child died."""
        assert self._process is not None and self._process.stdin is not None
        self._left -= 1
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            reply = self._read(wait_s)
        except OSError:
            reply = None
        if reply is None or "late" in reply:
            self._kill()
        return reply

    def _read(self, wait_s: float) -> dict[str, Any] | None:
        assert self._process is not None and self._process.stdout is not None
        stop, pieces, size = time.monotonic() + wait_s, [self._buffer], len(self._buffer)
        while b"\n" not in pieces[-1]:
            left = stop - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return {"late": True}
            piece = os.read(self._process.stdout.fileno(), 1 << 20)
            size += len(piece)
            if not piece:
                return None
            if size > _MAX_REPLY:
                self._kill()
                return {"refused": f"more than {_MAX_REPLY} bytes of rows"}
            pieces.append(piece)
        line, _, self._buffer = b"".join(pieces).partition(b"\n")
        return json.loads(line)

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()


@functools.cache
def _shared_of(pid: int) -> SqlProcess:
    process = SqlProcess()
    atexit.register(process.close)
    return process


def shared() -> SqlProcess:
    """Return the one `SqlProcess` of this process; a forked child gets its own."""
    return _shared_of(os.getpid())


def child() -> None:
    """Answer requests from standard input until it ends. Runs in the child only."""
    _confine()
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    images: dict[str, bytes] = {}

    @functools.lru_cache(maxsize=_OPEN)
    def opened(path: str | None, image: str | None, errors: str | None, limits: str) -> ReadOnlyDatabase:
        if image is not None:
            return ReadOnlyDatabase.from_image(images[image], **json.loads(limits))
        return ReadOnlyDatabase.open(Path(path or ""), errors=errors or "replace", **json.loads(limits))

    stdout.write(b'{"ready": true}\n')
    stdout.flush()
    for line in stdin:
        request = json.loads(line)
        if "bytes" in request:
            images[request["image"]] = base64.b64decode(request["bytes"])
        limits = json.dumps(request["limits"], sort_keys=True)
        try:
            base = opened(request.get("path"), request.get("image"), request.get("errors"), limits)
            found = base.run(request["sql"])
            answer: dict[str, Any] = (
                {"refused": found.reason}
                if isinstance(found, Refused)
                else {"rows": [[_to_json(cell) for cell in row] for row in found]}
            )
            reply = json.dumps(answer)
        except MemoryError:
            reply = '{"refused": "out of memory"}'
        except FluxForgeError as error:
            reply = json.dumps({"fault": str(error)})
        stdout.write(reply.encode() + b"\n")
        stdout.flush()


def _confine() -> None:
    import resource

    limits = {"AS": MEMORY, "CORE": 0, "FSIZE": 0, "NOFILE": 64, "NPROC": 0}
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is not None:
            # Not every system knows or keeps every limit; the deadline from outside holds everywhere.
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(kind, (value, value))


def _to_json(cell: Any) -> Any:
    return {"hex": cell.hex()} if isinstance(cell, bytes) else cell


def _from_json(cell: Any) -> Any:
    return bytes.fromhex(cell["hex"]) if isinstance(cell, dict) else cell
