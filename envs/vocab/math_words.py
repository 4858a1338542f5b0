"""Stories of the `math` family, train and held-out: quantities to multiply and sum up, then operations in order."""
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from envs.vocab import Pool, Slot, integers, slot

Op = Literal["times", "plus", "minus", "percent off", "percent on", "divide"]


@dataclass(frozen=True, slots=True)
class Quantity:
    slot: Slot
    op: Op


@dataclass(frozen=True, slots=True)
class Story:
    """`chains` are products that are summed up; `extras` then apply in this order, where they are given."""

    name: str
    question: str
    chains: tuple[tuple[Quantity, ...], ...]
    extras: tuple[Quantity, ...]


_DIVISORS = (2, 4, 5, 8, 10, 16, 20)  # every quotient has a finite decimal form
_SMALL = range(2, 41)
_WIDE = range(3, 100)
_PERCENT = (5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 60, 75)


def _q(
    op: Op, name: str, template: str, *wordings: str, numbers: Iterable[int | float] | None = None
) -> Quantity:
    usual: dict[Op, Iterable[int | float]] = {
        "times": _SMALL, "plus": _WIDE, "minus": _SMALL, "percent off": _PERCENT, "percent on": _PERCENT, "divide": _DIVISORS,
    }  # fmt: skip
    chosen = usual[op] if numbers is None else numbers
    whole = integers([number for number in chosen if isinstance(number, int)], template)
    parts = Pool("number", tuple(template.format(number) for number in chosen if not isinstance(number, int)))
    return Quantity(slot(name, Pool("number", (*whole.values, *parts.values)), *wordings), op)


_HALVES = [n / 2 for n in range(3, 40, 2)] + list(range(2, 30))
_CENTS = [n + 0.25 for n in range(1, 30, 2)] + [n + 0.5 for n in range(2, 30, 2)] + list(range(2, 40))

