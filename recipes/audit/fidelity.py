"""A sample of single messages, judged for fidelity (it says its edits and nothing else) and coherence (it reads well).

`RuleJudge` judges by rules, which suits template wording. A model may take its place behind `Judge`.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from dataclasses import dataclass, replace
from typing import Protocol

from envs.dialogue import Turn
from envs.fidelity import check_utterance, goals_of
from envs.fidelity_rates import wilson
from envs.intent import EMPTY
from envs.task import SourceTask
from recipes.audit.findings import Check, Finding
from recipes.audit.material import Case
from recipes.audit.wordcheck import parts
from recipes.audit.wording_checks import stated_goals

MIN_RATE = 0.95
"""Least share of the sample that must be faithful, and coherent."""
_UNFILLED = re.compile(r"\{\w*\}")
_BROKEN = re.compile(r"\s[,.;?!](?:\s|$)|,,|;;|(?<!\.)\.\.(?!\.)|\?\?|!!")
_TWICE = re.compile(r"\b(\w+) \1\b", re.IGNORECASE)
_FALSE_FRIENDS = frozenset(("that", "had", "is", "very"))  # "that that" may be right
_LONGEST = 400  # words that one message may add to what its edits and the opening hold


@dataclass(frozen=True, slots=True)
class Sample:
    """A message of a dialogue, with what a judge may look at."""

    case: Case
    t: int

    @property
    def turn(self) -> Turn:
        return self.case.dialogue.turns[self.t]

    @property
    def opening(self) -> str:
        return self.case.task.opening if self.t == 0 and self.case.task else ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`unfaithful` and `incoherent` say what is wrong, None where nothing is."""

    unfaithful: str | None
    incoherent: str | None


class Judge(Protocol):
    name: str

    def judge(self, sample: Sample) -> Verdict: ...


class RuleJudge:
    """Faithful: `envs.fidelity.check_utterance` finds no fault. Coherent: whole sentences without broken marks."""

    name = "rules"

    def judge(self, sample: Sample) -> Verdict:
        return Verdict(_unfaithful(sample), _incoherent(sample))


def _unfaithful(sample: Sample) -> str | None:
    case, turn = sample.case, sample.turn
    before = case.dialogue.turns[sample.t - 1].state if sample.t else EMPTY
    told = case.task or SourceTask(case.dialogue.task_id, case.dialogue.family, "", "", "", (), {})
    # Stale goals of the dialogue are not to be named either.
    told = replace(told, opening=sample.opening, goals=tuple(stated_goals(case)))
    faults = check_utterance(turn.edits, turn.utterance, before, told)
    return f"{faults[0].kind}: {faults[0].about or faults[0].detail}" if faults else None


def _incoherent(sample: Sample) -> str | None:
    """Return what is broken in the message's own words; the texts of goals and opening are the benchmark's."""
    message = sample.turn.utterance.strip()
    if not message:
        return "is empty"
    given = sorted(
        {part for g in goals_of(sample.turn.edits) for part in parts(g)} | {sample.opening}, key=len
    )
    own = message
    for text in reversed(given):
        if text:
            for form in (text, text.removesuffix("."), text[:1].upper() + text[1:]):
                own = own.replace(form, "X")
    if found := _UNFILLED.search(own):
        return f"has an unfilled field {found.group()!r}"
    if found := _BROKEN.search(own):
        return f"has broken punctuation {found.group()!r}"
    if (found := _TWICE.search(own)) and found.group(1).lower() not in {*_FALSE_FRIENDS, "x"}:
        return f"says {found.group(1)!r} twice"
    if own.count('"') % 2:
        return "opens a quotation and does not close it"
    if own[-1] in ",;:-(":  # chat has no full stops, and no capital letters
        return "breaks off"
    if len(own.split()) > _LONGEST:
        return "is very long"
    return None


class Fidelity(Check):
    """Draws `size` messages by the hash of dialogue and turn, so the sample depends on the data alone."""

    name = "fidelity"

    def __init__(self, size: int, judge: Judge | None = None) -> None:
        super().__init__()
        self.size = size
        self.judge = judge or RuleJudge()
        self.says = (
            f"of a sample of messages at least {MIN_RATE:.0%} say their edits and nothing else, and read well"
        )
        self._drawn: list[tuple[int, str, Sample]] = []

    def see(self, case: Case) -> None:
        for t in range(len(case.dialogue.turns)):
            key = f"{case.dialogue.id}|{t}"
            rank = -int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])
            if len(self._drawn) < self.size:
                heapq.heappush(self._drawn, (rank, key, Sample(case, t)))
            elif self._drawn and rank > self._drawn[0][0]:
                heapq.heapreplace(self._drawn, (rank, key, Sample(case, t)))

    def finish(self) -> Finding:
        wrong = {"fidelity": 0, "coherence": 0}
        for _, key, sample in sorted(self._drawn, key=lambda drawn: drawn[1]):
            verdict = self.judge.judge(sample)
            self.look()
            wrong["fidelity"] += verdict.unfaithful is not None
            wrong["coherence"] += verdict.incoherent is not None
            problem = verdict.unfaithful or verdict.incoherent
            if problem:
                self.fail(key, f"{problem}: {sample.turn.utterance!r}")
        n = self.checked
        self.info["judge"] = self.judge.name
        for name, count in wrong.items():
            low, high = wilson(n - count, n)
            self.info[name] = {
                "rate": round((n - count) / n, 4) if n else None,
                "ci95": [round(low, 4), round(high, 4)],
            }
        return super().finish()

    def bad(self) -> bool:
        return any(self.info[name]["rate"] < MIN_RATE for name in ("fidelity", "coherence"))
