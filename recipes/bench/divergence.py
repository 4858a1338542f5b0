"""The fused divergence against TRL's chunked one and the naive one: time, extra memory, values, gradients.

    python -m recipes.bench.divergence [--json]

Time: the contenders take turns in one process, the best of some rounds counts. Extra memory: one call in a process of
its own, peak resident memory over what was there before, less the gradients that every contender returns.

Shape suffixes: N tokens, D and E widths of student and teacher, V vocabulary.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envs.errors import FluxForgeError
from trainer.divergence import fused_divergence

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
Result = tuple[float, Tensor, Tensor]

CASES = {
    "512x49152 D=576": (512, 49152, 576, 576, torch.float32),  # the tiny tracker and its frozen start
    "512x49152 D=576 bf16": (512, 49152, 576, 576, torch.bfloat16),  # the same as a run trains it
    "1024x151936 D=128/256": (1024, 151936, 128, 256, torch.float32),
}
BETA = 1.0
ROUNDS = 3


def make_inputs(case: str, seed: int = 0) -> Inputs:
    """Return student_ND, student_head_VD, teacher_NE, teacher_head_VE; logits have a deviation of 2."""
    N, V, D, E, dtype = CASES[case]
    rng = torch.Generator().manual_seed(seed)
    heads = [torch.randn(V, width, generator=rng).mul_(2 * width**-0.5).to(dtype) for width in (D, E)]
    hidden = [torch.randn(N, width, generator=rng).to(dtype) for width in (D, E)]
    return hidden[0], heads[0], hidden[1], heads[1]


def ours(inputs: Inputs, beta: float) -> Result:
    student_ND, head_VD, teacher_NE, teacher_head_VE = _leaves(inputs)
    weights_N = torch.full((len(student_ND),), 1.0 / len(student_ND))
    loss, _ = fused_divergence(student_ND, head_VD, teacher_NE, teacher_head_VE, weights_N, beta)
    return _finish(loss, student_ND, head_VD)


def trl(inputs: Inputs, beta: float) -> Result:
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    student_ND, head_VD, teacher_NE, teacher_head_VE = _leaves(inputs)
    D_N, _ = ChunkedDivergenceFunction.apply(  # type: ignore[misc]
        student_ND, head_VD, None, teacher_NE, teacher_head_VE, None, beta
    )
    return _finish(D_N.mean(), student_ND, head_VD)


def naive(inputs: Inputs, beta: float) -> Result:
    """All logits at once; the formula as it is written in `trainer.divergence`."""
    student_ND, head_VD, teacher_NE, teacher_head_VE = _leaves(inputs)
    logq_NV = (student_ND @ head_VD.T).log_softmax(-1)
    logp_NV = (teacher_NE @ teacher_head_VE.T).log_softmax(-1)
    if beta == 1.0:
        D_N = (logq_NV.exp() * (logq_NV - logp_NV)).sum(-1)
    elif beta == 0.0:
        D_N = (logp_NV.exp() * (logp_NV - logq_NV)).sum(-1)
    else:
        logm_NV = ((1 - beta) * logq_NV.exp() + beta * logp_NV.exp()).log()
        D_N = beta * (logp_NV.exp() * (logp_NV - logm_NV)).sum(-1)
        D_N = D_N + (1 - beta) * (logq_NV.exp() * (logq_NV - logm_NV)).sum(-1)
    return _finish(D_N.mean(), student_ND, head_VD)


CONTENDERS: dict[str, Callable[[Inputs, float], Result]] = {"ours": ours, "trl": trl, "naive": naive}


def _leaves(inputs: Inputs) -> Inputs:
    student_ND, head_VD, teacher_NE, teacher_head_VE = inputs
    return (
        student_ND.detach().requires_grad_(),
        head_VD.detach().requires_grad_(),
        teacher_NE,
        teacher_head_VE,
    )


def _finish(loss: Tensor, student_ND: Tensor, head_VD: Tensor) -> Result:
    loss.backward()
    assert student_ND.grad is not None and head_VD.grad is not None
    return loss.item(), student_ND.grad, head_VD.grad


def measure_times(case: str, beta: float) -> dict[str, float]:
    """Return the best seconds of each contender (forward and backward), taken in turn."""
    inputs = make_inputs(case)
    best = dict.fromkeys(CONTENDERS, float("inf"))
    for round_number in range(ROUNDS + 1):
        for name, contender in CONTENDERS.items():
            started = time.perf_counter()
            contender(inputs, beta)
            if round_number:  # the first round warms up
                best[name] = min(best[name], time.perf_counter() - started)
    return best


def measure_differences(case: str, beta: float) -> dict[str, float]:
    """Return relative differences of ours to TRL: of the loss, and of both gradients (largest over largest)."""
    inputs = make_inputs(case)
    (a, a_ND, a_VD), (b, b_ND, b_VD) = ours(inputs, beta), trl(inputs, beta)
    return {
        "value_difference": abs(a - b) / abs(b),
        "hidden_grad_difference": _difference(a_ND, b_ND),
        "head_grad_difference": _difference(a_VD, b_VD),
    }


def _difference(a: Tensor, b: Tensor) -> float:
    return ((a.float() - b.float()).abs().max() / b.float().abs().max()).item()


def measure_memory(case: str, contender: str, beta: float) -> float:
    """Return the extra bytes of one call in this process, the returned gradients not counted."""
    inputs = make_inputs(case)
    small = (torch.randn(2, 8), torch.randn(16, 8), torch.randn(2, 8), torch.randn(16, 8))
    CONTENDERS[contender](small, beta)  # imports and thread pools
    before = _reset_peak()
    CONTENDERS[contender](inputs, beta)
    returned = inputs[0].nbytes + inputs[1].nbytes
    return max(_peak() - before - returned, 1.0)


def _reset_peak() -> float:
    """Start the peak of this process anew where the system can, and return what it stands at."""
    with contextlib.suppress(OSError):  # without it the peak still counts what making the inputs took
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> float:
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * scale


def _child(*arguments: str) -> Any:
    """Run a measurement in a process of its own and return its JSON."""
    command = [sys.executable, "-m", "recipes.bench.divergence", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    if done.returncode != 0:
        raise FluxForgeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(case: str, beta: float = BETA) -> dict[str, Any]:
    """Return times (s), extra memory (MB) and differences of one case."""
    return {
        "case": case,
        "beta": beta,
        "seconds": _child("--measure", "times", "--case", case, "--beta", str(beta)),
        "extra_mb": {
            name: _child("--measure", name, "--case", case, "--beta", str(beta)) / 1e6 for name in CONTENDERS
        },
        **_child("--measure", "differences", "--case", case, "--beta", str(beta)),
    }


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for case in CASES:
        got = measure(case)
        seconds, memory = got["seconds"], got["extra_mb"]
        for other, time_goal, memory_goal in (("trl", "at least 3", "at least 10"), ("naive", None, None)):
            entry = {
                "ours": seconds["ours"],
                "other": seconds[other],
                "ratio": seconds[other] / seconds["ours"],
            }
            found.append({"row": f"divergence {case}, s against {other}", **entry, "goal": time_goal})
            entry = {"ours": memory["ours"], "other": memory[other], "ratio": memory[other] / memory["ours"]}
            found.append(
                {"row": f"divergence {case}, extra MB against {other}", **entry, "goal": memory_goal}
            )
        for key in ("value_difference", "hidden_grad_difference", "head_grad_difference"):
            name = key.replace("_", " ")
            exact = key == "value_difference" or CASES[case][4] == torch.float32
            goal = "at most 1e-5" if exact else "rounding of bfloat16"
            entry = {"ours": got[key], "other": None, "ratio": None, "goal": goal}
            found.append({"row": f"divergence {case}, {name} to trl", **entry})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--beta", type=float, default=BETA)
    parser.add_argument("--measure", choices=["times", "differences", *CONTENDERS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = options.case or list(CASES)
    if options.measure == "times":
        print(json.dumps(measure_times(cases[0], options.beta)))
    elif options.measure == "differences":
        print(json.dumps(measure_differences(cases[0], options.beta)))
    elif options.measure:
        print(json.dumps(measure_memory(cases[0], options.measure, options.beta)))
    else:
        results = [measure(case, options.beta) for case in cases]
        print(json.dumps(results, indent=1) if options.json else _table(results))


def _table(results: list[dict[str, Any]]) -> str:
    lines = [f"{'case':24} {'beta':>4} {'':>6} {'s':>8} {'ratio':>6} {'extra MB':>9} {'ratio':>6}"]
    for got in results:
        for name in CONTENDERS:
            s, mb = got["seconds"], got["extra_mb"]
            faster, smaller = s[name] / s["ours"], mb[name] / mb["ours"]
            lines.append(
                f"{got['case']:24} {got['beta']:4} {name:>6} {s[name]:8.2f} {faster:6.2f} "
                f"{mb[name]:9.0f} {smaller:6.1f}"
            )
        lines.append(
            f"{'':24} to trl, relative: value {got['value_difference']:.1e}, "
            f"hidden gradient {got['hidden_grad_difference']:.1e}, head gradient {got['head_grad_difference']:.1e}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
