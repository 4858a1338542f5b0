"""LiveCodeBench: decoding without unpickling, goals, both verdicts, on made-up problems in the upstream layout."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import pickle
import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from envs.drift import _Check, build_script
from envs.errors import DataError, GraderError, MissingFiles, UnknownName
from envs.families import _lcb_run as runs
from envs.families._lcb_text import Case, decode_cases, goal_texts
from envs.families.livecodebench import ERRATA, FAMILY
from envs.sandbox_code import SandboxConfig, shared
from envs.task import Quarantined, SourceTask, checked, get_family

RUNNER = os.environ.get("FLUXFORGE_LCB_TESTING_UTIL", "")

try:
    shared()
except GraderError as refused:
    pytest.skip(str(refused), allow_module_level=True)

SUM_TEXT = """You are given N numbers. Print their sum.

The sum fits into 64 bits.

Input

The input is given in two lines:

N
A_1 A_2 ... A_N

Output

Print the sum.

Constraints

- 1 <= N <= 10
- Every A_i is an integer.

Sample Input 1

3
1 2 3

Sample Output 1

6
"""


def packed(cases: list[dict[str, str]]) -> str:
    """Pack private tests as upstream does."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def case(given: str, wanted: str, kind: str = "stdin") -> dict[str, str]:
    return {"input": given, "output": wanted, "testtype": kind}


SUM = {
    "question_title": "Sum",
    "question_content": SUM_TEXT,
    "platform": "atcoder",
    "question_id": "toy_a",
    "contest_id": "toy",
    "contest_date": "2024-01-01T00:00:00",
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": json.dumps([case("3\n1 2 3\n", "6\n")]),
    "private_test_cases": packed([case("1\n-5\n", "-5\n"), case("2\n10 20\n", "30\n")]),
    "metadata": "{}",
}
PAIR = SUM | {
    "question_title": "Halves",
    "question_content": "Return the list `nums` with every number halved.\n\nExample 1:\n\nInput: nums = [2, 3]\n"
    "Output: [1.0, 1.5]\n\nConstraints:\n\n1 <= nums.length <= 100",
    "platform": "leetcode",
    "question_id": "3999",
    "starter_code": "class Solution:\n    def halves(self, nums: List[int], by: int) -> List[float]:\n        ",
    "public_test_cases": json.dumps([case("[2, 3]\n2", "[1.0, 1.5]", "functional")]),
    "private_test_cases": json.dumps(
        [case("[]\n2", "[]", "functional"), case("[1]\n10", "[0.1]", "functional")]
    ),
    "metadata": json.dumps({"func_name": "halves"}),
}
SUM_CODE = "n = int(input())\nprint(sum(map(int, input().split())))\n"
PAIR_CODE = "class Solution:\n    def halves(self, nums: List[int], by: int):\n        return [n / by for n in nums]\n"


def fenced(code: str) -> str:
    return f"Here it is.\n```python\n{code}```\n"


def write(folder: Path, *records: dict[str, Any], solutions: dict[str, str] | None = None) -> Path:
    (folder / "livecodebench").mkdir(exist_ok=True)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "livecodebench" / "test.jsonl").write_text(lines)
    if solutions:
        lines = "".join(json.dumps({"question_id": k, "code": v}) + "\n" for k, v in solutions.items())
        (folder / "livecodebench" / "solutions.jsonl").write_text(lines)
    return folder


@pytest.fixture
def sums(tmp_path: Path) -> SourceTask:
    return next(FAMILY.load(write(tmp_path, SUM), "test"))


@pytest.fixture
def pairs(tmp_path: Path) -> SourceTask:
    return next(FAMILY.load(write(tmp_path, PAIR), "test"))


def verdicts(task: SourceTask, code: str) -> tuple[bool, bool]:
    """Return the strict and the official verdict."""
    grade = FAMILY.with_verdict("official").grade(task, fenced(code))
    assert grade.error is None, grade
    return grade.detail["strict"], grade.detail["official"]


def test_it_is_registered() -> None:
    assert get_family("livecodebench") is FAMILY and not FAMILY.structured


