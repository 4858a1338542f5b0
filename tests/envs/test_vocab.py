"""The vocabularies: large, well-formed, and disjoint between the splits at word level."""

from __future__ import annotations

import random

import pytest

from envs.errors import DataError
from envs.vocab import SPLITS, Slot, content_words, items_of, lists, slot, strings, words_of


def test_enough_slots_values_and_wordings() -> None:
    train, heldout = (words_of(split) for split in SPLITS)
    assert len(train.slots) >= 40 and len(heldout.slots) >= 20
    assert len(train.values) >= 500 and len(heldout.values) >= 300
    assert not set(train.slots) & set(heldout.slots)
    for wordings in (*train.slots.values(), *heldout.slots.values()):
        assert len(set(wordings)) >= 4
        assert all(wording.count("{}") == 1 for wording in wordings)


def test_splits_share_no_content_word() -> None:
    train, heldout = (content_words(words_of(split).texts()) for split in SPLITS)
    assert train & heldout == set()
    assert len(train) >= 500 and len(heldout) >= 300


@pytest.mark.parametrize("split", SPLITS)
def test_slot_names_are_short(split: str) -> None:
    for name in words_of(split).slots:
        assert 1 <= len(name.split()) <= 3 and name == name.strip() and ":" not in name


def test_list_values_read_back() -> None:
    pool = lists("rice | red beans | corn | peas")
    assert all(len(items_of(value)) in (2, 3) for value in pool.values)
    assert len({frozenset(items_of(value)) for value in pool.values}) == len(pool.values) == 6 + 4


def test_others_are_different_values() -> None:
    small, large = strings("a | b | c"), strings(" | ".join(map(str, range(100))))
    assert sorted(small.others("a", 5, random.Random(0))) == ["b", "c"]
    found = large.others("7", 5, random.Random(0))
    assert len(set(found)) == 5 and "7" not in found


def test_wordings_mind_the_article() -> None:
    cat: Slot = slot("animal", strings("otter | cat"), "bring a {}")
    said = {cat.say(value, random.Random(seed)) for value in cat.pool.values for seed in range(20)}
    assert "bring an otter" in said and "bring a cat" in said and "bring a otter" not in said


def test_unknown_split_names_the_known_ones() -> None:
    with pytest.raises((DataError, ValueError), match="train"):
        words_of("test")
