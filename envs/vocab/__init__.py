"""Vocabulary of the procedural families: pools of values, slots with their wordings, and who uses them.

Train and held-out vocabularies share no content word (`content_words`, checked by the tests), so a model
that has only memorised words is seen to fail on the held-out ones. Numbers, "yes" and "no" are shared.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from envs.errors import unknown_name

Kind = Literal["string", "integer", "number", "boolean", "array"]

T = TypeVar("T")

SPLITS = ("train", "heldout")

# words that carry no content: both splits may use them
_STOPWORDS = """a am an and any at by each first for from high in is it its last low most least more less my
new next no only not of off on one or out over per percent pm than the then to two under up with without yes"""
STOPWORDS = frozenset(_STOPWORDS.split())

_ANY = ("the {slot} should be {}", "set the {slot} to {}", "use {} for the {slot}", "I want {} as the {slot}")
_BOOLEAN = ("say {} to {slot}", "{slot}: {}", "my choice on {slot} is {}", "mark {slot} as {}")


def sample(items: Sequence[T], count: int, rng: random.Random) -> list[T]:
    """Return what `rng.sample(items, count)` returns, by the same draws, without its overhead.

    For long lists that `random.sample` treats in another way, it is called itself.
    """
    size, draw = len(items), rng.getrandbits
    if not 0 <= count <= size <= 21:
        return rng.sample(items, count)
    pool, found = list(items), []
    for left in range(size, size - count, -1):
        bits = left.bit_length()
        at = draw(bits)
        while at >= left:
            at = draw(bits)
        found.append(pool[at])
        pool[at] = pool[left - 1]
    return found


@dataclass(frozen=True, slots=True)
class Pool:
    """Values of one kind, as canonical text; different texts mean different values."""

    kind: Kind
    values: tuple[str, ...]

    def draw(self, rng: random.Random) -> str:
        return self.values[int(rng.random() * len(self.values))]

    def others(self, value: str, count: int, rng: random.Random) -> list[str]:
        """Return up to `count` different values other than `value`, in random order."""
        size = len(self.values)
        if size <= 2 * count + 2:
            return sample([other for other in self.values if other != value], min(count, size - 1), rng)
        found: dict[str, None] = {}
        while len(found) < count:
            other = self.values[int(rng.random() * size)]
            if other != value:
                found[other] = None
        return list(found)


@dataclass(frozen=True, slots=True)
class Slot:
    """A named thing a user can fix. Each wording holds `{}` for the value."""

    name: str
    pool: Pool
    wordings: tuple[str, ...]
    arg: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arg", re.sub(r"[^a-z0-9]+", "_", self.name.lower()))

    def say(self, value: str, rng: random.Random) -> str:
        wording = self.wordings[int(rng.random() * len(self.wordings))]
        if " a {}" in wording and value[0] in "aeioAEIO":
            return wording.replace(" a {}", f" an {value}")
        return wording.replace("{}", value)


@dataclass(frozen=True, slots=True)
class Function:
    """A callable of the `calls` family; `purpose` completes "Help me ..."."""

    name: str
    purpose: str
    slots: tuple[Slot, ...]


def slot(name: str, pool: Pool, *wordings: str) -> Slot:
    """Return a slot with its own wordings and the general ones."""
    general = _BOOLEAN if pool.kind == "boolean" else _ANY
    return Slot(name, pool, (*wordings, *(wording.replace("{slot}", name) for wording in general)))


def strings(text: str) -> Pool:
    """Return the pool of the values in a text like "red | dark green"."""
    return Pool("string", _split(text))


def combine(template: str, *parts: str | Iterable[str], limit: int = 2000) -> Pool:
    """Return every combination of the parts in a template, in fixed random order and at most `limit`."""
    lists = [_split(part) if isinstance(part, str) else tuple(part) for part in parts]
    values = [template.format(*choice) for choice in itertools.product(*lists)]
    random.Random(template).shuffle(values)
    return Pool("string", tuple(dict.fromkeys(values))[:limit])


def union(*pools: Pool) -> Pool:
    return Pool(pools[0].kind, tuple(dict.fromkeys(value for pool in pools for value in pool.values)))


def integers(numbers: Iterable[int], template: str = "{}") -> Pool:
    return Pool("integer", tuple(template.format(number) for number in numbers))


def decimals(numbers: Iterable[float], template: str = "{}") -> Pool:
    return Pool("number", tuple(template.format(f"{number:g}") for number in numbers))


def lists(text: str, sizes: tuple[int, ...] = (2, 3), limit: int = 400) -> Pool:
    """Return lists as text ("basil and olives", "rice, beans and corn"), no two of the same items."""
    items = _split(text)
    values = [_join(choice) for size in sizes for choice in itertools.combinations(items, size)]
    random.Random(text).shuffle(values)
    return Pool("array", tuple(values[:limit]))


def items_of(value: str) -> list[str]:
    """Inverse of the text form of a list value."""
    return re.split(r", | and ", value)


BOOLEAN = Pool("boolean", ("yes", "no"))


@dataclass(frozen=True, slots=True)
class Words:
    """What one split uses over all families: slot name -> wordings, values, other names (tables, ...)."""

    slots: dict[str, tuple[str, ...]]
    values: frozenset[str]
    names: frozenset[str]

    def texts(self) -> Iterable[str]:
        return itertools.chain(self.slots, self.values, (name.replace("_", " ") for name in self.names))


def words_of(split: str) -> Words:
    """Return all vocabulary of a split. Raises `UnknownName`."""
    from envs.vocab import calls_heldout, calls_train, math_words, sql_slots

    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    functions = calls_train.FUNCTIONS if split == "train" else calls_heldout.FUNCTIONS
    slots = [slot for function in functions for slot in function.slots]
    slots += [*sql_slots.all_slots(split), *math_words.all_slots(split)]
    return Words(
        slots={slot.name: slot.wordings for slot in slots},
        values=frozenset(value for slot in slots for value in slot.pool.values),
        names=frozenset(function.name for function in functions)
        | sql_slots.names(split)
        | math_words.names(split),
    )


def content_words(texts: Iterable[str]) -> set[str]:
    """Return the lower-case words of three letters and more that are no stop word."""
    words = {word for text in texts for word in re.findall(r"[a-z]{3,}", text.lower())}
    return words - STOPWORDS


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("|"))


def _join(items: tuple[str, ...]) -> str:
    return f"{', '.join(items[:-1])} and {items[-1]}"
