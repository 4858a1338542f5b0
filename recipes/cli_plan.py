"""The command `fluxforge plan`, part of recipes/cli.py."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from recipes.cli_options import Recipe, Smoke, Tracker, opd_config


def plan(
    ctx: typer.Context,
    tracker: Tracker = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Name in recipes/clusters.yaml; default: this machine's GPUs, else 1x8x80."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="Model of the base agent's fleet; default: none, replies are templates."),
    ] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks of the trainer; default: chosen.")] = None,
    zero: Annotated[
        int | None, typer.Option(min=0, max=3, help="ZeRO stage; default: the lowest that fits.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    smoke: Smoke = False,
    recipe: Recipe = "opd",
) -> None:
    """Print what a run would place where.

    Roles, GPUs and the memory of each part per GPU, from configurations alone; a run that does not fit the cluster is
    refused with the nearest changes that would fit.
    """
    from recipes.nearest import run_plan
    from recipes.placement import cluster_named
    from recipes.plan import PlanOptions

    config = opd_config(ctx, "opd", recipe, tracker=tracker, smoke=smoke)
    made = run_plan(config, cluster_named(cluster), PlanOptions(base, ranks, zero))
    typer.echo(json.dumps(made.as_json(), indent=2) if as_json else made.text())
