"""`fluxforge eval` as a whole, with scripted agents: what is written, resumed, replayed and left ungraded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from envs.errors import ConfigError, DataError, EngineDied, MissingFiles, UnknownName
from envs.task import Grade
from recipes import cli
from recipes.cases import Case, case_line
from recipes.eval_config import load_eval
from recipes.eval_inputs import plays, tasks_of
from recipes.evaluation import run_eval
from recipes.record import read_recorded, run_record
from rollout.agents import Message, Said
from tests.recipes.evalruns import FakeAgents, cases, config, use
from tests.rollout.scripted import ScriptedAgent

REPO = Path(__file__).resolve().parents[2]
ROWS = "--harnesses=bare,clean,oracle+no-gate,stateforge,executor@oracle"


def result(runs: Path, name: str) -> dict:
    return json.loads((runs / name / "result.json").read_text(encoding="utf-8"))


def test_a_run_writes_every_case_of_every_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, ScriptedAgent("KEEP"))
    setting = config("a", ROWS, "--conditions=drift,turn_matched", runs=tmp_path)
    assert run_eval(setting, tmp_path) == 0
    found = cases(tmp_path, "a")
    assert len(found) == 3 * (4 * 2 + 1) and len({case.key for case in found}) == len(found)
    assert {case.condition for case in found if case.harness == "clean"} == {"clean"}
    ids = {
        row: {case.case for case in found if case.harness == row} for row in ("bare", "clean", "stateforge")
    }
    assert ids["bare"] == ids["clean"] == ids["stateforge"], "pairs share their id"
    assert all(case.full_credit for case in found if case.harness == "executor@oracle")
    told = result(tmp_path, "a")
    assert (told["status"], told["cases"], told["ungraded"], told["job"]) == ("done", 27, 0, "eval")
    assert set(told["prompts"]) >= {"state.j2", "gate.j2", "log.txt"}
    assert told["comparison"]["reference"] == "bare" and len(told["comparison"]["idg"]) == 8
    outputs = ("report.html", "table.csv", "differences.csv", "table.tex")
    assert all((tmp_path / "a" / name).is_file() for name in outputs)
    forged = next(case for case in found if case.harness == "stateforge" and case.condition == "drift")
    assert forged.state_exact is False and forged.stale_leak is False and forged.tracker_tokens > 0
    assert forged.history[0].tracker == () and any(turn.slip for turn in forged.history)
    assert forged.history[-1].edits == () and forged.history[0].edits[0].startswith("add: ")
    bare = next(case for case in found if case.harness == "bare")
    assert bare.history[0].tracker is None and bare.state_exact is None and bare.history[0].shown is None


KILLED = """
import os, sys
from pathlib import Path
import pytest
from recipes.eval_config import load_eval
from recipes.evaluation import run_eval
from tests.recipes.evalruns import config, use
from tests.rollout.scripted import ScriptedAgent

class Dying(ScriptedAgent):
    async def reply(self, messages, **more):
        if len(self.asked) == int(sys.argv[2]):
            os._exit(9)
        return await super().reply(messages, **more)

