"""Jobs that measure: `measure` a tracker's states, `eval` harnesses on cases, `record` what they may replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from envs.errors import ConfigError
from recipes.cli_options import (
    RUNS,
    Data,
    DryRun,
    Name,
    Recipe,
    Resume,
    Seed,
    Smoke,
    Tracker,
    Wandb,
    opd_config,
    starts,
)

Base = Annotated[
    str | None,
    typer.Option(help="The agent: tiny, 2b, ..., a model folder, owner/model, or openai:URL#MODEL."),
]
Harnesses = Annotated[
    str | None,
    typer.Option(help="Rows, comma-separated: HARNESS[@TRACKER][+no-gate][+no-format][+no-conclusions]."),
]
Cases = Annotated[int | None, typer.Option(min=1, help="Source tasks.")]
Families = Annotated[str | None, typer.Option(help="Comma-separated.")]
Budgets = Annotated[str | None, typer.Option(help="Comma-separated: easy, medium, hard.")]


def measure(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(help="Model folder (runs/<name>/tracker, say); default: the tracker's own weights."),
    ] = None,
    name: Name = None,
    seed: Seed = None,
    data: Data = None,
    smoke: Smoke = False,
    wandb: Wandb = None,
    tracker: Tracker = None,
    recipe: Recipe = "opd",
    dry_run: DryRun = False,
) -> None:
    """Measure a tracker on held-out dialogues."""
    config = opd_config(
        ctx,
        "measure",
        recipe,
        name=name,
        seed=seed,
        data=data,
        smoke=smoke,
        wandb=wandb,
        tracker=tracker,
        model=model,
    )
    if config.resume:
        raise ConfigError(
            "measure works in one go, there is nothing to resume; leave --resume (RESUME=1) out"
        )
    if not starts(config, dry_run, training=False):
        return
    from recipes.evaluate import run_measure

    raise typer.Exit(run_measure(config))


def evaluate(
    ctx: typer.Context,
    name: Name = None,
    seed: Seed = None,
    data: Data = None,
    smoke: Smoke = False,
    resume: Resume = False,
    base: Base = None,
    tracker: Tracker = None,
    harnesses: Harnesses = None,
    cases: Cases = None,
    families: Families = None,
    budgets: Budgets = None,
    replay: Annotated[
        Path | None, typer.Option(help="File of `fluxforge record` to answer the ends of.")
    ] = None,
    recipe: Recipe = "eval",
    dry_run: DryRun = False,
) -> None:
    """Compare harnesses on the same cases.

    Writes runs/NAME/cases.jsonl, one graded case a line; the exit code is 1 where cases stayed ungraded.
    """
    given = {"name": name, "seed": seed, "data": data, "smoke": smoke, "resume": resume, "base": base}
    given |= {"tracker": tracker, "harnesses": harnesses, "cases": cases, "families": families}
    config = _eval_config(ctx, "eval", recipe, {**given, "budgets": budgets, "replay": replay})
    if dry_run:
        return _dry_run(config)
    from recipes.evaluation import run_eval

    raise typer.Exit(run_eval(config, RUNS))


def record(
    ctx: typer.Context,
    name: Name = None,
    seed: Seed = None,
    data: Data = None,
    smoke: Smoke = False,
    resume: Resume = False,
    base: Base = None,
    cases: Cases = None,
    families: Families = None,
    budgets: Budgets = None,
    recipe: Recipe = "eval",
    dry_run: DryRun = False,
) -> None:
    """Play bare dialogues once and freeze them.

    Writes runs/NAME/trajectories.jsonl, which `fluxforge eval --replay` reads.
    """
    given = {"name": name, "seed": seed, "data": data, "smoke": smoke, "resume": resume, "base": base}
    given |= {"cases": cases, "families": families, "budgets": budgets, "harnesses": "bare"}
    config = _eval_config(ctx, "record", recipe, given)
    if dry_run:
        return _dry_run(config)
    from recipes.record import run_record

    raise typer.Exit(run_record(config, RUNS))


def _eval_config(ctx: typer.Context, job: str, recipe: str, flags: dict[str, Any]) -> Any:
    from recipes.eval_config import load_eval

    given = {key: value for key, value in flags.items() if value is not None and value is not False}
    return load_eval(recipe, ctx.args, flags=given, runs=RUNS, job=job)


def _dry_run(config: Any) -> None:
    """Print the resolved run and how many cases each row has; start nothing."""
    from collections import Counter

    from recipes.config import resolved_yaml
    from recipes.eval_inputs import plays

    print(resolved_yaml(config), end="")
    print("---")
    print(f"run folder: {RUNS / str(config.name)}")
    counts = Counter(play.row.name for play in plays(config))
    for row in config.rows():
        print(f"  {row.name}: {counts[row.name]} cases")
