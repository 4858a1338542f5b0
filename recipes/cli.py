"""The command line: `fluxforge <job> [flags] [--recipe.key value ...]`.

Each job imports its recipe only when it runs, so `fluxforge --help` needs neither torch nor ray. Every error
raised on purpose is one message on stderr; the exit code is 2 for what the user can fix in the call or the
files (settings, names, data), 1 for the rest, 130 after Ctrl-C.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from envs.errors import ConfigError, DataError, FluxForgeError, MissingFiles, unknown_name
from recipes import cli_build, cli_eval, cli_plan
from recipes.cli_options import (
    ANY_KEY,
    DEBUG_HELP,
    KEYS_HELP,
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

JOBS = ("opd", "eval", "measure", "record", "plan", "build", "audit", "shard", "play", "report", "bench")
REFERENCE = "122b"  # the size that others are compared with
USER_ERRORS = (ConfigError, DataError, MissingFiles)  # UnknownName is a ConfigError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(epilog="`fluxforge JOB --help` lists what a job takes.")
def jobs(
    debug: Annotated[bool, typer.Option("--debug", help="Add the traceback to an error.")] = False,
) -> None:
    """FluxForge: measure intent drift in multi-turn agents and train small models that repair it."""
    # `main` takes --debug out of the words before they come here; this lists it.


@app.command(context_settings=ANY_KEY, epilog=KEYS_HELP)
def opd(
    ctx: typer.Context,
    name: Name = None,
    seed: Seed = None,
    data: Data = None,
    smoke: Smoke = False,
    resume: Resume = False,
    wandb: Wandb = None,
    tracker: Tracker = None,
    recipe: Recipe = "opd",
    dry_run: DryRun = False,
) -> None:
    """Train a tracker by on-policy distillation.

    Warm-up steps on oracle logs, then on-policy steps; the tracker is measured before, between and after.
    """
    config = opd_config(
        ctx,
        "opd",
        recipe,
        name=name,
        seed=seed,
        data=data,
        smoke=smoke,
        resume=resume,
        wandb=wandb,
        tracker=tracker,
    )
    if config.tracker == REFERENCE:
        raise ConfigError(
            f"tracker {REFERENCE!r} is the reference that others are compared with and is not trained; measure it "
            f"by `fluxforge measure --tracker {REFERENCE}`, or train another size"
        )
    if not starts(config, dry_run):
        return
    from recipes.opd import run

    raise typer.Exit(run(config))


app.command("eval", context_settings=ANY_KEY, epilog=KEYS_HELP)(cli_eval.evaluate)
app.command("measure", context_settings=ANY_KEY, epilog=KEYS_HELP)(cli_eval.measure)
app.command("record", context_settings=ANY_KEY, epilog=KEYS_HELP)(cli_eval.record)
app.command("plan", context_settings=ANY_KEY, epilog=KEYS_HELP)(cli_plan.plan)


app.command("build", epilog=DEBUG_HELP)(cli_build.build)
app.command("audit", epilog=DEBUG_HELP)(cli_build.audit)


@app.command(epilog=DEBUG_HELP)
def shard(
    endpoint: Annotated[str, typer.Option(help="Chat model, as openai:http://HOST:PORT/v1#MODEL.")],
    out: Annotated[Path, typer.Option(help="File of sharded records to write.")],
    family: Annotated[str, typer.Option(help="Family whose prompts are split.")] = "gsm8k",
    split: Annotated[str, typer.Option(help="Split of the family.")] = "test",
    data: Data = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many prompts.")] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Tries a prompt before it is refused.")] = 3,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature.")] = 0.7,
    seed: Annotated[int, typer.Option(help="Seed of the requests.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Prompts in work at once.")] = 4,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of replies; none is asked for twice.", show_default=False)
    ] = None,
) -> None:
    """Split prompts into shards with a model.

    Only shards that together say exactly what the prompt says are kept; a call that was stopped goes on where it was.
    """
    from itertools import islice

    from envs.endpoint import Endpoint
    from envs.families import registry
    from envs.task import get_family
    from recipes.shard import ShardSettings, shard_file

    records = getattr(get_family(family), "records", None)
    if records is None:
        known = [name for name, one in registry().items() if hasattr(one, "records")]
        raise ConfigError(
            f"the prompts of family {family!r} are not split by a model; those of {', '.join(known)} are"
        )
    chat = Endpoint.parse(endpoint, cache=cache)
    settings = ShardSettings(chat.model, attempts, temperature, seed, workers)
    counts = shard_file(islice(records(data, split), limit), chat, out, settings)
    typer.echo(
        f"{counts.sharded} sharded, {counts.refused} refused, {counts.resumed} of them found finished: {out}"
    )


@app.command(epilog=DEBUG_HELP)
def play(
    family: Annotated[str, typer.Option(help="Family of the task.")] = "calls",
    split: Annotated[str, typer.Option(help="Split of the task.")] = "heldout",
    budget: Annotated[str, typer.Option(help="easy, medium, hard, or 1, 3, 5.")] = "easy",
    seed: Annotated[int, typer.Option(help="Seed of the script.")] = 0,
    index: Annotated[int, typer.Option(min=0, help="Which task, from 0.")] = 0,
    condition: Annotated[str, typer.Option(help="clean, drift or turn_matched.")] = "drift",
    data: Data = None,
) -> None:
    """Print one dialogue with the oracle state beside it."""
    from envs.dialogue import CONDITIONS
    from envs.task import get_family
    from recipes.schema import BUDGETS

    chosen = get_family(family)
    if split not in chosen.splits:
        raise unknown_name(f"split of {family}", split, chosen.splits)
    if condition not in CONDITIONS:
        raise unknown_name("condition", condition, CONDITIONS)
    amount = BUDGETS.get(budget) or (int(budget) if budget in ("1", "3", "5") else None)
    if amount is None:
        raise unknown_name("budget", budget, [*BUDGETS, "1", "3", "5"])
    from recipes.play import play as show

    show(family, split, amount, seed, index, condition, data)


@app.command(epilog=DEBUG_HELP)
def report(
    run: Annotated[
        str | None, typer.Argument(help="Run folder, or its name below runs/; default: the newest.")
    ] = None,
    name: Name = None,
) -> None:
    """Write report.html of a run."""
    from recipes.runs import find_run

    folder = find_run(RUNS, run or name)
    from recipes.report import write_report

    typer.echo(write_report(folder))


@app.command(epilog=DEBUG_HELP)
def bench(
    rows: Annotated[str, typer.Option(help="Comma-separated bench modules; default: all.")] = "",
    out: Annotated[Path, typer.Option(help="Where result.json goes.")] = RUNS / "bench",
) -> None:
    """Measure speed side by side with references."""
    from recipes.bench import run

    typer.echo(run([row for row in rows.split(",") if row], out))


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code (0, 1, 2 or 130); prints errors to stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words  # taken out here, so that it works before and after the job's name
    words = [word for word in words if word != "--debug"]
    try:
        job = next((word for word in words if not word.startswith("-")), None)
        if job is not None and job not in JOBS and words[0] == job:
            raise unknown_name("job", job, JOBS)
        # Non-standalone: typer returns the exit code of `typer.Exit` and raises usage errors and Ctrl-C.
        return _exit_code(
            typer.main.get_command(app).main(words, prog_name="fluxforge", standalone_mode=False)
        )
    except FluxForgeError as error:
        if debug:
            traceback.print_exc()
        print(f"fluxforge: {error}", file=sys.stderr)
        return 2 if isinstance(error, USER_ERRORS) else 1
    except (KeyboardInterrupt, typer.Abort):
        print("fluxforge: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if not hasattr(error, "format_message"):  # a bug: the whole traceback is wanted
            raise
        print(f"fluxforge: {error.format_message()} See: fluxforge --help", file=sys.stderr)  # type: ignore[attr-defined]
        return 2


def _exit_code(value: Any) -> int:
    return value if isinstance(value, int) else 0


if __name__ == "__main__":
    sys.exit(main())