runs = Path(sys.argv[1])
use(pytest.MonkeyPatch(), Dying("whole"))
flags = {"name": "cut", "resume": True}
fresh = not (runs / "cut" / "config.yaml").exists()
run_eval(config("cut", sys.argv[3], runs=runs) if fresh else load_eval(flags=flags, runs=runs), runs)
"""


def test_a_run_that_is_killed_again_and_again_does_nothing_twice_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, ScriptedAgent("whole"))
    run_eval(config("whole", ROWS, runs=tmp_path), tmp_path)
    file = tmp_path / "cut" / "cases.jsonl"
    before: list[Case] = []
    for requests in (70, 40):
        words = [sys.executable, "-c", KILLED, str(tmp_path), str(requests), ROWS]
        done = subprocess.run(words, cwd=REPO, capture_output=True, text=True)
        assert done.returncode == 9, done.stderr
        found = cases(tmp_path, "cut")
        assert found[: len(before)] == before and len(before) < len(found) < 15, "what was there is as it was"
        before = found
        file.write_text(
            file.read_text() + case_line(before[0])[:70], encoding="utf-8"
        )  # killed while writing

    use(monkeypatch, ScriptedAgent("whole"))
    resumed = load_eval(flags={"name": "cut", "resume": True}, runs=tmp_path)
    assert run_eval(resumed, tmp_path) == 0
    assert cases(tmp_path, "cut")[: len(before)] == before
    assert result(tmp_path, "cut")["played"] == 15 - len(before)

    def plain(name: str) -> list[dict]:
        shown = [case.model_dump(exclude={"seconds", "engine_seconds"}) for case in cases(tmp_path, name)]
        return sorted(shown, key=lambda case: (case["harness"], case["condition"], case["case"]))

    assert plain("cut") == plain("whole")
    assert run_eval(resumed, tmp_path) == 0
    assert FakeAgents.opened == 1, "nothing left to do opens no model"


def test_a_run_that_fails_says_so_and_keeps_its_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Buggy(ScriptedAgent):
        async def reply(self, messages: Sequence[Message], **more) -> Said:
            if len(self.asked) == 100:
                raise RuntimeError("a bug")
            return await super().reply(messages, **more)

    use(monkeypatch, Buggy("whole"))
    with pytest.raises(RuntimeError, match="a bug"):
        run_eval(config("cut", ROWS, runs=tmp_path), tmp_path)
    told = result(tmp_path, "cut")
    assert (told["status"], told["error"]) == ("failed", "RuntimeError: a bug")
    assert told["cases"] == len(cases(tmp_path, "cut")) > 0


def test_failing_agents_and_graders_leave_cases_ungraded_and_they_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Dying(ScriptedAgent):
        async def reply(self, messages: Sequence[Message], **more) -> Said:
            if more["group"].startswith("calls/"):
                raise EngineDied("gone")
            return await super().reply(messages, **more)

    use(monkeypatch, Dying("5"))
    graded: list[str] = []
    from envs.families.math import FAMILY

    def crash(task, answer: str) -> Grade:
        graded.append(task.id)
        raise OSError("disk")

    with monkeypatch.context() as patch:
        patch.setattr(type(FAMILY), "grade", lambda self, task, answer: crash(task, answer))
        patch.setattr("recipes.eval_inputs.quarantine_of", lambda family, batch: [None] * len(batch))
        patch.setattr("envs.mix.checked", lambda family, source, split: iter(family.load(source, split)))
        assert run_eval(config("e", "--harnesses=bare", runs=tmp_path), tmp_path) == 1
    found = cases(tmp_path, "e")
    assert len(found) == 3 and all(case.score is None and case.full_credit is None for case in found)
    assert len(graded) == 2 * sum(case.family == "math" for case in found), "a grader is asked once more"
    assert {case.error and case.error.split(":")[0] for case in found} == {"turn 1 of 5", "grader"} or all(
        case.error for case in found
    )
    told = result(tmp_path, "e")
    assert told["ungraded"] == 3 and sum(told["ungraded_reasons"].values()) == 3
    assert "3 of 3 cases are ungraded" in capsys.readouterr().out

    use(monkeypatch, ScriptedAgent("5"))
    assert run_eval(load_eval(flags={"name": "e", "resume": True}, runs=tmp_path), tmp_path) == 0
    assert [case.error for case in cases(tmp_path, "e")] == [None] * 3


def test_a_folder_is_used_once_and_resumed_with_its_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, ScriptedAgent())
    run_eval(config("a", "--harnesses=bare", runs=tmp_path), tmp_path)
    with pytest.raises(ConfigError, match="already holds a run"):
        run_eval(config("a", "--harnesses=bare", runs=tmp_path), tmp_path)
    changed = load_eval(overrides=["--cases=4"], flags={"name": "a", "resume": True}, runs=tmp_path)
    with pytest.raises(ConfigError, match="cases: 3 there, 4 now"):
        run_eval(changed, tmp_path)
    with pytest.raises(ConfigError, match="nothing to resume"):
        load_eval(flags={"name": "b", "resume": True}, runs=tmp_path)


def test_every_row_answers_the_end_of_the_recorded_dialogues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, ScriptedAgent("as recorded"))
    assert run_record(config("r", "--harnesses=bare", runs=tmp_path), tmp_path) == 0
    file = tmp_path / "r" / "trajectories.jsonl"
    assert len(read_recorded(file)) == 3
    base = ScriptedAgent("as replayed")
    use(monkeypatch, base)
    replay = load_eval(
        overrides=["--harnesses=bare,recap-prompt"], flags={"name": "p", "replay": file}, runs=tmp_path
    )
    assert replay.cases == 3 and replay.families == ("calls", "math"), "cases are those of the recording"
    assert run_eval(replay, tmp_path) == 0
    for case in cases(tmp_path, "p"):
        assert [turn.reply for turn in case.history] == ["as recorded"] * (case.turns - 1) + ["as replayed"]
    assert len(base.asked) == 6, "one request a case"

    other = load_eval(overrides=["--cases=5"], flags={"name": "q", "replay": file}, runs=tmp_path)
    with pytest.raises(ConfigError, match="was not recorded"):
        run_eval(other, tmp_path)
    file.write_text(file.read_text().replace("as recorded", "changed"), encoding="utf-8")
    with pytest.raises(DataError, match="is not what was recorded"):
        read_recorded(file)
    with pytest.raises(MissingFiles, match="fluxforge record"):
        load_eval(flags={"replay": tmp_path / "none.jsonl"}, runs=tmp_path)


def test_a_recording_with_failures_is_not_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead(ScriptedAgent):
        async def reply(self, messages: Sequence[Message], **more) -> Said:
            raise EngineDied("gone")

    use(monkeypatch, Dead())
    assert run_record(config("r", "--harnesses=bare", runs=tmp_path), tmp_path) == 1
    assert not (tmp_path / "r" / "trajectories.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (["--harnesses=stateforg"], UnknownName, "'stateforge'"),
        (["--harnesses=stateforge@trainde", "--trackers.trained=x"], UnknownName, "'trained'"),
        (["--harnesses=bare@tiny"], ConfigError, "takes no tracker"),
        (["--harnesses=bare+no-gate"], ConfigError, "no part that 'no-gate'"),
        (["--harnesses=stateforge+no-gat"], UnknownName, "'no-gate'"),
        (["--harnesses=bare,bare"], ConfigError, "each row once"),
        (["--budgets=easyy"], UnknownName, "'easy'"),
        (["--budgets=2"], ConfigError, "a budget is 1"),
        (["--families=cals"], UnknownName, "'calls'"),
        (["--conditions=drfit"], UnknownName, "'drift'"),
        (["--trackers.oracle=x"], ConfigError, "not 'oracle'"),
        (["--limits.answer_token=3"], UnknownName, "'limits.answer_tokens'"),
        (["--opd.steps=3"], UnknownName, "opd.steps"),
    ],
)
def test_settings_that_cannot_be_are_refused(words: list[str], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        load_eval(overrides=words)


def test_rows_are_spelt_out_for_trackers_and_switches() -> None:
    def names(*words: str) -> list[str]:
        return [row.name for row in load_eval(overrides=list(words)).rows()]

    assert names("--harnesses=stateforge,executor") == ["stateforge", "executor"]
    two = ["--trackers.new=x", "--harnesses=stateforge,executor@new"]
    assert names(*two) == ["stateforge@tiny", "stateforge@new", "executor@new"]
    assert names("--harnesses=stateforge,oracle,bare", "--no-gate") == [
        *("stateforge+no-gate", "oracle+no-gate", "bare")
    ]
    assert load_eval(flags={"tracker": "some/folder-x"}).trackers == {"folder-x": "some/folder-x"}


def test_cases_are_drawn_as_in_the_published_set() -> None:
    chosen = tasks_of(load_eval(overrides=["--cases=5"]))
    assert [family.name for family, _ in chosen] == ["calls", "calls", "math", "math", "sql"]
    more = tasks_of(load_eval(overrides=["--cases=20"]))
    assert {task.id for _, task in chosen} <= {task.id for _, task in more}
    assert {task.split for _, task in more} == {"heldout"}


def test_a_dry_run_counts_the_cases_of_each_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["eval", "--dry-run", "--cases=2", "--harnesses=bare,clean", "--name=x"]) == 0
    printed = capsys.readouterr().out
    assert "run folder: runs/x" in printed and "  bare: 12 cases\n  clean: 6 cases" in printed
    assert not Path("runs/x").exists()


def test_plays_of_one_dialogue_are_next_to_each_other() -> None:
    setting = load_eval(overrides=["--cases=2", "--harnesses=bare,recap-prompt", "--budgets=easy"])
    order = [(one.shown.condition, one.shown.case) for one in plays(setting)]
    assert len(order) == 8 and order == [pair for pair in dict.fromkeys(order) for _ in range(2)]


def test_real_cases_get_full_credit_from_the_oracle_s_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark_data: Path
) -> None:
    use(monkeypatch, ScriptedAgent())
    words = ["--families=gsm8k", "--harnesses=executor@oracle", "--cases=4"]
    setting = config("real", *words, runs=tmp_path, flags={"data": benchmark_data})
    assert run_eval(setting, tmp_path) == 0
    found = cases(tmp_path, "real")
    assert len(found) == 4 and all(case.full_credit for case in found)


def test_a_run_without_models_opens_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the real opener: a folder that is no model would be refused."""
    words = ["--harnesses=executor@oracle", "--base=no/such/model", "--families=math"]
    assert run_eval(config("o", *words, runs=tmp_path), tmp_path) == 0
    assert result(tmp_path, "o")["models"] == {}
    assert all(case.full_credit for case in cases(tmp_path, "o"))
