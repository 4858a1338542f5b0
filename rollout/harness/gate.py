"""The final gate: the base agent checks its own draft against what must hold, and may write it once more."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rollout.agents import Message, Meter
from rollout.harness.base import HarnessSettings
from rollout.prompting import render

CHECK_TOKENS = 64
_FAIL = re.compile(r"\bFAIL\b[\s:.,*-]*(.*)", re.DOTALL)


async def passed(
    base: Meter,
    messages: Sequence[Message],
    draft: Message,
    utterance: str,
    requirements: str,
    conventions: str,
    settings: HarnessSettings,
) -> tuple[Message, dict[str, object]]:
    """Return the answer that goes out and what the gate did: `draft`, or what replaced it.

    Only a verdict that says FAIL asks again, and only once; a verdict that says neither lets the draft pass.
    """
    check = render(
        "gate",
        requirements=requirements,
        conventions=conventions,
        utterance=utterance,
        draft=draft.content,
    )
    verdict = (await base.reply([Message("user", check)], CHECK_TOKENS)).text
    problem = problem_of(verdict)
    if problem is None:
        return draft, {"gate": "passed"}
    retry = render("gate_retry", problem=problem, requirements=requirements)
    again = await base.reply([*messages, draft, Message("user", retry)], settings.answer_tokens)
    done: dict[str, object] = {"gate": "asked again", "gate_problem": problem, "draft": draft.content}
    return again.message(), done | {"cut_short": again.cut_short}


def problem_of(verdict: str) -> str | None:
    """Return what a verdict finds wrong; None where it does not clearly say FAIL."""
    verdict = verdict.rpartition("</think>")[2].strip()
    if re.match(r"[\s*\"']*PASS\b", verdict):
        return None
    found = _FAIL.search(verdict)
    if found is None:
        return None
    return " ".join(found[1].split())[:400] or "it breaks a requirement"
