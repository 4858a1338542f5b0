"""HumanEval: goals from the prompt, wrapped references that obey variants and decoys, both verdicts."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from pathlib import Path

import pytest

from envs.drift import _Check, build_script
from envs.errors import DataError, GraderError, MissingFiles, UnknownName
from envs.families._humaneval_text import DEFINITIONS, WRONG_EXAMPLES, Example, read_prompt
from envs.families.humaneval import FAMILY, program, read_problems
from envs.intent import Add, Delete, Goal, IntentState, Replace, fold
from envs.sandbox_code import Limits, Sandbox, SandboxConfig, shared
from envs.task import Quarantined, SourceTask, checked, get_family

DATA = Path(os.environ.get("FLUXFORGE_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
FILE = DATA / "humaneval" / "HumanEval.jsonl.gz"
real = pytest.mark.skipif(not FILE.is_file(), reason=f"no {FILE} (set FLUXFORGE_DATA)")

try:
    shared()
except GraderError as refused:
    pytest.skip(str(refused), allow_module_level=True)

EVENS = {
    "task_id": "HumanEval/0",
    "entry_point": "keep_even",
    "prompt": "from typing import List\n\n\ndef is_even(n: int) -> bool:\n    return n % 2 == 0\n\n\n"
    "def keep_even(numbers: List[int], most: int) -> List[int]:\n"
    '    """ Return the even numbers in ascending order. Numbers above most\n    are left out.\n'
    "    Note: the list may be empty.\n\n    Examples:\n    >>> keep_even([4, 1, 2], 9)\n    [2, 4]\n"
    '    keep_even([8, 12], 9) ➞ [8]\n    """\n',
    "canonical_solution": "    return sorted(n for n in numbers if is_even(n) and n <= most)\n",
    "test": "def check(candidate):\n    assert candidate([4, 1, 2], 9) == [2, 4]\n"
    "    assert candidate([], 3) == []\n    assert candidate([8, 12], 9) == [8]\n"
    "    assert is_even(candidate([6], 6)[0])\n",
}


def write(folder: Path, *records: dict[str, str]) -> Path:
    (folder / "humaneval").mkdir(exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "humaneval" / "HumanEval.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    return folder


@pytest.fixture
def task(tmp_path: Path) -> SourceTask:
    return next(FAMILY.load(write(tmp_path, EVENS), "test"))


def full(task: SourceTask, answer: str) -> bool:
    grade = FAMILY.grade(task, answer)
    assert grade.error is None, grade
    assert grade.score == float(grade.full_credit) == float(grade.detail["strict"])
    return grade.full_credit


def test_it_is_registered() -> None:
    assert get_family("humaneval") is FAMILY


def test_goals_are_signature_type_sentences_and_examples(task: SourceTask) -> None:
    assert [(goal.slot, goal.text) for goal in task.goals] == [
        ("signature", "write the function keep_even(numbers: List[int], most: int)"),
        ("return type", "return a value of type List[int]"),
        ("point about return even ascending", "Return the even numbers in ascending order."),
        ("point about numbers above left", "Numbers above most are left out."),
        ("point about note list may", "Note: the list may be empty."),
        ("example 1", "`keep_even([4, 1, 2], 9)` gives `[2, 4]`"),
        ("example 2", "`keep_even([8, 12], 9)` gives `[8]`"),
    ]
    assert "def is_even" in task.context and "keep_even" not in task.context
    assert task.payload["kind"] == "list"


def test_the_gold_passes_and_nothing_else_does(task: SourceTask) -> None:
    assert full(task, FAMILY.gold(task))
    assert full(task, FAMILY.execute(task, task.intent))
    for wrong in ("", "no idea", "```python\ndef keep_even(numbers, most):\n    return None\n```",
                  "```python\ndef keep_even(numbers, most):\n    raise ValueError\n```"):  # fmt: skip
        assert not full(task, wrong)


BODY = "    return sorted(n for n in numbers if is_even(n) and n <= most)\n"


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("```python\ndef keep_even(numbers, most):\n" + BODY + "```", True),
        (BODY, True),  # as a base model goes on
        ("def keep_even(numbers: List[int], most):\n" + BODY, True),
        ("```python\ndef helper(x):\n    return x\n\ndef other(numbers, most):\n" + BODY + "```", True),
        ("```python\nclass Solution:\n    def keep_even(self, numbers, most):\n    " + BODY + "```", True),
        (
            "```python\nkeep_even = lambda a, most: sorted(n for n in a if n % 2 == 0 and n <= most)\n```",
            True,
        ),
        (
            "```python\nfrom __future__ import annotations\ndef keep_even(a: X, b):\n    numbers, most = a, b\n"
            + BODY
            + "```",
            True,
        ),
        (
            "```python\ndef keep_even(numbers, most):\n"
            + BODY
            + "if __name__ == '__main__':\n    raise SystemExit\n```",
            True,
        ),
        ("```python\ndef other(numbers):\n    return numbers\n```", False),
        (
            "```python\ndef keep_even(numbers, most):\n    print('PASSED')\n    import os; os._exit(0)\n```",
            False,
        ),
        ("```python\ndef keep_even(numbers, most):\n    while True: pass\n```", False),
        ("```python\ndef keep_even(numbers, most):\n    import sys; sys.exit(0)\n```", False),
    ],
)
def test_answers_of_many_shapes(task: SourceTask, answer: str, right: bool) -> None:
    assert full(task, answer) is right


