"""Train a tracker by multi-turn on-policy distillation.

    make opd                                     # tiny, a laptop CPU
    fluxforge opd --tracker 2b --data DATA       # one node
    fluxforge opd --opd.loss expert --opd.teacher oracle --name mine

In order: engines and student start, the untrained tracker is measured, warm-up steps, measured again, OPD
steps, measured again, result and report. The loop itself is trainer/opd.py; this file gives it its parts and
keeps the run folder.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from envs.mix import DialogueStream
from recipes.config import fingerprint
from recipes.evalsets import EvalSet, evaluation_sets
from recipes.evaluate import Evaluation, evaluate, paired, show
from recipes.progress import Progress
from recipes.report import write_report
from recipes.runs import RunFolder
from recipes.schema import OpdConfig
from recipes.session import Session
from recipes.tracking import Tracker
from recipes.transcripts import dialogue_rows, trajectory_rows
from rollout.models import resolve_model
from trainer.canary import check_engine
from trainer.checkpoint import latest, load_checkpoint, rng_state, save_checkpoint, set_rng_state
from trainer.opd import (
    LoopSettings,
    LoopState,
    Parts,
    StepRecord,
    restore_teacher,
    run_loop,
    sync,
    teacher_weights,
)
from trainer.student import LoraConfig, Student, StudentConfig
from trainer.teacher import ModelTeacher

RUNS = Path("runs")
INTERRUPTED = 130


def run(config: OpdConfig, runs: Path = RUNS) -> int:
    """Run the recipe; return the exit code (0, or 130 after Ctrl-C)."""
    with RunFolder.create(runs, config, resume=config.resume) as folder, Session(config) as session:
        return _Run(config, folder, session).main()


class _Run:
    """One run: its parts, and what happens around each step."""

    def __init__(self, config: OpdConfig, folder: RunFolder, session: Session) -> None:
        self.config = config
        self.folder = folder
        self.session = session
        self.sets: list[EvalSet] = evaluation_sets(config)
        self.settings = loop_settings(config)
        self.state = LoopState()
        self.tracker_meta: dict[str, Any] = {}
        self.parts = make_parts(config, session)

    def main(self) -> int:
        config, folder = self.config, self.folder
        self._restore()
        gap = check_engine(self.parts.student, self.parts.engine, self.parts.runner, self.session.renderer)
        print(f"engine and trainer agree on a canary to {gap:.4f} nats a token")
        with (
            Tracker(config, folder.path, self.tracker_meta.get("wandb_id")) as tracker,
            stop_on_signal() as stop,
        ):
            self.tracker = tracker
            evaluations = {"before": self._evaluate("before")}
            if 0 < self.settings.warmup_steps == self.state.step:  # stopped just before it was measured
                evaluations["warmup"] = self._evaluate("warmup")
            total = self.settings.warmup_steps + self.settings.opd_steps
            with Progress(total, "training", done=self.state.step) as progress:
                for record in run_loop(self.parts, self.settings, self.state):
                    self._log(record, progress)
                    last = record.phase_done and record.phase == "opd"
                    if record.step % config.checkpoint.every == 0 or record.phase_done or stop.is_set:
                        self._save()
                    if stop.is_set and not last:
                        return self._interrupted()
                    if record.phase_done and record.phase == "warmup":
                        evaluations["warmup"] = self._evaluate("warmup")
            if self.settings.warmup_steps:
                evaluations["warmup"] = self._evaluate("warmup")
            evaluations["after"] = self._evaluate("after")
            self._finish(evaluations)
        return 0

    def _restore(self) -> None:
        """Go to the newest checkpoint of a resumed run; a fresh run starts at step 0."""
        found = latest(self.folder.checkpoints) if self.config.resume else None
        if found is None:
            self.folder.rewind(0)
            return
        checkpoint = load_checkpoint(found, fingerprint(self.config))
        self.folder.rewind(checkpoint.step)
        self.state = LoopState.from_dict(checkpoint.meta["loop"])
        self.tracker_meta = checkpoint.meta["tracking"]
        self.parts.student.load_state_dict(checkpoint.tensors["student"], checkpoint.meta["student"])
        if "teacher" in checkpoint.tensors:
            self.parts.teacher = restore_teacher(self.parts.student, checkpoint.tensors["teacher"])
        set_rng_state(checkpoint.meta["rng"])
        self.state.version -= 1
        sync(self.parts, self.state)
        print(f"resumed at step {self.state.step} of {found}")

    def _save(self) -> None:
        tensors, student_meta = self.parts.student.state_dict()
        groups = {"student": tensors}
        if self.settings.teacher == "privileged" and self.parts.teacher is not None:
            groups["teacher"] = teacher_weights(self.parts.teacher)
        save_checkpoint(
            self.folder.checkpoints,
            self.state.step,
            groups,
            {
                "fingerprint": fingerprint(self.config),
                "loop": self.state.to_dict(),
                "student": student_meta,
                "rng": rng_state(),
                "tracking": {"wandb_id": self.tracker.run_id},
            },
            keep=self.config.checkpoint.keep,
        )

    def _evaluate(self, when: str) -> Evaluation:
        """Measure the engines' present weights; a resumed run takes what an earlier attempt measured."""
        path = self.folder.path / "evaluations" / f"{when}.json"
        if path.is_file() and (self.config.resume or when == "warmup"):
            return Evaluation.load(path)
        print(f"measuring the tracker ({when}) on {', '.join(one.name for one in self.sets)} ...")
        parts = self.parts
        result, played = evaluate(
            parts.engine, parts.runner, self.sets, parts.renderer, parts.protocol, parts.replies, self.config
        )
        for name, trajectories in played.items():
            phase = f"eval-{when}-{name}"
            self.folder.log_dialogues(
                self.state.step, phase, trajectory_rows(self.state.step, phase, trajectories)
            )
        result.save(path)
        show({when: result})
        self.tracker.log(self.state.step, {f"eval_{when}/{k}": v for k, v in result.flat().items()})
        return result

    def _log(self, record: StepRecord, progress: Progress) -> None:
        metrics = {
            "phase": record.phase,
            "cursor": self.state.cursor,
            "version": self.state.version,
            **record.metrics,
        }
        self.folder.log_metrics(record.step, metrics)
        self.tracker.log(record.step, record.metrics)
        if record.trajectories:
            rows = trajectory_rows(
                record.step, record.phase, record.trajectories, record.first_index, self.settings.group
            )
        else:
            rows = dialogue_rows(record.step, record.phase, record.dialogues, record.first_index)
        self.folder.log_dialogues(record.step, record.phase, rows)
        progress.advance(headline(record))

    def _interrupted(self) -> int:
        self.folder.write_result("interrupted", steps=self.state.step)
        print(
            f"stopped after step {self.state.step}, everything is saved. Go on with: "
            f"make opd NAME={self.config.name} RESUME=1"
        )
        return INTERRUPTED

    def _finish(self, evaluations: dict[str, Evaluation]) -> None:
        final = self.folder.path / "tracker"
        self.parts.student.save_pretrained(final)
        self.session.renderer.tokenizer.save_pretrained(final)
        result = self.folder.write_result(
            "done",
            steps=self.state.step,
            before=evaluations["before"].summary(),
            after=evaluations["after"].summary(),
            paired=paired(evaluations["before"], evaluations["after"]),
            after_warmup=evaluations["warmup"].summary() if "warmup" in evaluations else None,
            paired_opd=paired(evaluations["warmup"], evaluations["after"])
            if "warmup" in evaluations
            else None,
            engine=self.session.engine_kind,
            engine_counters=dict(self.parts.runner.run(self.parts.engine.health())),
            pflop={phase: value / 1e15 for phase, value in self.state.flops.items()},
        )
        self.tracker.log(self.state.step, {"wall_s": result["wall_s"]})
        report = write_report(self.folder.path)
        show(evaluations)
        print(
            f"{self.state.step} steps in {result['wall_s'] / 60:.1f} min, "
            f"peak memory {result['peak_rss_mb'] / 1024:.1f} GiB\n"
            f"tracker: {final}\nresult:  {self.folder.path / 'result.json'}\nreport:  {report}"
        )


