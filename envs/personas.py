"""Personas: how a user writes. A style for a model to follow, and rates for the noise that templates get.

Each rate is a chance: of a message (`openers`, `closers`, `fragments`, `no_stop`), of all its words outside
the exact ones (`lower`), or of each word that may change (`typos`, `no_apostrophe`, `no_article`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from envs.errors import ConfigError, unknown_name

_RATES = (
    "opener_rate",
    "closer_rate",
    "fragments",
    "typos",
    "lower",
    "no_stop",
    "no_apostrophe",
    "no_article",
)


@dataclass(frozen=True, slots=True)
class Persona:
    """One way to write. Openers and closers are whole sentences without any word of content or number.

    Raises `ConfigError` for a rate outside 0..1, or one for openers or closers where there are none.
    """

    name: str
    style: str
    openers: tuple[str, ...] = ()
    opener_rate: float = 0.0
    closers: tuple[str, ...] = ()
    closer_rate: float = 0.0
    fragments: float = 0.0
    typos: float = 0.0
    lower: float = 0.0
    no_stop: float = 0.0
    no_apostrophe: float = 0.0
    no_article: float = 0.0

    def __post_init__(self) -> None:
        for rate in _RATES:
            if not 0 <= getattr(self, rate) <= 1:
                raise ConfigError(f"persona {self.name!r}: {rate} is a chance from 0 to 1")
        if (self.opener_rate and not self.openers) or (self.closer_rate and not self.closers):
            raise ConfigError(f"persona {self.name!r} has a rate for openers or closers, but none to draw")

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON data."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }


PERSONAS = {
    persona.name: persona
    for persona in (
        Persona("plain", "Plain and neutral."),
        Persona(
            "terse",
            "As few words as possible; fragments instead of sentences.",
            fragments=0.7,
            no_stop=0.4,
            lower=0.3,
        ),
        Persona(
            "chatty",
            "Warm and talkative; a friendly word before or after, but no further facts.",
            openers=(
                "Okay, so listen.",
                "Right, here goes.",
                "Ha, I keep thinking about it.",
                "Hope you don't mind me writing again.",
                "It's me again.",
                "Bear with me here.",
            ),
            opener_rate=0.5,
            closers=("You're a star!", "Thanks a lot!", "That would be lovely.", "Cheers!", "Much obliged!"),
            closer_rate=0.5,
        ),
        Persona(
            "formal",
            "Polite and formal, in full sentences, without contractions.",
            openers=(
                "I hope this finds you well.",
                "Allow me a word.",
                "If I may trouble you.",
                "With your permission.",
            ),
            opener_rate=0.35,
            closers=(
                "Thank you kindly.",
                "I am much obliged.",
                "With kind regards.",
                "Many thanks in advance.",
            ),
            closer_rate=0.5,
        ),
        Persona(
            "hurried",
            "In a hurry on a phone: short, lower case, a typo here and there.",
            openers=("quick one.", "in a rush.", "sorry, on the go.", "hey."),
            opener_rate=0.2,
            closers=("thx", "thanks", "ty", "cheers"),
            closer_rate=0.2,
            fragments=0.25,
            typos=0.08,
            lower=0.8,
            no_stop=0.7,
            no_apostrophe=0.6,
        ),
        Persona(
            "non-native",
            "Not a native speaker of English: simple words, some articles missing, but clear.",
            openers=("Hello again.", "Excuse me please.", "Sorry for my English."),
            opener_rate=0.15,
            closers=("Thank you very much.", "Many thanks.", "Thank you, friend."),
            closer_rate=0.25,
            typos=0.03,
            no_apostrophe=0.2,
            no_article=0.5,
        ),
        Persona(
            "sloppy",
            "Types without looking: typos, missing marks, mixed case.",
            fragments=0.1,
            typos=0.15,
            lower=0.5,
            no_stop=0.6,
            no_apostrophe=0.7,
            no_article=0.1,
        ),
    )
}


def get_persona(name: str) -> Persona:
    """Return the persona of that name. Raises `UnknownName`, naming the nearest."""
    if name not in PERSONAS:
        raise unknown_name("persona", name, PERSONAS)
    return PERSONAS[name]
