"""`oracle`: StateForge with the exact state in place of the tracker's. What is lost here is not state error."""

from __future__ import annotations

from typing import ClassVar

from rollout.harness.base import Needs
from rollout.harness.stateforge import StateForge


class Oracle(StateForge):
    name: ClassVar[str] = "oracle"
    needs: ClassVar[Needs] = "oracle"


HARNESS = Oracle
