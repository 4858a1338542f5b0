"""The on-policy distillation loop: roll out, score, take a step, sync the engines, and again.

Two phases share one student and one optimizer schedule. `warmup` imitates the expert's lines on oracle logs,
a share of them with the lines shown in the message, so that the frozen result can serve as its own privileged
teacher. `opd` samples from the current student and trains on what it sampled. The loop is a generator: the
recipe around it writes metrics and checkpoints, evaluates, and may stop after any step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from envs.dialogue import Dialogue
from envs.mix import DialogueStream
from rollout.collector import collect, tracker_tokens, turn_seed
from rollout.engine import Engine
from rollout.render import Renderer
from rollout.score import score_trajectory, summarize
from rollout.tracker import TemplateReplies, TrackerProtocol
from rollout.trajectory import Trajectory
from trainer.losses import StateWeight
from trainer.rows import oracle_row, student_row, turn_advantages
from trainer.student import Student
from trainer.teacher import FrozenAdapterTeacher, ModelTeacher
from trainer.types import Row

PHASES = ("warmup", "opd")


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What the loop does; the recipe fills it from its configuration."""

    seed: int
    warmup_steps: int
    warmup_dialogues: int
    privileged_share: float
    opd_steps: int
    opd_dialogues: int
    group: int
    """Samples per dialogue in the opd phase (the `state` loss compares them)."""
    loss: str
    """A name of trainer/losses.py, or "imitation": oracle rows again, the off-policy control."""
    teacher: str
    """"privileged" (the frozen warm-up model shown the expert's lines), "model" or "oracle" (no model)."""
    beta: float = 1.0
    ratio_clip: float = 2.0
    top_k: int = 16
    state_weight: StateWeight = "none"
    temperature: float = 1.0
    max_tokens: int = 48
    max_model_len: int = 2048
    compute_budget_pflop: float | None = None
    """End the opd phase when this counted compute is spent: 6 P a trained, 2 P a generated or scored token."""


