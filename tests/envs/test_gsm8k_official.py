"""GSM8K against the official extraction and against that of Lost in Conversation, on golds and rewritten answers."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from envs.families.gsm8k import FAMILY, official_number
from envs.jsonl import read_jsonl
from envs.numbers import extract_number
from envs.task import SourceTask
from tests.envs.official import gsm8k_extraction, lic_math_verdict

# How an answer may end, whether that is right, and which of the two others see it otherwise.
# {x} is the gold, {c} the gold with thousands commas, {wrong} another number, {half} half of another number.
FORMS: dict[str, tuple[str, bool, str]] = {
    "marker": ("#### {x}", True, ""),
    "marker, commas": ("#### {c}", True, ""),
    "marker, cents": ("#### {x}.00", True, "official lic"),
    "marker, dollars": ("#### ${x}", True, "official"),
    "marker, unit": ("#### {x} apples", True, ""),
    "marker, full stop": ("#### {x}.", True, "official"),
    "marker, no blank": ("####{x}", True, "official"),
    "marker, then words": ("#### {x}\nThat took 3 steps.", True, "lic"),
    "two markers": ("#### {wrong}\nNo, wait.\n#### {x}", True, "official"),
    "two markers, wrong": ("#### {x}\nNo, wait.\n#### {wrong}", False, "official"),
    "marker, wrong": ("#### {wrong}", False, ""),
    "marker, half": ("#### {x}.5", False, ""),
    "bare": ("{x}", True, "official"),
    "bare, commas": ("{c}", True, "official"),
    "sentence": ("The answer is {x}.", True, "official"),
    "sentence, dollars and cents": ("The answer is ${x}.00", True, "official lic"),
    "sentence, commas after it": ("The total is {x}, altogether...", True, "official lic"),
    "sentence, unit of time": ("The answer is {x} points in 4 years.", True, "official lic"),
    "sentence, wrong": ("The answer is {wrong}, not {x}.", False, "lic"),
    "boxed": ("So we get \\boxed{{{x}}}", True, "official"),
    "boxed, LaTeX commas": ("\\boxed{{{latex}}}", True, "official lic"),
    "fraction": ("The answer is {twice}/2.", True, "official lic"),
    "nothing": ("I do not know.", False, ""),
    "empty": ("", False, ""),
}
MUTATED = 2000


def endings(gold: int, rng: random.Random) -> dict[str, str]:
    values = {
        "x": gold,
        "c": f"{gold:,}",
        "latex": f"{gold:,}".replace(",", "{,}"),
        "twice": 2 * gold,
        "wrong": gold + rng.choice((-7, -1, 1, 5, 10, 100)),
    }
    return {name: form.format(**values) for name, (form, _, _) in FORMS.items()}


def golds(data: Path, split: str) -> list[str]:
    return [record["answer"] for _, record in read_jsonl(data / "gsm8k" / f"{split}.jsonl", ("answer",))]


@pytest.mark.parametrize("split", ["test", "train"])
def test_official_extraction_on_every_gold(split: str, benchmark_data: Path) -> None:
    extract = gsm8k_extraction()
    solutions = golds(benchmark_data, split)
    assert len(solutions) == {"test": 1319, "train": 7473}[split]
    for solution in solutions:
        assert official_number(solution) == extract(solution) != "[invalid]"
        # the golds are whole numbers, so the strict reading must agree with the official one
        assert extract_number(solution) == int(extract(solution))


def test_verdicts_on_rewritten_answers(benchmark_data: Path) -> None:
    extract, lic = gsm8k_extraction(), lic_math_verdict()
    tasks = list(FAMILY.load(benchmark_data, "test"))
    rng = random.Random(0)
    differs: Counter[tuple[str, str]] = Counter()
    seen = 0
    while seen < MUTATED:
        task = tasks[seen % len(tasks)]
        solution = task.payload["solution"]
        for name, ending in endings(int(task.payload["answer"]), rng).items():
            right = FORMS[name][1]
            work = FAMILY.gold(task).partition("####")[0] if rng.random() < 0.5 and ending else ""
            grade = FAMILY.grade(task, work + ending)
            official = extract(work + ending) == extract(solution)
            if name in ("nothing", "empty") and work:
                continue  # the worked solution itself states the number
            assert grade.detail["official"] == official, (task.id, name)
            assert grade.detail["strict"] == right == grade.full_credit, (task.id, name, work + ending)
            differs["official", name] += official != right
            differs["lic", name] += (lic(work + ending, {"answer": solution})["score"] == 1.0) != right
            seen += 1
    for rival in ("official", "lic"):
        found = {name for (who, name), count in differs.items() if who == rival and count}
        known = {name for name, (_, _, others) in FORMS.items() if rival in others.split()}
        print(
            f"{rival}: differs on {sum(n for (w, _), n in differs.items() if w == rival)} of {seen}: {sorted(found)}"
        )
        assert found == known, (rival, found ^ known)


def test_the_verdict_of_a_copy_is_its_own(benchmark_data: Path) -> None:
    task = next(FAMILY.load(benchmark_data, "test"))
    assert isinstance(task, SourceTask)
    answer = f"The answer is {task.payload['answer']}."
    assert FAMILY.grade(task, answer).full_credit
    official = FAMILY.with_verdict("official").grade(task, answer)
    assert not official.full_credit and official.detail["strict"] and official.score == 0.0