def test_a_substring_of_the_name_is_never_replaced(task: SourceTask) -> None:
    answer = (
        "```python\ndef f(numbers, most):\n    float_of = {float(n): n for n in numbers}\n" + BODY + "```"
    )
    code = program(task, answer)
    assert code is not None and "float_of = {float(n)" in code and code.rstrip().endswith("keep_even = f")
    assert full(task, answer)


def test_equal_to_everything_passes_officially_and_fails_strictly(task: SourceTask) -> None:
    answer = (
        "```python\nclass E(list):\n    def __eq__(self, other): return True\n"
        "def keep_even(numbers, most):\n    return E([0])\n```"
    )
    grade = FAMILY.grade(task, answer)
    assert not grade.full_credit and grade.detail["strict"] is False and grade.detail["official"] is True
    official = FAMILY.with_verdict("official").grade(task, answer)
    assert official.full_credit and official.detail["strict"] is False
    assert FAMILY.verdict == "strict"
    with pytest.raises(UnknownName, match="official"):
        FAMILY.with_verdict("offical")


def test_the_official_verdict_is_that_of_one_program(task: SourceTask) -> None:
    official = FAMILY.with_verdict("official")
    assert official.grade(task, FAMILY.gold(task)).full_credit
    assert not official.grade(
        task, "```python\ndef keep_even(numbers, most):\n    return []\n```"
    ).full_credit