TRAIN_STORIES = (
    Story(
        "concert outing", "What does the concert outing cost in dollars?",
        ((_q("times", "ticket count", "{} tickets", "we need {}"), _q("times", "ticket price", "{} dollars", "a ticket costs {}", numbers=_CENTS)),),
        (
            _q("plus", "parking fee", "{} dollars", "parking costs {}"), _q("plus", "snack money", "{} dollars", "we spend {} on snacks"),
            _q("minus", "voucher", "{} dollars", "a voucher takes off {}"), _q("plus", "program booklet", "{} dollars", "the booklet costs {}"),
            _q("percent off", "student discount", "{} percent", "students get {} off"), _q("percent on", "service charge", "{} percent", "they charge {} on top"),
            _q("minus", "refund", "{} dollars", "we get back {}"), _q("divide", "friends sharing", "{} friends", "split it among {}"),
        ),
    ),
    Story(
        "bakery order", "How many cookies are left to sell?",
        ((_q("times", "tray count", "{} trays", "we bake {}"), _q("times", "cookies per tray", "{} cookies", "each tray holds {}")),),
        (
            _q("plus", "yesterday's batch", "{} cookies", "{} are left from yesterday"), _q("minus", "broken cookies", "{} cookies", "{} broke"),
            _q("percent off", "burnt share", "{} percent", "{} got burnt"), _q("minus", "staff treats", "{} cookies", "the staff eats {}"),
            _q("plus", "partner delivery", "{} cookies", "a partner brings {}"), _q("divide", "shop count", "{} shops", "spread them over {}"),
            _q("minus", "free samples", "{} cookies", "give away {}"), _q("percent on", "holiday increase", "{} percent", "bake {} more"),
        ),
    ),
    Story(
        "car journey", "How many miles does the car journey have?",
        ((_q("times", "driving days", "{} days", "we drive for {}"), _q("times", "daily distance", "{} miles", "we cover {} daily", numbers=range(20, 400, 15))),),
        (
            _q("plus", "beach detour", "{} miles", "the beach adds {}"), _q("minus", "ferry ride", "{} miles", "the ferry saves {}"),
            _q("plus", "airport run", "{} miles", "the airport adds {}"), _q("minus", "tunnel shortcut", "{} miles", "the tunnel saves {}"),
            _q("percent on", "traffic allowance", "{} percent", "allow {} for traffic"), _q("plus", "lunch stop", "{} miles", "lunch adds {}"),
            _q("divide", "driver count", "{} drivers", "share it among {}"), _q("percent off", "train part", "{} percent", "do {} by train"),
        ),
    ),
    Story(
        "office supplies", "What is the office supplies bill in dollars?",
        (
            (_q("times", "paper boxes", "{} boxes", "order {} of paper"), _q("times", "box price", "{} dollars", "a box costs {}", numbers=_CENTS)),
            (_q("times", "pen packs", "{} packs", "take {} of pens"), _q("times", "pack price", "{} dollars", "a pack costs {}", numbers=_CENTS)),
        ),
        (
            _q("plus", "courier fee", "{} dollars", "the courier takes {}"), _q("minus", "store credit", "{} dollars", "use {} of credit"),
            _q("percent off", "bulk discount", "{} percent", "we get {} off"), _q("percent on", "sales tax", "{} percent", "the tax is {}"),
            _q("plus", "stapler", "{} dollars", "a stapler costs {}"), _q("minus", "returned toner", "{} dollars", "the toner gives back {}"),
            _q("divide", "team count", "{} teams", "charge {} alike"), _q("plus", "desk lamp", "{} dollars", "a lamp costs {}"),
        ),
    ),
    Story(
        "warehouse stock", "How many bottles are in the warehouse?",
        ((_q("times", "shelf count", "{} shelves", "there are {}"), _q("times", "bottles per shelf", "{} bottles", "a shelf holds {}")),),
        (
            _q("plus", "morning delivery", "{} bottles", "{} come in the morning"), _q("minus", "customer pickup", "{} bottles", "a customer takes {}"),
            _q("minus", "leaking bottles", "{} bottles", "{} leak"), _q("plus", "floor reserve", "{} bottles", "{} stand on the floor"),
            _q("percent off", "expired share", "{} percent", "{} have expired"), _q("percent on", "safety addition", "{} percent", "add {} for safety"),
            _q("minus", "export order", "{} bottles", "{} go abroad"), _q("divide", "truck count", "{} trucks", "load them on {}"),
        ),
    ),
    Story(
        "gym training", "How many minutes of training is that?",
        ((_q("times", "session count", "{} sessions", "I do {}"), _q("times", "session length", "{} minutes", "a session takes {}", numbers=range(10, 125, 5))),),
        (
            _q("plus", "warm-up", "{} minutes", "warming up takes {}"), _q("plus", "stretching", "{} minutes", "stretching takes {}"),
            _q("minus", "missed time", "{} minutes", "I missed {}"), _q("minus", "phone breaks", "{} minutes", "my phone cost {}"),
            _q("percent off", "injury cut", "{} percent", "cut {} for the injury"), _q("percent on", "coach bonus", "{} percent", "the coach adds {}"),
            _q("plus", "pool swim", "{} minutes", "swimming takes {}"), _q("divide", "month count", "{} months", "spread it over {}"),
        ),
    ),
    Story(
        "catering dinner", "What does the dinner cost in dollars?",
        (
            (_q("times", "adult guests", "{} adults", "there are {}"), _q("times", "adult menu", "{} dollars", "an adult eats for {}", numbers=_CENTS)),
            (_q("times", "child guests", "{} children", "{} come along"), _q("times", "kids menu", "{} dollars", "a child eats for {}", numbers=_CENTS)),
        ),
        (
            _q("plus", "hall rent", "{} dollars", "the hall costs {}"), _q("plus", "flower budget", "{} dollars", "flowers cost {}"),
            _q("minus", "deposit paid", "{} dollars", "we already paid {}"), _q("percent off", "early discount", "{} percent", "booking early saves {}"),
            _q("percent on", "waiter tip", "{} percent", "tip the waiters {}"), _q("plus", "cake order", "{} dollars", "the cake costs {}"),
            _q("minus", "sponsor share", "{} dollars", "a sponsor pays {}"), _q("divide", "host families", "{} families", "split it between {}"),
        ),
    ),
    Story(
        "savings plan", "How many dollars are saved in the end?",
        ((_q("times", "saving months", "{} months", "I save for {}"), _q("times", "monthly savings", "{} dollars", "I put aside {} a month", numbers=range(15, 300, 15))),),
        (
            _q("plus", "birthday gift", "{} dollars", "grandma gives {}"), _q("minus", "bike repair", "{} dollars", "the bike costs {}"),
            _q("percent on", "savings interest", "{} percent", "the bank adds {}"), _q("minus", "phone bill", "{} dollars", "my phone takes {}"),
            _q("plus", "yard work", "{} dollars", "I earn {} in the yard"), _q("percent off", "income tax", "{} percent", "the state takes {}"),
            _q("plus", "found coins", "{} dollars", "I found {}"), _q("divide", "sibling count", "{} siblings", "share it among {}"),
        ),
    ),
)  # fmt: skip

