"""The run folder, `runs/<name>/`: what a run leaves behind and what a resumed run starts from.

    config.yaml        resolved configuration
    metrics.jsonl      one JSON object a line, one or more lines a step
    evaluations/       before.json, warmup.json, after.json: see recipes/evaluate.py
    checkpoints/       see trainer/checkpoint.py
    dialogues/         transcripts while the run goes on, one part a step
    dialogues.parquet  all of them, at the end
    tracker/           the trained model as a Hugging Face folder, with its tokenizer
    result.json        what scripts read
    report.html        see recipes/report.py

Every file but metrics.jsonl appears whole or not at all; a last line of metrics.jsonl that was cut short is
dropped on resuming.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from envs.errors import ConfigError, DataError, MissingFiles, unknown_name
from recipes.config import fingerprint, load_config, resolved_yaml
from recipes.machine import PeakMemory, versions
from recipes.schema import OpdConfig

STATUSES = ("done", "interrupted", "failed")
REFUSALS = (ConfigError, DataError, MissingFiles)
"""Errors that say that a run cannot be what it was asked to be."""


class RunFolder:
    """An open run folder; only one process has it at a time. Use as a context manager.

    When the block is left by an exception and no result was written in it, `result.json` says `interrupted`
    (Ctrl-C) or `failed`, with the error. A run that is refused before it has measured anything (one of our own
    errors: a teacher that does not fit, say) leaves nothing behind, so its name stays free.
    """

    def __init__(
        self, path: Path, config: OpdConfig, job: str, lock: IO[str], *, fresh: bool = False
    ) -> None:
        self.path = path
        self.config = config
        self.job = job
        self.checkpoints = path / "checkpoints"
        self.parts = path / "dialogues"
        self.last_step = 0
        """Step of the last metrics line."""
        self._fresh = fresh
        self._lock = lock
        self._metrics: IO[str] | None = None
        self._started = time.monotonic()
        self._earlier_s = 0.0
        self._memory = PeakMemory()
        self._earlier_mb = 0.0
        self._result_written = False

    @classmethod
    def create(cls, root: Path, config: OpdConfig, *, resume: bool = False, job: str = "opd") -> RunFolder:
        """Open `root/<config.name>`: a new folder, or with `resume` the one that is there.

        Raises `ConfigError` when the folder holds a run and `resume` is off, when there is nothing to resume,
        when it is finished, when its settings differ (names each), or when another process works in it.
        """
        assert config.name is not None, "load_config fills it"
        path = Path(root) / config.name
        path.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(path)
        try:
            check_folder(root, config, resume)
            if not resume:
                write_text(path / "config.yaml", resolved_yaml(config))
            return cls(path, config, job, lock, fresh=not resume)
        except BaseException:
            lock.close()
            raise

    def rewind(self, step: int = 0) -> None:
        """Forget what came after the checkpoint of `step` (0: there is none yet): metrics lines and
        transcripts.

        Raises `DataError`, which names the line, if metrics.jsonl is damaged elsewhere than at its end.
        """
        self._close_metrics()
        kept = [record for record in read_metrics(self.path) if record["step"] <= step]
        write_text(self.path / "metrics.jsonl", "".join(_line(record) for record in kept))
        if kept:
            self.last_step = int(kept[-1]["step"])
            self._earlier_s = max(float(record.get("wall_s", 0)) for record in kept)
            self._earlier_mb = max(float(record.get("peak_rss_mb", 0)) for record in kept)
        self._started = time.monotonic()
        from recipes.transcripts import drop_parts

        drop_parts(self.parts, step)
        for stale in ("dialogues.parquet", "result.json", "report.html"):
            (self.path / stale).unlink(missing_ok=True)

    def log_metrics(self, step: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Append one line and return it: `step`, `metrics` (nested mappings are fine), `wall_s`,
        `peak_rss_mb`.
        """
        if self._metrics is None:
            self._metrics = (self.path / "metrics.jsonl").open("a", encoding="utf-8")
        record = {
            "step": step,
            **metrics,
            "wall_s": round(self.wall_s(), 3),
            "peak_rss_mb": round(self.peak_rss_mb(), 1),
        }
        self._metrics.write(_line(record))
        self._metrics.flush()
        self.last_step = step
        return record

    def log_dialogues(self, step: int, phase: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the transcript rows (see recipes/transcripts.py) of one step and phase."""
        from recipes.transcripts import write_part

        write_part(self.parts, step, phase, rows)

    def merge_dialogues(self) -> int:
        """Write dialogues.parquet from the parts and return its number of rows."""
        from recipes.transcripts import merge_parts

        return merge_parts(self.parts, self.path / "dialogues.parquet")

    def write_result(
        self,
        status: str,
        *,
        steps: int,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        paired: Mapping[str, Any] | None = None,
        **extra: Any,
    ) -> dict[str, Any]:
        """Write result.json and return it; a `done` run's transcripts are merged and the parts removed.

        The schema is that of DESIGN.md; `extra` keys go in beside. Raises `UnknownName` for a status.
        """
        if status not in STATUSES:
            raise unknown_name("status", status, STATUSES)
        self.merge_dialogues()
        result = {
            "name": self.config.name,
            "job": self.job,
            "status": status,
            "tracker": self.config.tracker,
            "teacher": self.config.opd.teacher_model or self.config.opd.teacher,
            "seed": self.config.seed,
            "wall_s": round(self.wall_s(), 3),
            "peak_rss_mb": round(self.peak_rss_mb(), 1),
            "steps": steps,
            "before": dict(before or {}),
            "after": dict(after or {}),
            "paired": dict(paired or {}),
            "versions": versions(),
            **extra,
        }
        write_text(
            self.path / "result.json", json.dumps(_finite(result), indent=1, ensure_ascii=False) + "\n"
        )
        if status == "done":
            shutil.rmtree(self.parts, ignore_errors=True)
        self._result_written = True
        return result

    def wall_s(self) -> float:
        """Return the seconds spent on this run, those before the last checkpoint of earlier attempts
        included.
        """
        return self._earlier_s + time.monotonic() - self._started

    def peak_rss_mb(self) -> float:
        """Return the peak resident memory of the process tree in MiB, over all attempts."""
        return max(self._earlier_mb, self._memory.mb())

    def close(self) -> None:
        """Let go of the folder."""
        self._close_metrics()
        self._memory.close()
        self._lock.close()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, REFUSALS) and self._fresh and self._holds_nothing():
                self._remove()
            elif error is not None and not self._result_written:
                status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                self.write_result(status, steps=self.last_step, error=f"{type(error).__name__}: {error}")
        finally:
            self.close()

    def _holds_nothing(self) -> bool:
        """Say whether nothing was measured, trained or saved yet."""
        kept = ("metrics.jsonl", "evaluations", "checkpoints", "dialogues", "tracker", "result.json")
        paths = (self.path / name for name in kept)
        return not any(any(p.iterdir()) if p.is_dir() else p.is_file() and p.stat().st_size for p in paths)

    def _remove(self) -> None:
        """Remove what `create` and `rewind` wrote, and the folder unless something else lies in it."""
        for name in ("metrics.jsonl", "config.yaml", ".lock"):
            (self.path / name).unlink(missing_ok=True)
        for folder in (self.parts, self.checkpoints, self.path / "evaluations", self.path):
            with contextlib.suppress(OSError):  # not there, or not empty
                folder.rmdir()

    def _close_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of a run's metrics.jsonl; a last line that was cut short is left out.

    Raises `DataError`, naming file and line, for any other line that is not a JSON object with a `step`.
    """
    file = path / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n") if file.is_file() else [""]
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline was never finished
        try:
            record = json.loads(line)
            if not isinstance(record["step"], int):
                raise ValueError("step is no integer")
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{file}, line {number}: not a metrics record ({error!r}): {line[:80]!r}"
            ) from None
        records.append(record)
    return records


