"""Which item of a tracker's log says which goal. By goal, never by key: the tracker chooses its own names.

Structured goals (slot and value). An item says the goal when
  1. its text and the value are the same sequence of words once slot words and filler words are taken out of
     both (numbers exact: "1,000" is "1000", "40" is not "14", "two" is "2", "$40" is "40 dollars"), or its
     text quotes the goal's own words around the value ("8 hours a week" of "plan 8 hours a week"), and
  2. its name says the slot: it holds at least `SLOT_OVERLAP` of the slot's words, and of no other slot in
     play more, so that two slots with the same value are told apart and "return date" is not "delivery date".
     Where the name says no slot in play, the words beside the value in the text may say it ("money: budget
     40"), or at least `SLOT_OVERLAP` of the name's words are in the goal's own text or that of a variant
     ("shrinks" for "it shrinks by half", whose slot "shrinkage" no user ever says).
Free text (no value). An item says the goal when the token F1 of the two texts is at least `TEXT_F1`, both
hold the same numbers as often, and both negate as often.

An item that is closer to something the user no longer wants (`distractors`) says that, and not the goal.
Pairs are one to one: the largest number of pairs, and among those the greatest similarity.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from envs.intent import Goal
from rollout.tracker import TASK_KEY

SLOT_OVERLAP = 0.5
"""Least share of a slot's words that an item must hold."""
TEXT_F1 = 0.7
"""Least token F1 at which two free texts say the same."""
_INDIRECT = 0.5
"""What saying the slot some other way counts, against a name that says it."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FILLERS = frozenset(
    _words("""a an the of to for in at on with by is are be was it its as and my me i we our you your please
    should must want wants need needs would like set use make let keep item items unit
    units piece pieces people""")
)
NEGATIONS = frozenset(
    _words("no not never without none nor cannot don doesn isn aren won shouldn mustn avoid except")
)
_NUMBER_WORDS = _words("zero one two three four five six seven eight nine ten eleven twelve")
_NUMBERS = {word: str(i) for i, word in enumerate(_NUMBER_WORDS)}
_SIGNS = {"$": "dollars", "€": "euros", "£": "pounds", "¥": "yen"}
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_MONEY = re.compile(rf"([$€£¥])\s*({_NUMBER})")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
_TOKEN = re.compile(rf"(?<![\w.)])-?{_NUMBER}|{_NUMBER}|[^\W\d_]+|[<>!=]=?|[+*/^%]")


@lru_cache(maxsize=65536)
def tokens(text: str) -> tuple[str, ...]:
    """Return the words, numbers and operators of a text in order: lower case, numbers in one spelling."""
    text = unicodedata.normalize("NFKC", text)
    text = _MONEY.sub(lambda m: f"{m[2]} {_SIGNS[m[1]]}", text)
    text = _CAMEL.sub(" ", text)
    return tuple(_spelling(token) for token in _TOKEN.findall(text.casefold()))


def similarity(key: str, text: str, goal: Goal) -> float:
    """Return how well an item says a goal, in (0, 1], or 0.0 if it does not."""
    return _row(key, text, (goal,))[0]


def match(
    log: Mapping[str, str], goals: Sequence[Goal], distractors: Sequence[Goal] = ()
) -> list[tuple[str, Goal]]:
    """Pair items with the goals they say, one to one. `distractors` are goals the user no longer wants.

    Returns (key, goal) pairs in the order of `goals`.
    """
    keys = [key for key in log if key != TASK_KEY]
    if not keys or not goals:
        return []
    table = [[0.0] * len(goals) for _ in keys]
    for i, key in enumerate(keys):
        row = _row(key, log[key], (*goals, *distractors))
        bar = max(row[len(goals) :], default=0.0)
        table[i] = [value if value >= bar else 0.0 for value in row[: len(goals)]]
    pairs = [(i, j) for i, j in _assign(table) if table[i][j] > 0]
    return [(keys[i], goals[j]) for i, j in sorted(pairs, key=lambda pair: pair[1])]


def stale_keys(log: Mapping[str, str], goals: Sequence[Goal], superseded: Sequence[Goal]) -> list[str]:
    """Return the keys of items that say a superseded goal, and no wanted goal at least as well."""
    stale = []
    for key in log:
        if key != TASK_KEY and superseded:
            row = _row(key, log[key], (*goals, *superseded))
            if max(row[len(goals) :]) > max(row[: len(goals)], default=0.0):
                stale.append(key)
    return stale


@lru_cache(maxsize=65536)
def slot_overlap(slot: str, text: str) -> float:
    """Return the share of the slot's words that `text` holds; 1.0 for a slot without words."""
    words = _slot_words(slot)
    held = {_singular(token) for token in tokens(text)}
    return sum(word in held for word in words) / len(words) if words else 1.0