def test_goals_are_sentences_formats_constraints_and_samples(sums: SourceTask, pairs: SourceTask) -> None:
    assert [(goal.slot, goal.text) for goal in sums.goals] == [
        ("point 1", "You are given N numbers."),
        ("point 2", "Print their sum."),
        ("point 3", "The sum fits into 64 bits."),
        ("input format 1", "The input is given in two lines: N A_1 A_2 ... A_N"),
        ("output format 1", "Print the sum."),
        ("constraint 1", "1 <= N <= 10"),
        ("constraint 2", "Every A_i is an integer."),
        ("sample 1", "3 1 2 3 gives 6"),
    ]
    assert [goal.slot for goal in pairs.goals] == ["point 1", "sample 1", "constraint 1"]
    assert "class Solution" in pairs.context and "standard input" in sums.context
    for word in SUM_TEXT.split():
        assert word in "Input Output Constraints Sample - 1" or any(word in g.text for g in sums.goals), word
    assert goal_texts("") == []


def test_private_tests_are_decoded_like_upstream(sums: SourceTask) -> None:
    cases = [case("a\u00e9\n", "b"), case("", "")]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        blob = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases), protocol))).decode()
        assert decode_cases(blob, "here") == (Case("a\u00e9\n", "b"), Case("", ""))
    long = [case("x" * 70_000, "y")]
    assert decode_cases(packed(long), "here")[0].input == "x" * 70_000


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harmed",)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (base64.b64encode(zlib.compress(pickle.dumps(Harmful()))).decode(), "only a string is safe"),
        (base64.b64encode(zlib.compress(pickle.dumps(["[]"]))).decode(), "only a string is safe"),
        (base64.b64encode(zlib.compress(pickle.dumps(b"[]"))).decode(), "where|only a string"),
        (base64.b64encode(zlib.compress(pickle.dumps("no json"))).decode(), "no JSON"),
        (base64.b64encode(zlib.compress(b"junk")).decode(), "pickle"),
        (base64.b64encode(b"not zlib").decode(), "base64 of zlib"),
        ("%%%", "base64 of zlib"),
        ('{"input": "1"}', "no list"),
        ('[{"output": "1"}]', "'input'"),
        ('[{"input": "1", "output": 2}]', "'output'"),
    ],
)
def test_anything_but_a_string_is_refused_and_never_run(
    payload: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=problem):
        decode_cases(payload, "here")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("code", "strict", "official"),
    [
        (SUM_CODE, True, True),
        ("import sys\nprint(sum(map(int, sys.stdin.read().split()[1:])))\n", True, True),
        ("def main():\n    input()\n    print(sum(map(int, input().split())))\n"
         "if __name__ == '__main__':\n    main()\n",
         True, True),
        ("print(sum(map(int, open(0).read().split()[1:])))\n", True, False),  # the prelude hides the patched open
        (SUM_CODE.replace("print(", "print('  ', "), True, True),
        (SUM_CODE.replace("print(sum", "print(1.0 * sum"), True, True),  # 6.0 and 6 are the same number
        (SUM_CODE + "exit()\n", True, True),
        ("input()\nprint(gcd(0, reduce(operator.add, map(int, input().split()))))\n", False, False),  # -5 has no sign
        (SUM_CODE.replace("sum", "max"), False, False),
        (SUM_CODE + "print()\nprint(1)\n", False, False),
        ("1 / 0\nprint()\n", False, False),
        ("input(\n", False, False),
        ("import os\nprint(6)\nos._exit(0)\n", False, False),
        # where upstream goes wrong: G26, and lines of standard input
        ("import sys\nd = sys.stdin.buffer\nd.readline()\nprint(sum(map(int, d.readline().split())))\n", True, False),
        ("import sys\nprint(sum(int(x) for line in list(sys.stdin)[1:] for x in line.split()))\n", True, False),
        ("import sys\ninput()\nr = sum(map(int, input().split()))\nsys.stdout.buffer.write(str(r).encode())\n",
         True, False),
    ],
)  # fmt: skip
def test_programs(sums: SourceTask, code: str, strict: bool, official: bool) -> None:
    assert verdicts(sums, code) == (strict, official)


