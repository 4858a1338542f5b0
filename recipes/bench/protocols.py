"""Tokens that a perfect tracker writes in 20-turn dialogues: append-only log against rewriting the whole state.

Goal: the log needs at least 5 times fewer, and its cost is linear in turns. No model runs; the lines are the
expert's, encoded by the tokenizer of `tiny`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.dialogue import Dialogue
from envs.mix import DialogueStream
from rollout.expert import oracle_log_texts
from rollout.render import Renderer
from rollout.tracker import LogProtocol, TrackerProtocol, get_protocol

FAMILIES = ("calls", "sql", "math")
TURNS = 20
DIALOGUES = 60
GOAL = 5.0


def written(dialogue: Dialogue, protocol: TrackerProtocol, renderer: Renderer) -> list[int]:
    """Return the tokens of each turn's output, the end of the turn included."""
    counts: list[int] = []
    log: dict[str, str] = {}
    for edit in oracle_log_texts(dialogue):
        counts.append(len(renderer.encode_output(protocol.target(log, edit))))
        log = LogProtocol().apply(log, edit).log
    return counts


def straightness(counts_DT: np.ndarray) -> float:
    """Return R² of a straight line through the mean total after each turn. `counts_DT`: dialogues by turns."""
    total_T = counts_DT.mean(0).cumsum()
    turns_T = np.arange(1, len(total_T) + 1)
    left_T = total_T - np.polyval(np.polyfit(turns_T, total_T, 1), turns_T)
    return float(1 - left_T.var() / total_T.var())


def growth(counts_DT: np.ndarray) -> float:
    """Return how much more the last quarter of the turns costs than the first one; 1 is linear in turns."""
    quarter = counts_DT.shape[1] // 4
    return float(counts_DT[:, -quarter:].mean() / counts_DT[:, :quarter].mean())


def measure(budget: str = "hard", dialogues: int = DIALOGUES, turns: int = TURNS) -> dict[str, Any]:
    """Count the tokens of the first `turns` turns of `dialogues` dialogues that have at least as many."""
    from transformers import AutoTokenizer

    from rollout.models import resolve_model

    renderer = Renderer(AutoTokenizer.from_pretrained(resolve_model("tiny")))
    stream = DialogueStream(FAMILIES, "heldout", 0, budget, turns_at_least=turns)
    chosen = [stream.dialogue_at(i) for i in range(dialogues)]
    if short := [dialogue.id for dialogue in chosen if len(dialogue.turns) < turns]:
        raise ValueError(f"{len(short)} dialogues are shorter than {turns} turns, {short[0]} for one")
    counts = {
        name: np.array([written(dialogue, get_protocol(name), renderer)[:turns] for dialogue in chosen])
        for name in ("log", "full")
    }
    goals = np.mean([len(turn.state) for dialogue in chosen for turn in dialogue.turns[:turns]])
    return {**counts, "goals": float(goals)}


def rows() -> list[dict[str, Any]]:
    """Return the rows for `make bench`."""
    found = []
    for budget in ("easy", "hard"):
        counts = measure(budget)
        ours, other = (float(counts[name].sum(1).mean()) for name in ("log", "full"))
        found.append(
            {
                "row": f"tracker tokens a {TURNS}-turn dialogue, budget {budget}: log, full",
                "ours": round(ours, 1),
                "other": round(other, 1),
                "ratio": round(other / ours, 2),
                "goal": GOAL,
                "goals_active": round(counts["goals"], 2),
            }
        )
        straight = [round(straightness(counts[name]), 4) for name in ("log", "full")]
        grown = [round(growth(counts[name]), 2) for name in ("log", "full")]
        found.append(
            {
                "row": f"tokens a turn, last quarter over first, budget {budget}: log, full",
                "ours": grown[0],
                "other": grown[1],
                "ratio": None,
                "goal": "1 (linear in turns)",
                "r2_of_a_straight_line": {"log": straight[0], "full": straight[1]},
            }
        )
    return found
