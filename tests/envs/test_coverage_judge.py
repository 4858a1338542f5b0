"""The coverage judge: verdicts taken, sent back once, or left open; prompts from files."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from envs.coverage_judge import Coverage, CoverageJudge, Prompt
from envs.endpoint import Endpoint
from envs.errors import ConfigError, MissingFiles
from tests.envs.stubserver import Action, say, serve


@pytest.mark.parametrize(
    ("first", "level", "bullet"),
    [
        ('{"coverage": "FULL_COVERAGE", "bullet_id": 2}', "FULL_COVERAGE", 2),
        ('{"coverage": "FULL_COVERAGE", "bullet_id": "2"}', "FULL_COVERAGE", 2),
        ('{"coverage": "PARTIAL_COVERAGE", "bullet_id": 2.0}', "PARTIAL_COVERAGE", 2),
        ('Sure!\n```\n{"coverage": "NO_COVERAGE", "bullet_id": "NA"}\n```', "NO_COVERAGE", None),
        ('{"coverage": "NO_COVERAGE", "bullet_id": null}', "NO_COVERAGE", None),
        ('{"coverage": "NO_COVERAGE", "bullet_id": 1}', "NO_COVERAGE", None),
    ],
)
def test_verdicts_that_can_be_used_at_once(first: str, level: str, bullet: int | None) -> None:
    with serve(say(first)) as stub:
        judge = CoverageJudge.over(Endpoint.parse(f"openai:{stub.url}#judge"))
        found = judge.cover("x", ["a", "b"])
    assert (found.level, found.bullet, found.error, len(stub.requests)) == (level, bullet, None, 1)


@pytest.mark.parametrize(
    "first",
    [
        "I think it is covered.",
        '{"coverage": "FULL_COVERAGE"}',
        '{"coverage": "FULL", "bullet_id": 1}',
        '{"coverage": "FULL_COVERAGE", "bullet_id": 0}',
        '{"coverage": "FULL_COVERAGE", "bullet_id": 3}',
        '{"coverage": "FULL_COVERAGE", "bullet_id": "NA"}',
        '{"coverage": "PARTIAL_COVERAGE", "bullet_id": [1, 2]}',
        '{"coverage": "FULL_COVERAGE", "bullet_id": true}',
        '{"coverage": "FULL_COVERAGE", "bullet_id": 1, "why": "x"}',
        '{"coverage": "FULL_COVERAGE", "bullet_id": 1',
    ],
)
def test_verdicts_that_are_sent_back_once(first: str) -> None:
    good = say('{"coverage": "FULL_COVERAGE", "bullet_id": 1}')
    with serve(say(first), good) as stub:
        judge = CoverageJudge.over(Endpoint.parse(f"openai:{stub.url}#judge"))
        found = judge.cover("x", ["a", "b"])
    assert (found.level, found.bullet, len(found.outputs)) == ("FULL_COVERAGE", 1, 2)
    with serve(say(first)) as stub:
        judge = CoverageJudge.over(Endpoint.parse(f"openai:{stub.url}#judge"))
        found = judge.cover("x", ["a", "b"])
    assert found.level is None and found.error is not None and "two replies" in found.error
    assert [output["text"] for output in found.outputs] == [first, first] and len(stub.requests) == 2


def test_a_prompt_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.j2"
    path.write_text("Is {{ insight }} in {{ bullets | length }} bullets?")
    with serve(say('{"coverage": "NO_COVERAGE", "bullet_id": "NA"}')) as stub:
        judge = CoverageJudge.over(Endpoint.parse(f"openai:{stub.url}#judge"), path)
        found = judge.cover("it", ["x"])
    assert (found.level, found.error) == ("NO_COVERAGE", None)
    assert judge.about()["prompt_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert stub.requests[0][2]["messages"][0]["content"] == "Is it in 1 bullets?"
    path.write_text("{{ insihgt }}")
    with pytest.raises(ConfigError, match="'insihgt' is undefined; known: bullets, insight"):
        Prompt.read(path).render(insight="x", bullets=[])
    path.write_text("{{ insight")
    with pytest.raises(ConfigError, match="line 1"):
        Prompt.read(path)
    with pytest.raises(MissingFiles, match="gone.j2"):
        Prompt.read(tmp_path / "gone.j2")


def test_results_come_in_order_whatever_the_number_of_workers() -> None:
    def slow_first(number: int, body: dict[str, Any]) -> Action:
        asked = body["messages"][0]["content"]
        level = "FULL" if 'Insight: "one"' in asked else "PARTIAL"
        if level == "FULL":
            time.sleep(0.2)
        return say(f'{{"coverage": "{level}_COVERAGE", "bullet_id": 1}}')

    with serve(script=slow_first) as stub:
        endpoint = Endpoint.parse(f"openai:{stub.url}#judge")
        for workers in (1, 3):
            judge = CoverageJudge.over(endpoint, workers=workers)
            levels = [found.level for found in judge.cover_all(["one", "two", "three"], ["x"])]
            assert levels == ["FULL_COVERAGE", "PARTIAL_COVERAGE", "PARTIAL_COVERAGE"]


def test_coverage_of_no_bullets_asks_nobody() -> None:
    judge = CoverageJudge.over(Endpoint.parse("openai:http://127.0.0.1:9/v1#judge"))
    assert judge.cover("x", []) == Coverage("NO_COVERAGE", None, how="no bullets")
