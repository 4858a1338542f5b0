"""ToTTo: cells as goals, sentence BLEU as the grade, and answers made by changing a reference."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.dialogue import build
from envs.drift import build_script
from envs.errors import DataError, GraderError, MissingFiles, UnknownName
from envs.families._totto_table import Table
from envs.families._totto_text import extend, locate, mentions, rewrite
from envs.families.totto import FAMILY, MARGIN
from envs.intent import EMPTY, Goal, IntentState
from envs.task import Quarantined, SourceTask, checked, get_family

sacrebleu = pytest.importorskip("sacrebleu", reason="the grade of totto needs the package sacrebleu")
from envs.bleu import sentence_bleu  # noqa: E402  (after the check that it can run)

DATA = Path(os.environ.get("FLUXFORGE_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
real = pytest.mark.skipif(
    not (DATA / "totto" / "dev_sample.jsonl").is_file(),
    reason=f"no totto/dev_sample.jsonl below {DATA} (set FLUXFORGE_DATA to get these tests)",
)


def cell(value: str, header: bool = False, wide: int = 1, high: int = 1) -> dict[str, Any]:
    return {"value": value, "is_header": header, "column_span": wide, "row_span": high}


def head(value: str, wide: int = 1, high: int = 1) -> dict[str, Any]:
    return cell(value, True, wide, high)


# Two header rows: "City" reaches down through both, "Ferry" spans two columns; "2019" reaches down two rows.
FERRIES = [
    [head("Ferries of the North Sound", wide=4)],
    [head("Year"), head("City", high=2), head("Ferry", wide=2)],
    [head(""), head("Name"), head("Seats")],
    [cell("2019", high=2), cell("Harlow (port)"), cell("Gannet"), cell("1,200")],
    [cell("Selby"), cell("Petrel"), cell("340")],
    [cell("2021"), cell("Wick, Outer Isles"), cell("Fulmar"), cell("85")],
]
ITEM: dict[str, Any] = {
    "table": FERRIES,
    "highlighted_cells": [[3, 0], [3, 2], [3, 3]],
    "table_page_title": "North Sound",
    "table_section_title": "Ferries",
    "example_id": -8202683504666015907,
    "sentence_annotations": [
        {"final_sentence": "A big ferry began in 2019."},
        {"final_sentence": "In 2019, the ferry Gannet of the North Sound had 1,200 seats."},
        {"final_sentence": "In 2019, the ferry Gannet of the North Sound had 1,200 seats."},
    ],
}


def write(folder: Path, *items: dict[str, Any], name: str = "dev_sample.jsonl") -> Path:
    (folder / "totto").mkdir(exist_ok=True)
    text = "".join(json.dumps(item) + "\n" for item in items)
    (folder / "totto" / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def task(tmp_path: Path) -> SourceTask:
    (found,) = checked(FAMILY, write(tmp_path, ITEM), "dev")
    assert isinstance(found, SourceTask)
    return found


def with_value(task: SourceTask, slot: str, value: str) -> IntentState:
    goals = [
        Goal(f"{goal.id}.v1", goal.text, slot, value) if goal.slot == slot else goal for goal in task.goals
    ]
    return IntentState(tuple(goals))


def test_goals_are_cells_under_their_headers_and_titles(task: SourceTask) -> None:
    assert get_family("totto") is FAMILY
    assert task.id == "totto/dev/-8202683504666015907"
    assert [(goal.slot, goal.value) for goal in task.goals] == [
        ("year", "2019"),
        ("ferry / Name", "Gannet"),
        ("ferry / Seats", "1,200"),
        ("page title", "North Sound"),
        ("section title", "Ferries"),
    ]
    assert all(goal.value and goal.value in goal.text for goal in task.goals)
    assert "Gannet" in task.context and "highlight" not in task.context
    assert '<th colspan="4">Ferries of the North Sound</th>' in task.context
    assert not any(goal.value in task.opening for goal in task.goals if goal.value)


def test_a_table_is_laid_out_with_its_spans() -> None:
    table = Table(FERRIES)
    assert table.width == 4
    assert table.path(table.at(4, 0)) == "City"  # under "2019", which reaches down into its row
    assert table.path(table.at(5, 3)) == "Ferry / Seats"
    assert table.path(table.at(3, 0)) == "Year"
    assert [c.text for c in table.same_column(table.at(3, 2))] == ["Petrel", "Fulmar"]
    deep = Table([[cell("x", high=10**9), cell("y")], [cell("z")]])
    assert (deep.at(0, 0).bottom, deep.at(1, 0).left) == (2, 1)
    with pytest.raises(DataError, match=r"\[9, 0\]"):
        table.at(9, 0)
    with pytest.raises(DataError, match="not shaped"):
        Table([[{"value": "x"}]])


def test_row_headers_name_what_no_column_header_names() -> None:
    table = Table([[head("Born"), cell("1900")], [head("Died"), cell("1980")], [cell("lone", wide=2)]])
    assert [table.path(table.at(*place)) for place in ((0, 1), (1, 1), (2, 0))] == [
        "Born",
        "Died",
        "Born / Died",
    ]


def test_cells_with_one_header_get_different_slots(tmp_path: Path) -> None:
    item = ITEM | {"highlighted_cells": [[3, 2], [4, 1], [3, 2], [2, 0]]}
    (found,) = FAMILY.load(write(tmp_path, item), "dev")
    slots = [goal.slot for goal in found.goals]
    assert slots[:2] == ["ferry / Name of entry 1", "ferry / Name of entry 2"]
    assert (
        len(slots) == len(set(slots)) == 4
    )  # a cell that is named twice counts once, an empty one not at all


def test_the_gold_is_the_reference_that_says_most_goals(task: SourceTask) -> None:
    assert FAMILY.gold(task) == ITEM["sentence_annotations"][1]["final_sentence"]
    assert FAMILY.execute(task, task.intent) == FAMILY.gold(task)
    for reference in task.payload["references"]:
        grade = FAMILY.grade(task, reference)
        assert (grade.score, grade.full_credit, grade.error) == (1.0, True, None)
    assert FAMILY.grade(task, "").score == 0.0


def test_variants_are_other_cells_of_the_column_that_the_reference_can_say(task: SourceTask) -> None:
    offered = {
        goal.slot: {variant.value for variant in FAMILY.variants(task, goal, random.Random(0))}
        for goal in task.goals
    }
    assert offered == {
        "year": {"2021"},
        "ferry / Name": {"Petrel", "Fulmar"},
        "ferry / Seats": {"340", "85"},
        "page title": set(),
        "section title": set(),
    }


def test_each_variant_and_decoy_costs_more_than_the_margin(task: SourceTask) -> None:
    rng = random.Random(1)
    states = [IntentState((*task.goals, decoy)) for decoy in FAMILY.decoys(task, rng)]
    assert len(states) >= 3
    for goal in task.goals:
        for variant in FAMILY.variants(task, goal, rng):
            assert variant.value and variant.value in variant.text and variant.id.startswith(f"{goal.id}.v")
            states.append(IntentState(tuple(variant if g == goal else g for g in task.goals)))
    for state in states:
        grade = FAMILY.grade(task, FAMILY.execute(task, state))
        assert grade.error is None and not grade.full_credit and grade.score < 1 - MARGIN


def test_what_costs_no_more_than_the_margin_is_not_offered(tmp_path: Path) -> None:
    words = " ".join(f"word{n}" for n in range(120))
    item = ITEM | {"sentence_annotations": [{"final_sentence": f"In 2019 {words}."}]}
    (found,) = FAMILY.load(write(tmp_path, item), "dev")
    answer = FAMILY.execute(found, with_value(found, "year", "2021"))
    assert answer == f"In 2021 {words}."
    assert 1 - MARGIN < FAMILY.grade(found, answer).score < 1
    assert FAMILY.variants(found, found.goals[0], random.Random(0)) == []


def test_execute_changes_adds_and_leaves_out(task: SourceTask) -> None:
    changed = FAMILY.execute(task, with_value(task, "ferry / Seats", "85"))
    assert changed == "In 2019, the ferry Gannet of the North Sound had 85 seats."
    assert FAMILY.execute(task, EMPTY) == "In, the ferry of the had seats."
    decoy = next(d for d in FAMILY.decoys(task, random.Random(0)) if d.slot == "city")
    added = FAMILY.execute(task, IntentState((*task.goals, decoy)))
    assert added.endswith("had 1,200 seats, with Harlow (port) as the city.")
    with pytest.raises(GraderError, match="no cell of this task"):
        FAMILY.execute(task, IntentState((Goal("x", "x", "x", "x"),)))
    with pytest.raises(GraderError, match="does not say 'section title'"):
        FAMILY.execute(task, with_value(task, "section title", "Boats"))


def test_scripts_end_in_the_intent_and_use_what_is_offered(task: SourceTask) -> None:
    script = build_script(FAMILY, task, "hard", 3)
    assert script.states[-1] == task.intent
    stated = {goal for state in script.states for goal in state.goals}
    assert any("." in goal.id for goal in stated) and any(goal.id.startswith("d") for goal in stated)
    drift, again = (build(FAMILY, task, "drift", "hard", 3) for _ in range(2))
    assert drift == again


def test_detail_tells_both_verdicts_and_what_is_missing(task: SourceTask) -> None:
    grade = FAMILY.grade(task, "In 2019, the ferry Petrel of the North Sound had 1,200 seats.")
    assert grade.detail["missing"] == ["ferry / Name"]
    assert grade.detail["strict"] is False and grade.detail["official"] is False
    assert grade.detail["scores"]["strict"] == grade.detail["scores"]["official"] == grade.score


def test_verdicts_differ_on_short_references_only(tmp_path: Path) -> None:
    item = ITEM | {"sentence_annotations": [{"final_sentence": "Gannet, 2019"}]}
    (found,) = FAMILY.load(write(tmp_path, item), "dev")
    official = FAMILY.with_verdict("official")
    assert FAMILY.grade(found, "Gannet, 2019").score == 1.0
    assert official.grade(found, "Gannet, 2019").score == 0.0
    assert official.grade(found, "Gannet, 2019").detail["strict"] is True
    assert isinstance(next(checked(official, tmp_path, "dev")), Quarantined)
    assert FAMILY.verdict == "strict"
    with pytest.raises(UnknownName, match="official"):
        FAMILY.with_verdict("oficial")


def test_bleu_golden_values() -> None:
    references = ["the cat sat on the mat today", "a cat was sitting on the mat"]
    assert sentence_bleu("the cat sat on the mat today", references) == 1.0
    assert sentence_bleu("a cat was sitting on the mat", references) == 1.0  # not the first reference alone
    assert sentence_bleu("the cat sat", ["the cat sat"]) == 1.0
    assert sentence_bleu("the cat sat", ["the cat sat"], official=True) == 0.0
    # 1-grams 6/6, 2-grams 4/5, 3-grams 2/4, 4-grams 1/3, as long as the reference
    half = sentence_bleu("the cat sat on a mat", ["the cat sat on the mat"])
    assert half == pytest.approx((5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25, abs=1e-9)
    assert sentence_bleu("The Cat sat on the mat today", references) < 1.0  # case counts
    assert sentence_bleu(" \n ", references) == 0.0
    with pytest.raises(GraderError, match="at least one reference"):
        sentence_bleu("x", [])


@settings(max_examples=200, deadline=None)
@given(st.text(), st.lists(st.text(min_size=1), min_size=1, max_size=3))
def test_bleu_lies_in_the_unit_interval_and_repeats(answer: str, references: list[str]) -> None:
    score = sentence_bleu(answer, references)
    assert 0.0 <= score <= 1.0
    assert score == sentence_bleu(answer, references)


def plain(answer: str, references: list[str]) -> float:
    """The score as benchmarks take it from the package."""
    streams = [[reference.strip()] for reference in references]
    return sacrebleu.corpus_bleu([answer.strip()], streams).score / 100


def mutations(references: list[str], rng: random.Random, count: int) -> list[str]:
    """Answers near and far: words dropped, swapped, doubled, cut off, cased, joined, and odd white space."""
    found = list(references)
    while len(found) < count:
        words = rng.choice(references).split()
        for _ in range(rng.randint(0, 4)):
            at = rng.randrange(len(words))
            match rng.randrange(8):
                case 0:
                    words.pop(at)
                case 1:
                    words.insert(at, rng.choice(rng.choice(references).split()))
                case 2:
                    words[at] = rng.choice(["42", "Unknown", "–", "(x)", "“q”", "a.b", "3,000.5"])
                case 3:
                    words = words[: rng.randint(0, 5)]
                case 4:
                    words[at] = rng.choice([words[at].upper(), words[at].lower(), words[at] + "."])
                case 5:
                    words += rng.choice(references).split()
                case 6:
                    rng.shuffle(words)
                case 7:
                    words[at] = words[at][: rng.randint(0, 4)]
            if not words:
                break
        found.append(rng.choice([" ", "  ", "\n", "\u00a0"]).join(words))
    return found


def disagreements(references: list[str], answers: list[str]) -> list[str]:
    """Answers on which a verdict and the package differ by more than float dust."""
    return [
        answer
        for answer in answers
        if abs(sentence_bleu(answer, references, official=True) - plain(answer, references)) > 1e-9
        or abs(sentence_bleu(answer, references) - plain(answer, references)) > 1e-9
    ]


def test_scores_equal_the_package_on_mutated_answers(task: SourceTask) -> None:
    references = task.payload["references"]
    answers = mutations(references, random.Random(5), 1200)
    assert disagreements(references, answers) == []
    assert len({round(plain(answer, references), 6) for answer in answers}) > 200
    short = ["Gannet, 2019", "In 2019"]
    assert disagreements(short, ["In 2019", "Gannet,  2019", "Gannet"]) == ["In 2019", "Gannet,  2019"]


@real
def test_real_golds_pass_and_scores_equal_the_package() -> None:
    items = [item for split in FAMILY.splits for item in checked(FAMILY, DATA, split)]
    assert len(items) == 8 and not any(isinstance(item, Quarantined) for item in items)
    graded = 0
    for item in items:
        assert isinstance(item, SourceTask)
        references = item.payload["references"]
        answers = mutations(references, random.Random(item.id), 150)
        assert disagreements(references, answers) == []
        graded += len(answers)
        for decoy in FAMILY.decoys(item, random.Random(0)):
            answer = FAMILY.execute(item, IntentState((*item.goals, decoy)))
            assert FAMILY.grade(item, answer).score < 1 - MARGIN
        for goal in item.goals:
            for variant in FAMILY.variants(item, goal, random.Random(0)):
                state = IntentState(tuple(variant if g == goal else g for g in item.goals))
                assert FAMILY.grade(item, FAMILY.execute(item, state)).score < 1 - MARGIN
    assert graded >= 1200
    assert any(item.id.startswith("totto/dev/-") for item in items if isinstance(item, SourceTask))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"highlighted_cells": [[0, 7]]}, r"row 2: .*\[0, 7\]"),
        ({"highlighted_cells": [3]}, "row 2"),
        ({"table": [[{"value": "x"}]]}, "row 2: not shaped"),
        ({"sentence_annotations": [{"text": "x"}]}, "row 2"),
        ({"example_id": ITEM["example_id"]}, "row 2: example_id .* comes twice"),
    ],
)
def test_bad_records_name_their_row(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path, ITEM, ITEM | {"example_id": 1} | change)
    with pytest.raises(DataError, match=message):
        list(FAMILY.load(tmp_path, "dev"))


def test_what_cannot_be_used_is_skipped_with_a_reason(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"sentence_annotations": [{"final_sentence": " "}]},
        {"highlighted_cells": []},
        {"table": [[cell("alone")]], "highlighted_cells": [[0, 0]]},
    ]
    write(tmp_path, *(ITEM | {"example_id": n} | change for n, change in enumerate(changes)))
    assert list(FAMILY.load(tmp_path, "dev")) == []
    reasons = [item.reason for item in FAMILY.skipped(tmp_path, "dev")]
    assert ["no reference" in reasons[0], "no highlighted" in reasons[1], "no further" in reasons[2]] == [
        True
    ] * 3


def test_files_are_found_by_either_name(tmp_path: Path) -> None:
    write(tmp_path, ITEM, name="totto_train_data.jsonl")
    assert (
        len(list(FAMILY.load(tmp_path, "train"))) == len(list(FAMILY.load(tmp_path / "totto", "train"))) == 1
    )
    with pytest.raises(MissingFiles, match=r"totto_dev_data.jsonl or dev_sample.jsonl"):
        list(FAMILY.load(tmp_path, "dev"))
    with pytest.raises(MissingFiles, match="DATA="):
        list(FAMILY.load(None, "dev"))
    with pytest.raises(UnknownName, match="train"):
        list(FAMILY.load(tmp_path, "trian"))


def test_values_are_found_as_whole_words() -> None:
    assert mentions("1 of 21, 1.5 or 1,000: 1.", "1") == [(0, 1), (23, 24)]
    assert mentions("In the the-matic THE.", "the") == [(3, 6), (7, 10), (17, 20)]
    places = locate(
        "Ann ran in 2010 and 2010–11.", {"a": ["2010–11"], "b": ["2010"], "c": ["Ann (x)", "Ann"]}
    )
    assert places == {"a": [(20, 27)], "b": [(11, 15)], "c": [(0, 3)]}
    assert locate("4 and 4", {"a": ["4"], "b": ["4"]}) == {}  # which is whose cannot be known
    assert locate("in Riga", {"a": ["Riga, Latvia", "Riga"], "b": ["Riga, Maine", "Riga"]}) == {}


def test_sentences_are_rewritten_and_extended() -> None:
    assert rewrite("It was (red) in May.", [((8, 11), ""), ((16, 19), "June")]) == "It was in June."
    assert extend("It ran!", "with a dog") == "It ran, with a dog!"
    assert extend("It ran", "with a dog") == "It ran, with a dog"