def make_parts(config: OpdConfig, session: Session) -> Parts:
    """Return a fresh student and what it is trained with."""
    student = Student(student_config(config, str(session.model)))
    return Parts(
        student=student,
        engine=session.engine,
        runner=session.runner,
        renderer=session.renderer,
        protocol=session.protocol,
        replies=session.replies,
        stream=DialogueStream(
            config.env.training_families,
            "train",
            config.seed,
            config.env.budget,
            config.env.condition_mix,
            alias_share=config.env.alias_share,
        ),
        teacher=model_teacher(config, session, student) if config.opd.teacher == "model" else None,
    )


def loop_settings(config: OpdConfig) -> LoopSettings:
    return LoopSettings(
        seed=config.seed,
        warmup_steps=config.warmup.steps,
        warmup_dialogues=config.warmup.dialogues,
        privileged_share=config.warmup.privileged_share,
        opd_steps=config.opd.steps,
        opd_dialogues=config.opd.dialogues,
        group=config.opd.group,
        loss=config.opd.loss,
        teacher=config.opd.teacher,
        beta=config.opd.beta,
        ratio_clip=config.opd.ratio_clip,
        top_k=config.opd.top_k,
        state_weight=config.opd.state_weight,
        temperature=config.opd.temperature,
        max_tokens=config.opd.max_tokens,
        max_model_len=config.engine.max_model_len,
        compute_budget_pflop=config.opd.compute_budget_pflop,
    )


