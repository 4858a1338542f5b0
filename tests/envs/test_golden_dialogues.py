"""Dialogues without options stay byte for byte what they are: scripts, ids, and the draws of the wording."""

from __future__ import annotations

import hashlib

from envs.dialogue import build
from tests.envs.wording_toys import EchoSimulator, Toy

# Taken before wording options existed. If a change of scripts or draws is meant, say so and take it anew.
GOLDEN = "3c2f53e641cd29eee4f6d93b95dca6af156ca6af905823917b48b2ae90b57f11"


def test_dialogues_without_options_are_the_golden_ones() -> None:
    family, digest = Toy(), hashlib.sha256()
    for index in range(12):
        for condition in ("clean", "drift", "turn_matched"):
            for budget, seed, longer in ((1, 0, 0), (3, 1, 0), (5, 2, 25)):
                task = family.task("train", index)
                dialogue = build(family, task, condition, budget, seed, EchoSimulator(), longer)
                digest.update(repr(dialogue).encode())
    assert digest.hexdigest() == GOLDEN