@pytest.mark.parametrize(
    ("code", "strict", "official"),
    [
        (PAIR_CODE, True, True),
        (PAIR_CODE.replace("[n / by for n in nums]", "tuple(n / by for n in nums)"), True, True),
        ("def halves(nums, by):\n    return [n / by for n in nums]\n", True, True),
        (PAIR_CODE.replace("n / by", "n / by + 1e-12"), True, False),  # floats are compared exactly over there
        (PAIR_CODE.replace("n / by", "n / by + 1e-3"), False, False),
        (PAIR_CODE.replace("n / by", "n // by"), False, False),
        (PAIR_CODE.replace("halves", "doubles") + "def halves(): pass\n", False, False),
        ("class Solution:\n    def halves(self, nums, by):\n        return None\n", False, False),
        ("class E:\n    def __eq__(self, other): return True\n" + PAIR_CODE.replace("[n / by for n in nums]", "E()"),
         False, True),
        (PAIR_CODE.replace("return [", "while True: pass\n        return ["), False, False),
    ],
)  # fmt: skip
def test_functions(pairs: SourceTask, code: str, strict: bool, official: bool) -> None:
    quick = replace(FAMILY, timeout_s=2.0)
    grade = quick.with_verdict("official").grade(pairs, fenced(code))
    assert (grade.detail["strict"], grade.detail["official"]) == (strict, official), grade


def test_details_name_code_test_and_output(sums: SourceTask) -> None:
    grade = FAMILY.grade(sums, fenced("print(6)\n"))
    assert (grade.detail["code"], grade.detail["test"], grade.detail["shown"]) == (-2, 1, "6\n")
    assert FAMILY.grade(sums, fenced("print(6); 1 / 0\n")).detail["code"] == -4
    assert "ZeroDivisionError" in FAMILY.grade(sums, fenced("print(6); 1 / 0\n")).detail["reason"]
    assert replace(FAMILY, timeout_s=1.0).grade(sums, fenced("while True: print\n")).detail["code"] == -3
    assert FAMILY.grade(sums, "no code").detail["problem"]
    with pytest.raises(UnknownName):
        FAMILY.with_verdict("other")


@pytest.mark.parametrize(
    ("got", "wanted", "same"),
    [
        ("1 2\n", "1 2", True),
        (" 1 \n2\n\n", "1\n2", True),
        ("0.3333333", "0.33333333333", True),
        ("0.33", "0.33333333333", False),
        ("1000000000000000000", "1000000000000000001", False),  # whole numbers are exact
        ("9" * 5000, "9" * 5000, True),
        ("Yes", "YES", False),
        ("nan", "1.5", False),
        ("1\n2", "1 2", False),
        ("", "", True),
    ],
)
def test_outputs_are_compared_by_line_and_number(got: str, wanted: str, same: bool) -> None:
    assert runs.same_output(got, wanted) is same


def test_items_without_tests_and_errata_are_left_out_and_told(tmp_path: Path) -> None:
    empty = SUM | {"question_id": "toy_b", "public_test_cases": "[]", "private_test_cases": "[]"}
    known = SUM | {"question_id": "abc337_e"}
    titled = SUM | {"question_id": "3123", "question_title": "Find the Peaks"}
    folder = write(tmp_path, empty, known, SUM, titled)
    assert [task.id for task in FAMILY.load(folder, "test")] == ["livecodebench/toy_a"]
    reasons = [item.reason for item in FAMILY.skipped(folder, "test")]
    assert "no tests" in reasons[0] and "interactive" in reasons[1] and "several answers" in reasons[2]
    assert len(ERRATA) == 17


def test_a_task_without_tests_is_ungraded(sums: SourceTask) -> None:
    bare = SourceTask(
        sums.id, sums.family, "test", "", "", sums.goals, dict(sums.payload, public="[]", private="[]")
    )
    grade = FAMILY.grade(bare, fenced(SUM_CODE))
    assert grade.error == "livecodebench/toy_a has no tests"


