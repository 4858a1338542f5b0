"""The server inside the sandbox: takes jobs one after the other and forks a keeper for each.

Run as a file: `python -S -s -P -B worker.py CONFIG`. It is started by `envs.sandbox_code` and by nothing
else. Standard library only; what answers tend to import is loaded once, here, and shared by every fork.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import tempfile
from typing import Any

OWN = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, OWN)

import isolate  # noqa: E402
import keeper  # noqa: E402
import wire  # noqa: E402

_WARM = (
    "bisect collections copy datetime decimal functools hashlib heapq io itertools json math operator"
    " random re statistics string threading traceback typing"
)


def main() -> None:
    config: dict[str, Any] = json.loads(sys.argv[1])
    jobs, answers = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    for name in _WARM.split():
        __import__(name)
    sys.path.remove(OWN)
    proc, namespaces = config["proc"], config["level"] != "none"
    if config["level"] == "namespaces":
        isolate.enter_namespaces(proc, config["binds"])
        child = os.fork()
        if child:
            os.close(jobs)
            os.close(answers)
            os._exit(os.waitpid(child, 0)[1] != 0)
    if namespaces and os.geteuid() == 0 and config["root"]:
        isolate.become_nobody()
    if namespaces:
        isolate.set_dumpable(False)
    gc.collect()
    gc.freeze()
    wire.write_all(answers, wire.pack({"level": config["level"]}))
    while True:
        try:
            job = wire.read_frame(jobs)
        except wire.Closed:
            return
        _one(job, proc, namespaces, jobs, answers)


def _one(job: dict[str, Any], proc: int, namespaces: bool, jobs: int, answers: int) -> None:
    scratch = isolate.SCRATCH if namespaces else tempfile.mkdtemp(prefix="fluxforge-")
    job |= {"scratch": scratch, "own": OWN}
    child = os.fork()
    if child == 0:
        code = 1
        try:
            report = keeper.watch(job, proc, namespaces, jobs)
            wire.write_all(answers, wire.pack(report))
            code = 0
        except BaseException as error:
            os.write(2, f"keeper: {error!r}\n".encode())
        finally:
            os._exit(code)
    failed = os.waitpid(child, 0)[1] != 0
    if not namespaces:
        _remove(scratch)
    if failed:  # the tests may be unread: the host must start a new server
        wire.write_all(
            answers, wire.pack({"status": "fault", "reason": "the keeper failed", "restart": True})
        )


def _remove(folder: str) -> None:
    def again(function: Any, path: str, _error: object) -> None:
        try:
            os.chmod(os.path.dirname(path), 0o700)
            function(path)
        except OSError:
            pass

    shutil.rmtree(folder, onerror=again)


if __name__ == "__main__":
    main()
