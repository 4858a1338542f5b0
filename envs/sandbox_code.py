"""Run untrusted Python: own users, processes, network and files, limits on everything, a deadline outside.

    sandbox = shared(SandboxConfig())
    run = sandbox.script("print(input()[::-1])", stdin="abc\\n")           # run.status "ok", run.out "cba\\n"
    run = sandbox.check("def f(x): return x + 1", "f", "def check(f): assert f(1) == 2")  # "passed"

One server process a sandbox stays warm and forks a run in about 10 ms; no run sees another one. What the code
does wrong is a `Run` with its status; an exception from here is our own fault (`GraderError`).
docs/code.md describes the levels and what each of them holds off.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from envs.errors import ConfigError, GraderError, unknown_name
from envs.sandbox import launch
from envs.sandbox.codec import decode
from envs.sandbox.wire import BadFrame, Closed, pack, unpack

LEVELS = ("bubblewrap", "namespaces", "none")
_WORKER = Path(__file__).parent / "sandbox" / "worker.py"
_START_S = 60.0
_GRACE_S = 30.0  # beyond a run's own deadline, for a machine under load
_TRIES = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use."""

    wall_s: float = 10.0
    """Seconds on the clock from the start to the end, tests included."""
    cpu_s: int = 10
    """Seconds of processor time, of each process."""
    call_s: float | None = None
    """Seconds on the clock for one call; None: only `wall_s` counts."""
    memory_mb: int = 1024
    """Address space of each process."""
    processes: int = 16
    """Processes and threads at a time."""
    output_bytes: int = 4 << 20
    """Bytes of standard output, of standard error, and of results; more is a flood and ends the run."""
    scratch_mb: int = 32
    """Size of the scratch folder, and of any one file."""
    files: int = 64
    """Open files of each process."""
    patience: int = 0
    """How often a run that the clock ended, not the processor limit, is repeated with three times the clock."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and (value < 0 or (value == 0 and name != "patience")):
                raise ConfigError(f"sandbox limit {name} is too small: {value}")


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """How to isolate. `level` "auto" takes the first of bubblewrap and namespaces that works here."""

    level: str = "auto"
    allow_unsandboxed: bool = False
    """Whether "none" may be used where nothing else works: limits and a deadline, but no isolation."""
    paths: tuple[str, ...] = ()
    """Further folders that answers may import from, read-only (a site-packages with numpy, say)."""

    def __post_init__(self) -> None:
        if self.level not in ("auto", *LEVELS):
            raise unknown_name("sandbox level", self.level, ("auto", *LEVELS))
        if self.level == "none" and not self.allow_unsandboxed:
            raise ConfigError('sandbox level "none" isolates nothing: it needs allow_unsandboxed=True')


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one run.

    `status`: "ok" (a script that ended with exit code 0), "passed", "failed" (a test did not hold), "raised"
    (the code raised), "died" (exit, crash, nonsense in the result channel), "timeout", "flood".
    `value` is what `check` returned; `odd` says that a result was not exactly built-in data, `changed` that
    a call changed its arguments; `calls` counts the calls.
    """

    status: str
    reason: str
    level: str
    value: Any = None
    out: str = ""
    err: str = ""
    exit: int | None = None
    wall_s: float = 0.0
    odd: bool = False
    changed: bool = False
    calls: int = 0
    clock: bool = False
    """Whether it was the clock that ended the run."""


class _Lost(Exception):
    """The server is gone or talks nonsense; the run may be tried again with a new one."""


@dataclass(slots=True)
class _Server:
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    owner: int = field(default_factory=os.getpid)

    def ask(self, frames: bytes, seconds: float) -> dict[str, Any]:
        """Send frames and read one answer. Raises `_Lost`."""
        assert self.process.stdin is not None and self.process.stdout is not None
        into, out = self.process.stdin.fileno(), self.process.stdout.fileno()
        until, held, sent = time.monotonic() + seconds, bytearray(), memoryview(frames)
        poll = select.poll()  # not select(): the host may have thousands of files open
        poll.register(out, select.POLLIN)
        if sent:
            poll.register(into, select.POLLOUT)
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise _Lost(f"no answer in {seconds:.0f} s")
            ready = {fd for fd, _ in poll.poll(left * 1000 + 1)}
            try:
                if into in ready:
                    sent = sent[os.write(into, sent[:4096]) :]  # at most what a pipe takes without blocking
                    if not sent:
                        poll.unregister(into)
                if out in ready:
                    part = os.read(out, 1 << 20)
                    if not part:
                        raise _Lost(f"the server ended: {self._said()}")
                    held += part
                    if len(held) >= 4 and len(held) >= 4 + int.from_bytes(held[:4], "big"):
                        return unpack(bytes(held[4:]))
            except (OSError, BadFrame, Closed) as error:
                raise _Lost(f"{error} {self._said()}") from None

    def kill(self) -> None:
        """Kill the server and with it every process of the sandbox."""
        if self.owner == os.getpid():
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self.process.kill()
            self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.errors):
            if file is not None:
                with contextlib.suppress(OSError):  # bytes that the dead server did not take
                    file.close()

    def _said(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-500:].decode("utf-8", "replace").strip().replace("\n", " | ")


