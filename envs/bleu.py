"""BLEU of one sentence against all its references, in [0, 1], by sacreBLEU."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from envs.errors import GraderError

_DUST = 1e-9


def sentence_bleu(answer: str, references: Sequence[str], *, official: bool = False) -> float:
    """Return sacreBLEU (its defaults: 13a tokens, mixed case, exponential smoothing) over all references.

    The corpus formula with one sentence, as ToTTo is scored by others. An answer that equals a reference, up
    to white space, scores 1; `official` leaves that out, so that one of fewer than 4 tokens scores 0.
    Raises `GraderError` without references or without sacreBLEU.
    """
    answer, references = answer.strip(), [reference.strip() for reference in references]
    if not references:
        raise GraderError("BLEU needs at least one reference")
    if not answer:
        return 0.0
    if not official and any(answer.split() == reference.split() for reference in references):
        return 1.0
    return _score(answer, tuple(references))


@functools.lru_cache(maxsize=50_000)
def _score(answer: str, references: tuple[str, ...]) -> float:
    score = _metric(references).corpus_score([answer], None).score / 100
    return 1.0 if score > 1 - _DUST else max(0.0, score)


@functools.lru_cache(maxsize=256)
def _metric(references: tuple[str, ...]) -> Any:
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise GraderError("BLEU needs the package sacrebleu, which is not installed: make setup") from None
    # One stream a reference, each with one sentence: [[r1, r2]] would silently use r1 alone.
    return BLEU(references=[[reference] for reference in references])
