"""Runs `fluxforge ...` with a fault, each run in a process of its own.

Imports take longer than a toy run, so one process does them and forks for each order. Orders come as JSON lines
on stdin, {"folder", "argv", "fault", "out", "err"}; the answers are `pid N`, then `exit N` (negative: a signal).

A fault is empty, or `<what>@<where>:<n>`: at the n-th time (from 1) that the run comes to `where`, it gets

    kill   SIGKILL, from the kernel: nothing of this process runs any more
    int    SIGINT, as Ctrl-C gives
    int2   SIGINT twice
    full   no file can grow beyond 1 MiB from then on, as on a full disk

`where` is one of

    train      inside an optimizer step: gradients are made, weights not yet changed
    turn       in a training rollout: one more turn is finished, others are not
    write      one file of a checkpoint is half written
    rename     a checkpoint is written but not yet visible
    visible    a checkpoint is visible, old ones are not yet deleted
    evaluate   an evaluation was played but not kept
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

LLAMA = "transformers.models.llama.modeling_llama"


def serve() -> None:
    """Answer orders until stdin ends."""
    for module in ("recipes.opd", "recipes.preflight", "rollout.local_engine", LLAMA):
        importlib.import_module(module)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            obey(order)
        print("pid", pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print("exit", os.waitstatus_to_exitcode(status), flush=True)


def obey(order: dict[str, Any]) -> NoReturn:
    """Run the order in this process, which ends with it."""
    for number, path in ((1, order["out"]), (2, order["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order["folder"])
    code = 70
    try:
        code = main(order["fault"], order["argv"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(fault: str, argv: list[str]) -> int:
    if fault:
        what, _, rest = fault.partition("@")
        where, _, number = rest.partition(":")
        install(where, at(int(number or 1), STRIKES[what]))
    from recipes.cli import main as fluxforge

    return fluxforge(argv)


def strike(number: int) -> None:
    os.kill(os.getpid(), number)


STRIKES: dict[str, Callable[[], None]] = {
    "kill": lambda: strike(signal.SIGKILL),
    "int": lambda: strike(signal.SIGINT),
    "full": lambda: resource.setrlimit(
        resource.RLIMIT_FSIZE, (2**20, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    ),
    "int2": lambda: (strike(signal.SIGINT), strike(signal.SIGINT), None)[-1],
}


def at(number: int, action: Callable[[], None]) -> Callable[[], None]:
    """Return a function that does `action` the `number`-th time it is called."""
    count = 0

    def hit() -> None:
        nonlocal count
        count += 1
        if count == number:
            action()

    return hit


def install(where: str, hit: Callable[[], None]) -> None:
    """Call `hit` whenever the run comes to `where`; what the run does is left as it is."""
    import recipes.evaluate
    import trainer.checkpoint
    import trainer.opd
    import trainer.optim

    places: dict[str, tuple[Any, str]] = {
        "train": (trainer.optim.MasterAdamW, "step"),
        "turn": (trainer.opd, "collect"),
        "rename": (trainer.checkpoint, "_free_name"),
        "visible": (trainer.checkpoint, "_prune"),
        "evaluate": (recipes.evaluate.Evaluation, "save"),
        "write": (trainer.checkpoint, "save_file"),
    }
    owner, name = places[where]
    original = getattr(owner, name)

    def before(*args: Any, **more: Any) -> Any:
        hit()
        return original(*args, **more)

    def half_written(tensors: Any, path: Path) -> None:
        original(tensors, path)
        os.truncate(path, Path(path).stat().st_size // 2)
        hit()
        original(tensors, path)

    def turn_by_turn(*args: Any, **more: Any) -> Any:
        return original(*args, **more, on_turn=lambda trajectory, turn: hit())

    setattr(owner, name, {"write": half_written, "turn": turn_by_turn}.get(where, before))


if __name__ == "__main__":
    serve()
