"""SummHay's arithmetic: by hand, against the published code, and on summaries that people and judges labelled."""

from __future__ import annotations

import importlib.util
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.coverage_judge import CoverageJudge
from envs.endpoint import Endpoint, Reply
from envs.families._summhay_score import (
    bullets_of,
    ceiling,
    citations_of,
    official_bullets,
    official_citations,
    official_score,
    same_bullets,
    score,
    verbatim,
)

DATA = Path(os.environ.get("FLUXFORGE_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
LABELLED = DATA / "summhay" / "eval_benchmark_data.json"
real = pytest.mark.skipif(
    not LABELLED.is_file(), reason=f"no {LABELLED} (set FLUXFORGE_DATA to get these tests)"
)
PUBLISHED = os.environ.get("FLUXFORGE_SUMMHAY_CODE", "")
published = pytest.mark.skipif(
    not PUBLISHED,
    reason="set FLUXFORGE_SUMMHAY_CODE to utils_eval.py of salesforce/summary-of-a-haystack to compare with it",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1][4]", {1, 4}),
        ("x [1, 4] y [7]", {1, 4, 7}),
        ("[2-5] [8–9]", {2, 3, 4, 5, 8, 9}),
        ("[1, 3-4 and 7]", {1, 3, 4, 7}),
        ("[Doc 3; Document 7] [Articles 1 to 2]", {1, 2, 3, 7}),
        ("【3】 [^4] [#5] [1 2]", {1, 2, 3, 4, 5}),
        ("[300 words] [Word count: 149] [12†source] [2019 census] [] [,]", set()),
        ("[5-2] [1-999999999] [1-99999]", set()),
        ("1, (2), 3", set()),
    ],
)
def test_citations(text: str, expected: set[int]) -> None:
    assert citations_of(text) == expected


@settings(deadline=None)
@given(st.text(alphabet="[]【】0123456789,-– docto;&^#\n", max_size=300))
def test_any_text_has_citations_and_bullets(text: str) -> None:
    assert all(0 <= number < 10**7 for number in citations_of(text))
    assert all(bullet.strip() == bullet and bullet for bullet in bullets_of(text))


def test_bullets_are_points_not_lines() -> None:
    text = "# News\n\nThe main points:\n* **A:** one [1]\n  and more [2]\n\n1. b\n(2) c\n**Rest**\n---\nplain end"
    assert bullets_of(text) == ["**A:** one [1] and more [2]", "b", "c", "plain end"]
    assert bullets_of("one [1]\n\ntwo: more [2]\n") == ["one [1]", "two: more [2]"]
    assert bullets_of("- 3-4 [1]\n-5 [2]") == ["3-4 [1] -5 [2]"]
    assert official_bullets(" a \n\nb", "topics") == ["a", "b"]
    assert official_bullets(" a \n\nb", "sharded") == [" a ", "", "b"]
    cut = official_bullets("w " * 400 + "[1]\n\nx y", "sharded")
    assert [len(line.split()) for line in cut] == [298, 0, 1] and "[1]" not in cut[0]


def test_scores_by_hand() -> None:
    bullets = ["a [1][2]", "b [3-4]", "c"]
    wanted = [{1, 2, 5}, {3, 4}, {6}]
    verdicts: list[tuple[str, int | None]] = [
        ("FULL_COVERAGE", 1),
        ("PARTIAL_COVERAGE", 2),
        ("NO_COVERAGE", None),
    ]
    found = score(bullets, verdicts, wanted)
    assert found.joints == pytest.approx((0.8, 0.5, 0))
    assert (found.coverage, found.citation, found.joint) == pytest.approx((0.5, 0.9, 1.3 / 3))
    assert score(bullets, [("NO_COVERAGE", None)] * 3, wanted).citation is None
    assert ceiling(bullets, wanted) == pytest.approx((0.8 + 1 + 0) / 3)
    assert (
        verbatim("It is so.", ["x", "**It  IS so** [3]."]) == 2 and verbatim("It is so.", ["It is"]) is None
    )


def test_both_verdicts_are_told_where_the_points_are_the_same() -> None:
    text = "- a [1]\n2. b"
    assert same_bullets(bullets_of(text), official_bullets(text, "sharded"))
    assert not same_bullets(bullets_of(f"{text}\n\n- c"), official_bullets(f"{text}\n\n- c", "sharded"))
    assert not same_bullets(bullets_of("# x\n- a"), official_bullets("# x\n- a", "topics"))


def test_official_defects_are_kept() -> None:
    refs = {"i": {1}}
    row = {"insight_id": "i", "coverage": "FULL_COVERAGE"}
    bullets = ["a [9]", "b [1]", "c [9]"]
    assert official_score(bullets, [row | {"bullet_id": "NA"}], refs).joint == 1.0  # the last but one
    assert official_score(bullets, [row | {"bullet_id": [3]}], refs).joint == 1.0
    assert official_score(bullets, [row | {"bullet_id": 0}], refs).joint == 0.0
    assert official_score(["b [1-1]"], [row | {"bullet_id": 1}], refs).joint == 0.0
    assert official_score(["b [0]"], [row | {"bullet_id": 1}], refs, offset=1).joint == 1.0
    with pytest.raises(IndexError):
        official_score(["a [1]"], [row | {"bullet_id": "NA"}], refs)
    with pytest.raises(ValueError):
        official_score(["a [1 2]"], [row | {"bullet_id": 1}], refs)
    with pytest.raises(KeyError):
        official_score(bullets, [row | {"bullet_id": 1}], {})


