"""GSM8K: sentences as goals, changed numbers recomputed by the solution's own steps."""

from __future__ import annotations

import json
import os
import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.calculator import evaluate, parse_steps
from envs.errors import ConfigError, DataError, GraderError, MissingFiles
from envs.families._gsm8k_text import numbers, rewrite, sentences, slots
from envs.families.gsm8k import FAMILY
from envs.intent import Add, Delete, IntentState, Replace, fold
from envs.task import Quarantined, SourceTask, checked, get_family

DATA = Path(os.environ.get("FLUXFORGE_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
real = pytest.mark.skipif(
    not (DATA / "gsm8k" / "test.jsonl").is_file(),
    reason=f"no gsm8k/test.jsonl below {DATA} (set FLUXFORGE_DATA)",
)

BAKERY = {
    "question": "Mr. Hale bakes 14 trays of 6 rolls. He sells 30% of them at $1.50 each? No, he sells 40 "
    "rolls. How many rolls are left?",
    "answer": "He bakes 14*6 = <<14*6=84>>84 rolls.\nHe has 84-40 = <<84-40=44>>44 left.\n#### 44",
}
ROUND = {
    "question": "A pole is 60 cm long. Ana cuts 20% off. She paints twice the rest. How many cm are painted?",
    "answer": "She cuts 60*.2=<<60*.2=12>>12 cm off.\nThe rest is 60-12=<<60-12=48>>48.\n"
    "She paints 2*48=<<2*48=96>>96.\n#### 96",
}
UNEXPLAINED = {"question": "Ana has 3 hats. How many?", "answer": "3+97=<<3+97=100>>100\n#### 100"}


def write(folder: Path, *items: dict[str, str]) -> Path:
    (folder / "gsm8k").mkdir(exist_ok=True)
    (folder / "gsm8k" / "test.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return folder


def tasks(folder: Path, *items: dict[str, str]) -> list[SourceTask]:
    return list(FAMILY.load(write(folder, *items), "test"))


def answer_with(task: SourceTask, slot_words: str, text: str) -> str:
    goal = next(goal for goal in task.goals if slot_words in goal.text)
    changed = type(goal)(f"{goal.id}.v1", text, goal.slot)
    return FAMILY.execute(task, fold(task.intent, [Replace(goal, changed)]))


def test_it_is_registered() -> None:
    assert get_family("gsm8k") is FAMILY


def test_sentences_survive_titles_decimals_and_money() -> None:
    text = 'Mr. Lee paid $1.50 for 2.5 lbs. of rice. "Stop!" he said.  Did it cost .75? J. P. Hay knows.'
    assert sentences(text) == [
        "Mr. Lee paid $1.50 for 2.5 lbs. of rice.",
        '"Stop!" he said.',
        "Did it cost .75?",
        "J. P. Hay knows.",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("She has 1,250 pens and 2.5 kg", [(1250, True), (Fraction(5, 2), True)]),
        ("twenty-five cats, three dogs", [(25, True), (3, True)]),
        ("the 3rd day at 5:30, 1/4 of it", [(3, False), (5, False), (30, False), (1, False), (4, False)]),
        ("two hundred pens and 3 million", [(2, False), (3, False)]),
        ("twice as many", [(2, True)]),
        ("a 30-minute show for $.50", [(30, True), (Fraction(1, 2), True)]),
        ("two-thirds of it", [(2, False)]),
    ],
)
def test_numbers_and_whether_they_may_change(text: str, expected: list[tuple[Fraction, bool]]) -> None:
    assert [(number.value, number.plain) for number in numbers(text)] == expected


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("It costs $80,000 now.", 90000, "It costs $90,000 now."),
        ("Three friends came.", 5, "Five friends came."),
        ("He has twice as many.", 4, "He has four times as many."),
        ("She paid $1.50.", Fraction(7, 4), "She paid $1.75."),
    ],
)
def test_rewriting_keeps_the_manner(text: str, value: Fraction, expected: str) -> None:
    assert rewrite(text, numbers(text)[0], Fraction(value)) == expected


@given(st.integers(2, 10**6), st.integers(2, 10**6))
def test_a_rewritten_number_reads_back(old: int, new: int) -> None:
    text = f"She counted {old} beads today."
    assert [n.value for n in numbers(rewrite(text, numbers(text)[0], Fraction(new)))] == [new]


def test_slots_are_short_and_distinct() -> None:
    keys = slots(["Natalia sold clips in April.", "Natalia sold clips in May.", "Natalia sold clips in May."])
    assert len(set(keys)) == 3
    assert all(len(key.split()) <= 4 for key in keys)
    assert "april" in keys[0]


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 50))
def test_the_calculator_agrees_with_python(a: int, b: int, c: int) -> None:
    expression = f"({a}+{b})*{c}-{a}/{c}"
    (step,) = parse_steps(f"<<{expression}=0>>")
    assert evaluate(step, step.leaves) == Fraction((a + b) * c) - Fraction(a, c)


