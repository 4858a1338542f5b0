"""Recipes: layers, overrides, and one clear error for each thing that cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from envs.errors import ConfigError, MissingFiles, UnknownName
from recipes.config import (
    HERE,
    default_name,
    fingerprint,
    known_keys,
    load_config,
    parse_overrides,
    resolved_yaml,
    tracker_presets,
)
from recipes.schema import OpdConfig


def recipe(folder: Path, **body: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def test_the_default_recipe_is_the_tiny_tracker() -> None:
    config = load_config("opd")
    assert (config.tracker, config.model, config.name, config.seed) == ("tiny", "tiny", "opd-tiny-0", 0)
    assert config.env.training_families == ("calls", "sql", "math")
    assert config.wandb == "off" and config.data is None


@pytest.mark.parametrize("tracker", sorted(tracker_presets()))
def test_every_tracker_preset_and_smoke_are_valid(tracker: str) -> None:
    for words in ([], ["--smoke"]):
        config = load_config("opd", ["--tracker", tracker, *words])
        assert config.name == f"opd-{tracker}-0"
        assert config.model == tracker_presets()[tracker]["model"]


def test_layers_lie_over_each_other(tmp_path: Path) -> None:
    trackers = tmp_path / "trackers.yaml"
    trackers.write_text("big: {model: a/b, student: {lr: 3.0e-5, clip: 0.5}, engine: {replicas: 4}}")
    body = {"tracker": "big", "student": {"lr": 2e-5}, "opd": {"steps": 77}}
    config = load_config(recipe(tmp_path, **body), ["--opd.dialogues", "5"], trackers=trackers)
    assert config.model == "a/b" and config.engine.replicas == 4  # preset
    assert config.student.lr == 2e-5 and config.student.clip == 0.5  # recipe over preset
    assert (config.opd.steps, config.opd.dialogues) == (77, 5)  # recipe, command line
    smoke = load_config(recipe(tmp_path, **body), ["--smoke", "--opd.steps=3"], trackers=trackers)
    assert smoke.opd.steps == 3 and smoke.warmup.steps == 1  # command line over smoke over recipe


def test_a_mapping_of_choices_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = recipe(tmp_path, env={"condition_mix": {"drift": 0.5, "clean": 0.5}})
    assert load_config(path, ["--env.condition_mix", "{turn_matched: 1}"]).env.condition_mix == {
        "turn_matched": 1
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--a.b", "1", "--a.c=x", "--flag"], {"a": {"b": 1, "c": "x"}, "flag": True}),
        (["--lr", "1e-4", "--lr2=2E-5", "--lr3", "3."], {"lr": 1e-4, "lr2": 2e-5, "lr3": 3.0}),
        (["--wandb", "off", "--x", "null", "--y", "true"], {"wandb": "off", "x": None, "y": True}),
        (["--beta", "-0.5", "--no-smoke"], {"beta": -0.5, "smoke": False}),
        (
            ["--l", "[a, b]", "--m", "{a: 1}", "--max-tokens", "3"],
            {"l": ["a", "b"], "m": {"a": 1}, "max_tokens": 3},
        ),
        (["--path=a=b", "--odd", "[a", "--empty="], {"path": "a=b", "odd": "[a", "empty": None}),
    ],
)
def test_overrides(words: list[str], expected: dict[str, Any]) -> None:
    assert parse_overrides(words) == expected


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    lr=st.floats(1e-7, 1e-2),
    steps=st.integers(1, 500),
    budget=st.sampled_from(["easy", "medium", "hard", "1", "3", "5"]),
    loss=st.sampled_from(["full", "expert", "sampled", "imitation"]),
    lora=st.none() | st.integers(1, 64),
    name=st.none() | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True),
)
def test_resolved_yaml_gives_the_same_configuration(
    tmp_path_factory: pytest.TempPathFactory, seed: int, lr: float, steps: int, budget: str, loss: str,
    lora: int | None, name: str | None,
) -> None:  # fmt: skip
    words = [
        f"--seed={seed}",
        f"--student.lr={lr!r}",
        f"--opd.steps={steps}",
        f"--env.budget={budget}",
        f"--opd.loss={loss}",
        "--opd.teacher=privileged",
    ]
    words += [f"--student.lora.rank={lora}"] if lora else []
    config = load_config("opd", words, flags={"name": name} if name else {})
    path = tmp_path_factory.mktemp("resolved") / "config.yaml"
    path.write_text(resolved_yaml(config))
    assert load_config(path) == config
    assert config.student.lr == lr and config.seed == seed
    assert fingerprint(load_config(path)) == fingerprint(config)


def test_fingerprint_ignores_what_does_not_change_what_is_learned() -> None:
    base = fingerprint(load_config("opd"))
    same = ["--name", "other", "--wandb", "offline", "--engine.kind", "local", "--checkpoint.every", "1"]
    assert fingerprint(load_config("opd", same)) == base
    assert "data" in base  # the sets measured before training come from it
    changed = fingerprint(load_config("opd", ["--seed", "1", "--student.lr", "2e-4", "--env.budget", "hard"]))
    assert {key for key in base if base[key] != changed[key]} == {"seed", "student.lr", "env.budget"}


def test_resume_starts_from_the_runs_own_settings(tmp_path: Path) -> None:
    first = load_config("opd", ["--name", "mine", "--opd.steps", "3", "--seed", "5"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text(resolved_yaml(first))
    again = load_config("opd", ["--name", "mine", "--resume"], runs=tmp_path)
    assert again == first.model_copy(update={"resume": True})
    assert (
        load_config("opd", ["--name", "mine", "--resume", "--wandb", "offline"], runs=tmp_path).wandb
        == "offline"
    )
    assert load_config("opd", ["--name", "new", "--resume"], runs=tmp_path).opd.steps != 3


@pytest.mark.parametrize(
    ("words", "kind", "parts"),
    [
        (
            ["--opd.stepps", "4"],
            UnknownName,
            ["unknown key 'opd.stepps'", "command line", "Did you mean 'opd.steps'"],
        ),
        (["--lr", "1"], UnknownName, ["Did you mean 'student.lr'"]),
        (["--steps", "1"], UnknownName, ["'warmup.steps' or 'opd.steps'"]),
        (["--enviroment.budget", "1"], UnknownName, ["Did you mean 'env.budget'"]),
        (["--student.lora.rnk", "8"], UnknownName, ["Did you mean 'student.lora.rank'"]),
        (["--tracker", "tny"], UnknownName, ["unknown tracker 'tny'", "'tiny'"]),
        (["--tracker", "some/where/else"], MissingFiles, ["some/where/else", "config.json"]),
        (["--env.families", "calls,sqll"], UnknownName, ["unknown family 'sqll'", "'sql'"]),
        (["--env.families", ""], ConfigError, ["env.families"]),
        (["--env.families", "calls,calls"], ConfigError, ["once"]),
        (
            ["--env.families", "calls,bfcl"],
            ConfigError,
            ["env.families", "'bfcl' is read from benchmark files", "calls, math, sql", "--data"],
        ),
        (["--env.left_out", "gsm8k"], ConfigError, ["left_out", "'gsm8k'", "calls, sql, math"]),
        (["--env.families", "sql", "--env.left_out", "sql"], ConfigError, ["no family to train on"]),
        (["--env.budget", "hrd"], UnknownName, ["unknown budget 'hrd'", "'hard'"]),
        (["--env.budget", "2"], ConfigError, ["1 (easy), 3 (medium) or 5 (hard)", "2"]),
        (["--env.condition_mix", "{drfit: 1}"], UnknownName, ["unknown condition 'drfit'", "'drift'"]),
        (["--env.condition_mix", "{drift: 0}"], ConfigError, ["at least one condition"]),
        (["--env.condition_mix", "{drift: -1, clean: 2}"], ConfigError, ["must not be negative"]),
        (["--opd.teacher", "oracl"], UnknownName, ["unknown value 'oracl'", "'oracle'"]),
        (["--opd.loss", "ful"], UnknownName, ["unknown value 'ful'", "'full'"]),
        (["--wandb", "of"], UnknownName, ["unknown value 'of'", "'off'"]),
        (
            ["--opd.loss", "full", "--opd.teacher", "oracle"],
            ConfigError,
            ["loss 'full' needs a teacher's log-probs", "'expert' or 'state'"],
        ),
        (["--opd.loss", "state"], ConfigError, ["group >= 2, got 1", "opd.group to 4"]),
        (
            ["--opd.loss=sampled", "--opd.teacher=privileged", "--opd.temperature=0.7"],
            ConfigError,
            ["temperature 1, got 0.7"],
        ),
        (["--opd.teacher", "model"], ConfigError, ["needs teacher_model"]),
        (["--opd.teacher_model", "2b"], ConfigError, ["the teacher is 'oracle'"]),
        (
            ["--opd.teacher", "model", "--opd.teacher_model", "3b"],
            UnknownName,
            ["unknown teacher model '3b'"],
        ),
        (["--opd.max_tokens", "5000"], ConfigError, ["5000", "2048"]),
        (["--opd.steps", "0", "--warmup.steps", "0"], ConfigError, ["nothing to train"]),
        (["--opd.steps", "x"], ConfigError, ["opd.steps", "integer", "'x'"]),
        (["--opd.steps", "-1"], ConfigError, ["opd.steps", "greater than or equal to 0", "-1"]),
        (["--student.lr", ".nan"], ConfigError, ["student.lr", "finite"]),
        (["--student.betas", "[0.9, 1.5]"], ConfigError, ["student.betas", "[0, 1)"]),
        (["--student.lora.targets", "lm_head"], ConfigError, ["student.lora.targets", "lm_head"]),
        (["--opd", "3"], ConfigError, ["opd (from the command line)", "3"]),
        (["--name", "../up"], ConfigError, ["name", "'../up'"]),
        (["--data", "no/such"], MissingFiles, ["no/such", "gsm8k/"]),
        (["stray"], ConfigError, ["--key value", "'stray'"]),
        (["--opd", "3", "--opd.steps", "3"], ConfigError, ["opd.steps", "'opd'"]),
    ],
)
def test_bad_input_is_one_clear_error(words: list[str], kind: type[Exception], parts: list[str]) -> None:
    with pytest.raises(kind) as caught:
        load_config("opd", words)
    for part in parts:
        assert part in str(caught.value)


def test_a_bad_recipe_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"'opd.stps' \(from .*mine.yaml\)"):
        load_config(recipe(tmp_path, opd={"stps": 1}))
    with pytest.raises(ConfigError, match=r"opd.steps \(from .*mine.yaml\): .*'many'"):
        load_config(recipe(tmp_path, opd={"steps": "many"}))
    (tmp_path / "mine.yaml").write_text("opd: [")
    with pytest.raises(ConfigError, match=r"mine.yaml is not YAML"):
        load_config(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_text("- a\n- b")
    with pytest.raises(ConfigError, match=r"must hold a mapping"):
        load_config(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_text("a: !!python/object/apply:os.system ['echo no']")
    with pytest.raises(ConfigError, match=r"is not YAML"):
        load_config(tmp_path / "mine.yaml")
    with pytest.raises(MissingFiles, match=r"absent.yaml"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(UnknownName, match=r"unknown recipe 'opdd'.*'opd'"):
        load_config("opdd")


def test_a_model_folder_can_stand_in_for_a_size(tmp_path: Path) -> None:
    config = load_config("opd", ["--tracker", str(tmp_path)])
    assert config.model == str(tmp_path) and config.name == f"opd-{tmp_path.name}-0"
    assert load_config("opd", ["--tracker", "owner/Some-Model"]).model == "owner/Some-Model"
    assert default_name("owner/Some Model/", 3) == "opd-Some-Model-3"
    assert load_config("opd", ["--tracker", "2b"], job="measure").name == "measure-2b-0"
    assert load_config("opd", ["--name", "mine"], job="measure").name == "mine"


def test_configurations_are_frozen_and_every_key_is_described() -> None:
    config = load_config("opd")
    with pytest.raises(ValidationError, match="frozen"):
        config.opd.steps = 3  # type: ignore[misc]

    def undescribed(model: type[BaseModel]) -> list[str]:
        return [name for name, info in model.model_fields.items() if not info.description]

    parts = [type(getattr(config, name)) for name in OpdConfig.model_fields]
    models = [OpdConfig, *(part for part in parts if issubclass(part, BaseModel))]
    assert len(models) == 8 and not [undescribed(model) for model in models if undescribed(model)]
    assert {"opd.steps", "student.lora.rank", "engine", "name"} <= set(known_keys())


def test_recipes_lie_beside_the_package() -> None:
    assert {path.name for path in HERE.glob("*.yaml")} >= {"opd.yaml", "smoke.yaml", "trackers.yaml"}
