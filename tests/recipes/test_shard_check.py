"""Rules that tell whether shards lost or added a number, a quoted text or an identifier."""

from __future__ import annotations

import pytest

from recipes.shard_check import rule_faults

SAME = [
    ("He has twenty-five pens and 3 pads.", ["How many?", "he has 25 pens", "three pads"]),
    ("Two hundred cars cost $1,000.50 each.", ["price of cars", "200 cars", "1000.5 dollars each"]),
    ("She runs twice a day, 7km each.", ["distance?", "She runs two times a day", "7 km each"]),
    ("One of them has a dozen eggs.", ["eggs?", "a friend has 12 eggs"]),
    ("Call `fetch_all` with mode 'fast'.", ["call fetch_all", 'use "Fast" mode']),
    ("Use math.factorial on 5, e.g. now.", ["use math.factorial", "on 5"]),
    ("It's Ana's and Bo's 40% share.", ["the share", "40 percent, Ana's and Bo's"]),
    ("The 3rd of 4 rows", ["row number 3", "out of 4"]),
]
LOST = [
    ("He has 25 pens and 3 pads.", ["pens?", "25 pens"], "no shard holds the number 3"),
    ("He has 25 pens.", ["pens?", "25 pens, 5 of them red"], "shard 2 adds the number 5"),
    ("It takes 2.5 hours.", ["hours?", "2 hours"], "no shard holds the number 2.5"),
    ("Thirty-one cats", ["cats?", "thirty cats"], "no shard holds the number 31"),
    ("Write to 'log.txt'.", ["write", "to a log"], "no shard holds the text 'log.txt'"),
    ("Sort by name.", ["sort", "by 'last name'"], "shard 2 adds the text 'last name'"),
    ("Set max_depth to 3.", ["set the depth", "to 3"], "no shard holds the identifier 'max_depth'"),
    ("Set the depth to 3.", ["set maxDepth", "to 3"], "shard 1 adds the identifier 'maxDepth'"),
    ("Add 2 and 3.", ["Add 2 and 3."], "1 shards"),
    ("Add 2 and 3.", ["Add 2 and 3.", " "], "shard 2 is empty"),
    ("Add 2 and 3.", ["Add 2 and 3.", "add 2  and 3."], "shard 2 is said twice"),
]


@pytest.mark.parametrize(("prompt", "shards"), SAME)
def test_the_same_in_other_words_passes(prompt: str, shards: list[str]) -> None:
    assert rule_faults(prompt, shards) == []


@pytest.mark.parametrize(("prompt", "shards", "fault"), LOST)
def test_what_is_lost_or_added_is_named(prompt: str, shards: list[str], fault: str) -> None:
    faults = rule_faults(prompt, shards)
    assert any(found.startswith(fault) for found in faults), faults