@pytest.mark.parametrize(
    "broken", ["<<2//3=1>>", "<<(2+3=5>>", "<<2+x=3>>", "<<1/0=0>>", "<<2)=2>>", "<<=2>>"]
)
def test_a_broken_annotation_is_refused(broken: str) -> None:
    with pytest.raises(DataError, match="annotation"):
        parse_steps(broken)


def test_goals_are_the_sentences_and_the_question_is_one(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path, ROUND)
    assert [goal.text for goal in task.goals] == sentences(ROUND["question"])
    assert task.goals[-1].slot == "question"
    assert all(goal.value is None for goal in task.goals)
    assert FAMILY.grade(task, FAMILY.execute(task, task.intent)).full_credit


def test_changes_run_through_every_later_step(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path, BAKERY)
    assert answer_with(task, "14 trays", "Mr. Hale bakes 10 trays of 6 rolls.") == "#### 20"
    assert answer_with(task, "40 rolls", "No, he sells 35 rolls.") == "#### 49"


def test_percent_and_twice_are_understood(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path, ROUND)
    assert answer_with(task, "20%", "Ana cuts 40% off.") == "#### 72"
    assert answer_with(task, "twice", "She paints three times the rest.") == "#### 144"


def test_variants_and_decoys_flip_the_verdict(tmp_path: Path) -> None:
    for task in tasks(tmp_path, BAKERY, ROUND):
        found = [(goal, new) for goal in task.goals for new in FAMILY.variants(task, goal, random.Random(3))]
        assert len(found) >= 10
        for goal, new in found:
            assert new.slot == goal.slot and new.text != goal.text
            answer = FAMILY.execute(task, fold(task.intent, [Replace(goal, new)]))
            assert not FAMILY.grade(task, answer).full_credit
        decoys = FAMILY.decoys(task, random.Random(3))
        assert len({decoy.slot for decoy in decoys}) == len(decoys) >= 5
        for decoy in decoys:
            assert not FAMILY.grade(task, FAMILY.execute(task, fold(task.intent, [Add(decoy)]))).full_credit


def test_variants_are_deterministic(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path, BAKERY)
    goal = task.goals[0]
    assert FAMILY.variants(task, goal, random.Random(5)) == FAMILY.variants(task, goal, random.Random(5))
    shuffled = FAMILY.variants(task, goal, random.Random(6))
    assert {v.id: v for v in shuffled} == {v.id: v for v in FAMILY.variants(task, goal, random.Random(7))}


def test_a_number_that_occurs_twice_is_left_alone(tmp_path: Path) -> None:
    item = {
        "question": "Bo has 9 bags of 9 nuts. He eats 11 nuts. How many nuts are left?",
        "answer": "9*9=<<9*9=81>>81\n81-11=<<81-11=70>>70\n#### 70",
    }
    (task,) = tasks(tmp_path, item)
    assert FAMILY.variants(task, task.goals[0], random.Random(0)) == []
    assert FAMILY.variants(task, task.goals[1], random.Random(0)) != []


def test_unusable_items_are_skipped_with_a_reason(tmp_path: Path) -> None:
    wrong_end = {"question": "Bo has 9 nuts. He eats 2?", "answer": "9-2=<<9-2=7>>7\n#### 8"}
    no_gold = {"question": "Bo has 9 nuts. He eats 2?", "answer": "no idea"}
    folder = write(tmp_path, BAKERY, UNEXPLAINED, wrong_end, no_gold)
    assert [task.id for task in FAMILY.load(folder, "test")] == ["gsm8k/test/0"]
    reasons = [skipped.reason for skipped in FAMILY.skipped(folder, "test")]
    assert "97" in reasons[0] and "last annotation" in reasons[1] and "####" in reasons[2]


def test_an_incomplete_or_foreign_state_cannot_be_executed(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path, BAKERY)
    with pytest.raises(GraderError, match="what is asked"):
        FAMILY.execute(task, fold(task.intent, [Delete(task.goals[-1])]))
    with pytest.raises(GraderError, match="lacks"):
        FAMILY.execute(task, fold(task.intent, [Delete(task.goals[0])]))
    with pytest.raises(GraderError, match="carry out"):
        FAMILY.execute(task, fold(task.intent, [Add(type(task.goals[0])("d9", "Sing.", "song"))]))
    with pytest.raises(GraderError):
        FAMILY.execute(task, IntentState())


