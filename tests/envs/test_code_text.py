"""The Python in an answer is found: fences, prose around it, unclosed blocks, summaries after it."""

from __future__ import annotations

import ast

import pytest

from envs.code_text import Block, binds, blocks, extract, functions, method_class, parse, takes


def wants_f(tree: ast.Module) -> bool:
    return binds(tree, "f")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("```python\ndef f(): pass\n```", "def f(): pass"),
        ("Here:\n```py\ndef f(): pass\n```\nIt works.", "def f(): pass"),
        ("~~~~python\ndef f(): pass\n~~~~", "def f(): pass"),
        ("```\ndef f(): pass\n```", "def f(): pass"),
        (
            "```python\ndef f(): return 1\n```\nbetter:\n```python\ndef f(): return 2\n```",
            "def f(): return 2",
        ),
        # G27: the last pair of fences is a summary
        ("```python\ndef f(): pass\n```\n```text\nO(n) time\n```", "def f(): pass"),
        ("```python\ndef f(): pass\n```\n```python\nf()\n```", "def f(): pass"),
        ("```python\ndef f(): pass\n```\n```\nx = 1\n```", "def f(): pass"),
        # G28: an unclosed block, and a trailing fence without a partner
        ("```python\ndef f(): pass\n", "def f(): pass"),
        ("```python\ndef f(): pass\n```\n```", "def f(): pass"),
        ("def f(): pass", "def f(): pass"),
        ("Sure, this does it.\n\ndef f(): pass\n", "def f(): pass\n"),
        ("  ```python\ndef f(): pass\n  ```", "def f(): pass"),
        ('```python\ndef f(): return "```"\n```', 'def f(): return "```"'),
        ("```python\ndef g(): pass\n```", "def g(): pass"),
        ("```python\ndef f(:\n```\n```python\ndef g(): pass\n```", "def g(): pass"),
    ],
)
def test_the_code_is_found(answer: str, expected: str) -> None:
    assert extract(answer, wants_f) == expected


@pytest.mark.parametrize(
    "answer", ["", "no idea", "I cannot do that.", "```python\ndef f(\n```", "42", "\x00"]
)
def test_where_there_is_no_code_none_is_found(answer: str) -> None:
    assert extract(answer, wants_f) is None


def test_blocks_keep_tags_and_inner_fences() -> None:
    text = "````markdown\n```python\nx\n```\n````\n```JS\ny\n```"
    assert blocks(text) == [Block("markdown", "```python\nx\n```"), Block("js", "y")]


def test_what_a_program_defines() -> None:
    tree = parse(
        "import g\nfrom a import b as c\nd = e = 1\nclass S:\n def m(self): pass\ndef f(x, y=1): pass"
    )
    assert tree is not None
    assert all(binds(tree, name) for name in "gcdeSf") and not any(binds(tree, name) for name in "abmxy")
    assert method_class(tree, "m") == "S" and method_class(tree, "f") is None
    assert takes(functions(tree)["f"], 1) and takes(functions(tree)["f"], 2)
    assert not takes(functions(tree)["f"], 3) and not takes(functions(tree)["f"], 0)
    assert parse("def f(") is None and parse("(" * 10_000) is None