def read_result(path: Path) -> dict[str, Any]:
    """Return a run's result.json. Raises `MissingFiles` when there is none, `DataError` when it is no JSON
    object.
    """
    file = path / "result.json"
    if not file.is_file():
        raise MissingFiles(
            f"{file} is not there: the run has not ended (resume it with RESUME=1 NAME={path.name})"
        )
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: not JSON ({error})") from None
    if not isinstance(result, dict):
        raise DataError(f"{file}: must hold an object, holds {type(result).__name__}")
    return result


def find_run(root: Path, run: str | None) -> Path:
    """Return the folder of a run by path or name; None: the newest. Raises `MissingFiles`, `UnknownName`."""
    known = {path.name: path for path in sorted(root.glob("*")) if _began(path) is not None}
    if run is None:
        if not known:
            raise MissingFiles(f"there is no run below {root}/ yet; start one with `make opd`")
        return max(known.values(), key=lambda path: _began(path) or 0.0)
    for path in (Path(run), root / run):
        if _began(path) is not None:
            return path
    raise unknown_name("run", run, known)


def _began(path: Path) -> float | None:
    """Return when the run in a folder began, by the first of its files; None where there is no run."""
    for name in ("config.yaml", "cases.jsonl"):  # a comparison may come without settings
        if (path / name).is_file():
            return (path / name).stat().st_mtime
    return None


def check_folder(root: Path, config: OpdConfig, resume: bool) -> None:
    """Raise the `ConfigError` of `RunFolder.create`, all but that of the lock; changes nothing."""
    assert config.name is not None, "load_config fills it"
    path = Path(root) / config.name
    if resume:
        _check_resumable(path, config)
    else:
        _check_fresh(path)


def _check_fresh(path: Path) -> None:
    if not (path / "config.yaml").exists():
        return
    done = _status(path) == "done"
    go_on = "" if done else f"go on with it by RESUME=1 (--resume --name {path.name}), "
    raise ConfigError(
        f"{path} already holds a {'finished' if done else 'started'} run; {go_on}choose another name by "
        f"NAME=... (--name ...), or delete the folder"
    )


def _check_resumable(path: Path, config: OpdConfig) -> None:
    if not (path / "config.yaml").exists():
        raise ConfigError(f"there is nothing to resume in {path}; start the run without RESUME=1 (--resume)")
    if _status(path) == "done":
        raise ConfigError(f"the run in {path} is finished; start another one by NAME=... (--name ...)")
    there, here = fingerprint(load_config(path / "config.yaml")), fingerprint(config)
    changed = [
        f"{key}: {there.get(key)!r} there, {here.get(key)!r} now"
        for key in here | there
        if there.get(key) != here.get(key)
    ]
    if changed:
        raise ConfigError(
            f"the run in {path} has other settings: {'; '.join(changed)}. Resume it with its own (leave "
            f"those flags out), or choose another name by NAME=... (--name ...)"
        )


def _status(path: Path) -> str | None:
    return read_result(path).get("status") if (path / "result.json").is_file() else None


def lock_folder(path: Path) -> IO[str]:
    """Take the folder's lock; it ends with the process, however that ends."""
    lock = (path / ".lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise ConfigError(
            f"another process (pid {holder}) works in {path}; wait for it, or choose another name by NAME=..."
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(_finite(record), ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    """Return plain JSON data: NaN and infinities, which JSON lacks, become null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if hasattr(value, "item"):  # a NumPy or torch scalar
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(f".{path.name}.part")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
