"""Words and numbers of a message."""

from __future__ import annotations

import doctest
import random
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import typos, words
from envs.typos import CARRYING, misspell
from envs.words import mentions, numbers_in, overlap, without


@pytest.mark.parametrize("module", [words, typos])
def test_examples(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("$1,250.50 for 3 of them", ["2501/2", "3"]),
        ("JV-544 at 12:30", ["544", "12", "30"]),
        ("twenty-two and forty nine", ["22", "49"]),
        ("one more, two dozen", ["2", "12"]),
        ("1,2,3", ["1", "2", "3"]),
        ("nothing", []),
    ],
)
def test_numbers_are_read_in_digits_and_words(text: str, numbers: list[str]) -> None:
    assert numbers_in(text) == {Fraction(n) for n in numbers}


@given(st.text("ab _-.A\u0130\u00df1", max_size=12), st.text("abA\u0130\u00df1", min_size=1, max_size=3))
def test_mentions_is_the_search_for_whole_words(text: str, phrase: str) -> None:
    if len(text.lower()) == len(text) and len(phrase.lower()) == len(phrase):
        text, phrase = text.lower(), phrase.lower()
    assert mentions(text, phrase) == bool(re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text))
    assert not mentions(without(text, phrase), phrase)


def test_overlap_is_a_share_of_the_wanted_words() -> None:
    assert overlap(["delivery", "to", "queens"], ["deliver", "queens"]) == 1.0
    assert overlap(["queens"], ["deliver", "queens"]) == 0.5
    assert overlap([], []) == 1.0


@given(st.text(st.characters(codec="utf-8"), max_size=12), st.integers(0, 50))
def test_a_typo_is_one_slip_that_keeps_the_ends(word: str, seed: int) -> None:
    slip = misspell(word, random.Random(seed))
    assert slip == misspell(word, random.Random(seed))
    assert abs(len(slip) - len(word)) <= 1
    assert slip[:1] == word[:1] and slip[-1:] == word[-1:]
    if not (word.isascii() and word.isalpha() and len(word) > 3):
        assert slip == word


def test_typos_do_come_up() -> None:
    slips = {misspell("thinking", random.Random(n)) for n in range(200)}
    assert len(slips) > 15
    assert {"no", "not", "instead", "without", "forget"} <= CARRYING
