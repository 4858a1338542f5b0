"""What the jobs of the command line share: their options, and how a configuration is made and checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

RUNS = Path("runs")
ANY_KEY = {"allow_extra_args": True, "ignore_unknown_options": True}
DEBUG_HELP = "--debug, before or after the job, adds the traceback to an error."
KEYS_HELP = (
    "Any recipe key may follow as --key value, nested with dots: --opd.steps 4 --student.lr 2e-4. "
    + DEBUG_HELP
)

Name = Annotated[str | None, typer.Option(help="Run folder below runs/.")]
Seed = Annotated[int | None, typer.Option(help="Seed of dialogues, sampling and weights.")]
Data = Annotated[Path | None, typer.Option(help="Folder of benchmark files (gsm8k/, bfcl/).")]
Smoke = Annotated[bool, typer.Option("--smoke", help="The same path in minutes.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run folder.")]
Wandb = Annotated[str | None, typer.Option(help="off, offline or online.")]
Tracker = Annotated[
    str | None, typer.Option(help="Size name (tiny, 2b, 4b, 9b), model folder or owner/model.")
]
Recipe = Annotated[str, typer.Option(help="Recipe file, or the name of one in recipes/.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the resolved run and its memory; start nothing.")
]


def opd_config(ctx: typer.Context, job: str, recipe: str, **flags: Any) -> Any:
    """Return the configuration of a job; flags that were not given (None, False) leave the recipe's value."""
    from recipes.config import load_config

    given = {key: value for key, value in flags.items() if value is not None and value is not False}
    return load_config(recipe, ctx.args, flags=given, runs=RUNS, job=job)


def starts(config: Any, dry_run: bool, *, training: bool = True) -> bool:
    """Check the run and say what is worth a line; False after a dry run, which shows it and starts nothing."""
    from recipes import preflight

    if dry_run:
        preflight.show(config, RUNS, training=training)
    else:
        for note in preflight.check(config, RUNS, training=training):
            print(f"note: {note}", file=sys.stderr)
    if training:
        from recipes.plan import plan_here

        placed = plan_here(config)
        if placed is not None:
            print(placed.text())
    return not dry_run