def test_a_sandbox_that_is_not_there_is_an_error_not_a_wrong_answer(
    task: SourceTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(self: Sandbox, level: str) -> None:
        raise OSError("not today")

    monkeypatch.setattr(Sandbox, "_start", none)
    other = FAMILY.with_sandbox(SandboxConfig(paths=("/nowhere",)))  # not started yet
    grade = other.grade(task, FAMILY.gold(task))
    assert grade.error is not None and "not today" in grade.error and not grade.full_credit


def test_every_kept_variant_and_decoy_flips_and_most_are_kept(task: SourceTask) -> None:
    check = _Check(FAMILY, task)
    offered = kept = 0
    for goal in task.goals:
        found = FAMILY.variants(task, goal, random.Random(1))
        assert all(new.slot == goal.slot and new.text != goal.text for new in found)
        offered += len(found)
        for new in check.variants(goal, random.Random(1), 99):
            kept += 1
            assert not full(task, FAMILY.execute(task, fold(task.intent, [Replace(goal, new)]))), new
    assert kept >= 0.8 * offered and kept >= 12
    decoys = check.decoys(random.Random(1), 99)
    assert len(decoys) >= 6 and len({decoy.slot for decoy in decoys}) == len(decoys)


def test_a_variant_does_what_it_says(task: SourceTask) -> None:
    goals = {goal.slot: goal for goal in task.goals}
    wanted = {
        "point about return even ascending": ("descending order", "[4, 2]"),
        "return type": ("return a tuple", "(2, 4)"),
        "example 1": ("[4, 2]`", "[4, 2]"),
    }
    for slot, (words, expected) in wanted.items():
        new = next(v for v in FAMILY.variants(task, goals[slot], random.Random(0)) if words in v.text)
        code = program(task, FAMILY.execute(task, fold(task.intent, [Replace(goals[slot], new)])))
        run = shared().script(f"{code}\nprint(keep_even([4, 1, 2], 9))", "", Limits(wall_s=60))
        assert run.out.strip() == expected, (slot, run)


def test_variants_and_decoys_compose(task: SourceTask) -> None:
    goals = {goal.slot: goal for goal in task.goals}
    edits: list[Add | Replace] = []
    for slot, words in (("signature", "most: int, numbers"), ("return type", "return a tuple")):
        new = next(v for v in FAMILY.variants(task, goals[slot], random.Random(0)) if words in v.text)
        edits.append(Replace(goals[slot], new))
    edits += [Add(d) for d in FAMILY.decoys(task, random.Random(0)) if d.slot == "packaging"]
    code = program(task, FAMILY.execute(task, fold(task.intent, edits)))
    run = shared().script(f"{code}\nprint(keep_even(9, [4, 1, 2]))", "", Limits(wall_s=60))
    assert run.out.strip() == "{'result': (2, 4)}", run


def test_a_recursive_reference_is_wrapped_once(tmp_path: Path) -> None:
    record = EVENS | {
        "entry_point": "count",
        "prompt": 'def count(n):\n    """ Return the number of steps from n down to 0. """\n',
        "canonical_solution": "    return 0 if n == 0 else 1 + count(n - 1)\n",
        "test": "def check(candidate):\n    assert candidate(5) == 5\n",
    }
    task = next(FAMILY.load(write(tmp_path, record), "test"))
    new = next(v for v in FAMILY.variants(task, task.goals[2], random.Random(0)) if "plus one" in v.text)
    code = program(task, FAMILY.execute(task, fold(task.intent, [Replace(task.goals[2], new)])))
    assert shared().script(f"{code}\nprint(count(5))", "", Limits(wall_s=60)).out == "6\n"


def test_states_that_cannot_be_written(task: SourceTask) -> None:
    for at in (0, 2, 3):
        with pytest.raises(GraderError, match="lacks"):
            FAMILY.execute(task, fold(task.intent, [Delete(task.goals[at])]))
    for at in (1, 5):  # type and example do not keep one from writing it
        assert full(task, FAMILY.execute(task, fold(task.intent, [Delete(task.goals[at])])))
    with pytest.raises(GraderError, match="carry out"):
        FAMILY.execute(task, fold(task.intent, [Add(Goal("d9", "Sing.", "song"))]))
    with pytest.raises(GraderError):
        FAMILY.execute(task, IntentState())


def test_the_same_seed_offers_the_same(task: SourceTask) -> None:
    for seed in range(3):
        assert FAMILY.decoys(task, random.Random(seed)) == FAMILY.decoys(task, random.Random(seed))
    assert build_script(FAMILY, task, "easy", 4) == build_script(FAMILY, task, "easy", 4)


def test_missing_and_broken_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.families.humaneval.importlib.util.find_spec", lambda name: None)
    for source in (None, tmp_path):
        with pytest.raises(MissingFiles, match=r"openai/human-eval.*humaneval/HumanEval\.jsonl\.gz"):
            list(FAMILY.load(source, "test"))
    folder = write(tmp_path, {"task_id": "HumanEval/1"})
    with pytest.raises(DataError, match="row 1: no field 'prompt'"):
        list(FAMILY.load(folder, "test"))
    write(tmp_path, EVENS | {"entry_point": "absent"})
    with pytest.raises(DataError, match="does not define 'absent'"):
        list(FAMILY.load(folder, "test"))
    (folder / "humaneval" / "HumanEval.jsonl.gz").write_bytes(b"\x1f\x8bcut")
    with pytest.raises(DataError, match="gzip"):
        list(FAMILY.load(folder, "test"))
    with pytest.raises(DataError, match="no split 'train'"):
        list(FAMILY.load(folder, "train"))


def test_the_package_serves_where_there_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "human_eval" / "data").mkdir(parents=True)
    (tmp_path / "human_eval" / "__init__.py").write_text("raise RuntimeError('it is not imported')")
    path = write(tmp_path, EVENS) / "humaneval" / "HumanEval.jsonl.gz"
    path.rename(tmp_path / "human_eval" / "data" / "HumanEval.jsonl.gz")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert next(FAMILY.load(None, "test")).id == "humaneval/0"


