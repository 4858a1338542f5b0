"""`executor`: answers by carrying out the state with the family's own program (structured families).

No model answers, so what it loses is the tracker's error alone; with the oracle's state it loses nothing.
"""

from __future__ import annotations

from typing import ClassVar

from envs.errors import ConfigError
from rollout.harness.base import HarnessTurn, Needs, Seat

ACKNOWLEDGED = "Noted."


class Executor:
    name: ClassVar[str] = "executor"
    needs: ClassVar[Needs] = "states"
    condition: ClassVar[str | None] = None

    def __init__(self, seat: Seat) -> None:
        if seat.execute is None or seat.states is None:
            raise ConfigError(
                "the executor needs a family whose states can be executed, and a tracker or the oracle"
            )
        self.states = seat.states
        self.execute = seat.execute

    async def turn(self, utterance: str, *, final: bool, given: str | None = None) -> HarnessTurn:
        await self.states.read(utterance)
        if not final:
            return HarnessTurn(ACKNOWLEDGED if given is None else given)
        done = self.execute(self.states.log, self.states.exact)
        return HarnessTurn(done.answer, detail={} if done.problem is None else {"executor": done.problem})


HARNESS = Executor
