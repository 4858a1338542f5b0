"""The process that watches one run: it starts the guest, feeds it, cuts it off, and runs the tests.

It knows what the guest must not know (tests, expected values), and learns them only after the guest has
been split off. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import time
from typing import Any

import guest
import isolate
import wire
from codec import decode, encode

_SETTLE_S = 2.0


class AnswerRaised(Exception):
    """The untrusted code raised; its text came over, its object did not."""


class Ended(BaseException):
    """The run is over before the tests are: no test may catch this."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status, self.reason = status, reason


class Keeper:
    """One run. `job` holds the code and the limits, nothing of the tests."""

    def __init__(self, job: dict[str, Any], proc: int, namespaces: bool) -> None:
        self.job, self.namespaces, self.proc = job, namespaces, proc
        self.output = {"out": bytearray(), "err": bytearray()}
        self.flags = {"odd": False, "changed": False, "calls": 0}
        self.inbox = bytearray()
        self.started = time.monotonic()
        self.deadline = self.started + job["wall_s"]
        self.exit: int | None = None

    def start(self) -> None:
        """Split the guest off; from here on it runs."""
        if self.namespaces:
            isolate.enter_run(self.proc, self.job["scratch_mb"])
        else:
            isolate.adopt_orphans()
        if hasattr(os, "memfd_create"):
            stdin = os.memfd_create("stdin")
        else:
            stdin = os.open(os.path.join(self.job["scratch"], ".stdin"), os.O_RDWR | os.O_CREAT)
        wire.write_all(stdin, self.job["stdin"].encode("utf-8", "surrogateescape"))
        os.lseek(stdin, 0, os.SEEK_SET)
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        life_r, life_w = os.pipe()
        mine, its = socket.socketpair()
        self.init = os.fork()
        if self.init == 0:
            try:
                self._init(stdin, out_w, err_w, its.fileno(), life_w)
            finally:
                os._exit(125)
        for fd in (stdin, out_w, err_w, life_w):
            os.close(fd)
        its.close()
        self.channel = mine
        self.open = {out_r: "out", err_r: "err", life_r: "life", mine.fileno(): "channel"}
        self.poll = select.poll()
        for fd in self.open:
            os.set_blocking(fd, False)
            self.poll.register(fd, select.POLLIN)
        isolate.drop_capabilities()

    def _init(self, stdin: int, out: int, err: int, channel: int, life: int) -> None:
        """Process 1 of the run. When it ends the kernel ends all others of the run."""
        isolate.die_with_parent()
        if not self.namespaces:
            os.setsid()
            isolate.adopt_orphans()
        isolate.die_first(self.proc)
        child = os.fork()
        if child == 0:
            try:
                guest.run(self.job, stdin, out, err, channel)
            finally:
                os._exit(124)
        os.closerange(0, life)
        os.closerange(life + 1, 1 << 16)
        isolate.drop_capabilities()
        while True:
            pid, status = os.wait()
            if pid == child:
                break
        if not self.namespaces:
            kill_children()
        os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))

    def pump(self, wanted: str, seconds: float | None = None) -> Any:
        """Move data until a message is here ("message") or the run is over ("end").

        Raises `Ended` at the deadline, on a flood of output, and where the guest is gone without a message.
        """
        until = self.deadline if seconds is None else min(self.deadline, time.monotonic() + seconds)
        while True:
            if wanted == "message" and (message := self._message()) is not None:
                return message
            if not self.open or (wanted == "message" and "channel" not in self.open.values()):
                if wanted == "end":
                    return None
                raise Ended("died", "the process ended before it answered")
            left = until - time.monotonic()
            if left <= 0:
                raise Ended("timeout", f"no end after {time.monotonic() - self.started:.1f} s")
            for fd, _ in self.poll.poll(min(left, 60.0) * 1000 + 1):
                self._take(fd)

    def _take(self, fd: int) -> None:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        name = self.open[fd]
        if not data:
            self.poll.unregister(fd)
            del self.open[fd]
            return
        into = self.inbox if name == "channel" else self.output.get(name)
        if into is None:
            return
        into += data
        if len(into) > self.job["output_bytes"]:
            raise Ended("flood", f"more than {self.job['output_bytes']} bytes of output")

    def _message(self) -> Any:
        if len(self.inbox) < 4:
            return None
        size = int.from_bytes(self.inbox[:4], "big")
        if size > self.job["output_bytes"]:
            raise Ended("died", "the process wrote nonsense into the result channel")
        if len(self.inbox) < 4 + size:
            return None
        body = bytes(self.inbox[4 : 4 + size])
        del self.inbox[: 4 + size]
        try:
            message = wire.unpack(body)
            if message["nonce"] != self.job["nonce"]:
                raise KeyError
        except (wire.BadFrame, TypeError, KeyError):
            raise Ended("died", "the process wrote nonsense into the result channel") from None
        return message

    def call(self, *args: Any) -> Any:
        """Call the entry point over there; return its plain result or raise `AnswerRaised`."""
        data = wire.pack({"args": encode(list(args))})
        self.flags["calls"] += 1
        while data:
            try:
                data = data[self.channel.send(data) :]
            except BlockingIOError:
                if time.monotonic() > self.deadline:
                    raise Ended("timeout", "the process does not read its arguments") from None
                time.sleep(0.001)
            except OSError:
                raise Ended("died", "the process ended before it was called") from None
        message = self.pump("message", self.job["call_s"])
        if "raised" in message:
            raise AnswerRaised(str(message["raised"]))
        self.flags["odd"] |= bool(message.get("odd"))
        self.flags["changed"] |= bool(message.get("changed"))
        try:
            return decode(message.get("value"))
        except ValueError:
            raise Ended("died", "the process wrote nonsense into the result channel") from None

    def check(self, source: str) -> tuple[str, str, Any]:
        """Wait for the code to load, run the tests; return status, reason and what `check` returned."""
        message = self.pump("message")
        if "raised" in message:
            return "raised", str(message["raised"]), None
        if not source:
            return "passed", "", None
        namespace: dict[str, Any] = {}
        random.seed(0)
        try:
            exec(compile(source, "tests.py", "exec"), namespace)
            check = namespace["check"]
        except Exception as error:
            return "fault", f"the tests cannot be loaded: {error!r}", None
        signal.signal(signal.SIGALRM, _alarm)
        signal.setitimer(signal.ITIMER_REAL, max(0.001, self.deadline - time.monotonic()))
        try:
            value = check(self.call)
        except AnswerRaised as error:
            return "raised", str(error), None
        except Exception as error:  # an assertion, or a result with which the tests cannot work
            return "failed", f"{type(error).__name__}: {error}"[:300], None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return "passed", "", value

    def settle(self) -> None:
        """Wait a moment for a run that ends by itself, so that its exit code tells why."""
        until = time.monotonic() + _SETTLE_S
        while "life" in self.open.values() and time.monotonic() < until:
            for fd, _ in self.poll.poll(100):
                name, data = self.open[fd], b""
                with contextlib.suppress(OSError):
                    data = os.read(fd, 1 << 16)
                if not data or name != "life":
                    self.poll.unregister(fd)
                    del self.open[fd]

    def end(self) -> None:
        """End every process of the run and wait for them."""
        pid, status = os.waitpid(self.init, os.WNOHANG)
        if pid == 0 and "life" not in self.open.values():
            pid, status = os.waitpid(self.init, 0)  # it is on its way out
        if pid == 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
            _, status = os.waitpid(self.init, 0)
        self.exit = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        if not self.namespaces:
            kill_children()