@pytest.mark.parametrize(
    "answer", ["#### 44", "44", "$44.00", "The answer is 44.", "so \\boxed{44}", "44 rolls"]
)
def test_grade_accepts_the_ways_a_number_is_written(tmp_path: Path, answer: str) -> None:
    (task,) = tasks(tmp_path, BAKERY)
    assert FAMILY.grade(task, answer).full_credit


@pytest.mark.parametrize("answer", ["", "no idea", "45", "#### 44.5", "44 then 45"])
def test_grade_rejects_others(tmp_path: Path, answer: str) -> None:
    (task,) = tasks(tmp_path, BAKERY)
    grade = FAMILY.grade(task, answer)
    assert grade.score == 0.0 and not grade.full_credit and grade.error is None


def test_both_verdicts_are_given_and_either_can_score(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path, BAKERY)
    official = FAMILY.with_verdict("official")
    for answer, strict, official_too in [
        ("#### 44", True, True),
        ("44", True, False),
        ("#### 44.00", True, False),
        ("#### 44\nNo: #### 45", False, True),  # official, the first marker counts
        ("none", False, False),
    ]:
        grade, other = FAMILY.grade(task, answer), official.grade(task, answer)
        assert (grade.detail["strict"], grade.detail["official"]) == (strict, official_too), answer
        assert (grade.full_credit, other.full_credit) == (strict, official_too)
        assert grade.detail == other.detail
    with pytest.raises(ConfigError, match="Did you mean 'strict'"):
        FAMILY.with_verdict("stric")


def test_records_of_a_file_come_in_the_sharded_layout(tmp_path: Path) -> None:
    folder = write(tmp_path, BAKERY, ROUND)
    first, second = FAMILY.records(folder, "test")
    assert first == {"task": "math", "task_id": "sharded-GSM8K/0", **BAKERY}
    assert second["question"] == ROUND["question"]


def test_missing_and_broken_files(tmp_path: Path) -> None:
    for source in (None, tmp_path):
        with pytest.raises(MissingFiles, match=r"grade-school-math.*gsm8k/test\.jsonl"):
            list(FAMILY.load(source, "test"))
    folder = write(tmp_path, BAKERY)
    assert len(list(FAMILY.load(folder / "gsm8k", "test"))) == 1  # the family's own folder
    with (folder / "gsm8k" / "test.jsonl").open("a") as file:
        file.write('{"question": "cut sh')
    with pytest.raises(DataError, match=r"test\.jsonl, row 2: not JSON"):
        list(FAMILY.load(folder, "test"))
    write(tmp_path, {"question": "?"})
    with pytest.raises(DataError, match="row 1: no field 'answer'"):
        list(FAMILY.load(folder, "test"))
    with pytest.raises(DataError, match="no split 'dev'"):
        list(FAMILY.load(folder, "dev"))


@real
def test_real_golds_pass_their_grader_and_execution_reproduces_them() -> None:
    loaded = list(checked(FAMILY, DATA, "test"))
    assert not [item for item in loaded if isinstance(item, Quarantined)]
    assert len(loaded) + len(FAMILY.skipped(DATA, "test")) == 1319
    assert len(loaded) > 700
    for task in loaded:
        assert isinstance(task, SourceTask)
        gold = Fraction(task.payload["answer"])
        assert len({goal.slot for goal in task.goals}) == len(task.goals)
        assert FAMILY.grade(task, FAMILY.execute(task, task.intent)).full_credit
        for right in (f"#### {gold}", f"{gold}", f"The answer is {gold}."):
            assert FAMILY.grade(task, right).full_credit
        assert not FAMILY.grade(task, f"#### {gold + 1}").full_credit
        assert not FAMILY.grade(task, "").full_credit


@real
def test_real_variants_and_decoys_flip() -> None:
    loaded = [task for n, task in enumerate(FAMILY.load(DATA, "test")) if n % 10 == 0]
    for task in loaded:
        rng = random.Random(task.id)
        edits = [Replace(g, v) for g in task.goals for v in FAMILY.variants(task, g, rng)]
        assert edits, task.id
        for edit in [*edits, *map(Add, FAMILY.decoys(task, rng))]:
            answer = FAMILY.execute(task, fold(task.intent, [edit]))
            assert not FAMILY.grade(task, answer).full_credit, (task.id, edit)


@real
def test_a_gold_known_to_be_doubtful_is_flagged() -> None:
    flagged = [task.id for task in FAMILY.load(DATA, "test") if task.payload["flags"]]
    skipped = {item.task_id for item in FAMILY.skipped(DATA, "test")}
    assert flagged == ["gsm8k/test/368"] or "gsm8k/test/368" in skipped
