"""`fluxforge eval` with models of its own: base agent and tracker in one local engine, recorded and replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipes import cli
from recipes.cases import read_cases
from tests.recipes.tinyruns import save_model

ENGINE = [
    "--engine.kind=local",
    "--engine.dtype=float32",
    "--engine.threads=1",
    "--engine.max_model_len=4096",
]


def test_a_smoke_run_of_every_harness_with_a_local_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = str(save_model(tmp_path / "model"))
    words = [
        f"--base={model}",
        "--smoke",
        "--families=calls",
        "--cases=1",
        "--limits.answer_tokens=6",
        *ENGINE,
    ]
    words += ["--limits.reply_tokens=4", "--limits.tracker_tokens=4", "--limits.state_chars=40"]
    assert cli.main(["record", "--name=r", *words]) == 0
    frozen = "runs/r/trajectories.jsonl"
    assert cli.main(["eval", "--name=e", f"--tracker={model}", f"--replay={frozen}", *words]) == 0
    told = json.loads(Path("runs/e/result.json").read_text())
    found = read_cases(Path("runs/e/cases.jsonl"))
    assert told["models"] == {model: model} and told["ungraded"] == 0
    assert len(found) == 10 and len({case.harness for case in found}) == 10
    assert all(case.full_credit for case in found if case.harness == "executor@oracle")
    recorded = {case.case: case.history for case in read_cases(Path("runs/r/cases.jsonl"))}
    for case in found:
        if case.condition == "drift":
            replies = [turn.reply for turn in recorded[case.case][:-1]]
            assert [turn.reply for turn in case.history[:-1]] == replies
