"""BFCL items whose gold is doubtful. They are graded like the others; `payload["flags"]` says what to know.

Reviewed by hand where a gold is wrong but consistent, which no self-check can see; found by rule where the answer
file and the function disagree.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Corrected upstream in December 2024 (gorilla pull request 846) and October 2025 (1160, for issue 1133). The value is
# the fingerprint of the corrected answer: copies made before, and data sets taken from them, keep the wrong one.
_CORRECTED = {
    "parallel_84": "066ad7644162",
    "parallel_155": "2b82a2e87143",
    "parallel_158": "87fb4ca7cb88",
    "parallel_170": "495fc0d67730",
    "parallel_195": "cc2d532b0adb",
}
_DEFAULT_DEMANDED = (
    "the answer demands an argument whose value is the default; "
    "strict lets it be left out where the schema names the default"
)
_REVIEWED = {
    "parallel_84": _DEFAULT_DEMANDED,
    "parallel_155": _DEFAULT_DEMANDED,
    "parallel_multiple_179": _DEFAULT_DEMANDED,
    "simple_python_120": _DEFAULT_DEMANDED,
}


def flags_of(
    item: str, schemas: Mapping[str, Mapping[str, Any]], truth: Sequence[Mapping[str, Mapping[str, Any]]]
) -> list[str]:
    """Return what is doubtful about an item, by its upstream id ("parallel_84") and its content."""
    return list(_flags(item, schemas, truth))


def fingerprint(truth: Any) -> str:
    return hashlib.sha256(json.dumps(truth, sort_keys=True).encode()).hexdigest()[:12]


def _flags(
    item: str, schemas: Mapping[str, Mapping[str, Any]], truth: Sequence[Mapping[str, Mapping[str, Any]]]
) -> Iterator[str]:
    if _CORRECTED.get(item, fingerprint(truth)) != fingerprint(truth):
        yield "the answer is not the corrected one of upstream (ShishirPatil/gorilla, issue 1133)"
    elif item in _REVIEWED:
        yield _REVIEWED[item]
    for accepted in truth:
        for name, arguments in accepted.items():
            properties = schemas.get(name, {}).get("properties", {})
            for argument in arguments:
                if argument not in properties:
                    yield f"the answer lists {argument!r}, which {name} does not have"
            for argument in properties:
                if argument not in arguments:
                    yield f"the answer has no entry for {argument!r} of {name}, so giving it is rejected"
