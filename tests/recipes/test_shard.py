"""Splitting prompts into shards: what is kept, what is refused and why, and that a stopped job goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envs.errors import ConfigError, DataError, EngineError
from envs.sharded import load_sharded
from envs.task import SourceTask
from recipes.shard import ShardCounts, ShardSettings, prompt_of, shard_file, shard_record

QUESTION = "Ana buys 3 pens for $4 each. She pays with 20 dollars. How much change does she get?"
SHARDS = ["How much change does Ana get?", "Ana buys 3 pens", "each pen costs $4", "Ana pays with 20 dollars"]
SOLUTION = "3*4=<<3*4=12>>12\n20-12=<<20-12=8>>8\n#### 8"


def record(n: int = 0, question: str = QUESTION) -> dict[str, Any]:
    return {"task": "math", "task_id": f"sharded-GSM8K/{n}", "question": question, "answer": SOLUTION}


@dataclass
class Said:
    text: str


class Stub:
    """Answers by what is asked for: shards (call n of them), what is missing, what is added."""

    def __init__(
        self,
        shards: Callable[[int, str], Any] = lambda n, text: SHARDS,
        missing: Sequence[str] = (),
        added: Sequence[str] = (),
        fenced: bool = False,
    ) -> None:
        self.answers = {
            "shards": shards,
            "missing": lambda n, t: list(missing),
            "added": lambda n, t: list(added),
        }
        self.fenced = fenced
        self.asked: list[tuple[str, str, int, float]] = []

    def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        temperature: float,
        seed: int,
        max_tokens: int,
        schema: Mapping[str, Any],
    ) -> Said:
        ((key, _),) = schema["properties"].items()
        text = messages[-1]["content"]
        self.asked.append((key, text, seed, temperature))
        number = sum(one[0] == key for one in self.asked)
        data = {key: self.answers[key](number, text)}
        return Said(f"Here it is:\n```json\n{json.dumps(data)}\n```" if self.fenced else json.dumps(data))


SETTINGS = ShardSettings("stub", workers=1)


def test_shards_that_pass_every_check_are_kept() -> None:
    stub = Stub()
    outcome = shard_record(record(), stub, SETTINGS)
    assert outcome.record is not None and outcome.reasons == []
    assert [shard["shard"] for shard in outcome.record["shards"]] == SHARDS
    assert [shard["shard_id"] for shard in outcome.record["shards"]] == [1, 2, 3, 4]
    assert outcome.record["question"] == QUESTION
    assert [key for key, *_ in stub.asked] == ["shards", "missing", "added"]
    # the checks see the prompt and every shard, and are asked without chance
    for _, text, _, temperature in stub.asked[1:]:
        assert temperature == 0.0 and QUESTION in text and all(shard in text for shard in SHARDS)
    again = shard_record(record(), Stub(fenced=True), SETTINGS)
    assert again.record == outcome.record  # words and a fence around the reply do no harm


def test_rules_refuse_before_a_model_is_asked_and_the_reasons_go_into_the_next_try() -> None:
    lossy = [*SHARDS[:2], "each pen costs $5", SHARDS[3]]
    stub = Stub(lambda n, text: lossy if n == 1 else SHARDS)
    outcome = shard_record(record(), stub, SETTINGS)
    assert outcome.record is not None and outcome.record["sharding"]["attempt"] == 2
    assert outcome.reasons == [["no shard holds the number 4", "shard 3 adds the number 5"]]
    assert [key for key, *_ in stub.asked] == ["shards", "shards", "missing", "added"]
    assert "shard 3 adds the number 5" in stub.asked[1][1]
    assert stub.asked[0][2] != stub.asked[1][2]  # another seed, else the same shards might come again


@pytest.mark.parametrize(
    ("stub", "reason"),
    [
        (Stub(missing=["that she buys pens"]), "the shards leave out: that she buys pens"),
        (Stub(added=["a discount"]), "the shards add: a discount"),
        (Stub(lambda n, t: "no list"), "the model gave no list of shards"),
        (Stub(lambda n, t: [QUESTION]), "1 shards"),
    ],
)
def test_what_fails_every_try_is_refused_with_its_reasons(stub: Stub, reason: str) -> None:
    outcome = shard_record(record(), stub, SETTINGS)
    assert outcome.record is None and len(outcome.reasons) == SETTINGS.attempts
    assert all(tried[0].startswith(reason) for tried in outcome.reasons)


def test_the_prompt_of_every_kind() -> None:
    assert prompt_of(record()) == QUESTION
    assert prompt_of({"task": "code", "prompt": "def f(): ..."}) == "def f(): ..."
    assert prompt_of({"task": "code", "question_content": "Add."}) == "Add."
    assert prompt_of({"task": "database", "fully_specified_question": "How many?"}) == "How many?"
    assert (
        prompt_of({"task": "actions", "fully_specified_question": [[{"content": "Call it."}]]}) == "Call it."
    )
    for kind in ("summary", "data2text"):
        with pytest.raises(ConfigError, match="by structure"):
            prompt_of({"task": kind})
    for wrong in ({"task": "song"}, {"task": "math"}, {"task": "math", "question": " "}, {"task": "actions"}):
        with pytest.raises(DataError):
            prompt_of(wrong)


def test_a_file_holds_what_passed_in_order_and_loads_as_tasks(tmp_path: Path) -> None:
    out = tmp_path / "made" / "math.json"
    bad = "Bo has 7 nuts and 9 figs. How many things has Bo?"
    counts = shard_file([record(0), record(1, bad), record(2)], Stub(), out, ShardSettings("stub", workers=3))
    assert counts == ShardCounts(sharded=2, refused=1, resumed=0)
    tasks = list(load_sharded(out))
    assert [task.id for task in tasks if isinstance(task, SourceTask)] == [
        "sharded/math/sharded-GSM8K/0",
        "sharded/math/sharded-GSM8K/2",
    ]
    (refused,) = json.loads((out.parent / "math.json.refused.json").read_text())
    assert refused["task_id"] == "sharded-GSM8K/1" and "no shard holds the number 7" in refused["reasons"][0]
    assert {path.name for path in out.parent.iterdir()} == {"math.json", "math.json.refused.json"}


class Dies(Stub):
    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def ask(self, messages: Sequence[Mapping[str, str]], **keys: Any) -> Said:
        if self.left == 0:
            raise EngineError("the endpoint is gone")
        self.left -= 1
        return super().ask(messages, **keys)


@pytest.mark.parametrize("requests", [0, 1, 3, 5, 8])
def test_a_job_that_stops_anywhere_goes_on_and_ends_the_same(tmp_path: Path, requests: int) -> None:
    records = [record(n) for n in range(3)]
    whole = tmp_path / "whole.json"
    shard_file(records, Stub(), whole, SETTINGS)
    out = tmp_path / "cut.json"
    with pytest.raises(EngineError):
        shard_file(records, Dies(requests), out, SETTINGS)
    assert not out.exists()
    journal = tmp_path / "cut.json.partial.jsonl"
    with journal.open("a") as file:
        file.write('{"key": "cut sho')  # killed while it wrote
    stub = Stub()
    counts = shard_file(records, stub, out, SETTINGS)
    assert counts.resumed == requests // 3 and len(stub.asked) == 3 * (3 - counts.resumed)
    assert out.read_bytes() == whole.read_bytes() and not journal.exists()


def test_finished_records_count_only_for_the_same_inputs(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    with pytest.raises(EngineError):
        shard_file([record(0), record(1)], Dies(3), out, SETTINGS)
    stub = Stub()
    counts = shard_file([record(0), record(1)], stub, out, ShardSettings("stub", workers=1, seed=5))
    assert counts.resumed == 0 and len(stub.asked) == 6


def test_records_that_cannot_be_split_are_told_before_anything_is_asked(tmp_path: Path) -> None:
    stub = Stub()
    with pytest.raises(DataError, match="'sharded-GSM8K/0' occurs twice"):
        shard_file([record(0), record(0)], stub, tmp_path / "a.json", SETTINGS)
    with pytest.raises(DataError, match="GSM8K/1: the prompt is empty"):
        shard_file([record(0), record(1, "")], stub, tmp_path / "a.json", SETTINGS)
    with pytest.raises(DataError, match="no text task_id"):
        shard_file([{"task": "math", "question": QUESTION}], stub, tmp_path / "a.json", SETTINGS)
    (tmp_path / "a.json.partial.jsonl").write_text("[]\n")
    with pytest.raises(DataError, match="line 1: not of this job"):
        shard_file([record(0)], stub, tmp_path / "a.json", SETTINGS)
    assert stub.asked == []
    with pytest.raises(ConfigError, match="attempts"):
        ShardSettings("stub", attempts=0)


def test_the_command_splits_prompts_over_an_endpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from recipes.cli import main
    from tests.envs.stubserver import say, serve

    (tmp_path / "gsm8k").mkdir()
    lines = [json.dumps({"question": QUESTION, "answer": SOLUTION})]
    (tmp_path / "gsm8k" / "test.jsonl").write_text("\n".join(lines) + "\n")
    replies = {"shards": SHARDS, "missing": [], "added": []}

    def script(number: int, body: dict[str, Any]) -> Any:
        schema = body["response_format"]["json_schema"]["schema"]
        (key,) = schema["properties"]
        return say(json.dumps({key: replies[key]}))

    out = tmp_path / "made.json"
    with serve(script=script) as stub:
        words = ["shard", "--endpoint", f"openai:{stub.url}#toy", "--out", str(out), "--data", str(tmp_path)]
        words += ["--cache", str(tmp_path / "cache")]
        assert main(words) == 0
        assert main(words) == 0  # every reply is found in the cache
        assert len(stub.requests) == 3
    assert "1 sharded, 0 refused" in capsys.readouterr().out
    (task,) = load_sharded(out)
    assert isinstance(task, SourceTask) and [goal.text for goal in task.goals] == SHARDS
    assert main(["shard", "--endpoint", "openai:x", "--out", str(out)]) != 0
    assert "KIND:URL#MODEL" in capsys.readouterr().err
    assert main([*words[:5], "--family", "calls"]) != 0
    assert "bfcl, gsm8k" in capsys.readouterr().err
