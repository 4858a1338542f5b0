"""The official graders, for differential tests: read from a folder that FLUXFORGE_OFFICIAL names.

    pip install --no-deps --target $FLUXFORGE_OFFICIAL bfcl-eval==2026.3.23
    git clone https://github.com/openai/grade-school-math $FLUXFORGE_OFFICIAL/grade-school-math
    git clone https://github.com/microsoft/lost_in_conversation $FLUXFORGE_OFFICIAL/lost_in_conversation

Nothing of it is needed to build or test the project; without the folder these tests skip.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_VARIABLE = "FLUXFORGE_OFFICIAL"


def official_file(name: str) -> Path:
    """Return a file of the folder; skip the test where it is absent."""
    folder = os.environ.get(_VARIABLE)
    if not folder:
        pytest.skip(
            f"{_VARIABLE} names no folder of official graders (tests/envs/official.py says how to make it)"
        )
    path = Path(folder) / name
    if not path.is_file():
        pytest.skip(f"{path} is not there (tests/envs/official.py says how to get it)")
    return path


@contextmanager
def bfcl_checker() -> Iterator[Callable[[list[Any], list[Any], list[Any], str], dict[str, Any]]]:
    """Give `check(functions, calls, truth, category)` of bfcl_eval; a stub stands for its table of models.

    The real table imports the client of every model vendor. No name is changed for the stub's model, as for a
    model that is prompted with the functions as they are.
    """
    root = official_file("bfcl_eval/eval_checker/ast_eval/ast_checker.py").parents[3]
    before = set(sys.modules)
    stub = types.ModuleType("bfcl_eval.constants.model_config")
    stub.MODEL_CONFIG_MAPPING = {"stub": types.SimpleNamespace(underscore_to_dot=False)}  # type: ignore[attr-defined]
    sys.path.insert(0, str(root))
    try:
        sys.modules["bfcl_eval.constants.model_config"] = stub
        checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
        python = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON
        yield lambda functions, calls, truth, category: checker.ast_checker(
            functions, calls, truth, python, category, "stub"
        )
    finally:
        sys.path.remove(str(root))
        for name in set(sys.modules) - before:
            del sys.modules[name]


def gsm8k_extraction() -> Callable[[str], str]:
    """Return `extract_answer` of openai/grade-school-math ("[invalid]" for none), without its import of torch."""
    path = official_file("grade-school-math/grade_school_math/dataset.py")
    wanted: list[ast.stmt] = [
        node
        for node in ast.parse(path.read_text()).body
        if (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("ANS_RE", "INVALID_ANS"))
        or (isinstance(node, ast.FunctionDef) and node.name == "extract_answer")
    ]
    assert len(wanted) == 3
    names: dict[str, Any] = {"re": re}
    exec(compile(ast.Module(wanted, []), str(path), "exec"), names)
    return names["extract_answer"]


def lic_math_verdict() -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """Return `evaluator_function(answer, sample)` of Lost in Conversation's math task."""
    path = official_file("lost_in_conversation/tasks/math/task_math.py")
    (task,) = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    (method,) = [n for n in task.body if isinstance(n, ast.FunctionDef) and n.name == "evaluator_function"]
    names: dict[str, Any] = {"re": re, "Dict": dict, "Any": Any}
    exec(compile(ast.Module([method], []), str(path), "exec"), names)
    return lambda answer, sample: names["evaluator_function"](None, answer, sample)
