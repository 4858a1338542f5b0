"""Typos as fingers make them, in words that carry neither content nor the change."""

from __future__ import annotations

import random

_NEIGHBOURS = {
    "a": "sq", "b": "vn", "c": "xv", "d": "sf", "e": "wr", "f": "dg", "g": "fh", "h": "gj", "i": "uo", "j": "hk",
    "k": "jl", "l": "k", "m": "n", "n": "bm", "o": "ip", "p": "o", "q": "wa", "r": "et", "s": "ad", "t": "ry",
    "u": "yi", "v": "cb", "w": "qe", "x": "zc", "y": "tu", "z": "x",
}  # fmt: skip
SHORTEST = 4  # letters; a shorter word soon becomes another one

# Words that say what happens to a goal. Misspelt, the change itself would be in doubt.
_CARRYING = """
actually add after again against also anew another anymore aside away back better but cancel change changed
cancelled correct correction delete deleted discard disregard dismiss drop dropped erase except exclude forget
from gone ignore ignored instead keep leave longer lose make meant mind mistake more needed neither never no
none nor not nothing now off omit omitted out over past place please prefer rather read remove removed replace
reset revert scrap scratch skip still stop strike sub swap switch take than then trade turn undo unsay update
use want wanted wish withdraw withdrawn without wrong don't doesn't isn't won't needn't needs need should
"""
CARRYING = frozenset(_CARRYING.split())
# Endings of a slip that would be a word of its own: "form" for "from" is the classic.
_OTHERS = """
form there three their then than this that quiet quite lose loose chose choose trail trial sing sign diary
dairy angel angle casual causal united untied bets best bean been bust must just lust here hear were where
wear live love like bike hike tike lake line lime time tine tome
"""
_OTHER_WORDS = frozenset(_OTHERS.split())


def misspell(word: str, rng: random.Random) -> str:
    """Return `word` with one slip inside it: two letters swapped, one missing, doubled or hit beside its key.

    First and last letter stay. Words of fewer than four letters, with other characters than a-z, or of which
    the slip makes another common word stay as they are.

    >>> misspell("please", random.Random(3)) != "please", misspell("the", random.Random(1))
    (True, 'the')
    """
    if len(word) < SHORTEST or not word.isascii() or not word.isalpha():
        return word
    at = rng.randrange(1, len(word) - 1)
    kind = rng.choice(("swap", "drop", "double", "beside"))
    if kind == "swap":
        at = min(at, len(word) - 3)
        slip = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    elif kind == "drop":
        slip = word[:at] + word[at + 1 :]
    elif kind == "double":
        slip = word[:at] + word[at] + word[at:]
    else:
        beside = rng.choice(_NEIGHBOURS.get(word[at].lower(), word[at]))
        slip = word[:at] + beside + word[at + 1 :]
    return word if slip.lower() in _OTHER_WORDS else slip
