"""A folder of made-up GSM8K files: enough tasks, one broken gold, one training copy of a test task."""

from __future__ import annotations

import json
from pathlib import Path

THINGS = ("apples", "stamps", "bricks", "shells", "tickets", "marbles", "pens", "plates", "coins", "seeds")
NAMES = ("Ana", "Bo", "Cleo", "Dag", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon")


def item(at: int, count: int = 6) -> dict[str, str]:
    """One word problem with calculator annotations; `at` decides its words and `count` its numbers."""
    thing, name, other = THINGS[at % 10], NAMES[at % 10], NAMES[(at // 10 + at + 3) % 10]
    total, left = count * (at + 4), count * (at + 4) - 3
    return {
        "question": f"{name} has {count} old boxes with {at + 4} {thing} in each box. "
        f"On the way to the fair {other} takes 3 {thing} from the pile. How many {thing} are left for {name} to sell?",
        "answer": f"There are {count}*{at + 4}=<<{count}*{at + 4}={total}>>{total} {thing}.\n"
        f"After that {total}-3=<<{total}-3={left}>>{left} are left.\n#### {left}",
    }


TRAINING = (
    "A mason lays {a} rows of bricks and every row takes {b} bricks. Then the frost breaks 3 bricks of the new "
    "wall. How many bricks hold?",
    "The choir of Lund sells {a} evenings at {b} crowns an evening. Its old piano needs 3 crowns for a string. "
    "How much money does the choir keep?",
    "Every one of {a} beehives gives {b} jars of honey this summer. The beekeeper eats 3 jars alone. "
    "How many jars go to the market?",
    "A printer runs for {a} hours and makes {b} posters an hour. In the evening 3 posters turn out smeared. "
    "How many clean posters lie there?",
)


def write(folder: Path, tests: int = 40) -> Path:
    """Write `folder/gsm8k/{test,train}.jsonl` and return `folder`.

    Training items 0 to 3 are stories of their own; item 4 is test item 0 with another number.
    """
    (folder / "gsm8k").mkdir(parents=True)
    own = [
        {"question": story.format(a=at + 5, b=at + 7), "answer": _solution(at + 5, at + 7)}
        for at, story in enumerate(TRAINING)
    ]
    rows = {"test": [item(at) for at in range(tests)], "train": [*own, item(0, 9)]}
    for split, items in rows.items():
        text = "".join(json.dumps(one) + "\n" for one in items)
        (folder / "gsm8k" / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return folder


def _solution(a: int, b: int) -> str:
    made, left = a * b, a * b - 3
    return (
        f"That makes {a}*{b}=<<{a}*{b}={made}>>{made}.\nAnd {made}-3=<<{made}-3={left}>>{left}.\n#### {left}"
    )
