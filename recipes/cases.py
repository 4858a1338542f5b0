"""One graded case: what a harness answered in one dialogue, the verdict, and all that statistics and pages need.

A run of `fluxforge eval` appends one JSON line to `cases.jsonl` for each case when it is graded; tables, files
and pages are made from these lines alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from envs.errors import DataError

STRATA = {1: "easy", 3: "medium", 5: "hard"}


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class CaseTurn(_Data):
    """One turn as it went: what the user said and called for, what was kept, what the agent replied."""

    utterance: str
    edits: tuple[str, ...]
    """The turn's edits in words, one each; empty for small talk and the final request."""
    oracle: tuple[str, ...]
    """The texts of the oracle state's goals after the turn."""
    tracker: tuple[str, ...] | None = None
    """The tracker's items after the turn; None in a harness without a tracker."""
    derived: tuple[str, ...] = ()
    """Live conclusions after the turn."""
    slip: bool = False
    """Whether the tracker's state differs from the oracle's after this turn."""
    shown: str | None = None
    """What the harness put between the history and the user's message; None where it put nothing."""
    reply: str = ""


class Case(_Data):
    """`score` and `full_credit` are None exactly when `error` says why the case is ungraded."""

    harness: str
    """Row of the table: the harness's name, and which tracker or ablation where there are several."""
    case: str
    """Id of the pair: the same in every harness and condition: `<task id>|b<budget>|s<seed>`."""
    task_id: str
    family: str
    condition: Literal["clean", "drift", "turn_matched"]
    budget: Literal[1, 3, 5]
    seed: int
    score: float | None
    full_credit: bool | None
    error: str | None = None
    answer: str = ""
    detail: dict[str, object] = {}
    """The grader's own account: the extracted answer and what differed."""
    deletes: int = 0
    """Goals that were withdrawn in the dialogue (decoys)."""
    delete_obeyed: bool | None = None
    """Whether the answer still obeys a withdrawn goal; None where there is none or it cannot be told."""
    replaces: int = 0
    misbound: bool | None = None
    """Whether a replaced goal's new value stands at another slot of the answer; None as above."""
    stale_leak: bool | None = None
    """Whether the last tracker state, where there is one, holds something superseded."""
    state_exact: bool | None = None
    turns: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    """Of the base agent, over all turns."""
    tracker_tokens: int = 0
    """Prompt and output tokens of the tracker, over all turns."""
    seconds: float = 0.0
    """Wall time from the first request to the answer."""
    engine_seconds: float = 0.0
    """Of which spent waiting for engines."""
    retries: int = 0
    history: tuple[CaseTurn, ...] = ()

    @property
    def stratum(self) -> str:
        return STRATA[self.budget]

    @property
    def key(self) -> tuple[str, str, str]:
        """What a resumed run does not do twice."""
        return self.harness, self.condition, self.case


def read_cases(path: Path) -> list[Case]:
    """Return the cases of a file in order. A last line without its newline was being written: it is left out.

    Raises `DataError` naming file and line for any other line that is not a case.
    """
    cases = []
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            cases.append(Case.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise DataError(
                f"{path}, line {number}: {where}: {first['msg']}; not a case of this version"
            ) from error
    return cases


def case_line(case: Case) -> str:
    """Return the case as one line of `cases.jsonl`."""
    return case.model_dump_json() + "\n"
