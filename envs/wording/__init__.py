"""Template wordings of one edit each: what users say when they add, change or withdraw something.

Two lists a kind: `train`, and `heldout` with wordings of its own, so that memorised wordings are visible.
Fields: `{text}` a goal's text without its full stop, `{do}` and `{Do}` the same where it is an imperative
("deliver to Brooklyn"), `{sentence}` a full sentence, `{slot}` the slot with its article (`{Slot}`: with
a capital), `{value}`, `{old}` and `{new}` (values, or texts of free-text goals). A template that starts
with "+" only follows an earlier message ("Also, ..."). No template holds a number or any other word of
content.
"""

from __future__ import annotations

from envs.wording.heldout import HELDOUT
from envs.wording.train_add import ADD
from envs.wording.train_delete import DELETE
from envs.wording.train_neutral import NEUTRAL
from envs.wording.train_replace import REPLACE

TRAIN: dict[str, tuple[str, ...]] = {**ADD, **REPLACE, **DELETE, **NEUTRAL}
SETS: dict[str, dict[str, tuple[str, ...]]] = {"train": TRAIN, "heldout": HELDOUT}

__all__ = ["HELDOUT", "SETS", "TRAIN"]
