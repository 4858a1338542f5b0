"""A rule reader: from the utterances of a dialogue alone, what the user wants in the end.

It reads the wording templates backwards (`template_match`) and keeps a list of items, each with every way in
which the message that stated it can be read. A change finds its item by slot, by old value or by text, as the
user names it. It is told the task's opening, which states no goal, and nothing else: no goals, no edits, no
states. It never guesses a goal: what it cannot read, it reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from envs.intent import Goal
from envs.simulator import mentions
from recipes.audit.template_match import Template, fixed, pairs_of, plain, plain_slot, templates

# How much it counts that a change finds the item that it names; a letter of the template counts 1.
_EXACT, _INSIDE, _ALIKE, _ONLY_ONE = 40.0, 25.0, 12.0, 3.0
_ADD = 5.0  # a plain sentence is a new goal unless some other reading explains more of it
_KNOWN_WORDING = 25.0
_TWICE = -60.0  # nobody states for the first time what already stands
_STEM = 5
_EMPTY_WORDS = frozenset(("the", "of", "a", "an", "in", "to", "for"))


@dataclass(slots=True, eq=False)
class Item:
    """One thing that the user wants, in all readings. All texts are plain (`template_match.plain`)."""

    texts: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    """(slot, value)."""
    slots: set[str] = field(default_factory=set)
    """Slots that are certain: a vocabulary has the wording, or a change named the item so."""
    values: set[str] = field(default_factory=set)
    """What a change may have set it to: one value, or more where the message can be cut in several ways."""
    said: set[str] = field(default_factory=set)
    """Every text under which the item, or what it replaced, was ever stated."""

    def has_value(self, value: str) -> float:
        """Return how surely the item holds a value: 1 exactly, less where its text only holds the words."""
        if value in self.values or any(value == known for _, known in self.pairs):
            return 1.0
        return 0.6 if any(mentions(text, value) for text in self.texts) else 0.0

    def says(self, goal: Goal, stated: Iterable[Goal]) -> bool:
        """Return whether the item is `goal`; `stated` are the goals of the dialogue, to tell a text's slot."""
        if plain(goal.text) in self.texts:
            return True
        if goal.slot is None or goal.value is None:
            return False
        if (plain_slot(goal.slot), plain(goal.value)) in self.pairs:
            return True
        return plain(goal.value) in self.values and any(
            other.slot == goal.slot and plain(other.text) in self.said for other in stated
        )


