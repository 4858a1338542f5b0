"""`clean`: the final intent in one turn, without a history. What is lost against it is lost to the dialogue."""

from __future__ import annotations

from typing import ClassVar

from rollout.harness.base import Chat


class Clean(Chat):
    name: ClassVar[str] = "clean"
    condition: ClassVar[str | None] = "clean"


HARNESS = Clean
