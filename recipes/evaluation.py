"""`fluxforge eval`: harnesses compared on the same cases.

All dialogues of all rows are in flight together, up to `max_in_flight`. A case is written when it is graded; what
an engine, an endpoint or a grader failed to do stays ungraded, is counted, and runs again with --resume.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from envs.errors import GraderError
from envs.grading import Grading
from recipes.cases import Case
from recipes.compare import show, summarize, write_outputs
from recipes.compare.rewrite import facts_of
from recipes.eval_agents import Agents
from recipes.eval_cases import broken_case, graded_case
from recipes.eval_inputs import Play, plays
from recipes.eval_schema import ORACLE, EvalConfig, Row
from recipes.eval_store import EvalFolder
from recipes.progress import Bar, Progress
from recipes.record import Recording, read_recorded, replies_for
from rollout.agents import NoAgent
from rollout.harness.base import HarnessSettings
from rollout.playing import Players, play, with_switches
from rollout.prompting import prompt_hashes

Recorded = Mapping[tuple[str, str], Recording]
"""Recordings by (condition, case)."""


def run_eval(config: EvalConfig, runs: Path = Path("runs")) -> int:
    """Run what is not done yet and write the result; return 0, or 1 where cases stayed ungraded."""
    how = config.grading
    Grading(how.grader, how.allow_unsandboxed, how.judge, how.cache).apply()
    with EvalFolder(runs, config) as folder:
        recorded = None if config.replay is None else read_recorded(config.replay)
        todo = [one for one in plays(config) if one.key not in folder.done]
        total = len(todo) + len(folder.done)
        started = time.monotonic()
        with Bar(total, "cases", done=len(folder.done)) as progress:
            origins = asyncio.run(_run(config, todo, folder, progress, recorded))
        ungraded = sum(case.error is not None for case in folder.cases.values())
        cases = list(folder.cases.values())
        compared = summarize(cases)
        result = folder.write_result(
            "done",
            base=config.base,
            trackers=dict(config.trackers),
            models=origins,
            replay=None if config.replay is None else str(config.replay),
            prompts=prompt_hashes(),
            played=len(todo),
            played_s=round(time.monotonic() - started, 3),
            rows=summary(cases),
            comparison=compared.block(),
        )
        write_outputs(
            folder.path,
            cases,
            summary=compared,
            name=config.name,
            facts=facts_of(result),
            config=(folder.path / "config.yaml").read_text(encoding="utf-8"),
        )
        show(compared)
        if ungraded:
            print(f"{ungraded} of {len(folder.cases)} cases are ungraded; run them again by --resume")
        print(f"cases: {folder.file}")
        print(f"report: {folder.path / 'report.html'}")
    return 1 if ungraded else 0


async def _run(
    config: EvalConfig, todo: list[Play], folder: EvalFolder, progress: Progress, recorded: Recorded | None
) -> dict[str, str]:
    if not todo:
        return {}
    async with Agents(config, model_names(config)) as agents:
        players = {row.name: players_of(row, config, agents) for row in config.rows()}
        await run_plays(todo, players, config, folder.add, progress, recorded)
        return agents.origins


async def run_plays(
    todo: Iterable[Play],
    players: Mapping[str, Players],
    config: EvalConfig,
    add: Callable[[Case], None],
    progress: Progress | None = None,
    recorded: Recorded | None = None,
) -> None:
    """Play and grade everything in `todo`, `max_in_flight` at once; `add` gets each case when it is graded."""
    queue = iter(todo)
    graders = asyncio.Semaphore(config.grade_workers)

    async def work() -> None:
        for one in queue:
            case = await run_play(one, players[one.row.name], graders, recorded)
            add(case)
            if progress is not None:
                if case.error is not None:
                    progress.print(f"ungraded: {case.harness}, {case.case}: {case.error}")
                progress.advance(f"{case.harness}, {case.case}")

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(config.max_in_flight):
                tasks.create_task(work())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def run_play(
    one: Play, players: Players, graders: asyncio.Semaphore, recorded: Recorded | None = None
) -> Case:
    """Play and grade one case."""
    shown = one.shown
    try:
        dialogue = await asyncio.to_thread(shown.dialogue)
    except GraderError as error:
        return broken_case(one, f"the dialogue could not be built: {error}")
    replies = None
    if recorded is not None and len(dialogue.turns) > 1:
        utterances = tuple(turn.utterance for turn in dialogue.turns)
        replies = replies_for(recorded, shown.condition, shown.case, utterances)
    played = await play(players, shown.family, shown.task, dialogue, replies)
    return await graded_case(one, played, graders)


def players_of(row: Row, config: EvalConfig, agents: Mapping[str, Any] | Agents) -> Players:
    """Return who plays a row."""
    tracker = None if row.tracker in (None, ORACLE) else agents[config.trackers[row.tracker]]
    players = Players(
        harness=row.harness,
        base=agents[config.base] if asks_base(row) else NoAgent(),
        tracker=tracker,
        protocol=config.protocol,
        settings=HarnessSettings(**config.limits.model_dump()),
        temperature=config.temperature,
        seed=config.seed,
        format_by_tracker=config.format_model == "tracker",
        neutral=config.neutral_replies,
    )
    return with_switches(players, row.switches)


def model_names(config: EvalConfig) -> list[str]:
    """Return the models that the rows need, each once."""
    rows = config.rows()
    names = [config.base] if any(map(asks_base, rows)) else []
    names += [config.trackers[row.tracker] for row in rows if row.tracker not in (None, ORACLE)]
    return list(dict.fromkeys(names))


def asks_base(row: Row) -> bool:
    """Say whether a row asks the base agent for anything."""
    return row.harness != "executor"


def summary(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """Return one entry a row, condition and stratum: cases, ungraded ones, mean score, share of full credit."""
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.harness, case.condition, case.stratum), []).append(case)
    found = []
    for (harness, condition, stratum), members in groups.items():
        graded = [case for case in members if case.error is None]
        found.append(
            {
                "harness": harness,
                "condition": condition,
                "stratum": stratum,
                "n": len(graded),
                "ungraded": len(members) - len(graded),
                "score": _mean([case.score for case in graded]),
                "car": _mean([case.full_credit for case in graded]),
            }
        )
    return found


def _mean(values: list[Any]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None