@dataclass(slots=True)
class Reading:
    """What was read: the items at the end, the kind of edit a turn ("add", ..., "" for none), what failed."""

    items: list[Item] = field(default_factory=list)
    kinds: list[list[str]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def read(utterances: Sequence[str], opening: str) -> Reading:
    """Read a whole dialogue."""
    reading = Reading()
    for turn, said in enumerate(utterances):
        said = said.strip()
        if turn == 0 and opening.strip():
            said = said.removeprefix(opening.strip()).strip()
        if turn == len(utterances) - 1:
            said = _without_request(said)
        reading.kinds.append(_read_message(reading, said))
    return reading


def _without_request(said: str) -> str:
    """Return a message without the request for the answer at its end."""
    ends = [
        request
        for request in fixed("final")
        if said == request or said.endswith((f" {request}", f"\n{request}"))
    ]
    return said[: len(said) - len(max(ends, key=len))].strip() if ends else said


def _read_message(reading: Reading, said: str) -> list[str]:
    if not said or said in fixed("small") or said in fixed("final"):
        return []
    head, *points = said.split("\n- ")
    if points and head.strip() in fixed("list"):
        for point in points:
            reading.items.append(_stated([point], []))
        return ["add"] * len(points)
    best = _best(reading.items, said)
    if best is None:
        reading.unread.append(said)
        return ["?"]
    best.carry_out(reading.items)
    return [best.kind]


@dataclass(slots=True)
class _Change:
    """One reading of a message, with what speaks for it."""

    kind: str
    score: float
    item: Item | None = None
    """What is replaced or deleted."""
    new: Item | None = None
    template: Template | None = None
    exact: bool = True
    """Whether the message names the item as it is known, and not only alike."""

    def merge(self, others: Iterable[_Change]) -> None:
        """Keep every way to cut the message by the same template at the same item, as none is certain."""
        assert self.new is not None
        for other in others:
            if other.new is not None and (other.template, other.item) == (self.template, self.item):
                self.new.texts |= other.new.texts
                self.new.pairs |= other.new.pairs
                self.new.values |= other.new.values
                self.new.said |= other.new.said
                self.new.slots &= other.new.slots

    def carry_out(self, items: list[Item]) -> None:
        if self.item is None:
            assert self.new is not None
            items.append(self.new)
        elif self.new is None:
            items.remove(self.item)
        else:
            items[items.index(self.item)] = self.new


def _best(items: list[Item], said: str) -> _Change | None:
    changes: list[_Change] = []
    texts: list[str] = []
    pairs: list[tuple[str, str]] = []
    weight = 0
    for template in templates():
        if template.kind not in ("add", "replace", "delete"):
            continue
        for found in template.cuts(said):
            if plain_slot(found.get("slot", "slot")) in _EMPTY_WORDS:
                continue
            if template.kind == "add":
                if "text" in found:
                    texts.append(found["text"])
                else:
                    pairs.append((found["slot"], found["value"]))
                weight = max(weight, template.weight)
            else:
                change = _change(items, template, found)
                if change is not None:
                    changes.append(change)
    if texts or pairs:
        changes.append(_added(items, _stated(texts, pairs), weight))
    best = max(changes, key=lambda change: change.score, default=None)
    if best is not None and best.new is not None and not best.exact:
        best.merge(changes)
    return best


def _stated(texts: Iterable[str], pairs: Iterable[tuple[str, str]]) -> Item:
    """Return the item of a goal that is stated for the first time, in all its readings."""
    item = Item({plain(text) for text in texts}, {(plain_slot(s), plain(v)) for s, v in pairs})
    for text in list(item.texts):
        for slot, value, sure in pairs_of(text):
            item.pairs.add((slot, value))
            if sure:
                item.slots.add(slot)
    item.said = set(item.texts)
    return item


def _added(items: list[Item], new: Item, weight: int) -> _Change:
    score = weight + _ADD + (_KNOWN_WORDING if new.slots else 0.0)
    if any(new.texts & other.texts or new.slots & other.slots for other in items):
        score += _TWICE
    return _Change("add", score, new=new)


def _change(items: list[Item], template: Template, found: dict[str, str]) -> _Change | None:
    """Return the change that a template reads, None where no item is what it names."""
    if template.by == "slot":
        slot = plain_slot(found["slot"])
        item, sure = _by_slot(items, slot, found.get("old"), found.get("new"))
    elif template.by == "old":
        slot, (item, sure) = None, _by_value(items, plain(found["old"]))
    else:
        slot, (item, sure) = None, _by_text(items, found["old"] if "old" in found else found["text"])
    if item is None:
        return None
    score = template.weight + sure
    if template.kind == "delete":
        return _Change("delete", score, item)
    if template.by == "text":
        new = _stated([found["new"]], [])
        new.said |= item.said
        new.slots |= item.slots
        return _Change("replace", score, item, new)
    new = _revalued(item, slot, found.get("old"), plain(found["new"]))
    certain = sure >= _EXACT and (slot is None or slot in item.slots)
    return _Change("replace", score, item, new, template, certain)


def _revalued(item: Item, slot: str | None, old: str | None, value: str) -> Item:
    """Return the item with another value: under the slots it is known by, and in its texts where those show it."""
    slots = item.slots | ({slot} if slot else set())
    known = slots or {name for name, _ in item.pairs}
    was = {plain(old)} if old else {v for s, v in item.pairs if s in slots}
    texts = {text.replace(v, value) for text in item.texts for v in was if mentions(text, v)}
    return Item(texts, {(name, value) for name in known}, slots, {value}, item.said | texts)


def _by_slot(items: list[Item], slot: str, old: str | None, new: str | None) -> tuple[Item | None, float]:
    """Return the item that a slot names, and how surely."""
    if old is not None:
        holding = [item for item in items if item.has_value(plain(old))]
        if not holding:
            return None, 0.0
        items = holding
    bonus = _INSIDE if old is not None else 0.0
    for known in (
        [item for item in items if slot in item.slots],
        [item for item in items if any(slot == name for name, _ in item.pairs)],
    ):
        if known:
            return known[-1], _EXACT + bonus
    open_ = [item for item in items if not item.slots]
    alike = [(_overlap(slot, item), at) for at, item in enumerate(open_)]
    share, at = max(alike, default=(0.0, -1))
    if share > 0:
        return open_[at], _ALIKE * share + bonus
    if open_ and len(slot.split()) <= _STEM:
        return max(open_, key=lambda item: _same_kind(item, new)), _ONLY_ONE + bonus
    return None, 0.0


def _by_value(items: list[Item], value: str) -> tuple[Item | None, float]:
    best = max(items, key=lambda item: item.has_value(value), default=None)
    sure = 0.0 if best is None else best.has_value(value)
    return (best, _EXACT * sure) if sure else (None, 0.0)


def _by_text(items: list[Item], text: str) -> tuple[Item | None, float]:
    """Return the item that a quoted text names: by the text, by its slot and value, or by a value in it."""
    said = plain(text)
    for item in items:
        if said in item.texts:
            return item, _EXACT
    stated = {(slot, value) for slot, value, _ in pairs_of(said)}
    for item in items:
        if stated & item.pairs:
            return item, _EXACT - 1
    # No text in common: the pair whose words the quoted text holds most of, its value wholly.
    have = _stems(said)
    inside = [
        (len(_stems(f"{slot} {value}") & have) / len(_stems(f"{slot} {value}")), at)
        for at, item in enumerate(items)
        for slot, value in (*item.pairs, *(("", v) for v in item.values))
        if mentions(said, value)
    ]
    return (items[max(inside)[1]], _INSIDE) if inside else (None, 0.0)


def _overlap(slot: str, item: Item) -> float:
    """Return the share of the slot's words, by their stems, that the item's texts hold."""
    wanted = _stems(slot)
    have = {stem for text in (*item.texts, *item.said, *(s for s, _ in item.pairs)) for stem in _stems(text)}
    return len(wanted & have) / len(wanted) if wanted else 0.0


def _stems(text: str) -> set[str]:
    return {word[:_STEM] for word in text.split() if word not in _EMPTY_WORDS}


def _same_kind(item: Item, value: str | None) -> int:
    """Return how many words of a value that are no numbers the item's texts hold: "dollars" speaks for a price."""
    words = {word for word in plain(value or "").split() if not any(c.isdigit() for c in word)}
    return sum(1 for word in words if any(mentions(text, word) for text in item.texts))
