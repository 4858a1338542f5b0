"""The folder of a run of `fluxforge eval`: cases as they are graded, and the result at the end.

    config.yaml    resolved configuration
    cases.jsonl    one graded case a line (recipes/cases.py), on disk before the next one is counted
    result.json    what scripts read
    report.html    what people read, with its tables as CSV and LaTeX (recipes/compare)

A process that is killed loses only what was in flight: a last line that was being written is cut off when the run is
resumed, and cases that stayed ungraded are taken out so that they run again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from envs.errors import ConfigError
from recipes.cases import Case, case_line, read_cases
from recipes.config import resolved_yaml
from recipes.eval_config import check_same, load_eval
from recipes.eval_schema import EvalConfig
from recipes.machine import PeakMemory, versions
from recipes.runs import REFUSALS, lock_folder, write_text

Key = tuple[str, str, str]


class EvalFolder:
    """An open folder; only one process has it. A context manager; `done` holds what need not be run again."""

    def __init__(self, root: Path, config: EvalConfig, job: str = "eval") -> None:
        assert config.name is not None, "load_eval fills it"
        self.path = Path(root) / config.name
        self.config = config
        self.job = job
        self.file = self.path / "cases.jsonl"
        self.cases: dict[Key, Case] = {}
        """Every case of the run so far, by key, graded or not."""
        self._cases: IO[str] | None = None
        self._started = time.monotonic()
        self._result_written = False

    def __enter__(self) -> EvalFolder:
        """Raises `ConfigError` where the folder is taken, holds another run, or has nothing to resume."""
        existed = (self.path / "config.yaml").exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(self.path)
        try:
            self._check(existed)
            if not self.config.resume:
                write_text(self.path / "config.yaml", resolved_yaml(self.config))
            self.cases = self._kept()
        except BaseException:
            self._lock.close()
            raise
        self._fresh = not existed
        self._cases = self.file.open("a", encoding="utf-8")
        self._memory = PeakMemory()
        return self

    @property
    def done(self) -> set[Key]:
        return {key for key, case in self.cases.items() if case.error is None}

    def add(self, case: Case) -> None:
        """Append a case; it is on disk when this returns. Raises `ValueError` for one that is there already."""
        assert self._cases is not None, "the folder is open"
        if case.key in self.cases:
            raise ValueError(f"case {case.key} was run twice")
        self._cases.write(case_line(case))
        self._cases.flush()
        os.fsync(self._cases.fileno())
        self.cases[case.key] = case

    def write_result(self, status: str, **extra: Any) -> dict[str, Any]:
        """Write result.json and return it."""
        ungraded = [case for case in self.cases.values() if case.error is not None]
        result: dict[str, Any] = {
            "name": self.config.name,
            "job": self.job,
            "status": status,
            "seed": self.config.seed,
            "wall_s": round(time.monotonic() - self._started, 3),
            "peak_rss_mb": round(self._memory.mb(), 1),
            "cases": len(self.cases),
            "ungraded": len(ungraded),
            "ungraded_reasons": _reasons(ungraded),
            "versions": versions(),
            **extra,
        }
        write_text(self.path / "result.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        self._result_written = True
        return result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            assert self._cases is not None
            self._cases.close()
            if isinstance(error, REFUSALS) and self._fresh and not self.cases:
                for name in ("cases.jsonl", "config.yaml", ".lock"):
                    (self.path / name).unlink(missing_ok=True)
                if not any(self.path.iterdir()):
                    self.path.rmdir()
            elif error is not None and not self._result_written:
                status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                self.write_result(status, error=f"{type(error).__name__}: {error}")
        finally:
            self._memory.close()
            self._lock.close()

    def _check(self, existed: bool) -> None:
        if self.config.resume:
            if not existed:
                raise ConfigError(
                    f"there is nothing to resume in {self.path}; start it without RESUME=1 (--resume)"
                )
            check_same(load_eval(self.path / "config.yaml"), self.config, self.path)
        elif existed:
            raise ConfigError(
                f"{self.path} already holds a run; go on with it by RESUME=1 (--resume --name {self.path.name}), "
                f"choose another name by NAME=... (--name ...), or delete the folder"
            )

    def _kept(self) -> dict[Key, Case]:
        """Return the graded cases of an earlier attempt; the file holds just those afterwards."""
        if not self.file.is_file():
            return {}
        graded = {case.key: case for case in read_cases(self.file) if case.error is None}
        write_text(self.file, "".join(map(case_line, graded.values())))
        return graded


def _reasons(cases: list[Case]) -> Mapping[str, int]:
    """Count the beginnings of errors, most frequent first."""
    counts: dict[str, int] = {}
    for case in cases:
        reason = (case.error or "").partition("\n")[0][:160]
        counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1])[:20])
