"""Wording templates read backwards: which template a message may have come from, and what stood in its fields.

`Please switch {slot} from {old} to {new}.` and a message give every way to cut the message at the template's
own words. Capital letters, full stops and "the" before a slot are evened out by `plain` and `plain_slot`.
"""

from __future__ import annotations

import functools
import re
import string
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envs.vocab import SPLITS, words_of
from envs.wording import SETS

_CUTS = 60  # ways to cut one message by one template that are looked at
# "{Do}" and "{do}" are one thing said in two places of a sentence.
_SAME = {"Do": "text", "do": "text", "sentence": "text", "Slot": "slot"}
# How families put a slot and a value into one imperative or clause, where they have no vocabulary of their own.
_CLAUSES = (
    "set {slot} to {value}",
    "use {value} for {slot}",
    "use {value} as {slot}",
    "make {slot} {value}",
    "let {slot} be {value}",
    "{slot} is {value}",
    "{slot} should be {value}",
    "{slot}: {value}",
)


@dataclass(frozen=True, slots=True)
class Template:
    """`literals` has one text more than `fields`; the message is literal, field, literal, field, ..., literal."""

    kind: str
    """"add", "replace", "delete", "small", "final", "list" or "switch"."""
    by: str
    """What the edit names its goal by: "slot", "text", "old" or "question"; empty for messages without edit."""
    literals: tuple[str, ...]
    fields: tuple[str, ...]

    @property
    def weight(self) -> int:
        """Return how many letters of the message the template itself accounts for."""
        return sum(len(literal) for literal in self.literals)

    def cuts(self, said: str) -> Iterator[dict[str, str]]:
        """Yield every way to read `said`: field name -> text. A field that stands twice must agree."""
        first, last = self.literals[0], self.literals[-1]
        if not self.fields:
            if said == first:
                yield {}
            return
        if len(said) < len(first) + len(last) or not (said.startswith(first) and said.endswith(last)):
            return
        inner = said[len(first) : len(said) - len(last)]
        left = _CUTS
        for parts in _split(inner, self.literals[1:-1]):
            found: dict[str, str] = {}
            if all(part.strip() and found.setdefault(n, part) == part for n, part in zip(self.fields, parts)):
                yield found
            left -= 1
            if not left:
                return


def _split(text: str, separators: tuple[str, ...]) -> Iterator[list[str]]:
    if not separators:
        yield [text]
        return
    at = text.find(separators[0])
    while at >= 0:
        for rest in _split(text[at + len(separators[0]) :], separators[1:]):
            yield [text[:at], *rest]
        at = text.find(separators[0], at + 1)


def parse(kind: str, template: str) -> Template:
    """Return the template of a wording of `kind` ("replace_slot"); "+" at its start is no part of it."""
    literals, fields = [""], []
    for literal, name, _, _ in string.Formatter().parse(template.removeprefix("+")):
        literals[-1] += literal
        if name:
            fields.append(_SAME.get(name, name))
            literals.append("")
    head, _, by = kind.partition("_")
    return Template(head, by, tuple(literals), tuple(fields))


@functools.cache
def templates() -> tuple[Template, ...]:
    """Return every wording of every set, each once."""
    found = (
        parse(kind, text) for wordings in SETS.values() for kind, texts in wordings.items() for text in texts
    )
    return tuple(dict.fromkeys(found))


@functools.cache
def fixed(kind: str) -> frozenset[str]:
    """Return the wordings of a kind that have no field ("small", "final", "list")."""
    return frozenset(t.literals[0] for t in templates() if t.kind == kind and not t.fields)


@functools.cache
def own_words(kind: str | None = None) -> frozenset[str]:
    """Return the words that the templates (of a kind) themselves use, in lower case, numbers left out."""
    return frozenset(
        word
        for t in templates()
        if kind in (None, t.kind)
        for literal in t.literals
        for word in _words(literal)
        if not word.isdigit()
    )


def plain(text: str) -> str:
    """Return a text so that two ways to write it in a sentence compare equal."""
    return " ".join(text.casefold().split()).strip(" .")


def plain_slot(slot: str) -> str:
    return plain(slot).removeprefix("the ")


def pairs_of(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (slot, value, sure) that a goal's text may state, plain.

    `sure` where wording and value are of a vocabulary.
    """
    for at, wording in _lexicon(text):
        for found in wording.cuts(plain(text)):
            if (value := plain(found["value"])) in _values():
                yield plain_slot(at), value, True
    for clause in _clauses():
        for found in clause.cuts(plain(text)):
            yield plain_slot(found["slot"]), plain(found["value"]), False


@functools.cache
def _clauses() -> tuple[Template, ...]:
    return tuple(parse("add_slot", clause) for clause in _CLAUSES)


def _lexicon(text: str) -> Iterable[tuple[str, Template]]:
    words = plain(text).split(" ", 1)
    index = _wordings()
    yield from index[words[0] if words else ""]
    yield from index[""]


@functools.cache
def _values() -> frozenset[str]:
    return frozenset(plain(value) for split in SPLITS for value in words_of(split).values)


@functools.cache
def _wordings() -> defaultdict[str, list[tuple[str, Template]]]:
    """Return first word -> (slot, its wording) of the procedural families; under "" those that start with a value."""
    found: defaultdict[str, list[tuple[str, Template]]] = defaultdict(list)
    for split in SPLITS:
        for slot, wordings in words_of(split).slots.items():
            for wording in wordings:
                for form in {wording, wording.replace(" a {}", " an {}")}:
                    # not `plain`: the blank before a value at the end belongs to the literal
                    template = parse("add_slot", form.casefold().replace("{}", "{value}"))
                    head = template.literals[0].split(" ", 1)
                    found[head[0] if len(head) > 1 else ""].append((slot, template))
    return found


def _words(text: str) -> list[str]:
    return re.findall(r"\w+(?:'\w+)?", text.casefold())
