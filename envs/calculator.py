"""The calculator annotations of a worked solution (`<<48/2=24>>`) as a program that can be run again.

Each annotation is a step; the numbers in it are leaves. Where a leaf comes from (a number of the question, an
earlier step, a constant) is decided elsewhere; here a step is run on any leaf values. All arithmetic is
exact: whole numbers are ints, which run an order of magnitude faster than `Fraction`s, and all others `Fraction`s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from envs.errors import DataError

Exact = int | Fraction
_ANNOTATION = re.compile(r"<<([^<>=]*)=([^<>=]*)>>")
_TOKEN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+|[-+*/()])")


@dataclass(frozen=True, slots=True)
class Step:
    """One annotation as a postfix program, with its leaf values in order of appearance and the stated result.

    In `program` an int is the index of a leaf and a str an operator ("+", "-", "*", "/", "neg").
    """

    program: tuple[int | str, ...]
    leaves: tuple[Exact, ...]
    result: Exact


def exact(value: Exact) -> Exact:
    """Return `value` as an int where it is whole."""
    return value.numerator if value.denominator == 1 else value


def parse_steps(solution: str) -> tuple[Step, ...]:
    """Return the annotations of a solution in order. Raises `DataError` where one cannot be read."""
    return tuple(_step(match.group(1), match.group(2)) for match in _ANNOTATION.finditer(solution))


def strip_annotations(solution: str) -> str:
    """Return the solution as a person would write it: without its `<<...>>`."""
    return re.sub(r"<<[^<>]*>>", "", solution)


def evaluate(step: Step, leaves: Sequence[Exact]) -> Exact:
    """Run one step on other leaf values. Raises `ZeroDivisionError`."""
    stack: list[Exact] = []
    for item in step.program:
        if isinstance(item, int):
            stack.append(leaves[item])
        elif item == "neg":
            stack.append(-stack.pop())
        else:
            right, left = stack.pop(), stack.pop()
            if item == "+":
                stack.append(left + right)
            elif item == "-":
                stack.append(left - right)
            elif item == "*":
                stack.append(left * right)
            else:
                stack.append(_divide(left, right))
    return stack[0]


def _divide(left: Exact, right: Exact) -> Exact:
    if isinstance(left, int) and isinstance(right, int):
        quotient, rest = divmod(left, right)
        return Fraction(left, right) if rest else quotient
    return exact(Fraction(left) / right)


def _step(expression: str, result: str) -> Step:
    program, leaves = _compile(_tokens(expression))
    stated, value = _compile(_tokens(result))
    step = Step(program, leaves, evaluate(Step(stated, value, Fraction()), value))
    try:
        evaluate(step, leaves)
    except ZeroDivisionError:
        raise DataError(f"the annotation <<{expression}={result}>> divides by zero") from None
    return step


def _tokens(expression: str) -> tuple[str, ...]:
    tokens, at = [], 0
    text = expression.strip().replace(",", "")
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise DataError(f"the annotation {expression!r} holds {text[at]!r}, which is no arithmetic")
        tokens.append(match.group(1))
        at = match.end()
    return tuple(tokens)


def _compile(tokens: tuple[str, ...]) -> tuple[tuple[int | str, ...], tuple[Exact, ...]]:
    """Return the postfix program of an expression and its leaves, by recursive descent."""
    program: list[int | str] = []
    leaves: list[Exact] = []
    at = 0
    shown = " ".join(tokens)

    def peek() -> str:
        return tokens[at] if at < len(tokens) else ""

    def take() -> str:
        nonlocal at
        at += 1
        return tokens[at - 1]

    def factor() -> None:
        token = take() if at < len(tokens) else ""
        if token in {"-", "+"}:
            factor()
            if token == "-":
                program.append("neg")
        elif token == "(":
            total()
            if peek() != ")":
                raise DataError(f"unbalanced bracket in the annotation {shown!r}")
            take()
        elif token in {"", ")", "*", "/"}:
            raise DataError(f"a number is missing in the annotation {shown!r}")
        else:
            program.append(len(leaves))
            leaves.append(exact(Fraction(token)))

    def product() -> None:
        factor()
        while peek() in {"*", "/", "("}:
            operator = "*" if peek() == "(" else take()  # "3(4+5)" stands for a product
            factor()
            program.append(operator)

    def total() -> None:
        product()
        while peek() in {"+", "-"}:
            operator = take()
            product()
            program.append(operator)

    total()
    if at != len(tokens):
        raise DataError(f"cannot read the annotation {shown!r} beyond token {at}")
    return tuple(program), tuple(leaves)