LABELS = {
    "fully_covered": "FULL_COVERAGE",
    "partially_covered": "PARTIAL_COVERAGE",
    "not_covered": "NO_COVERAGE",
}


def annotated() -> list[tuple[list[str], list[list[dict[str, Any]]], dict[str, set[int]]]]:
    """The 200 summaries: lines, the verdicts of people and of six judges, and references.

    The file holds no reference citations, so they are drawn from what the summary cites and some more.
    """
    found = []
    for number, item in enumerate(json.loads(LABELLED.read_text(encoding="utf-8"))):
        rng = random.Random(number)
        people = [
            {
                "insight_id": row["insight_id"],
                "coverage": LABELS[row["coverage"]],
                "bullet_id": "NA" if row["candidate_id"] == "no_selection" else int(row["candidate_id"]) + 1,
            }
            for row in item["annotation"]
        ]
        judges = [value for key, value in item.items() if key.startswith("predictions_")]
        cited = sorted({n for line in item["summary"] for n in citations_of(line)} | {rng.randint(1, 100)})
        refs = {
            row["insight_id"]: set(rng.sample(cited, rng.randint(1, min(6, len(cited)))))
            | {rng.randint(1, 100)}
            for row in people
        }
        found.append((item["summary"], [people, *judges], refs))
    return found


def outcome(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (IndexError, KeyError, ValueError) as error:
        return type(error).__name__


@real
@published
def test_arithmetic_equals_the_published_code_on_annotated_summaries() -> None:
    spec = importlib.util.spec_from_file_location("summhay_published", PUBLISHED)
    assert spec is not None and spec.loader is not None
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    compared = crashed = 0
    for lines, all_evals, refs in annotated():
        for evals in all_evals:
            for offset in (0, 1):
                ours = outcome(official_score, lines, evals, refs, offset)
                other = outcome(theirs.compute_single_sample_scores, lines, evals, None, refs, 0.5, offset)
                compared += 1
                if isinstance(other, str):
                    assert ours == other
                    crashed += 1
                    continue
                assert list(ours.joints) == pytest.approx(other["joint_score"], abs=1e-12)
                means = {key: sum(values) / len(values) for key, values in other.items() if values}
                assert ours.coverage == pytest.approx(means["coverage_score"], abs=1e-12)
                assert ours.joint == pytest.approx(means["joint_score"], abs=1e-12)
                if ours.citation is None:
                    assert not other["citation_score"]
                else:
                    assert ours.citation == pytest.approx(means["citation_score"], abs=1e-12)
    assert compared == 200 * 7 * 2
    print(f"{compared} scores compared, {crashed} of them crashes on both sides")


class Recorded(Endpoint):
    """Replies with what a judge once said, without a network."""

    said = ""

    def ask(self, messages: Any, **settings: Any) -> Reply:
        return Reply(self.said, "stop", "recorded", {}, self.said, "", cached=False, attempts=1)


@real
def test_recorded_verdicts_are_taken_or_refused_for_a_reason() -> None:
    endpoint = Recorded("http://127.0.0.1/v1", "recorded")
    judge = CoverageJudge.over(endpoint)
    taken = refused = 0
    for lines, (_, *judges), refs in annotated():
        for evals in judges:
            for row in evals:
                said = {"coverage": row["coverage"], "bullet_id": row["bullet_id"]}
                object.__setattr__(endpoint, "said", json.dumps(said))
                found = judge.cover("x", lines)
                if found.level is None:
                    listed, none = isinstance(row["bullet_id"], list), row["bullet_id"] == "NA"
                    beyond = isinstance(row["bullet_id"], int) and not 1 <= row["bullet_id"] <= len(lines)
                    assert listed or none or beyond, row
                    refused += 1
                else:
                    assert found.level == row["coverage"]
                    assert found.bullet == (None if found.level == "NO_COVERAGE" else row["bullet_id"])
                    taken += 1
        people = judges[0]
        usable = [
            row for row in people if row["coverage"] == "NO_COVERAGE" or isinstance(row["bullet_id"], int)
        ]
        if len(usable) == len(people) and all(
            citations_of(line) == official_citations(line) for line in lines
        ):
            mine = score(
                lines, [_verdict(row) for row in people], [refs[row["insight_id"]] for row in people]
            )
            assert mine == official_score(lines, people, refs)
    assert (taken, refused) == (8514 - 109, 109)


def _verdict(row: dict[str, Any]) -> tuple[str, int | None]:
    return row["coverage"], None if row["coverage"] == "NO_COVERAGE" else row["bullet_id"]
