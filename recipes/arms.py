"""Does on-policy distillation pay? Several ways to spend the same compute after one and the same warm-up.

    python -m recipes.arms --name arms --data DATA --arms imitation,privileged,expert,state --seeds 0,1

For each seed the warm-up runs once; every arm starts from its weights, optimizer and training dialogues and may
spend `--opd.compute_budget_pflop` (6 P per trained token, 2 P per generated or scored token). All arms are
measured on the same held-out sets. `runs/<name>/arms.json` holds every case's values, so that arms can be paired;
it is written after each arm, and arms that are in it are not run again.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from envs.errors import unknown_name
from recipes.config import load_config
from recipes.evalsets import EvalSet, evaluation_sets
from recipes.evaluate import HEADLINE, STATS_SEED, Evaluation, evaluate
from recipes.opd import headline, loop_settings, make_parts
from recipes.schema import OpdConfig
from recipes.session import Session
from recipes.stats import bootstrap_ci, paired_bootstrap
from trainer.opd import LoopState, run_loop, start_opd
from trainer.teacher import ModelTeacher

ARMS: dict[str, dict[str, Any]] = {
    "imitation": {"loss": "imitation", "teacher": "oracle"},
    "privileged": {"loss": "full", "teacher": "privileged"},
    "expert": {"loss": "expert", "teacher": "oracle"},
    "state": {"loss": "state", "teacher": "oracle", "group": 4, "opd_dialogues": 2},
}
"""What differs between arms; everything else is the recipe's. `state` needs groups, so it takes fewer dialogues."""
UNBOUNDED = 10_000
"""Steps of an arm: more than any budget allows, the compute ends it."""


def run_arms(config: OpdConfig, arms: list[str], seeds: list[int], path: Path) -> dict[str, Any]:
    """Run what is missing in `path` and return everything in it: {"<seed>/<arm>": result}."""
    for arm in arms:
        if arm not in ARMS:
            raise unknown_name("arm", arm, ARMS)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    sets = evaluation_sets(config)
    with Session(config) as session:
        for seed in seeds:
            wanted = [arm for arm in ("warmup", *arms) if f"{seed}/{arm}" not in found]
            if wanted:
                _run_seed(config.model_copy(update={"seed": seed}), session, sets, wanted, found, path)
    return found


def _run_seed(
    config: OpdConfig,
    session: Session,
    sets: list[EvalSet],
    arms: list[str],
    found: dict[str, Any],
    path: Path,
) -> None:
    settings = loop_settings(config)
    parts = make_parts(config, session)
    student = parts.student
    state = LoopState(version=session.runner.run(session.engine.version()))
    warm = replace(settings, opd_steps=0, teacher="oracle")
    for record in run_loop(parts, warm, state):
        print(f"seed {config.seed}, step {record.step}: {headline(record)}", flush=True)
    tensors, scalars = student.state_dict()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    teacher = ModelTeacher.frozen(student, privileged=True)
    start = state.to_dict()
    for arm in arms:
        started = time.monotonic()
        state = LoopState.from_dict({**start, "version": session.runner.run(session.engine.version())})
        student.load_state_dict(tensors, scalars)
        if arm != "warmup":
            changed = replace(settings, opd_steps=UNBOUNDED, **ARMS[arm])
            parts.teacher = teacher if changed.teacher == "privileged" else None
            start_opd(parts, changed, state)
            for record in run_loop(parts, changed, state):
                print(f"seed {config.seed}, {arm}, step {record.step}: {headline(record)}", flush=True)
        else:
            start_opd(parts, warm, state)
        trained_s = time.monotonic() - started
        result, _ = evaluate(
            session.engine, session.runner, sets, parts.renderer, parts.protocol, parts.replies, config
        )
        found[f"{config.seed}/{arm}"] = {
            "steps": state.step,
            "pflop": state.flops["opd"] / 1e15,
            "seconds": trained_s,
            **asdict(result),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.part")
        aside.write_text(json.dumps(found), encoding="utf-8")
        aside.replace(path)
        print(f"seed {config.seed}, {arm}: {summary_line(result)}", flush=True)


def summary_line(result: Evaluation) -> str:
    return "; ".join(
        f"{name} edits {metrics['edit_accuracy']:.2f} exact {metrics['final_exact']:.2f}"
        for name, metrics in result.metrics.items()
    )


def table(found: dict[str, Any], arms: list[str], seeds: list[int]) -> str:
    """Return a Markdown table: arms by set and metric, both seeds' cases pooled, and OPD arms paired to imitation."""
    names = list(next(iter(found.values()))["cases"])
    lines = ["| set | metric | " + " | ".join(["warmup", *arms]) + " |", "|" + "---|" * (len(arms) + 3)]
    for name in names:
        for metric in HEADLINE:
            cells = []
            for arm in ("warmup", *arms):
                values = [v for seed in seeds for v in found[f"{seed}/{arm}"]["cases"][name][metric]]
                mean, low, high = bootstrap_ci(values, seed=STATS_SEED)
                cell = f"{mean:.3f} [{low:.3f}, {high:.3f}]"
                if "imitation" in arms and arm not in ("warmup", "imitation"):
                    control = [v for seed in seeds for v in found[f"{seed}/imitation"]["cases"][name][metric]]
                    cell += f" ({paired_bootstrap(control, values, seed=STATS_SEED).diff:+.3f})"
                cells.append(cell)
            lines.append(f"| {name} | {metric} | " + " | ".join(cells) + " |")
        recovery = [
            _mean([found[f"{seed}/{arm}"]["metrics"][name].get("recovery") for seed in seeds])
            for arm in ("warmup", *arms)
        ]
        lines.append(f"| {name} | recovery | " + " | ".join(recovery) + " |")
    return "\n".join(lines)


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.3f}" if known else ""


app = typer.Typer(add_completion=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def main(
    ctx: typer.Context,
    arms: Annotated[str, typer.Option(help="Comma-separated; known: " + ", ".join(ARMS))] = ",".join(ARMS),
    seeds: Annotated[str, typer.Option(help="Comma-separated.")] = "0,1",
    recipe: Annotated[str, typer.Option(help="Recipe that the arms share.")] = "arms",
) -> None:
    """Compare arms at equal compute; any recipe key may follow as --key value."""
    config = load_config(recipe, ctx.args)
    chosen, numbers = arms.split(","), [int(seed) for seed in seeds.split(",")]
    path = Path("runs") / str(config.name) / "arms.json"
    print(table(run_arms(config, chosen, numbers, path), chosen, numbers))
    print(f"cases: {path}")


if __name__ == "__main__":
    app()
