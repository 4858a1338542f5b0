"""Measure a tracker on the held-out sets: `fluxforge measure --tracker tiny`, and before and after in `opd`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recipes.evalsets import EvalSet, evaluation_sets
from recipes.schema import OpdConfig
from recipes.stats import bootstrap_ci, paired_bootstrap
from rollout.collector import Replies, collect
from rollout.engine import Engine
from rollout.render import Renderer
from rollout.score import case_values, summarize
from rollout.tracker import TrackerProtocol
from rollout.trajectory import Trajectory

HEADLINE = ("edit_accuracy", "state_f1", "final_exact", "stale_leaks")
REPORTED = (
    *HEADLINE,
    "state_precision",
    "state_recall",
    "stale_leaks_all",
    "recovery",
    "malformed",
    "truncated",
)
STATS_SEED = 0


@dataclass(slots=True)
class Evaluation:
    """`metrics[set][metric]` is a mean over dialogues, `cases[set][metric]` one value a dialogue, in order.

    `errors[set]` counts dialogues that an engine failed to finish: they count as wrong and are said.
    """

    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)
    cases: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Return the block of result.json: the headline set's metrics, then each set under its name."""
        blocks = {name: self._block(name) for name in self.metrics}
        first = next(iter(blocks.values()), {})
        return {**first, **blocks}

    def flat(self) -> dict[str, float]:
        """Return every mean as `set/metric`, for a tracker of experiments."""
        return {
            f"{name}/{metric}": value
            for name, metrics in self.metrics.items()
            for metric, value in metrics.items()
            if value is not None
        }

    def _block(self, name: str) -> dict[str, Any]:
        intervals = {
            metric: [round(bound, 4) for bound in bootstrap_ci(self.cases[name][metric], seed=STATS_SEED)[1:]]
            for metric in HEADLINE
            if metric in self.cases[name]
        }
        means = {
            metric: round(value, 4)
            for metric in REPORTED
            if (value := self.metrics[name].get(metric)) is not None
        }
        return {**means, "ci95": intervals, "n": self.sizes[name], "errors": self.errors[name]}

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.part")
        aside.write_text(json.dumps(asdict(self)), encoding="utf-8")
        aside.replace(path)  # a resumed run trusts what is there

    @classmethod
    def load(cls, path: Path) -> Evaluation:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def paired(before: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Return case-paired differences: `metric` of the headline set, and `set/metric` of every set."""
    found: dict[str, Any] = {}
    for place, name in enumerate(after.cases):
        for metric in HEADLINE:
            if metric in after.cases[name] and metric in before.cases.get(name, {}):
                values = before.cases[name][metric], after.cases[name][metric]
                result = paired_bootstrap(*values, seed=STATS_SEED)
                entry = {"diff": round(result.diff, 4), "ci95": list(result.ci95), "n": result.n}
                found[f"{name}/{metric}"] = entry
                if place == 0:
                    found[metric] = entry
    return found


def evaluate(
    engine: Engine,
    runner: asyncio.Runner,
    sets: Sequence[EvalSet],
    renderer: Renderer,
    protocol: TrackerProtocol,
    replies: Replies | None,
    config: OpdConfig,
) -> tuple[Evaluation, Mapping[str, list[Trajectory]]]:
    """Play every set with the engine's current weights, all dialogues in flight together."""

    async def play_all() -> list[list[Trajectory]]:
        return await asyncio.gather(
            *(
                collect(
                    engine,
                    one.dialogues,
                    renderer,
                    protocol,
                    temperature=config.eval.temperature,
                    seed=STATS_SEED,
                    max_tokens=config.opd.max_tokens,
                    replies=replies,
                    prefixes=one.prefixes,
                    max_model_len=config.engine.max_model_len,
                )
                for one in sets
            )
        )

    result = Evaluation()
    played = {one.name: found for one, found in zip(sets, runner.run(play_all()), strict=True)}
    for name, trajectories in played.items():
        result.metrics[name] = {
            key: value for key, value in summarize(trajectories).items() if key in REPORTED
        }
        result.cases[name] = case_values(trajectories)
        result.errors[name] = sum(t.error is not None for t in trajectories)
        result.sizes[name] = len(trajectories)
    return result, played


def run_measure(config: OpdConfig, runs: Path = Path("runs")) -> int:
    """Measure `config.model` and write a run folder of job `measure`; return the exit code, 0."""
    from recipes.runs import RunFolder
    from recipes.session import Session
    from recipes.tracking import Tracker
    from recipes.transcripts import trajectory_rows

    with (
        RunFolder.create(runs, config, job="measure") as folder,
        Tracker(config, folder.path) as tracker,
        Session(config) as session,
    ):
        result, played = evaluate(
            session.engine,
            session.runner,
            evaluation_sets(config),
            session.renderer,
            session.protocol,
            session.replies,
            config,
        )
        for name, trajectories in played.items():
            folder.log_dialogues(0, name, trajectory_rows(0, name, trajectories))
        folder.write_result(
            "done",
            steps=0,
            after=result.summary(),
            engine=session.engine_kind,
            model=str(session.model),
        )
        tracker.log(0, {f"eval/{key}": value for key, value in result.flat().items()})
        show({"now": result})
        print(f"result: {folder.path / 'result.json'}")
    return 0


def show(evaluations: Mapping[str, Evaluation]) -> None:
    """Print one table a set: rows are the headline metrics, columns the evaluations, with 95% intervals."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if Console().is_terminal else 110)
    latest = list(evaluations.values())[-1]
    for name in latest.metrics:
        table = Table(title=f"{name} ({latest.sizes[name]} held-out dialogues)", title_justify="left")
        table.add_column("metric")
        for when in evaluations:
            table.add_column(when, justify="right")
        for metric in (*HEADLINE, "recovery"):
            cells = [_cell(evaluation, name, metric) for evaluation in evaluations.values()]
            if any(cells):
                table.add_row(metric, *cells)
        console.print(table)
        if latest.errors[name]:
            console.print(f"{latest.errors[name]} dialogues could not be finished and count as wrong")


def _cell(evaluation: Evaluation, name: str, metric: str) -> str:
    value = evaluation.metrics.get(name, {}).get(metric)
    if value is None:
        return ""
    cases = evaluation.cases[name].get(metric)
    if cases is None:
        return f"{value:.3f}"
    _, low, high = bootstrap_ci(cases, seed=STATS_SEED)
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"
