"""Jobs on sets of dialogues: `build` makes one, `audit` checks that it is sound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recipes.cli_options import RUNS, Data

Cache = Annotated[
    Path | None,
    typer.Option(
        help="Folder of model replies; none is asked for twice. Default: runs/cache/wording.",
        show_default=False,
    ),
]
Unsandboxed = Annotated[
    bool,
    typer.Option("--allow-unsandboxed", help="Run model-written code without isolation where there is none."),
]
CoverageJudge = Annotated[
    str | None,
    typer.Option(help="Chat model that judges SummHay's coverage: openai:http://HOST:PORT/v1#MODEL."),
]


def build(
    set_name: Annotated[str, typer.Option("--set", help="calibration, general-test or train.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; default: runs/data/SET.", show_default=False)
    ] = None,
    data: Data = None,
    families: Annotated[str | None, typer.Option(help="Comma-separated; default: the set's.")] = None,
    budgets: Annotated[str | None, typer.Option(help="Comma-separated: easy, medium, hard.")] = None,
    conditions: Annotated[
        str | None, typer.Option(help="Comma-separated: clean, drift, turn_matched.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; the bytes do not depend on it.")] = 1,
    limit: Annotated[int | None, typer.Option(help="At most so many tasks a family.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of samples and scripts.")] = 0,
    wording: Annotated[
        str | None,
        typer.Option(
            help="templates, or a chat model: openai:http://HOST:PORT/v1#MODEL; default: the set's, templates."
        ),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the wording model; default: 0.8.")] = None,
    wording_seed: Annotated[
        int | None, typer.Option(help="Of the wording model's requests; default: 0.")
    ] = None,
    judge: Annotated[
        bool | None, typer.Option("--judge/--no-judge", help="Whether the wording model judges its messages.")
    ] = None,
    persona: Annotated[
        str | None, typer.Option(help="How the user writes; docs/wording.md lists them.")
    ] = None,
    typos: Annotated[float | None, typer.Option(help="Chance of a typo a word.")] = None,
    merge: Annotated[
        float | None, typer.Option(help="Chance that a turn joins the one before it; default: 0.")
    ] = None,
    merge_cap: Annotated[int | None, typer.Option(help="Most edits of a message; default: 3.")] = None,
    cache: Cache = None,
    grader: Annotated[
        str | None,
        typer.Option(help="strict, or official: as the benchmark's own grader; default: the set's, strict."),
    ] = None,
    allow_unsandboxed: Unsandboxed = False,
    coverage_judge: CoverageJudge = None,
) -> None:
    """Build a named set of dialogues in Parquet.

    A folder with a data card; docs/dataset.md describes sets and files.
    """
    from envs.grading import Grading
    from recipes.build import BuildSettings, build_set
    from recipes.sets import get_set
    from recipes.wording_settings import CACHE, WordingSettings

    recipe = get_set(set_name)
    given = {
        "endpoint": wording,
        "temperature": temperature,
        "seed": wording_seed,
        "judge": judge,
        "persona": persona,
        "typos": typos,
        "merge": merge,
        "merge_cap": merge_cap,
    }
    worded = WordingSettings.chosen(recipe.wording, given, cache)
    settings = BuildSettings(
        set_name,
        seed,
        names_of(families),
        names_of(budgets),
        names_of(conditions),
        limit,
        worded,
        Grading(grader or recipe.grader, allow_unsandboxed, coverage_judge, cache or CACHE),
    )
    typer.echo(build_set(settings, data, out or RUNS / "data" / set_name, jobs))


def audit(
    path: Annotated[Path, typer.Argument(help="Folder of a built set, or one Parquet file of dialogues.")],
    data: Data = None,
    sample: Annotated[int, typer.Option(min=1, help="Messages judged for fidelity and coherence.")] = 200,
    limit: Annotated[int | None, typer.Option(help="Dialogues looked at of each file.")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Processes of the rebuild; 0 leaves it out.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Where the report goes; default: audit.json beside the data.")
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(
            help="A chat model reads the dialogues, not the rules: openai:http://HOST:PORT/v1#MODEL."
        ),
    ] = None,
    cache: Cache = None,
    allow_unsandboxed: Unsandboxed = False,
    coverage_judge: CoverageJudge = None,
) -> None:
    """Check that a built set is sound.

    The exit code is 1 where a check fails; docs/dataset.md lists the checks.
    """
    from envs.grading import Grading
    from recipes.audit import AuditSettings, run_audit

    grading = Grading(allow_unsandboxed=allow_unsandboxed, judge=coverage_judge, cache=cache)
    raise typer.Exit(run_audit(path, data, AuditSettings(sample, limit, jobs, cache, grading, reader), out))


def names_of(text: str | None) -> tuple[str, ...] | None:
    """Return the names of a comma-separated list; None where it was not given."""
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