def student_config(config: OpdConfig, model: str) -> StudentConfig:
    student = config.student
    lora = student.lora and LoraConfig(student.lora.rank, student.lora.alpha, student.lora.targets)
    return StudentConfig(
        model=model,
        lora=lora,
        dtype=student.dtype,
        lr=student.lr,
        betas=student.betas,
        weight_decay=student.weight_decay,
        warmup_steps=student.warmup_steps,
        total_steps=config.warmup.steps + config.opd.steps,
        schedule=student.schedule,
        final_lr_ratio=0.1,
        clip=student.clip,
        tokens_per_micro=student.tokens_per_micro,
        gradient_checkpointing=student.gradient_checkpointing,
        freeze_embeddings=student.freeze_embeddings,
        seed=config.seed,
        device=training_device(),
    )


def training_device() -> str:
    """Return "cuda" where torch finds a GPU, else "cpu": where the student and an in-process teacher live."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def model_teacher(config: OpdConfig, session: Session, student: Student) -> ModelTeacher:
    """Load teacher `model` and refuse one that cannot score this student."""
    from transformers import AutoTokenizer

    assert config.opd.teacher_model is not None, "checked by the schema"
    folder = resolve_model(config.opd.teacher_model)
    teacher = ModelTeacher.load(
        folder, privileged=False, dtype=config.student.dtype, device=training_device()
    )
    teacher.check(
        student,
        student_tokenizer=session.renderer.tokenizer,
        teacher_tokenizer=AutoTokenizer.from_pretrained(folder),
        longest=config.engine.max_model_len,
    )
    return teacher


def headline(record: StepRecord) -> str:
    """Return the few numbers of a step that are worth a line on the screen."""
    metrics = record.metrics
    shown = [f"{record.phase} loss {metrics['loss']:.4f}"]
    if "sampled_edit_accuracy" in metrics:
        shown.append(f"sampled edits right {metrics['sampled_edit_accuracy']:.2f}")
    shown.append(f"{metrics['step_s']:.0f} s")
    return ", ".join(shown)


class _Stop:
    is_set = False


@contextmanager
def stop_on_signal() -> Iterator[_Stop]:
    """Turn the first Ctrl-C into a request to save and stop after the step; the second one stops at once."""
    stop = _Stop()

    def handler(number: int, frame: FrameType | None) -> None:
        if stop.is_set:
            raise KeyboardInterrupt
        stop.is_set = True
        print("\nCtrl-C: finishing this step, then saving; once more stops now, the last checkpoint stands")

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
