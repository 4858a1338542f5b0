"""The canary: one fixed sequence, scored by the engine and by the trainer, which must agree.

It catches an engine with other weights, a wrong chat template or a broken kernel before a step is trained on
its samples. What is left is the noise floor of two implementations in a low-precision type.
"""

from __future__ import annotations

import asyncio

import numpy as np

from envs.errors import EngineError
from rollout.engine import Engine, ScoreRequest
from rollout.render import Renderer
from trainer.student import Student
from trainer.types import Row

MAX_GAP = 0.5
"""Largest mean difference, in nats a token. bf16 engines were seen at about 0.03."""


def check_engine(student: Student, engine: Engine, runner: asyncio.Runner, renderer: Renderer) -> float:
    """Return the mean absolute difference of log-probs, in nats a token.

    Raises `EngineError` when it is above `MAX_GAP`, not finite, or the engine is uniform over the vocabulary.
    """
    ids = renderer.start(
        "Keep a list of what the user wants.", "Please paint the door blue, and call me before noon."
    )
    ids = [*ids, *renderer.encode_output("The door is to be painted blue. I will call you before noon.")]
    positions = list(range(1, len(ids)))
    (scores,) = runner.run(engine.score([ScoreRequest(ids, positions)]))
    theirs = np.asarray(scores.token_logprobs_P, dtype=np.float64)
    ours = student.logprobs([Row("canary", ids, [(1, len(ids))])]).double().cpu().numpy()
    gap = float(np.abs(theirs - ours).mean())
    uniform = -float(np.log(student.vocab))
    # Each of them: a mean can come near by accident, in a model that is sure of some tokens and wrong about others.
    if not np.isfinite(theirs).all() or np.abs(theirs - uniform).max() < 0.05:
        raise EngineError(
            f"the engine's log-probs of a fixed sentence are {theirs.min():.3f} to {theirs.max():.3f}, uniform is "
            f"{uniform:.3f}: its weights are not loaded"
        )
    if not gap <= MAX_GAP:
        raise EngineError(
            f"engine and trainer differ by {gap:.3f} nats a token on a fixed sentence (at most {MAX_GAP} is "
            "accepted): they hold different weights, or one computes wrongly; try engine.dtype float32"
        )
    return gap
