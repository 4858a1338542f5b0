"""`fluxforge eval` over a real HTTP endpoint: tokens counted, faults retried, a dead address refused at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes import cli
from recipes.cases import read_cases
from tests.envs.stubserver import Action, close, fail, say, serve
from tests.recipes.evalruns import SMALL

ROWS = "--harnesses=bare,stateforge+no-conclusions,recap-state"


def run(url: str, *words: str) -> int:
    model = f"openai:{url}#org/m"
    return cli.main(["eval", "--name=e", f"--base={model}", f"--tracker={model}", ROWS, *SMALL, *words])


def test_a_run_over_an_endpoint_survives_faults_and_counts_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def script(number: int, body: dict) -> Action:
        if number % 10 == 3:
            return fail(503)
        if number % 10 == 7:
            return close
        asked = body["messages"][-1]["content"]
        return say("PASS" if asked.startswith("Check a draft") else "KEEP")

    with serve(script=script) as stub:
        assert run(stub.url) == 0
    found = read_cases(tmp_path / "runs" / "e" / "cases.jsonl")
    assert len(found) == 9 and {case.harness for case in found} == {
        *("bare", "stateforge+no-conclusions", "recap-state")
    }
    bare = [case for case in found if case.harness == "bare"]
    assert all(case.prompt_tokens == 7 * case.turns and case.output_tokens == 3 * case.turns for case in bare)
    assert all(case.tracker_tokens > 0 for case in found if case.harness.startswith("stateforge"))
    assert sum(case.retries for case in found) > 0
    assert all(0 < case.engine_seconds <= case.seconds for case in found)


def test_a_server_that_goes_down_leaves_cases_ungraded_that_run_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    patience = ["--endpoint.retries=1"]
    with serve(script=lambda number, body: say("KEEP") if number < 60 else fail(500)) as stub:
        assert run(stub.url, *patience) == 1
        before = read_cases(tmp_path / "runs" / "e" / "cases.jsonl")
        lost = [case for case in before if case.error is not None]
        assert len(before) == 9 and lost and all(case.score is None for case in lost)
        assert all("EndpointError" in (case.error or "") for case in lost)
        stub.script = lambda number, body: say("KEEP")
        assert cli.main(["eval", "--resume", "--name=e", *patience]) == 0
    after = read_cases(tmp_path / "runs" / "e" / "cases.jsonl")
    assert len(after) == 9 and all(case.error is None for case in after)


def test_an_address_where_nothing_answers_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with serve(say("x")) as stub:
        url = stub.url
    assert run(url) == 2
    assert f"nothing answers at {url}" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "e").exists()
