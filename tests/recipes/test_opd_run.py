"""`fluxforge opd` from end to end at a toy size: what a run leaves behind, every loss and teacher, bad input."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
import yaml

from recipes import cli, preflight

sys.path.insert(0, str(Path(__file__).parent))
import tinyruns
from tinyruns import words

SHORT = ["--warmup.steps=1", "--opd.steps=1", "--eval.dialogues=1", "--opd.max_tokens=4"]
RESULT_KEYS = {
    *("name", "job", "status", "tracker", "teacher", "seed", "wall_s", "peak_rss_mb", "steps"),
    *("before", "after", "paired", "versions"),
}
HEADLINE = {"edit_accuracy", "state_f1", "final_exact", "stale_leaks"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tinyruns.save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def quiet_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with the default loss and teacher."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(words(model, "a")) == 0
    return folder / "runs" / "a"


# What a run leaves behind --------------------------------------------------------------------------------


def test_the_folder_is_complete_and_nothing_else_is_in_it(run: Path, model: Path) -> None:
    assert {path.name for path in run.iterdir() if not path.name.startswith(".")} == {
        *("config.yaml", "metrics.jsonl", "dialogues.parquet", "checkpoints", "evaluations"),
        *("result.json", "report.html", "tracker"),
    }
    assert not list(run.rglob("*.part")) and not list(run.rglob(".tmp-*"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["tracker"] == str(model) and config["opd"]["loss"] == "full" and config["seed"] == 0


def test_metrics_have_one_line_a_step(run: Path) -> None:
    lines = tinyruns.metrics(run)
    assert [(line["step"], line["phase"]) for line in lines] == [
        *((1, "warmup"), (2, "warmup")),
        *((3, "opd"), (4, "opd")),
    ]
    assert [line["cursor"] for line in lines] == [2, 4, 6, 8]
    assert all(math.isfinite(line["loss"]) and line["tokens_trained"] > 0 for line in lines)
    assert [line["tokens_generated"] > 0 for line in lines] == [False, False, True, True]
    versions = [line["version"] for line in lines]
    assert versions == sorted(versions) and versions[-1] > versions[0]


def test_dialogues_hold_each_training_sample_once_and_every_evaluation(run: Path) -> None:
    trained = tinyruns.trained_on(run)
    assert [index for _, _, index, _, _ in trained] == list(range(8))
    rows = tinyruns.dialogues(run, training_only=False)
    assert {row["phase"] for row in rows} == {
        *("warmup", "opd"),
        *(
            f"eval-{when}-{name}"
            for when in ("before", "warmup", "after")
            for name in ("unseen", "unseen_words")
        ),
    }
    measured = {
        phase: [row["dialogue_id"] for row in rows if row["phase"] == phase]
        for phase in ("eval-before-unseen", "eval-warmup-unseen", "eval-after-unseen")
    }
    assert len({tuple(ids) for ids in measured.values()}) == 1, "not the same dialogues each time"
    trained_ids = {id for *_, id in trained}
    assert not trained_ids & set(measured["eval-after-unseen"]), "measured on what it was trained on"
    by_version = {row["step"]: row["weight_version"] for row in rows if row["phase"] == "opd"}
    assert by_version[4] > by_version[3], "the second OPD step sampled from the first one's weights"
    assert all(row["tracker_text"] is None for row in rows if row["phase"] == "warmup")
    assert all(row["tracker_text"] is not None for row in rows if row["phase"] != "warmup")


def test_result_has_the_written_schema(run: Path) -> None:
    result = tinyruns.result(run)
    assert result.keys() >= RESULT_KEYS
    assert (result["name"], result["job"], result["status"]) == ("a", "opd", "done")
    assert (result["steps"], result["teacher"], result["engine"]) == (4, "privileged", "local")
    assert result["wall_s"] > 0 and result["peak_rss_mb"] > 100
    for when in ("before", "after", "after_warmup"):
        assert result[when].keys() >= HEADLINE
        assert result[when]["n"] == 2 and result[when]["errors"] == 0
        for metric in HEADLINE:
            low, high = result[when]["ci95"][metric]
            assert low <= result[when][metric] <= high
            assert result[when]["unseen"][metric] == result[when][metric]
    for metric in HEADLINE:
        entry = result["paired"][metric]
        assert entry["n"] == 2 and entry["ci95"][0] <= entry["diff"] <= entry["ci95"][1]
        assert entry["diff"] == pytest.approx(result["after"][metric] - result["before"][metric], abs=2e-4)
    assert result["engine_counters"]["weight_loads"] == 3
    assert "restarts" not in result["engine_counters"]


def test_report_is_one_file_without_network(run: Path) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "edit_accuracy" in page.replace(" ", "_")
    assert "src=" not in page and "<script" not in page


def test_tracker_is_a_model_that_transformers_loads_and_the_evaluation_repeats(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tracker = AutoModelForCausalLM.from_pretrained(run / "tracker", dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(run / "tracker")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert sum(p.numel() for p in tracker.parameters()) > 3_000_000
    assert any(
        not torch.equal(tensor, start)
        for tensor, start in zip(
            tracker.state_dict().values(),
            AutoModelForCausalLM.from_pretrained(run.parents[1] / _model_of(run)).state_dict().values(),
            strict=True,
        )
    )
    # The saved folder measured by itself must give what the run measured at its end.
    monkeypatch.chdir(run.parents[1])
    flags = [word for word in tinyruns.SMALL if not word.startswith(("--warmup", "--checkpoint"))]
    assert cli.main(["measure", "--tracker", str(run / "tracker"), "--name", "b", *flags]) == 0
    assert tinyruns.result(run.parent / "b")["after"] == tinyruns.result(run)["after"]
    said = {
        name: [
            row["tracker_text"]
            for row in tinyruns.dialogues(run.parent / name, training_only=False)
            if row["phase"] == phase
        ]
        for name, phase in (("a", "eval-after-unseen"), ("b", "unseen"))
    }
    assert said["a"] == said["b"] and any(said["a"])


def _model_of(run: Path) -> str:
    return yaml.safe_load((run / "config.yaml").read_text())["model"]


# Losses and teachers -------------------------------------------------------------------------------------

ARMS = {
    "full, privileged, adapter": ["--student.lora={rank: 4, alpha: 8}"],
    "sampled, privileged": ["--opd.loss=sampled"],
    "student_topk, privileged": ["--opd.loss=student_topk", "--opd.top_k=4", "--opd.state_weight=prefix"],
    "expert, oracle": ["--opd.loss=expert", "--opd.teacher=oracle"],
    "state, oracle": ["--opd.loss=state", "--opd.teacher=oracle", "--opd.group=2"],
    "imitation, oracle": ["--opd.loss=imitation", "--opd.teacher=oracle"],
    "full, privileged, no warm-up": ["--warmup.steps=0"],
}


@pytest.mark.parametrize("arm", ARMS)
def test_every_loss_trains_and_moves_the_engines(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words(model, "a", *SHORT, *ARMS[arm])) == 0
    run = tmp_path / "runs" / "a"
    result = tinyruns.result(run)
    assert result["status"] == "done"
    last = tinyruns.metrics(run)[-1]
    assert last["phase"] == "opd" and math.isfinite(last["loss"])
    rows = tinyruns.dialogues(run, training_only=False)
    measured = {row["phase"]: row["weight_version"] for row in rows if row["phase"].startswith("eval-")}
    sampled = {row["weight_version"] for row in rows if row["phase"] == "opd"}
    assert measured["eval-after-unseen"] == last["version"]
    if arm.startswith("imitation"):
        assert sampled == {None}
        assert measured["eval-after-unseen"] > measured["eval-warmup-unseen"], "measured old weights"
    else:
        assert sampled == {last["version"] - 1}
    if "no warm-up" in arm:
        assert result["after_warmup"] is None
    if arm.startswith("state"):
        assert [(index, sample) for _, phase, index, sample, _ in tinyruns.trained_on(run) if phase == "opd"] == [
            *((2, 0), (2, 1), (3, 0), (3, 1))
        ]  # fmt: skip


def test_another_model_as_the_teacher(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = tinyruns.save_model(tmp_path / "teacher", seed=1)
    monkeypatch.chdir(tmp_path)
    flags = ["--opd.teacher=model", f"--opd.teacher_model={teacher}"]
    losses = {}
    for name, loss in (("a", "--opd.loss=full"), ("b", "--opd.loss=teacher_topk")):
        assert cli.main(words(model, name, *SHORT, *flags, loss)) == 0
        assert tinyruns.result(tmp_path / "runs" / name)["teacher"] == str(teacher)
        losses[name] = tinyruns.metrics(tmp_path / "runs" / name)[-1]
    assert losses["a"]["loss"] > 0.01  # they do differ
    assert losses["b"]["loss"] > 0  # two flat models, seen through 16 tokens and a tail
    assert 0 < losses["b"]["p_mass"] < 1 and losses["b"]["state_weight"] <= 2.0


# Bad input -----------------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], argv: list[str], *parts: str, code: int = 2) -> None:
    """Assert that the call ends with `code`, one message that holds `parts`, and no run folder result."""
    assert cli.main(argv) == code
    err = capsys.readouterr().err
    told = err[err.index("fluxforge: ") :]
    assert "Traceback" not in err
    for part in parts:
        assert part in told, told


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--tracker=tiyn"], ["unknown tracker 'tiyn'", "Did you mean 'tiny'"]),
        (["--env.families=cals,sql"], ["unknown family 'cals'", "Did you mean 'calls'"]),
        (["--opd.teacher=privileg"], ["privileg", "'privileged'"]),
        (["--opd.lossy=full"], ["opd.lossy", "Did you mean 'opd.loss'"]),
        (["--data=/no/such/place"], ["/no/such/place", "gsm8k/", "upstream layout"]),
        (["--tracker=/no/such/model"], ["/no/such/model", "config.json"]),
        (
            ["--opd.teacher=model", "--opd.teacher_model=/no/such/model"],
            ["/no/such/model", "config.json"],
        ),
    ],
)
def test_names_and_places_that_are_not_there(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    parts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    named = any(flag.startswith("--tracker") for flag in flags)
    argv = ["opd", *flags, *tinyruns.SMALL] if named else words(model, "a", *flags)
    refused(capsys, argv, *parts)
    assert not list(tmp_path.rglob("result.json"))


def test_a_teacher_with_another_vocabulary(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = tinyruns.save_model(tmp_path / "teacher")
    tokenizer = json.loads((teacher / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    one, two = "Ġblue", "Ġgreen"
    vocab[one], vocab[two] = vocab[two], vocab[one]
    (teacher / "tokenizer.json").write_text(json.dumps(tokenizer))
    monkeypatch.chdir(tmp_path)
    argv = words(model, "a", "--opd.teacher=model", f"--opd.teacher_model={teacher}")
    refused(capsys, argv, "tokenizers differ", "Ġblue", "Ġgreen", "model family")
    run = tmp_path / "runs" / "a"
    assert not (run / "metrics.jsonl").exists() and not list(run.glob("evaluations/*")), (
        "work before the check"
    )


def test_a_run_folder_that_is_there_already(
    run: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parents[1])
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    refused(capsys, words(model, "a"), "already holds a finished run", "NAME=")
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


def test_too_little_memory_is_said_at_the_start(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "available_gib", lambda device="host": 0.25)
    refused(capsys, words(model, "a"), "this run needs about", "0.2 GiB are available")
    assert list(tmp_path.iterdir()) == []


def test_resuming_what_is_not_there_or_is_another_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(capsys, ["opd", "--name", "nothing", "--resume"], "nothing", "resume")
