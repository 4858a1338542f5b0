"""Fidelity and coherence of worded dialogues: a seeded sample of messages, checked by rule and by a judge."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from envs.dialogue import Dialogue
from envs.errors import ConfigError
from envs.fidelity import check_utterance
from envs.intent import EMPTY
from envs.judge import Judge
from envs.task import SourceTask


@dataclass(frozen=True, slots=True)
class Rate:
    """`hits` of `n` trials."""

    hits: int
    n: int

    @property
    def rate(self) -> float:
        """Return hits / n; nan of no trials."""
        return self.hits / self.n if self.n else math.nan

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the Wilson interval of the rate, see `wilson`."""
        return wilson(self.hits, self.n, confidence)

    def __str__(self) -> str:
        low, high = self.interval()
        return (
            f"{self.rate:.3f} [{low:.3f}, {high:.3f}] ({self.hits} of {self.n})" if self.n else "none judged"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "rate": self.rate if self.n else None,
            "ci95": list(self.interval()),
            "hits": self.hits,
            "n": self.n,
        }


def wilson(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a share: z from the normal, p = hits / n,

    (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n); (0, 1) of no trials.
    Raises `ConfigError` unless 0 <= hits <= n and 0 < confidence < 1.
    """
    if not 0 <= hits <= n or not 0 < confidence < 1:
        raise ConfigError(f"no interval for {hits} of {n} at confidence {confidence}")
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, scale = hits / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the bound is the end itself; rounding must not leave it a hair beside.
    return (0.0 if hits == 0 else middle - half), (1.0 if hits == n else middle + half)


@dataclass(frozen=True, slots=True)
class Sampled:
    """Turn `turn` (0-based) of a dialogue."""

    dialogue: Dialogue
    turn: int


def sample_turns(dialogues: Iterable[Dialogue], count: int, seed: int = 0) -> list[Sampled]:
    """Return `count` turns (or all, if there are fewer), drawn evenly from all turns of all dialogues.

    The draw depends on the seed, the dialogues' ids and the turns' numbers alone, not on the order of the
    dialogues; one pass, and no more than `count` turns are held.
    """

    def keyed() -> Iterator[tuple[bytes, str, int, Dialogue]]:
        for dialogue in dialogues:
            for turn in range(len(dialogue.turns)):
                key = hashlib.sha256(f"{seed}|{turn}|{dialogue.id}".encode()).digest()
                yield key, dialogue.id, turn, dialogue

    drawn = heapq.nsmallest(count, keyed(), key=lambda item: item[:3])
    return [Sampled(dialogue, turn) for _, _, turn, dialogue in drawn]


@dataclass(slots=True)
class FidelityReport:
    """What a sample came to. `rules`: messages without a fault by rule, `faults` counts those by kind.

    `fidelity` and `coherence` are the judge's, None without one; `ungraded` counts messages on which it gave no
    verdict: they are in neither rate. `misses` names each message that failed anything, with the reasons.
    """

    rules: Rate
    faults: Counter[str]
    fidelity: Rate | None
    coherence: Rate | None
    ungraded: int
    misses: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data."""
        return {
            "rules": self.rules.to_dict(),
            "faults": dict(sorted(self.faults.items())),
            "fidelity": self.fidelity.to_dict() if self.fidelity else None,
            "coherence": self.coherence.to_dict() if self.coherence else None,
            "ungraded": self.ungraded,
            "misses": self.misses,
        }


def fidelity_rates(
    sample: Sequence[Sampled],
    task_of: Callable[[Dialogue], SourceTask],
    judge: Judge | None = None,
    *,
    strict: bool = False,
) -> FidelityReport:
    """Check each sampled message by rule and, with a judge, by model; `task_of` finds a dialogue's task.

    `strict` is for messages of a model, see `check_utterance`. Raises what the judge's endpoint raises.
    """
    clean, faithful, coherent, judged, ungraded = 0, 0, 0, 0, 0
    kinds: Counter[str] = Counter()
    misses: list[dict[str, Any]] = []
    for item in sample:
        dialogue, at = item.dialogue, item.turn
        turn, task = dialogue.turns[at], task_of(dialogue)
        before = dialogue.turns[at - 1].state if at else EMPTY
        faults = check_utterance(turn.edits, turn.utterance, before, task, strict=strict)
        reasons = [f"{fault.kind}: {fault.about or fault.detail}" for fault in faults]
        kinds.update(fault.kind for fault in faults)
        clean += not faults
        if judge is not None:
            verdict = judge.judge(
                turn.edits,
                turn.utterance,
                before,
                task,
                final=at == len(dialogue.turns) - 1,
                history=[earlier.utterance for earlier in dialogue.turns[:at]],
            )
            if verdict.error is not None:
                ungraded += 1
            else:
                judged += 1
                faithful += verdict.faithful
                coherent += verdict.coherent
                if not (verdict.faithful and verdict.coherent):
                    reasons.append(f"judge: {verdict.reason}")
        if reasons:
            misses.append({"id": dialogue.id, "turn": at, "utterance": turn.utterance, "reasons": reasons})
    return FidelityReport(
        Rate(clean, len(sample)),
        kinds,
        Rate(faithful, judged) if judge else None,
        Rate(coherent, judged) if judge else None,
        ungraded,
        misses,
    )