def token_f1(a: str, b: str) -> float:
    """Return 2 x shared tokens / all tokens, fillers left out; 1.0 for two texts without tokens."""
    left, right = Counter(_content(tokens(a))), Counter(_content(tokens(b)))
    total = left.total() + right.total()
    return 2 * (left & right).total() / total if total else 1.0


def _row(key: str, text: str, goals: Sequence[Goal]) -> list[float]:
    """Return an item's similarity to each goal."""
    slots = {goal.slot for goal in goals if goal.slot and goal.value}
    named = max((slot_overlap(slot, key) for slot in slots), default=0.0)
    told: dict[str, str] = {}
    for goal in goals:
        told[_origin(goal)] = f"{told.get(_origin(goal), '')} {goal.text}"
    return [_item_says(key, text, goal, named, told[_origin(goal)]) for goal in goals]


def _origin(goal: Goal) -> str:
    """Return the id that a goal shares with its variants ("g2" of "g2.v1")."""
    return goal.id.partition(".")[0]


def _item_says(key: str, text: str, goal: Goal, named: float, told: str) -> float:
    """Return an item's similarity to a goal. `named` is how well its name says the slot it says best, `told` the
    words of the goal and of its variants.
    """
    if not (goal.slot and goal.value):
        return max(_text_similarity(text, goal.text), _text_similarity(f"{key} {text}", goal.text))
    if not (_same_value(text, goal.value, goal.slot) or _quotes(text, goal.value, goal.text)):
        return 0.0
    if named >= SLOT_OVERLAP:
        overlap = slot_overlap(goal.slot, key)
        return overlap if overlap == named else 0.0
    value = tokens(goal.value)
    beside = " ".join(token for token in tokens(text) if token not in value)
    for share in (slot_overlap(goal.slot, f"{key} {beside}"), slot_overlap(key, told)):
        if share >= SLOT_OVERLAP:
            return _INDIRECT * share
    return 0.0


def _assign(table: list[list[float]]) -> list[tuple[int, int]]:
    hits = [[j for j, value in enumerate(row) if value > 0] for row in table]
    taken = [j for row in hits for j in row]
    if all(len(row) <= 1 for row in hits) and len(set(taken)) == len(taken):
        return [(i, row[0]) for i, row in enumerate(hits) if row]
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    value_IG = np.asarray(table)  # items by goals; one more pair outweighs any gain in similarity
    rows, columns = linear_sum_assignment(
        np.where(value_IG > 0, min(value_IG.shape) + value_IG, 0.0), maximize=True
    )
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True)]


@lru_cache(maxsize=65536)
def _same_value(text: str, value: str, slot: str) -> bool:
    said, wanted = tokens(text), tokens(value)
    slot_words = frozenset(_slot_words(slot))
    for strip in (lambda ts: _content(_without(ts, slot_words)), _content, tuple):
        if strip(wanted):  # a value made of nothing but slot words or fillers is compared with them kept in
            return strip(said) == strip(wanted)
    return " ".join(text.split()).casefold() == " ".join(value.split()).casefold()


@lru_cache(maxsize=65536)
def _quotes(text: str, value: str, goal_text: str) -> bool:
    """Return whether `text` is a run of the goal's own words that holds its value."""
    said = tokens(text)
    return _holds(said, tokens(value)) and _holds(tokens(goal_text), said)


def _holds(words: Sequence[str], run: Sequence[str]) -> bool:
    """Return whether `run`, not empty, stands in `words` without a gap."""
    size = len(run)
    return size > 0 and any(tuple(words[i : i + size]) == tuple(run) for i in range(len(words) - size + 1))


@lru_cache(maxsize=65536)
def _text_similarity(a: str, b: str) -> float:
    left, right = tokens(a), tokens(b)
    if Counter(filter(_is_number, left)) != Counter(filter(_is_number, right)):
        return 0.0
    if sum(t in NEGATIONS for t in left) != sum(t in NEGATIONS for t in right):
        return 0.0
    if not left and not right:
        return float(a.split() == b.split())
    f1 = token_f1(a, b)
    return f1 if f1 >= TEXT_F1 else 0.0


def _content(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in words if word not in FILLERS)


def _without(words: Sequence[str], slot_words: frozenset[str]) -> tuple[str, ...]:
    return tuple(word for word in words if _is_number(word) or _singular(word) not in slot_words)


@lru_cache(maxsize=4096)
def _slot_words(slot: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(_singular(token) for token in tokens(slot)))
    return _content(words) or words


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _is_number(word: str) -> bool:
    return word[-1].isdigit()


def _spelling(token: str) -> str:
    """Return a token in its one spelling: "1,000" and "1000.0" are "1000", "two" is "2"."""
    if token in _NUMBERS:
        return _NUMBERS[token]
    if not _is_number(token):
        return token
    sign, digits = ("-", token[1:]) if token.startswith("-") else ("", token)
    whole, _, fraction = digits.replace(",", "").partition(".")
    fraction = fraction.rstrip("0")
    return sign + (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")