@dataclass(slots=True)
class LoopState:
    """Where the loop stands: everything that a checkpoint must hold beside student and teacher.

    `step` counts optimizer steps over both phases; `cursor` is the index of the next training dialogue;
    `version` the weights that the engines hold; `flops` the counted compute of each phase.
    """

    step: int = 0
    cursor: int = 0
    version: int = 0
    flops: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def to_dict(self) -> dict[str, Any]:
        return {"step": self.step, "cursor": self.cursor, "version": self.version, "flops": dict(self.flops)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LoopState:
        return cls(data["step"], data["cursor"], data["version"], dict(data["flops"]))


@dataclass(slots=True)
class StepRecord:
    """What one step did. `first_index` is the training index of its first dialogue."""

    step: int
    phase: str
    first_index: int
    dialogues: list[Dialogue]
    trajectories: list[Trajectory]
    metrics: dict[str, float]
    phase_done: bool


@dataclass(slots=True)
class Parts:
    """What the loop drives. `teacher` is filled at the end of the warm-up when it is privileged."""

    student: Student
    engine: Engine
    runner: asyncio.Runner
    renderer: Renderer
    protocol: TrackerProtocol
    replies: TemplateReplies | None
    stream: DialogueStream
    teacher: ModelTeacher | None = None


def run_loop(parts: Parts, settings: LoopSettings, state: LoopState) -> Iterator[StepRecord]:
    """Yield after every optimizer step, from `state` on; `state` is updated in place before each yield."""
    if state.step == settings.warmup_steps == 0:
        start_opd(parts, settings, state)
    while state.step < settings.warmup_steps:
        record = warmup_step(parts, settings, state)
        record.phase_done = state.step == settings.warmup_steps
        if record.phase_done:
            start_opd(parts, settings, state)
        yield record
    while state.step < settings.warmup_steps + settings.opd_steps and not _spent(settings, state):
        record = opd_step(parts, settings, state)
        last = state.step == settings.warmup_steps + settings.opd_steps
        record.phase_done = last or _spent(settings, state)
        if record.phase_done and settings.loss == "imitation":
            # Nothing was sampled on the way, so the engines still hold the warm-up's weights.
            sync(parts, state)
        yield record


def start_opd(parts: Parts, settings: LoopSettings, state: LoopState) -> None:
    """Freeze the privileged teacher and bring the engines up to the student's weights."""
    if settings.teacher == "privileged" and parts.teacher is None:
        parts.teacher = ModelTeacher.frozen(parts.student, privileged=True)
    sync(parts, state)


def warmup_step(parts: Parts, settings: LoopSettings, state: LoopState) -> StepRecord:
    started, first = time.monotonic(), state.cursor
    dialogues, rows = _imitation_rows(parts, settings, state, settings.privileged_share)
    metrics = parts.student.step(rows, "expert")
    return _finish(parts, state, "warmup", first, dialogues, [], rows, metrics, started)


def opd_step(parts: Parts, settings: LoopSettings, state: LoopState) -> StepRecord:
    started, first = time.monotonic(), state.cursor
    if settings.loss == "imitation":
        dialogues, rows = _imitation_rows(parts, settings, state, privileged_share=0.0)
        metrics = parts.student.step(rows, "expert")
        return _finish(parts, state, "opd", first, dialogues, [], rows, metrics, started)

    dialogues = [parts.stream.dialogue_at(first + i) for i in range(settings.opd_dialogues)]
    trajectories = rollout(parts, settings, state, dialogues)
    rolled = time.monotonic()
    rows = on_policy_rows(parts, settings, trajectories)
    metrics = parts.student.step(
        rows,
        settings.loss,
        teacher=parts.teacher,
        beta=settings.beta,
        ratio_clip=settings.ratio_clip,
        top_k=settings.top_k,
        state_weight=settings.state_weight,
    )
    trained = time.monotonic()
    state.cursor += len(dialogues)
    sync(parts, state)
    sampled = summarize(trajectories)
    metrics |= {f"sampled_{key}": float(value) for key, value in sampled.items() if value is not None}
    metrics |= {
        "rollout_s": rolled - started,
        "train_s": trained - rolled,
        "sync_s": time.monotonic() - trained,
    }
    return _finish(parts, state, "opd", first, dialogues, trajectories, rows, metrics, started)


def rollout(
    parts: Parts, settings: LoopSettings, state: LoopState, dialogues: list[Dialogue]
) -> list[Trajectory]:
    """Sample `group` trajectories of each dialogue, siblings side by side; all advance together."""
    return parts.runner.run(
        collect(
            parts.engine,
            [dialogue for dialogue in dialogues for _ in range(settings.group)],
            parts.renderer,
            parts.protocol,
            temperature=settings.temperature,
            seed=turn_seed(settings.seed, "rollout", state.step),
            max_tokens=settings.max_tokens,
            replies=parts.replies,
            max_model_len=settings.max_model_len,
        )
    )


def on_policy_rows(parts: Parts, settings: LoopSettings, trajectories: list[Trajectory]) -> list[Row]:
    """Rows of the trajectories that could be finished, with what the loss needs."""
    weights: list[list[float] | None] = [None] * len(trajectories)
    if settings.loss == "state":
        for at in range(0, len(trajectories), settings.group):
            siblings = range(at, at + settings.group)
            if any(trajectories[i].error is not None for i in siblings):
                continue  # a group that lost a sample has no fair baseline; counted as failed above
            scores = [
                [
                    0.5 * (turn.state.f1 + turn.edit_correct)
                    for turn in score_trajectory(trajectories[i]).turns
                ]
                for i in siblings
            ]
            for i, advantages in zip(siblings, turn_advantages(scores), strict=True):
                weights[i] = advantages
    return [
        student_row(
            trajectory,
            parts.renderer,
            parts.protocol,
            parts.replies,
            privileged=parts.teacher is not None and parts.teacher.privileged,
            branches=settings.loss == "expert",
            turn_weights=turn_weights,
        )
        for trajectory, turn_weights in zip(trajectories, weights, strict=True)
        if trajectory.error is None and (settings.loss != "state" or turn_weights is not None)
    ]


def turn_rewards(trajectory: Trajectory) -> list[float]:
    """Return each turn's reward in [0, 1]: the mean of the state's F1 and of whether the edit was right."""
    return [0.5 * (turn.state.f1 + turn.edit_correct) for turn in score_trajectory(trajectory).turns]


def sync(parts: Parts, state: LoopState) -> None:
    """Give the engines the student's weights under the next version number."""
    state.version += 1
    parts.runner.run(parts.engine.load_weights(parts.student.export_weights(), state.version))


def teacher_weights(teacher: ModelTeacher) -> dict[str, Tensor]:
    """Return what a checkpoint must hold of a frozen student: its weights, or its adapter alone."""
    if isinstance(teacher, FrozenAdapterTeacher):
        return dict(teacher.weights)
    return {name: parameter.detach() for name, parameter in teacher.model.named_parameters()}


@torch.no_grad()
def restore_teacher(student: Student, weights: Mapping[str, Tensor]) -> ModelTeacher:
    """Return the privileged teacher whose `teacher_weights` were saved."""
    teacher = ModelTeacher.frozen(student, privileged=True)
    for name, tensor in teacher_weights(teacher).items():
        tensor.copy_(weights[name])
    return teacher


def _imitation_rows(
    parts: Parts, settings: LoopSettings, state: LoopState, privileged_share: float
) -> tuple[list[Dialogue], list[Row]]:
    first = state.cursor
    dialogues = [parts.stream.dialogue_at(first + i) for i in range(settings.warmup_dialogues)]
    state.cursor += len(dialogues)
    hinted = round(privileged_share * len(dialogues))
    rows = [
        oracle_row(dialogue, parts.renderer, parts.protocol, parts.replies, privileged=i < hinted)
        for i, dialogue in enumerate(dialogues)
    ]
    return dialogues, rows


def _finish(
    parts: Parts,
    state: LoopState,
    phase: str,
    first: int,
    dialogues: list[Dialogue],
    trajectories: list[Trajectory],
    rows: list[Row],
    metrics: Mapping[str, float],
    started: float,
) -> StepRecord:
    size = parts.student.parameters_count
    trained = sum(len(row.ids) + sum(len(branch.ids) for branch in row.branches) for row in rows)
    scored = sum(len(row.teacher_ids or row.ids) for row in rows) if parts.teacher and trajectories else 0
    counts = tracker_tokens(trajectories)
    generated = counts["processed"] - counts["cached"]
    flops = 6.0 * size * trained + 2.0 * size * (scored + generated)
    state.step += 1
    state.flops[phase] += flops
    counted = {
        "tokens_trained": float(trained),
        "tokens_scored": float(scored),
        "tokens_generated": float(generated),
        "pflop": state.flops[phase] / 1e15,
        "step_s": time.monotonic() - started,
    }
    return StepRecord(state.step, phase, first, dialogues, trajectories, {**metrics, **counted}, False)


def _spent(settings: LoopSettings, state: LoopState) -> bool:
    budget = settings.compute_budget_pflop
    return budget is not None and state.flops["opd"] >= budget * 1e15