def test_gold_comes_from_a_file_of_solutions(tmp_path: Path) -> None:
    folder = write(tmp_path, SUM, PAIR, solutions={"toy_a": SUM_CODE})
    found = list(checked(FAMILY, folder, "test"))
    assert isinstance(found[0], SourceTask) and isinstance(found[1], Quarantined)
    assert "solutions.jsonl" in found[1].reason
    write(tmp_path, SUM, solutions={"toy_a": "print(6)\n"})
    (wrong,) = checked(FAMILY, folder, "test")
    assert isinstance(wrong, Quarantined) and "rejects the gold" in wrong.reason


def test_nothing_is_executed_and_no_decoy_is_vouched_for(sums: SourceTask) -> None:
    with pytest.raises(GraderError, match="no reference solution"):
        FAMILY.execute(sums, sums.intent)
    assert FAMILY.variants(sums, sums.goals[0], random.Random(0)) == []
    assert FAMILY.decoys(sums, random.Random(0)) == FAMILY.decoys(sums, random.Random(0))
    assert _Check(FAMILY, sums).decoys(random.Random(0), 9) == []
    assert build_script(FAMILY, sums, "easy", 0).states[-1] == sums.intent


def test_a_passing_answer_that_obeys_a_decoy_fails(sums: SourceTask, pairs: SourceTask) -> None:
    for task, code in ((sums, SUM_CODE), (pairs, PAIR_CODE)):
        assert FAMILY.grade(task, fenced(code)).full_credit
        decoys = FAMILY.decoys(task, random.Random(0))
        failing = [
            d for d in decoys if not FAMILY.grade(task, FAMILY.obey(task, fenced(code), d)).full_credit
        ]
        assert len(failing) >= 4
        with pytest.raises(GraderError, match="carry out"):
            FAMILY.obey(task, fenced(code), task.goals[0])


def test_missing_and_broken_files(tmp_path: Path) -> None:
    for source in (None, tmp_path):
        with pytest.raises(MissingFiles, match="code_generation_lite"):
            list(FAMILY.load(source, "test"))
    folder = write(tmp_path, {"question_id": "x"})
    with pytest.raises(DataError, match=r"test\.jsonl, row 1: no field"):
        list(FAMILY.load(folder, "test"))
    write(tmp_path, SUM | {"metadata": "[]"})
    with pytest.raises(DataError, match="row 1: 'metadata'"):
        list(FAMILY.load(folder, "test"))
    with pytest.raises(DataError, match="no split 'train'"):
        list(FAMILY.load(folder, "train"))
    assert list(FAMILY.load(write(tmp_path, SUM) / "livecodebench", "test"))


def _upstream(path: str, sample: dict[str, str], code: str, pipe: Any) -> None:
    spec = importlib.util.spec_from_file_location("testing_util", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results, _ = module.run_test(sample, test=code, timeout=6)
    pipe.send(all(result is True or result == True for result in results))  # noqa: E712 (numpy's True too)


def _cases() -> Iterator[tuple[dict[str, Any], str]]:
    for mark in (test_programs, test_functions):
        record = SUM if mark is test_programs else PAIR
        for values in mark.pytestmark[0].args[1]:  # type: ignore[attr-defined]
            if "while True" not in values[0] and "_exit" not in values[0]:
                yield record, values[0]


@pytest.mark.skipif(not RUNNER, reason="FLUXFORGE_LCB_TESTING_UTIL names no testing_util.py of LiveCodeBench")
def test_official_verdicts_equal_those_of_run_test() -> None:
    box = shared(SandboxConfig())
    for record, code in _cases():
        cases = decode_cases(record["public_test_cases"], "") + decode_cases(record["private_test_cases"], "")
        function = json.loads(record["metadata"]).get("func_name")
        inputs, outputs = [c.input for c in cases], [c.output for c in cases]
        sample = {"input_output": json.dumps({"inputs": inputs, "outputs": outputs, "fn_name": function})}
        mine, its = get_context("fork").Pipe()
        process = get_context("fork").Process(target=_upstream, args=(RUNNER, sample, code, its))
        process.start()
        theirs = mine.recv() if mine.poll(60) else None
        process.join()
        assert runs.official(box, code, cases, function, 6.0).passed is theirs, code