class Sandbox:
    """A warm sandbox. Runs take turns; it may be shared between threads. Use as a context manager, or `close`.

    Raises `GraderError` where no level works; the message names what was tried, and why it failed.
    """

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self.level = ""
        self.refused: dict[str, str] = {}
        """Levels that do not work here, with the reason."""
        self._choose()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server. A later run starts a new one."""
        with self._lock:
            self._stop()

    def script(self, code: str, stdin: str = "", limits: Limits | None = None) -> Run:
        """Run `code` as a program with `stdin`; its output is in the result. Compare it out here."""
        return self._run({"kind": "script", "code": code, "stdin": stdin, "entry": None}, limits, None)

    def check(self, code: str, entry: str | None, tests: str, limits: Limits | None = None) -> Run:
        """Load `code`, then run `check(candidate)` of the trusted source `tests` in another process.

        `candidate(*args)` calls the expression `entry` ("f", "Solution().f") over there: arguments and
        results pass as plain data, so tests and expected values stay out of the code's reach.
        Without tests ("") the run passes when the code loads.
        """
        return self._run({"kind": "check", "code": code, "stdin": "", "entry": entry}, limits, tests)

    def _run(self, job: dict[str, Any], limits: Limits | None, tests: str | None) -> Run:
        limits = limits or Limits()
        run = self._once(job, limits, tests)
        for _ in range(limits.patience):
            if not run.clock:  # on a starved machine an answer that is right may not get its turn
                break
            call_s = None if limits.call_s is None else 3 * limits.call_s
            limits = replace(limits, wall_s=3 * limits.wall_s, call_s=call_s)
            run = self._once(job, limits, tests)
        return run

    def _once(self, job: dict[str, Any], limits: Limits, tests: str | None) -> Run:
        job |= {**asdict(limits), "nonce": secrets.token_hex(16), "paths": list(self.config.paths)}
        frames = pack(job) + (b"" if tests is None else pack({"source": tests}))
        problem = ""
        for _ in range(_TRIES):
            with self._lock:
                try:
                    report = self._running().ask(frames, limits.wall_s + _GRACE_S)
                except _Lost as lost:
                    problem = str(lost)
                    self._stop()
                    continue
                if report.get("restart"):
                    self._stop()
            if report["status"] != "fault":
                report["value"] = decode(report["value"])
                return Run(level=self.level, **report)
            problem = report["reason"]
            if not report.get("restart"):
                break
        raise GraderError(f"the code sandbox ({self.level}) failed on a run: {problem}")

    def _running(self) -> _Server:
        if self._server is not None and self._server.owner != os.getpid():
            self._server = None  # a fork: the server belongs to the parent
        if self._server is None:
            self._server = self._start(self.level)
        return self._server

    def _stop(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server = None

    def _choose(self) -> None:
        wanted = LEVELS if self.config.level == "auto" else (self.config.level,)
        for level in wanted:
            if level == "none" and not self.config.allow_unsandboxed:
                continue
            try:
                self._server = self._start(level)
                self.level = level
                if level != "none":
                    self._probe()
                return
            except (_Lost, OSError, GraderError) as error:
                self._stop()
                self.refused[level] = str(error)
        tried = "; ".join(f"{level}: {reason}" for level, reason in self.refused.items())
        raise GraderError(
            f"no isolation for untrusted code works here ({tried}). Install bubblewrap, or allow user "
            "namespaces, or run in a throw-away container with allow_unsandboxed."
        )

    def _probe(self) -> None:
        """Look at the level from inside. Raises `GraderError` where it does not hold what it promises."""
        run = self.check(launch.PROBE, "look", "def check(look): return look()", Limits(wall_s=30.0))
        if run.status != "passed":
            raise GraderError(f"the probe inside did not run: {run.status}, {run.reason}")
        open_doors = [name for name, closed in run.value.items() if not closed]
        if open_doors:
            raise GraderError(f"not isolated: {', '.join(open_doors)}")

    def _start(self, level: str) -> _Server:
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY) if sys.platform == "linux" else -1
        binds = launch.binds(self.config.paths)
        config = {"level": level, "proc": proc, "binds": binds, "root": os.geteuid() == 0}
        worker = str(_WORKER)
        try:
            before = launch.bubblewrap(binds, worker) if level == "bubblewrap" else []
            worker = f"{launch.INSIDE}/{_WORKER.name}" if before else worker
            python = [os.path.realpath(sys.executable), "-S", "-s", "-P", "-B"]
            errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the server)
            server = _Server(
                subprocess.Popen(
                    [*before, *python, worker, json.dumps(config)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    bufsize=0,
                    env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
                    cwd="/",
                    pass_fds=[proc] if proc >= 0 else [],
                    start_new_session=True,
                ),
                errors,
            )
        finally:
            if proc >= 0:
                os.close(proc)
        try:
            server.ask(b"", _START_S)
        except _Lost:
            server.kill()
            raise
        return server


@functools.cache
def _shared(config: SandboxConfig, _pid: int) -> Sandbox:
    sandbox = Sandbox(config)
    atexit.register(sandbox.close)
    return sandbox


def shared(config: SandboxConfig | None = None) -> Sandbox:
    """Return this process's sandbox for a configuration, started on first use, ended at exit."""
    return _shared(config or SandboxConfig(), os.getpid())
