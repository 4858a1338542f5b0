"""Compare one argument's value with the accepted ones: the leaderboard's verdict, and a right one.

`official_fault` follows the checker of the Berkeley Function-Calling Leaderboard (see `envs/ast_match.py`): types by
exact `type()`, strings without ` ,./-_*^` and case, one level deep, so that "-5" is "5" and "1.5" is "15", and whole
numbers are no floats inside a list. `strict_fault` forgives form alone: case, quotation marks, runs of blanks, a
comma before a blank and a last full stop; a whole number may stand for a float at any depth; a sign, a point, a
hyphen or a missing item counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from envs.errors import GraderError

_TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}


def official_fault(value: Any, accepted: Sequence[Any], spec: Mapping[str, Any]) -> str | None:
    """Return the leaderboard's kind of error of one argument, or None. Types are compared exactly: True is no int.

    Raises `GraderError` for a type that the schema language does not have.
    """
    outer, inner = _types(spec)
    if spec["type"] == "tuple" and type(value) is tuple:
        value = list(value)
    if outer is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            return "value_error:others"  # no accepted value is that large
    truth_type = _first_type(accepted)
    # The truth may be of another type than the schema says: a variable, compared as it stands.
    variable = truth_type is not None and truth_type is not outer
    if type(value) is outer:
        if inner is not None and not any(_elements_fit(value, item, inner) for item in accepted):
            return "type_error:nested"
    elif truth_type is not None and type(value) is truth_type:
        variable = True
    else:
        return "type_error:simple"
    if variable:
        return None if value in accepted else "value_error:others"
    if outer is dict:
        return None if any(_dict_fits(value, item) for item in accepted) else "value_error:dict"
    if inner is dict:
        return None if any(_dicts_fit(value, item) for item in accepted) else "value_error:list_dict"
    if outer is str:
        known = [_squash(item) for item in accepted if type(item) is str]
        return None if _squash(value) in known else "value_error:string"
    if outer is list:
        lists = [[_squash(part) for part in item] for item in accepted]
        return None if [_squash(part) for part in value] in lists else "value_error:list/tuple"
    return None if value in accepted else "value_error:others"


def _types(spec: Mapping[str, Any]) -> tuple[type, type | None]:
    """Return the schema's type, and that of the items of a list. Raises `GraderError`."""
    try:
        return _TYPES[spec["type"]], _TYPES[spec["items"]["type"]] if spec["type"] in (
            "array",
            "tuple",
        ) else None
    except KeyError as error:
        raise GraderError(f"the schema's type {spec.get('type')!r} cannot be read ({error})") from None


def strict_fault(value: Any, accepted: Sequence[Any], spec: Mapping[str, Any]) -> str | None:
    """Return what is wrong with one argument, or None. `""` among `accepted` means "left out" and is no value.

    Raises as `official_fault`.
    """
    _types(spec)
    if any(item != "" and same_value(value, item, spec) for item in accepted):
        return None
    return official_fault(value, accepted, spec) or f"value_error:{spec['type']}"


def same_value(value: Any, item: Any, spec: Mapping[str, Any]) -> bool:
    """Whether `value` is the accepted `item`, in form as the schema `spec` asks.

    In an accepted dict each key has its list of accepted values. Of an item whose type is not the schema's (the name
    of a variable) no form is asked but its own.
    """
    if type(value) is type(item) and isinstance(value, str | int | float) and value == item:
        return True
    kind = spec.get("type")
    if kind == "tuple" and isinstance(value, tuple):
        value = list(value)
    if isinstance(value, bool) or isinstance(item, bool):
        return value is item
    if isinstance(value, str) and isinstance(item, str):
        return _form(value) == _form(item)
    if isinstance(value, int | float) and isinstance(item, int | float):
        return value == item and not (kind == "integer" and isinstance(value, float))
    inner = spec.get("items") or {}
    if isinstance(value, list) and isinstance(item, list):
        return len(value) == len(item) and all(
            same_value(v, i, inner) for v, i in zip(value, item, strict=True)
        )
    if isinstance(value, dict) and isinstance(item, Mapping):
        properties = spec.get("properties") or {}
        known = all(
            key in item and any(same_value(part, one, properties.get(key, {})) for one in _options(item[key]))
            for key, part in value.items()
        )
        return known and all(key in value or "" in _options(one) for key, one in item.items())
    return type(value) is type(item) and value == item


def _options(accepted: Any) -> Sequence[Any]:
    return accepted if isinstance(accepted, list) else [accepted]


@lru_cache(maxsize=1 << 14)
def _form(text: str) -> str:
    """Return a text without what is mere form. A comma between digits, a sign, a point and a hyphen stay."""
    text = re.sub(r"(?<![0-9]),|,(?![0-9])", " ", text.lower().replace("'", '"'))
    return re.sub(" +", " ", text).strip(" ").removesuffix(".")


def _first_type(values: Sequence[Any]) -> type | None:
    return next((type(value) for value in values if value != ""), None)


def _elements_fit(value: list[Any], item: Any, inner: type) -> bool:
    """Whether each element has the schema's inner type or the type of the accepted list's first element."""
    if type(item) is not list:
        return True  # `""`, for an optional list, lets any elements through; the values are compared later
    truth = _first_type(item)
    return all(type(part) is inner or (truth is not None and type(part) is truth) for part in value)


def _squash(value: Any) -> Any:
    """Standardise a string as the leaderboard does; other values stay."""
    return _squashed(value) if type(value) is str else value


@lru_cache(maxsize=1 << 14)
def _squashed(text: str) -> str:
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')


def _dict_fits(value: Any, accepted: Any) -> bool:
    """`accepted` maps each key to its accepted values; `""` among them makes the key optional."""
    if not isinstance(value, dict) or not isinstance(accepted, Mapping):
        return False
    for key, part in value.items():
        if key not in accepted or _squash(part) not in [_squash(item) for item in accepted[key]]:
            return False
    return all(key in value or "" in items for key, items in accepted.items())


def _dicts_fit(value: Sequence[Any], accepted: Any) -> bool:
    return len(value) == len(accepted) and all(map(lambda v, a: _dict_fits(v, a), value, accepted))
