"""What a check found, and what every check has in common."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from recipes.audit.material import Case, Material

_EXAMPLES = 10


@dataclass(slots=True)
class Finding:
    """`status` is "pass", "fail" or "not run" (nothing to look at, or no way to); `why` then says the reason."""

    name: str
    says: str
    status: str
    checked: int
    failed: int
    examples: list[str] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Check:
    """One property of the data. `see` is given every dialogue once, `finish` returns the finding.

    A subclass sets `name` (short, of the command line and the JSON) and `says` (the property in a sentence),
    counts what it looks at with `look` and what is wrong with `fail`.
    """

    name = ""
    says = ""
    nothing = "there is nothing to look at"

    def __init__(self) -> None:
        self.checked = 0
        self.failed = 0
        self.examples: list[str] = []
        self.info: dict[str, Any] = {}

    def see(self, case: Case) -> None:
        """Look at one dialogue."""

    def whole(self, material: Material) -> None:
        """Look at the folder as a whole, after the last dialogue."""

    def look(self, count: int = 1) -> None:
        self.checked += count

    def fail(self, where: str, what: str) -> None:
        self.failed += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{where}: {what}")

    def count(self, key: str, n: int = 1) -> None:
        """Add to a counter that the finding shows."""
        self.info[key] = self.info.get(key, 0) + n

    def bad(self) -> bool:
        """Return whether the finding fails; of a rate, when it is too low."""
        return self.failed > 0

    def finish(self) -> Finding:
        status = "not run" if not self.checked else "fail" if self.bad() else "pass"
        why = self.nothing if status == "not run" else ""
        return Finding(self.name, self.says, status, self.checked, self.failed, self.examples, self.info, why)
