"""What a model's wordings came to: how many were asked for, taken, asked for again, and left to the template."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol


class Recorded(Protocol):
    """A simulator whose options are recorded."""

    @property
    def settings(self) -> dict[str, Any]: ...


class WordingReport:
    """Counts over messages (parts of a message where it has several edits), and which turns are not the model's.

    `asked` = `accepted` + `fell_back`; `reasked` counts requests beyond a message's first; `reasons` counts the
    faults of refused replies by kind. What is built twice counts twice. Safe to share between threads; a copy
    in another process counts for itself and comes home with `add`.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.accepted = 0
        self.reasked = 0
        self.fell_back = 0
        self.reasons: Counter[str] = Counter()
        self._sources: dict[tuple[str, int], set[str]] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:  # a worker process sends its report home
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def note(
        self, dialogue_id: str, turn: int, requests: int, reasons: Iterable[str], accepted: bool
    ) -> None:
        """Count one message that took `requests` requests; `reasons` are the faults of its refused replies."""
        with self._lock:
            self.asked += 1
            self.accepted += accepted
            self.fell_back += not accepted
            self.reasked += requests - 1
            self.reasons.update(reasons)
            self._sources.setdefault((dialogue_id, turn), set()).add("llm" if accepted else "template")

    def source(self, dialogue_id: str, turn: int) -> str | None:
        """Return who worded a turn: "llm", "template", "mixed" (some of its edits each), None if not asked for."""
        found = self._sources.get((dialogue_id, turn))
        if not found:
            return None
        return next(iter(found)) if len(found) == 1 else "mixed"

    def add(self, other: WordingReport) -> None:
        """Count another report's messages here as well: of another process, say."""
        with self._lock:
            self.asked += other.asked
            self.accepted += other.accepted
            self.reasked += other.reasked
            self.fell_back += other.fell_back
            self.reasons.update(other.reasons)
            for key, sources in other._sources.items():
                self._sources.setdefault(key, set()).update(sources)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data, the same whatever the order of counting.

        `not_llm` lists, by dialogue, the turns that are "template" or "mixed"; all others are the model's.
        """
        with self._lock:
            keys = sorted(self._sources)
            not_llm: dict[str, dict[str, str]] = {}
            for dialogue_id, turn in keys:
                source = self.source(dialogue_id, turn) or ""
                if source != "llm":
                    not_llm.setdefault(dialogue_id, {})[str(turn)] = source
            return {
                "asked": self.asked,
                "accepted": self.accepted,
                "reasked": self.reasked,
                "fell_back": self.fell_back,
                "reasons": dict(sorted(self.reasons.items())),
                "not_llm": not_llm,
            }

    def __str__(self) -> str:
        reasons = ", ".join(f"{kind} {n}" for kind, n in self.reasons.most_common()) or "none"
        return (
            f"{self.asked} messages asked for, {self.accepted} accepted, {self.fell_back} left to the template, "
            f"{self.reasked} requests repeated; faults: {reasons}"
        )


def wording_notes(
    simulator: Recorded | None, report: WordingReport | dict[str, Any] | None = None
) -> dict[str, str]:
    """Return the notes that go into a file of dialogues: how it was worded, and what that came to.

    `simulator` None stands for the plain templates. `report` may be the merged one of several processes.
    """
    settings = simulator.settings if simulator is not None else {"kind": "template"}
    counted = report.to_dict() if isinstance(report, WordingReport) else report
    return {"wording": json.dumps({"settings": settings, "report": counted}, sort_keys=True)}
