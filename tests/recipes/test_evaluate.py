"""The job `measure` around its measurement, and where student and teacher are put; no model is loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import yaml

from recipes import evaluate as job
from recipes.config import load_config
from recipes.evaluate import Evaluation
from recipes.runs import read_result

MEASURED = Evaluation(
    metrics={"unseen": {"edit_accuracy": 0.75, "recovery": None}, "gsm8k": {"edit_accuracy": 0.5}},
    cases={"unseen": {"edit_accuracy": [1.0, 0.5]}, "gsm8k": {"edit_accuracy": [0.5]}},
    errors={"unseen": 0, "gsm8k": 0},
    sizes={"unseen": 2, "gsm8k": 1},
)


class FakeSession:
    """Stands for running engines; `opened` are the configurations it was asked for."""

    opened: ClassVar[list[Any]] = []

    def __init__(self, config: Any) -> None:
        self.opened.append(config)
        self.engine = self.runner = self.renderer = self.protocol = self.replies = None
        self.engine_kind, self.model = "local", config.model

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class FakeTracker:
    logged: ClassVar[list[tuple[int, dict[str, float]]]] = []

    def __init__(self, config: Any, folder: Path) -> None:
        self.mode = config.wandb

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.logged.append((step, metrics))

    def __enter__(self) -> FakeTracker:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def test_eval_writes_its_own_folder_and_logs_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeSession.opened, FakeTracker.logged = [], []
    monkeypatch.setattr("recipes.session.Session", FakeSession)
    monkeypatch.setattr("recipes.tracking.Tracker", FakeTracker)
    monkeypatch.setattr(job, "evaluation_sets", lambda config: [])
    monkeypatch.setattr(job, "evaluate", lambda *args: (MEASURED, {}))
    config = load_config("opd", ["--model", "some/folder", "--wandb", "offline"], job="measure")
    assert job.run_measure(config, tmp_path) == 0
    assert [opened.model for opened in FakeSession.opened] == ["some/folder"]
    assert FakeTracker.logged == [(0, {"eval/unseen/edit_accuracy": 0.75, "eval/gsm8k/edit_accuracy": 0.5})]
    folder = tmp_path / "measure-tiny-0"
    result = read_result(folder)
    assert (result["job"], result["status"], result["model"]) == ("measure", "done", "some/folder")
    assert result["after"]["gsm8k"]["edit_accuracy"] == 0.5
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"] == "some/folder"


@pytest.mark.parametrize(("there", "device"), [(True, "cuda"), (False, "cpu")])
def test_student_and_teacher_are_put_on_the_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, there: bool, device: str
) -> None:
    import torch

    from recipes import opd

    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    config = load_config("opd", ["--opd.teacher=model", "--opd.teacher_model=tiny", "--opd.loss=full"])
    assert opd.student_config(config, "model").device == device
    seen: dict[str, Any] = {}

    def load(folder: Path, **options: Any) -> SimpleNamespace:
        seen.update(options)
        return SimpleNamespace(check=lambda *args, **kwargs: None)

    monkeypatch.setattr(opd.ModelTeacher, "load", load)
    monkeypatch.setattr(opd, "resolve_model", lambda name: Path(name))
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda folder: None)
    session: Any = SimpleNamespace(renderer=SimpleNamespace(tokenizer=None))
    student: Any = None
    opd.model_teacher(config, session, student)
    assert seen["device"] == device