HELDOUT_STORIES = (
    Story(
        "apple harvest", "How many apples reach the cider press?",
        ((_q("times", "basket tally", "{} baskets", "we fill {}"), _q("times", "apples apiece", "{} apples", "a basket has {}")),),
        (
            _q("minus", "wormy apples", "{} apples", "{} are wormy"), _q("plus", "windfall", "{} apples", "{} fell overnight"),
            _q("percent off", "frost losses", "{} percent", "frost ruins {}"), _q("minus", "horse nibbles", "{} apples", "horses nibble {}"),
            _q("percent on", "ripening surplus", "{} percent", "ripening yields {} extra"), _q("plus", "grafted branches", "{} apples", "grafts bear {}"),
            _q("minus", "strudel filling", "{} apples", "strudels use {}"), _q("divide", "wagon tally", "{} wagons", "haul it by {}"),
        ),
    ),
    Story(
        "theater costumes", "How many meters of cloth do the costumes take?",
        (
            (_q("times", "knight roles", "{} knights", "there are {}"), _q("times", "cloak cloth", "{} meters", "a cloak takes {}", numbers=_HALVES)),
            (_q("times", "fairy roles", "{} fairies", "{} appear"), _q("times", "gown cloth", "{} meters", "a gown takes {}", numbers=_HALVES)),
        ),
        (
            _q("plus", "curtain hem", "{} meters", "the hem needs {}"), _q("minus", "leftover scraps", "{} meters", "scraps give {}"),
            _q("percent on", "shrinkage", "{} percent", "it shrinks by {}"), _q("plus", "banner", "{} meters", "a banner needs {}"),
            _q("minus", "reused velour", "{} meters", "we reuse {}"), _q("percent off", "stretch gain", "{} percent", "stretch gains {}"),
            _q("plus", "rehearsal capes", "{} meters", "capes need {}"), _q("divide", "tailor tally", "{} tailors", "sew it with {}"),
        ),
    ),
    Story(
        "aquarium refill", "How many liters end up in the aquarium?",
        ((_q("times", "bucket tally", "{} buckets", "I carry {}"), _q("times", "liters apiece", "{} liters", "a bucket has {}", numbers=_HALVES)),),
        (
            _q("minus", "spillage", "{} liters", "{} spill"), _q("plus", "rainwater", "{} liters", "rain brings {}"),
            _q("percent off", "evaporation", "{} percent", "{} evaporates"), _q("minus", "snail basin", "{} liters", "snails need {}"),
            _q("plus", "filter backflow", "{} liters", "the filter returns {}"), _q("percent on", "siphon boost", "{} percent", "the siphon boosts {}"),
            _q("minus", "gravel displacement", "{} liters", "gravel displaces {}"), _q("divide", "tank tally", "{} tanks", "pour it into {}"),
        ),
    ),
    Story(
        "beehive yield", "How many jars of honey can be sold?",
        ((_q("times", "beehive tally", "{} beehives", "I keep {}"), _q("times", "jars apiece", "{} jars", "a hive yields {}")),),
        (
            _q("minus", "bear theft", "{} jars", "a bear steals {}"), _q("plus", "cellar leftovers", "{} jars", "{} remain below"),
            _q("percent off", "crystallized portion", "{} percent", "{} crystallized"), _q("minus", "breakage", "{} jars", "{} shatter"),
            _q("percent on", "clover bloom", "{} percent", "clover raises it {}"), _q("plus", "swapped jars", "{} jars", "I swap for {}"),
            _q("minus", "raffle prizes", "{} jars", "the raffle takes {}"), _q("divide", "stall tally", "{} stalls", "sell it at {}"),
        ),
    ),
)  # fmt: skip

STORIES = {"train": TRAIN_STORIES, "heldout": HELDOUT_STORIES}


def all_slots(split: str) -> list[Slot]:
    stories = STORIES[split]
    return [
        q.slot for story in stories for q in (*(q for chain in story.chains for q in chain), *story.extras)
    ]


def names(split: str) -> frozenset[str]:
    return frozenset(story.name for story in STORIES[split])
