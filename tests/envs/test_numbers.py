"""Numbers in free text: the known defects of other graders, and round trips."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.numbers import extract_number, format_number, parse_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The total is 72 clips, altogether.", 72),  # a lone comma is no number
        ("72, altogether...", 72),
        ("first 3 5", 5),  # a match never joins two numbers
        ("3a5", 5),
        (r"\boxed{8,000}", 8000),
        (r"so $9{,}500", 9500),
        (r"\boxed{\$9\,500}", 9500),
        ("1/2", Fraction(1, 2)),
        ("The answer is 36/2.", 18),  # the full stop is no point
        (r"it is \frac{3}{4}", Fraction(3, 4)),
        ("takes 1 1/2 hours", Fraction(3, 2)),
        ("He has 5 + 3 = <<5+3=8>>8.\n#### 18", 18),  # what precedes the marker does not count
        ("#### 1,234\nI checked 3 times.", 1234),
        ("The answer is 5 + 3 = 8 apples.", 8),
        ("The answer is 4. Wait. The answer is 6.", 6),
        ("**Answer:** 12", 12),
        ("The answer is:\n\n**31**", 31),
        (r"The answer is \boxed{x = -7}.", -7),
        (r"\boxed{\frac{1}{2}} of 8", Fraction(1, 2)),
        ("$100.00", 100),
        ("18.0", 18),
        ("-$5", -5),
        ("$-5", -5),
        ("from 9-4", 4),
        ("it costs $.50", Fraction(1, 2)),
        ("50%", 50),
        ("3360 points in 4 years, the answer is 3360 points", 3360),
    ],
)
def test_extracts_the_final_answer(text: str, value: int | Fraction) -> None:
    assert extract_number(text) == value


@pytest.mark.parametrize("text", ["", "none", "...", ",", "1/0", "9" * 5000, "#### none", "\\boxed{"])
def test_text_without_a_number(text: str) -> None:
    assert extract_number(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$1,250.50", Fraction(2501, 2)),
        ("12 miles", 12),
        ("5 or 6", None),
        ("", None),
        ("40%", 40),
        ("3.", 3),
    ],
)
def test_parse_takes_one_number_only(text: str, value: Fraction | None) -> None:
    assert parse_number(text) == value


@settings(deadline=None)  # wall clock says nothing on a busy machine
@given(st.integers(-(10**12), 10**12))
def test_integer_answers_survive_every_usual_dress(number: int) -> None:
    for dress in (
        "#### {:,}",
        "{}",
        "The answer is {}.",
        "\\boxed{{{:,}}}",
        "${}.00",
        "so it is {:,} units.",
    ):
        assert extract_number(dress.format(number)) == number
        assert extract_number(dress.format(number + 1)) != number


@settings(deadline=None)  # wall clock says nothing on a busy machine
@given(st.fractions())
def test_format_is_exact(value: Fraction) -> None:
    assert parse_number(format_number(value)) == value


@settings(deadline=None)  # wall clock says nothing on a busy machine
@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    extract_number(text)
    parse_number(text)