@real
def test_real_golds_pass_and_no_text_of_a_docstring_is_lost() -> None:
    loaded = list(checked(FAMILY, DATA, "test"))
    assert [item for item in loaded if isinstance(item, Quarantined)] == []
    assert len({task.id for task in loaded if isinstance(task, SourceTask)}) == 164
    for task, problem in zip(loaded, read_problems(FILE), strict=True):
        assert isinstance(task, SourceTask)
        assert len({goal.slot for goal in task.goals}) == len(task.goals) >= 2
        assert FAMILY.grade(task, FAMILY.execute(task, task.intent)).full_credit
        said = " ".join(goal.text for goal in task.goals)
        text = problem["prompt"].split(f"def {problem['entry_point']}")[1].partition(":")[2]
        words = set(re.findall(r"[A-Za-z]{4,}", text))
        assert not words - set(re.findall(r"[A-Za-z]{4,}", said)) - _HEADINGS, task.id


_HEADINGS = {"only", "Example", "Examples", "example", "examples", "Note", "Constraints", "constraint", "Constrain",
             "Variables", "Rules", "Some", "assert", "should", "return", "returns", "import", "Return", "math",
             "true", "false", "median", "List", "Optional", "Tuple", "Dict", "bool", "Union", "float"}  # fmt: skip


@real
def test_real_wrong_answers_fail() -> None:
    for number, task in enumerate(FAMILY.load(DATA, "test")):
        if number % 8 == 0:
            head = f"def {task.payload['entry_point']}(*args, **named):\n"
            for body in ("    raise ValueError\n", "    return None\n"):
                assert not FAMILY.grade(task, f"```python\n{head}{body}```").full_credit, task.id


@real
def test_real_examples_hold_for_the_reference_save_those_listed() -> None:
    wrong: dict[str, list[str]] = {}
    for problem in read_problems(FILE):
        name, entry = problem["task_id"], problem["entry_point"]
        examples = [p for p in read_prompt("", problem["prompt"], entry).parts if isinstance(p, Example)]
        asked = [(e.call, e.args, e.value) for e in examples if e.args is not None]
        tests = f"def check(f):\n    return [c for c, a, v in {asked!r} if f(*a) != v]\n"
        run = shared().check(
            problem["prompt"] + problem["canonical_solution"], entry, tests, Limits(wall_s=60)
        )
        if run.status == "passed" and run.value:
            wrong[name] = run.value
    assert wrong == {name: list(calls) for name, calls in (WRONG_EXAMPLES | DEFINITIONS).items()}


@real
@pytest.mark.slow
def test_real_scripts_can_be_built_at_every_budget() -> None:
    for number, task in enumerate(FAMILY.load(DATA, "test")):
        if number % 16 == 0:
            for budget in ("easy", "hard"):
                assert build_script(FAMILY, task, budget, 0).states[-1] == task.intent
