"""Wordings by a model: one request an edit, checked, asked again with the reason, the template as the last resort."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.dialogue import Dialogue, build
from envs.errors import ConfigError, EngineError
from envs.fidelity import KINDS, check_utterance
from envs.intent import EMPTY, Replace
from envs.judge import JUDGE_SCHEMA, Judge
from envs.llm_simulator import FORM_KINDS, UTTER_SCHEMA, LLMSimulator
from envs.noise import Noise
from envs.parquet import read_dialogues, read_notes, write_dialogues
from envs.simulator import TemplateSimulator
from envs.wording_report import WordingReport, wording_notes
from tests.envs.wording_toys import OPENING, Model, Reply, Toy, honest

TOY = Toy()
TASK = TOY.task("train", 2)


def worded(simulator: Any, condition: str = "drift", index: int = 2, seed: int = 0) -> Dialogue:
    return build(TOY, TOY.task("train", index), condition, 3, seed, simulator)


def requests_of(dialogue: Dialogue) -> int:
    """One an edit, and one for a turn without edits or with the request for the answer."""
    last = len(dialogue.turns) - 1
    return sum(len(turn.edits) + (not turn.edits or t == last) for t, turn in enumerate(dialogue.turns))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 200), st.integers(0, 20), st.sampled_from(("drift", "clean", "turn_matched")))
def test_an_honest_model_is_accepted_at_once(index: int, seed: int, condition: str) -> None:
    model = Model(honest)
    simulator = LLMSimulator(model)
    dialogue = worded(simulator, condition, index, seed)
    assert len(model.asked) == requests_of(dialogue) == simulator.report.asked == simulator.report.accepted
    assert simulator.report.reasked == simulator.report.fell_back == 0 and not simulator.report.reasons
    plain = worded(None, condition, index, seed)
    assert [t.edits for t in dialogue.turns] == [t.edits for t in plain.turns]
    live, task = EMPTY, TOY.task("train", index)
    for turn in dialogue.turns:
        assert not check_utterance(turn.edits, turn.utterance, live, task), turn.utterance
        live = turn.state
    assert dialogue.turns[0].utterance.startswith(OPENING)
    assert dialogue == worded(LLMSimulator(Model(honest)), condition, index, seed)


def test_requests_hold_the_change_and_nothing_of_the_state() -> None:
    model = Model(honest)
    dialogue = worded(LLMSimulator(model, temperature=0.3, max_tokens=77, persona="terse"))
    at = 0
    for turn in dialogue.turns:
        asked = model.asked[at]
        at += max(len(turn.edits), 1)
        said = asked["messages"][1]["content"]
        assert asked["temperature"] == 0.3 and asked["max_tokens"] == 77 and asked["schema"] == UTTER_SCHEMA
        assert "fragments" in asked["messages"][0]["content"] and [m["role"] for m in asked["messages"]] == [
            "system",
            "user",
        ]
        edit = turn.edits[0] if turn.edits else None
        own = {g for g in (getattr(edit, n, None) for n in ("goal", "old", "new")) if g is not None}
        for goal in {*TASK.goals, *turn.state.goals} - own:
            assert goal.value is None or goal.value not in said
        if isinstance(edit, Replace):
            assert f"<<{edit.new.value}>>" in said and f"<<{edit.old.value}>>" in said
    assert len({asked["seed"] for asked in model.asked}) > len(model.asked) // 2


def test_a_refused_reply_is_asked_for_again_with_the_reason() -> None:
    def slow(messages: Sequence[Mapping[str, str]], seed: int) -> str:
        if len(messages) == 2:
            return json.dumps({"message": "Whatever, 99 of them."})
        return honest(messages, seed)

    model = Model(slow)
    simulator = LLMSimulator(model)
    dialogue = worded(simulator)
    asked = requests_of(dialogue)
    report = simulator.report
    assert (report.asked, report.accepted, report.reasked, report.fell_back) == (asked, asked, asked, 0)
    assert report.reasons["stray_number"] == asked and report.reasons["missing_value"] > 0
    again = model.asked[1]["messages"]
    assert [m["role"] for m in again] == ["system", "user", "assistant", "user"]
    assert again[2]["content"] == json.dumps({"message": "Whatever, 99 of them."})
    assert KINDS["stray_number"] in again[3]["content"] and "99" in again[3]["content"]
    assert model.asked[1]["seed"] == model.asked[0]["seed"] + 1
    assert report.source(dialogue.id, 0) == "llm"


STUBBORN = {
    "not json": "unreadable",
    json.dumps({"text": "hello"}): "unreadable",
    json.dumps(["hello"]): "unreadable",
    json.dumps({"message": 5}): "unreadable",
    json.dumps({"message": "  "}): "empty",
    json.dumps({"message": "Sure. " * 200}): "too_long",
}


@pytest.mark.parametrize(("reply", "kind"), STUBBORN.items())
def test_a_stubborn_model_leaves_it_to_the_template(reply: str, kind: str) -> None:
    model = Model(lambda messages, seed: reply)
    simulator = LLMSimulator(model, max_asks=2)
    dialogue = worded(simulator)
    plain = worded(None)
    assert [t.utterance for t in dialogue.turns] == [t.utterance for t in plain.turns]
    asked, report = requests_of(dialogue), simulator.report
    assert (report.asked, report.accepted, report.fell_back, report.reasked) == (asked, 0, asked, asked)
    assert len(model.asked) == 2 * asked and report.reasons[kind] == 2 * asked
    assert {report.source(dialogue.id, t) for t in range(len(dialogue.turns))} == {"template"}
    assert str(report).startswith(f"{asked} messages asked for, 0 accepted, {asked} left to the template")
    assert report.to_dict()["not_llm"][dialogue.id] == {
        str(t): "template" for t in range(len(dialogue.turns))
    }


def test_a_turn_of_both_sources_is_mixed_and_reports_merge_in_any_order() -> None:
    def fails_on_addresses(messages: Sequence[Mapping[str, str]], seed: int) -> str:
        return "no" if "delivery address" in messages[1]["content"] else honest(messages, seed)

    reports = []
    for index in (1, 2):
        simulator = LLMSimulator(Model(fails_on_addresses))
        clean = worded(simulator, "clean", index)
        assert simulator.report.source(clean.id, 0) == "mixed"
        assert simulator.report.source("another", 0) is None
        reports.append(pickle.loads(pickle.dumps(simulator.report)))
    one, two = WordingReport(), WordingReport()
    for report in reports:
        one.add(report)
    for report in reversed(reports):
        two.add(report)
    assert one.to_dict() == two.to_dict() and one.asked == reports[0].asked + reports[1].asked
    assert one.asked == one.accepted + one.fell_back and one.fell_back == 2
    assert list(one.to_dict()["not_llm"].values()) == [{"0": "mixed"}] * 2


def test_json_in_a_fence_is_read() -> None:
    def fenced(messages: Sequence[Mapping[str, str]], seed: int) -> str:
        return f"Here you are:\n```json\n{honest(messages, seed)}\n```"

    assert worded(LLMSimulator(Model(fenced))) == worded(LLMSimulator(Model(honest)))


def test_the_endpoint_s_errors_pass_through() -> None:
    def down(messages: Sequence[Mapping[str, str]], seed: int) -> str:
        raise EngineError("nobody answers")

    with pytest.raises(EngineError, match="nobody"):
        worded(LLMSimulator(Model(down)))


class Cached:
    """An endpoint with a cache on disk, and a limit of new requests after which it fails."""

    model = "stub-1"

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit, self.new = folder, limit, 0

    def ask(self, messages: Sequence[Mapping[str, str]], **options: Any) -> Any:
        key = json.dumps([list(messages), options], sort_keys=True)
        file = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
        if not file.is_file():
            if self.new == self.limit:
                raise EngineError("stopped")
            self.new += 1
            file.write_text(honest(messages, options["seed"]))
        return Reply(file.read_text())


def test_a_build_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = worded(LLMSimulator(Model(honest)))
    first = Cached(tmp_path, limit=5)
    with pytest.raises(EngineError):
        worded(LLMSimulator(first))
    second = Cached(tmp_path, limit=1000)
    assert worded(LLMSimulator(second)) == whole
    third = Cached(tmp_path, limit=0)
    assert worded(LLMSimulator(third)) == whole
    assert first.new == 5 and second.new == len(list(tmp_path.iterdir())) - 5


def verdicts(faithful: bool = True, coherent: bool = True) -> str:
    return json.dumps({"reason": "because", "conveys": faithful, "adds": False, "coherent": coherent})


def with_judge(verdict: str) -> tuple[LLMSimulator, Dialogue]:
    simulator = LLMSimulator(Model(honest), max_asks=2, judge=Judge(Model(lambda messages, seed: verdict)))
    return simulator, worded(simulator)


def test_the_judge_has_the_last_word() -> None:
    simulator, dialogue = with_judge(verdicts())
    assert simulator.report.accepted == requests_of(dialogue)
    for verdict, kind in (
        (verdicts(faithful=False), "judged_unfaithful"),
        (verdicts(coherent=False), "judged_incoherent"),
        ("hm", "judge_failed"),
    ):
        simulator, dialogue = with_judge(verdict)
        asked = requests_of(dialogue)
        assert simulator.report.fell_back == asked and simulator.report.reasons == {kind: 2 * asked}
        assert kind in FORM_KINDS


def test_the_judge_is_only_asked_what_the_rules_let_pass() -> None:
    judge = Model(lambda messages, seed: verdicts())
    worded(LLMSimulator(Model(lambda messages, seed: "no"), judge=Judge(judge)))
    assert not judge.asked
    worded(LLMSimulator(Model(honest), judge=Judge(judge)))
    assert judge.asked and all(asked["schema"] == JUDGE_SCHEMA for asked in judge.asked)


def test_options_are_in_the_id_and_in_the_notes_of_the_file(tmp_path: Path) -> None:
    variants = [
        LLMSimulator(Model(honest)),
        LLMSimulator(Model(honest), seed=1),
        LLMSimulator(Model(honest), temperature=0.1),
        LLMSimulator(Model(honest), model="other"),
        LLMSimulator(Model(honest), persona="formal"),
        LLMSimulator(Model(honest), fallback=TemplateSimulator("train")),
        LLMSimulator(Model(honest), judge=Judge(Model(honest))),
        Noise(LLMSimulator(Model(honest)), persona="hurried", merge_rate=0.5),
    ]
    ids = [worded(simulator).id for simulator in variants]
    assert len(set(ids)) == len(ids) and re.fullmatch(r"toy/train/2\|drift\|b3\|s0\|llm-[0-9a-f]{8}", ids[0])
    assert ids[-1] == f"{ids[0]}|hurried-m0.5x3"

    simulator = variants[0]
    assert isinstance(simulator, LLMSimulator)
    path = tmp_path / "d.parquet"
    dialogues = [worded(simulator, seed=n) for n in range(3)]
    write_dialogues(path, dialogues, notes=lambda: wording_notes(simulator, simulator.report))
    assert list(read_dialogues(path)) == dialogues
    notes = json.loads(read_notes(path)["wording"])
    assert notes["settings"] == simulator.settings
    assert {"model", "temperature", "seed", "prompts", "judge", "persona"} <= notes["settings"].keys()
    assert notes["report"] == simulator.report.to_dict() and notes["report"]["asked"] > 0
    assert json.loads(wording_notes(None)["wording"]) == {"settings": {"kind": "template"}, "report": None}


def test_noise_over_a_model_asks_one_request_an_edit_and_counts_the_right_turns() -> None:
    model = Model(honest)
    simulator = LLMSimulator(model)
    dialogue = worded(Noise(simulator, persona="chatty", merge_rate=1.0))
    assert max(len(turn.edits) for turn in dialogue.turns) > 1
    assert len(model.asked) == requests_of(dialogue)
    sources = [simulator.report.source(dialogue.id, t) for t in range(len(dialogue.turns))]
    assert set(sources) == {"llm"}
    live = EMPTY
    for turn in dialogue.turns:
        assert not check_utterance(turn.edits, turn.utterance, live, TASK), turn.utterance
        live = turn.state


def test_bad_options() -> None:
    class Nameless:
        def ask(self, messages: Sequence[Mapping[str, str]], **options: Any) -> Any:
            raise AssertionError("not asked")

    with pytest.raises(ConfigError, match="model="):
        LLMSimulator(Nameless())
    with pytest.raises(ConfigError, match="max_asks"):
        LLMSimulator(Model(honest), max_asks=0)
    with pytest.raises(ConfigError, match="temperature"):
        LLMSimulator(Model(honest), temperature=-1)
