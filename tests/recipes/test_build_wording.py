"""`fluxforge build` with other wordings and verdicts: recorded, rebuilt from the cache, refused where wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.errors import ConfigError, EndpointError, UnknownName
from envs.families import registry
from envs.grading import Grading
from envs.parquet import read_dialogues
from recipes import cli
from recipes.audit import AuditSettings, audit
from recipes.audit.material import Material
from recipes.build import BuildSettings, build_set
from recipes.wording_settings import WordingSettings
from tests.envs.stubserver import fail, say, serve
from tests.envs.wording_toys import honest


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def small(wording: WordingSettings, **more: Any) -> BuildSettings:
    return BuildSettings(
        "general-test", families=("calls",), budgets=("easy",), limit=3, wording=wording, **more
    )


def answering(number: int, body: dict[str, Any]) -> Any:
    return say(honest(body["messages"], body["seed"]))


def test_a_model_words_a_set_and_the_cache_rebuilds_it(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with serve(script=answering) as stub:
        wording = WordingSettings(f"openai:{stub.url}#stub-1", cache=cache)
        built = build_set(small(wording), None, tmp_path / "a", quiet=True)
        asked = len(stub.requests)
        assert asked
        two = build_set(small(wording), None, tmp_path / "b", jobs=2, quiet=True)
        assert files(two) == files(built) and len(stub.requests) == asked, "a reply was asked for twice"
    manifest = json.loads((built / "manifest.json").read_text())
    assert manifest["settings"]["wording"] == wording.recorded()
    report = json.loads((built / "wording.json").read_text())
    assert report["asked"] > 20 and report["accepted"] > 0.8 * report["asked"]
    assert all("|llm-" in d.id for d in read_dialogues(built / "calls" / "drift_easy.parquet"))
    assert "--wording 'openai:" in (built / "README.md").read_text()
    # The server is gone: the rebuild takes every reply from the cache.
    findings = audit(Material.open(built), AuditSettings(sample=20, cache=cache), quiet=True)
    status = {finding.name: finding.status for finding in findings}
    assert status["rebuild"] == "pass" and status["recoverable"] == "not run" and status["gold"] == "pass"
    alone = audit(Material.open(built), AuditSettings(sample=20, cache=tmp_path / "none"), quiet=True)
    assert {f.name: f.status for f in alone}["rebuild"] == "fail"


def test_a_model_reads_what_a_model_worded(tmp_path: Path) -> None:
    with serve(script=answering) as stub:
        wording = WordingSettings(f"openai:{stub.url}#stub-1", cache=tmp_path / "cache")
        built = build_set(small(wording), None, tmp_path / "a", quiet=True)
    kept = [
        d
        for path in sorted(built.glob("calls/*.parquet"))
        if path.stem != "tasks"
        for d in read_dialogues(path)
    ]
    by_messages = {tuple(turn.utterance for turn in d.turns): d for d in kept}

    def reading(number: int, body: dict[str, Any]) -> Any:
        text = body["messages"][1]["content"]
        dialogue = next(
            d for said, d in by_messages.items() if all(f"{n}. {u}" in text for n, u in enumerate(said, 1))
        )
        wants = [{"about": g.slot, "want": g.text} for g in dialogue.final.goals]
        if dialogue.condition == "drift" and dialogue.task_id == kept[0].task_id:
            wants.pop()  # one dialogue is misread
        return say(json.dumps({"wants": wants}))

    with serve(script=reading) as stub:
        settings = AuditSettings(
            sample=5, rebuild_jobs=0, cache=tmp_path / "reads", reader=f"openai:{stub.url}#judge-1"
        )
        findings = audit(Material.open(built), settings, quiet=True)
    found = next(finding for finding in findings if finding.name == "recoverable")
    assert (found.checked, found.failed) == (len(kept), 1) and "judge-1" in found.says
    assert found.info["reader"] == "judge-1" and found.info["rate"] == round(1 - 1 / len(kept), 4)
    with serve(say("no JSON")) as stub:
        settings = AuditSettings(
            sample=5, rebuild_jobs=0, cache=tmp_path / "none", reader=f"openai:{stub.url}#judge-1"
        )
        findings = audit(Material.open(built), settings, quiet=True)
    found = next(finding for finding in findings if finding.name == "recoverable")
    assert found.status == "fail" and found.failed == len(kept) and "could be read" in found.examples[0]


def test_a_server_that_is_down_ends_the_build_and_keeps_the_replies(tmp_path: Path) -> None:
    def dying(number: int, body: dict[str, Any]) -> Any:
        return answering(number, body) if number <= 15 else fail(400)

    cache, out = tmp_path / "cache", tmp_path / "out"
    with serve(script=dying) as stub:
        wording = WordingSettings(f"openai:{stub.url}#stub-1", cache=cache)
        with pytest.raises(EndpointError):
            build_set(small(wording), None, out, quiet=True)
    assert not out.exists() and sum(1 for path in cache.rglob("*") if path.is_file()) >= 10


def test_noise_is_recorded_and_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = "build --set general-test --families calls --budgets hard --limit 4 --persona hurried --merge 0.4 --out out"
    code = cli.main([str(word) for word in words.split()])
    assert code == 0
    plain = build_set(
        BuildSettings("general-test", families=("calls",), budgets=("hard",), limit=4),
        None,
        tmp_path / "plain",
    )
    turns = {
        name: sum(len(d.turns) for d in read_dialogues(folder / "calls" / "drift_hard.parquet"))
        for name, folder in (("noisy", tmp_path / "out"), ("plain", plain))
    }
    assert turns["noisy"] < turns["plain"], "no turns were merged"
    assert cli.main(["audit", "out"]) == 0
    checks = {
        check["name"]: check for check in json.loads((tmp_path / "out/audit.json").read_text())["checks"]
    }
    assert checks["rebuild"]["status"] == "pass"


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"persona": "hurid"}, UnknownName, "hurried"),
        ({"judge": True}, ConfigError, "--wording"),
        ({"typos": 1.5}, ConfigError, "from 0 to 1"),
        ({"merge": -1}, ConfigError, "from 0 to 1"),
        ({"merge": 0.5, "merge_cap": 1}, ConfigError, "2 edits"),
        ({"temperature": -1}, ConfigError, "temperature"),
        ({"endpoint": "openai:http://127.0.0.1:1/v1"}, ConfigError, "#"),
    ],
)
def test_wordings_that_cannot_be_are_refused(
    settings: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        WordingSettings(**settings)


def test_the_official_verdict_is_chosen_recorded_and_audited(tmp_path: Path) -> None:
    kept = dict(registry())
    try:
        settings = small(WordingSettings(), grading=Grading("official"))
        built = build_set(settings, None, tmp_path / "a", quiet=True)
        assert json.loads((built / "manifest.json").read_text())["settings"]["grader"] == "official"
        with_two = [family for family in registry().values() if hasattr(family, "verdict")]
        assert len(with_two) >= 8 and all(family.verdict == "official" for family in with_two)  # type: ignore[attr-defined]
        registry().update(kept)
        findings = audit(Material.open(built), AuditSettings(sample=5), quiet=True)
        assert {f.name: f.status for f in findings}["rebuild"] == "pass"
        assert registry()["bfcl"].verdict == "official"  # type: ignore[attr-defined]
    finally:
        registry().update(kept)
    with pytest.raises(UnknownName, match="official"):
        Grading("oficial")


def test_isolation_and_judge_reach_the_families_that_need_them(tmp_path: Path) -> None:
    kept = dict(registry())
    try:
        Grading(allow_unsandboxed=True, judge="openai:http://127.0.0.1:1/v1#m", cache=tmp_path).apply()
        assert registry()["humaneval"].sandbox.allow_unsandboxed  # type: ignore[attr-defined]
        assert registry()["livecodebench"].sandbox.allow_unsandboxed  # type: ignore[attr-defined]
        assert registry()["summhay"].judge is not None  # type: ignore[attr-defined]
        assert registry()["calls"] is kept["calls"]
    finally:
        registry().update(kept)
