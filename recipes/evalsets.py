"""The held-out sets a tracker is measured on, before and after, always the same dialogues.

`unseen`: procedural families, held-out vocabulary and wording. `unseen_words`: the same tasks in the wordings of
training, so that only the words are new. `long`: as `unseen`, about twice as long.
`left_out`: the family kept out of training. `slipped`: unseen dialogues whose first turns are given, and the
last of those is a slip of the tracker. `gsm8k`, `bfcl`, ...: dialogues built from real tasks below `data`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from envs.dialogue import Dialogue
from envs.mix import DRIFT_ONLY, DialogueStream
from envs.simulator import Simulator, TemplateSimulator
from envs.task import get_family
from recipes.schema import OpdConfig
from recipes.sets import splits_of
from rollout.expert import slipped_prefix

EVAL_SEED = 40_000
"""Held-out dialogues depend on this alone, so every run and seed is measured on the same ones."""
SHORT_TURNS = 10
"""About the mean number of turns of an easy dialogue; `long` asks for twice as many."""


@dataclass(frozen=True, slots=True)
class EvalSet:
    """Dialogues under one name; `prefixes` maps dialogue ids to forced outputs of their first turns."""

    name: str
    dialogues: list[Dialogue]
    prefixes: dict[str, list[str]] = field(default_factory=dict)


def evaluation_sets(config: OpdConfig) -> list[EvalSet]:
    """Return the sets that `config` asks for; the first one is the headline set, `unseen`."""
    settings, env = config.eval, config.env

    def procedural(
        families: tuple[str, ...], count: int, turns_at_least: int = 0, simulator: Simulator | None = None
    ) -> list[Dialogue]:
        stream = DialogueStream(
            families, "heldout", EVAL_SEED, settings.budget, DRIFT_ONLY, 0, None, turns_at_least, simulator
        )
        return [stream.dialogue_at(i) for i in range(count)]

    sets = [EvalSet("unseen", procedural(env.training_families, settings.dialogues))]
    if settings.words_dialogues:
        familiar = TemplateSimulator("train")
        dialogues = procedural(env.training_families, settings.words_dialogues, simulator=familiar)
        sets.append(EvalSet("unseen_words", dialogues))
    if settings.long_dialogues:
        long = procedural(env.training_families, settings.long_dialogues, 2 * SHORT_TURNS)
        sets.append(EvalSet("long", long))
    if env.left_out is not None:
        sets.append(EvalSet("left_out", procedural((env.left_out,), settings.dialogues)))
    if settings.slipped:
        dialogues = procedural(env.training_families, settings.slipped)
        prefixes = {d.id: slipped_prefix(d, random.Random(f"slip|{d.id}")) for d in dialogues}
        sets.append(EvalSet("slipped", dialogues, prefixes))
    if config.data is not None and settings.real_dialogues:
        for family in settings.real_families:
            if (config.data / family).is_dir():
                split = splits_of(get_family(family), "evaluation")[0]
                stream = DialogueStream((family,), split, EVAL_SEED, settings.budget, source=config.data)
                found = [stream.dialogue_at(i) for i in range(settings.real_dialogues)]
                sets.append(EvalSet(family, found))
    return sets
