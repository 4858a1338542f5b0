"""Runs of `fluxforge eval` with scripted agents in place of models, for tests."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from recipes.cases import Case, read_cases
from recipes.eval_config import load_eval
from recipes.eval_schema import EvalConfig
from rollout.agents import Agent

SMALL = ["--cases=3", "--budgets=easy", "--conditions=drift", "--max_in_flight=4", "--families=calls,math"]


class FakeAgents:
    """Stands in for `recipes.eval_agents.Agents`: every model is `agent`."""

    agent: Agent
    opened = 0

    def __init__(self, config: EvalConfig, names: list[str]) -> None:
        self.origins = dict.fromkeys(names, "scripted")
        type(self).opened += 1

    async def __aenter__(self) -> FakeAgents:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __getitem__(self, name: str) -> Agent:
        return type(self).agent


def use(monkeypatch: pytest.MonkeyPatch, agent: Agent) -> None:
    """Let `agent` be every model from here on."""
    monkeypatch.setattr(FakeAgents, "agent", agent, raising=False)
    monkeypatch.setattr(FakeAgents, "opened", 0)
    monkeypatch.setattr("recipes.evaluation.Agents", FakeAgents)
    monkeypatch.setattr("recipes.record.Agents", FakeAgents)


def config(name: str, *words: str, runs: Path, flags: dict[str, Any] | None = None) -> EvalConfig:
    return load_eval("eval", [f"--name={name}", *SMALL, *words], flags=flags, runs=runs)


def cases(runs: Path, name: str) -> list[Case]:
    return read_cases(runs / name / "cases.jsonl")
