"""The losses of one optimizer step over its rows: which tokens each trains, how many there are, what it summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from envs.errors import ConfigError, DataError
from trainer.losses import LossSpec, get_loss
from trainer.types import Row


@dataclass(slots=True)
class Term:
    """One loss of a step: its weight, which tokens it trains, how many there are, and sums of diagnostics."""

    name: str
    spec: LossSpec
    weight: float
    branches: bool
    count: float
    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)


def terms_of(
    rows: Sequence[Row], losses: Mapping[str, float], denominators: Mapping[str, float] | None
) -> list[Term]:
    any_branch = any(row.branches for row in rows)
    terms = []
    for name, weight in losses.items():
        spec = get_loss(name)
        branches = spec.on_branches and any_branch
        count = sum(sum(len(b.ids) for b in row.branches) if branches else row.trained() for row in rows)
        total = float(count) if denominators is None else float(denominators[name])
        if total <= 0:
            raise DataError(f"nothing to train on: loss {name!r} finds no trained tokens in {len(rows)} rows")
        terms.append(Term(name, spec, weight, branches, total))
    if not terms:
        raise ConfigError("a step needs at least one loss")
    return terms


def token_values(rows: Sequence[Row], branches: bool) -> tuple[list[float], list[float]]:
    """Return (weights, old log-probs) of the trained tokens in order; branches have no old log-probs."""
    if branches:
        return [b.weight for row in rows for b in row.branches for _ in b.ids], []
    weights = [w for row in rows for w in (row.weights or [1.0] * row.trained())]
    complete = all(len(row.old_logprobs) == row.trained() for row in rows)
    return weights, [value for row in rows for value in row.old_logprobs] if complete else []
