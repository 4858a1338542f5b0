"""`bare`: the plain multi-turn chat."""

from __future__ import annotations

from typing import ClassVar

from rollout.harness.base import Chat


class Bare(Chat):
    name: ClassVar[str] = "bare"


HARNESS = Bare