def _alarm(_number: int, _frame: object) -> None:
    raise Ended("timeout", "the tests do not come to an end")


def kill_children() -> None:
    """Kill every child, and the orphans that come to us by that, until none is left."""
    for _ in range(10_000):
        for pid in _children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _children() -> list[int]:
    me, found = str(os.getpid()), []
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="latin-1") as file:
                    if file.read().rpartition(")")[2].split()[1] == me:
                        found.append(int(name))
            except (OSError, IndexError):
                continue
    return found


def watch(job: dict[str, Any], proc: int, namespaces: bool, jobs: int) -> dict[str, Any]:
    """Do one job from start to end; `jobs` is where the tests come from once the guest is split off."""
    keeper = Keeper(job, proc, namespaces)
    keeper.start()
    status, reason, value = "ok", "", None
    tests = wire.read_frame(jobs) if job["kind"] == "check" else None
    try:
        if tests is None:
            keeper.pump("end")
        else:
            status, reason, value = keeper.check(tests["source"])
    except Ended as ended:
        status, reason = ended.status, ended.reason
        if status == "died":
            keeper.settle()
    finally:
        keeper.end()
    if job["kind"] == "script" and status == "ok" and keeper.exit:
        status, reason = "died", f"exit code {keeper.exit}"
    if keeper.exit == 128 + signal.SIGXCPU and status in ("died", "ok"):
        status, reason = "timeout", f"more than {job['cpu_s']} s of processor time"
    return {
        "clock": status == "timeout" and keeper.exit != 128 + signal.SIGXCPU,
        "status": status,
        "reason": reason,
        "value": encode(value),
        "out": keeper.output["out"].decode("utf-8", "replace"),
        "err": keeper.output["err"].decode("utf-8", "replace"),
        "exit": keeper.exit,
        "wall_s": round(time.monotonic() - keeper.started, 4),
        **keeper.flags,
    }
