"""A set's own wording and verdict: keys of sets.yaml, what a call puts over them, and an endpoint that goes away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.errors import ConfigError, EndpointError, UnknownName
from envs.grading import Grading
from envs.parquet import read_dialogues
from recipes import cli, sets
from recipes.audit import AuditSettings, audit
from recipes.audit.material import Material
from recipes.build import BuildSettings, build_set
from recipes.sets import Sets, all_sets, read_sets
from recipes.wording_settings import CACHE, WordingSettings
from tests.envs.stubserver import fail, say, serve
from tests.envs.wording_toys import honest

SMALL = "--set general-test --families calls --budgets hard --conditions drift --limit 2"


def with_keys(**keys: Any) -> Sets:
    """The sets of the package, `general-test` with further keys."""
    known = all_sets()
    changed = known.sets["general-test"].model_copy(update=keys)
    return known.model_copy(update={"sets": {**known.sets, "general-test": changed}})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("wording: {persna: terse}", "Did you mean 'persona'"),
        ("wording: {persona: hurid}", "Did you mean 'hurried'"),
        ("wording: {cache: here}", "unknown key of a wording 'cache'"),
        ("wording: {typos: 3}", "from 0 to 1"),
        ("wording: {typos: often}", "sets.a.wording"),
        ("wording: {judge: true}", "--wording"),
        ("wording: {endpoint: 'http://127.0.0.1:1/v1'}", "KIND:URL#MODEL"),
        ("grader: oficial", "Did you mean 'official'"),
        ("grader: [strict", "is no YAML"),
    ],
)
def test_keys_of_a_set_that_cannot_be_are_named(keys: str, says: str) -> None:
    recipe = f"{{about: x, role: evaluation, families: all, tasks: all, procedural_tasks: 3, {keys}}}"
    with pytest.raises(ConfigError, match=says):
        read_sets(f"evaluation_splits: [test]\nsources: {{}}\nsets: {{a: {recipe}}}\n")


def test_a_set_s_own_wording_is_built_recorded_and_overruled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changed = with_keys(wording={"persona": "terse", "merge": 0.3}, grader="official")
    with monkeypatch.context() as patched:
        patched.setattr(sets, "all_sets", lambda: changed)
        assert BuildSettings("general-test").grades == Grading("official")
        assert cli.main(["build", *SMALL.split(), "--grader", "strict", "--out", "own"]) == 0
        assert cli.main(["build", *SMALL.split(), "--grader", "strict", "--merge", "0", "--out", "less"]) == 0
    assert cli.main(["build", *SMALL.split(), "--out", "plain"]) == 0
    read = {name: json.loads(Path(name, "manifest.json").read_text())["settings"] for name in ("own", "less")}
    assert read["own"]["wording"] == WordingSettings(persona="terse", merge=0.3).recorded()
    assert read["less"]["wording"] == WordingSettings(persona="terse").recorded()
    assert "wording" not in json.loads(Path("plain/manifest.json").read_text())["settings"]
    turns = {
        name: sum(len(d.turns) for d in read_dialogues(Path(name, "calls/drift_hard.parquet")))
        for name in ("own", "less", "plain")
    }
    assert turns["own"] < turns["less"] == turns["plain"]
    # The manifest is enough: the set's keys are gone, and the rebuild is still the same.
    findings = audit(Material.open(Path("own")), AuditSettings(sample=3), quiet=True)
    assert {finding.name: finding.status for finding in findings}["rebuild"] == "pass"


def test_a_built_plain_set_stays_plain_when_its_recipe_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = BuildSettings("general-test", families=("calls",), conditions=("clean",), limit=1)
    built = build_set(settings, None, tmp_path / "a", quiet=True)
    manifest = json.loads((built / "manifest.json").read_text())
    changed = with_keys(wording={"persona": "terse"}, grader="official")
    monkeypatch.setattr(sets, "all_sets", lambda: changed)
    again = BuildSettings.from_manifest(manifest)
    assert again.words == WordingSettings() and again.grades == Grading()


def test_what_a_call_gives_goes_over_the_set_s_keys() -> None:
    own = {"endpoint": "openai:http://127.0.0.1:1/v1#m", "temperature": 0.2, "judge": True}
    chosen = WordingSettings.chosen(own, {"temperature": None, "seed": 3, "judge": False})
    assert (chosen.endpoint, chosen.temperature, chosen.seed, chosen.judge) == (
        own["endpoint"],
        0.2,
        3,
        False,
    )
    assert chosen.cache == CACHE
    plain = WordingSettings.chosen(own, {"endpoint": "templates", "judge": False})
    assert plain.endpoint is None and plain.plain
    with pytest.raises(UnknownName, match="hurried"):
        WordingSettings.chosen(own, {"persona": "hurid"})


def test_a_build_whose_server_goes_away_says_what_is_kept_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def dying(number: int, body: dict[str, Any]) -> Any:
        return say(honest(body["messages"], body["seed"])) if alive or number <= 8 else fail(400)

    alive = False
    with serve(script=dying) as stub:
        words = [
            "build",
            *SMALL.split(),
            "--wording",
            f"openai:{stub.url}#m",
            "--cache",
            "kept",
            "--out",
            "out",
        ]
        assert cli.main(words) == 1
        said = capsys.readouterr().err
        assert (
            "Nothing was written to out" in said and "kept in kept" in said and "goes on from there" in said
        )
        assert not Path("out").exists()
        kept = sum(1 for path in Path("kept").rglob("*.json"))
        assert kept >= 1
        alive, before = True, len(stub.requests)
        assert cli.main(words) == 0
        total = sum(1 for path in Path("kept").rglob("*.json"))
        assert len(stub.requests) - before == total - kept, "a kept reply was asked for again"


def test_the_error_of_a_judge_without_a_cache_says_that_nothing_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise EndpointError("openai:http://127.0.0.1:1/v1#m could not be reached")

    monkeypatch.setattr("recipes.build.select", broken)
    settings = BuildSettings("general-test", families=("calls",), limit=1)
    with pytest.raises(EndpointError, match="could not be reached.*no cache is named"):
        build_set(settings, None, tmp_path / "out", quiet=True)
