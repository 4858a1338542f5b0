"""State scores: a tracker's state against the oracle's, by goal (see `rollout/match.py`).

Per turn: precision, recall and F1 of items against goals, whether the state is exact, whether it leaks
something superseded, and whether the turn's edit is right. Per dialogue: means over its sampled turns.
Over dialogues: means of those, so that a summary is the mean of the case values that the paired bootstrap
gets. Turns with forced output are not scored; a turn that was never finished counts as wrong, and its
dialogue in `errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from envs.intent import Goal
from rollout.expert import edit_correct
from rollout.match import match, stale_keys
from rollout.tracker import TASK_KEY
from rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class StateScore:
    """`precision` is matched / items and `recall` matched / goals; 1.0 both when there is neither item nor
    goal, else 0.0 over nothing. `exact`: every item says a goal and every goal is said. `leak`: an item
    says a goal that was superseded and no current one."""

    precision: float
    recall: float
    f1: float
    exact: bool
    leak: bool


@dataclass(frozen=True, slots=True)
class TurnScore:
    """`edit_correct`: the state after the tracker's lines is the one after the expert edit on the same prior
    state, and at least one line parsed. `prior_exact`: the state before the turn was right."""

    state: StateScore
    edit_correct: bool
    prior_exact: bool
    malformed: int = 0
    truncated: bool = False
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Scores:
    """All turns of a trajectory, one entry a dialogue turn; unfinished ones are wrong."""

    turns: tuple[TurnScore, ...]
    error: str | None = None

    @property
    def scored(self) -> list[TurnScore]:
        return [turn for turn in self.turns if not turn.forced]

    def values(self) -> dict[str, float | None]:
        """Return the dialogue's metrics; `recovery` is None where no turn began from a wrong state."""
        turns = self.scored
        if not turns:
            return {}
        recovery = [float(turn.edit_correct) for turn in turns if not turn.prior_exact]
        return {
            "edit_accuracy": fmean(turn.edit_correct for turn in turns),
            "state_precision": fmean(turn.state.precision for turn in turns),
            "state_recall": fmean(turn.state.recall for turn in turns),
            "state_f1": fmean(turn.state.f1 for turn in turns),
            "final_exact": float(turns[-1].state.exact),
            "stale_leaks": float(turns[-1].state.leak),
            "stale_leaks_all": fmean(turn.state.leak for turn in turns),
            "recovery": fmean(recovery) if recovery else None,
            "malformed": fmean(turn.malformed for turn in turns),
            "truncated": fmean(turn.truncated for turn in turns),
        }


METRICS = (
    "edit_accuracy",
    "state_precision",
    "state_recall",
    "state_f1",
    "final_exact",
    "stale_leaks",
    "stale_leaks_all",
    "recovery",
    "malformed",
    "truncated",
)
_UNFINISHED = TurnScore(StateScore(0.0, 0.0, 0.0, False, False), edit_correct=False, prior_exact=True)


def score_state(log: Mapping[str, str], goals: Sequence[Goal], superseded: Sequence[Goal] = ()) -> StateScore:
    """Score the items of `log` against `goals`; `superseded` are goals no longer wanted."""
    items = sum(key != TASK_KEY for key in log)
    hits = len(match(log, goals, superseded))
    both = items + len(goals)
    return StateScore(
        precision=hits / items if items else float(not goals),
        recall=hits / len(goals) if goals else float(not items),
        f1=2 * hits / both if both else 1.0,
        exact=2 * hits == both,
        leak=bool(stale_keys(log, goals, superseded)),
    )


def score_trajectory(trajectory: Trajectory) -> Scores:
    """Score every turn of a dialogue, in order."""
    dialogue = trajectory.dialogue
    turns: list[TurnScore] = []
    prior: dict[str, str] = {}
    prior_exact = True  # nothing was asked for and nothing is held
    for t in range(len(dialogue.turns)):
        if t >= len(trajectory.turns):
            turns.append(_UNFINISHED)
            continue
        turn = trajectory.turns[t]
        state = score_state(turn.log, dialogue.turns[t].state.goals, dialogue.superseded(t))
        turns.append(
            TurnScore(
                state=state,
                edit_correct=turn.lines > 0 and edit_correct(dialogue, t, prior, turn.log),
                prior_exact=prior_exact,
                malformed=turn.malformed,
                truncated=turn.finish_reason == "length",
                forced=turn.forced,
            )
        )
        prior, prior_exact = turn.log, state.exact
    return Scores(tuple(turns), trajectory.error)


def summarize(trajectories: Sequence[Trajectory]) -> dict[str, float | int | None]:
    """Return the mean over dialogues of each of `METRICS`, and the counts `n`, `turns` and `errors`.

    A metric is None where no dialogue has a value (no dialogues; `recovery` when no state was ever wrong).
    `stale_leaks` is the share of final states with a leak, `stale_leaks_all` that of all states;
    `malformed` is lines a turn; `recovery` the share of right edits among turns whose prior state was not
    exact.
    """
    scores = [score_trajectory(trajectory) for trajectory in trajectories]
    values = [score.values() for score in scores]
    summary: dict[str, float | int | None] = {}
    for metric in METRICS:
        known = [value for case in values if (value := case.get(metric)) is not None]
        summary[metric] = fmean(known) if known else None
    summary["n"] = len(trajectories)
    summary["turns"] = sum(len(score.scored) for score in scores)
    summary["errors"] = sum(score.error is not None for score in scores)
    return summary


def case_values(trajectories: Sequence[Trajectory]) -> dict[str, list[float]]:
    """Return one value a dialogue for each metric that every dialogue has, in the order given (for
    pairing)."""
    values = [score_trajectory(trajectory).values() for trajectory in trajectories]
    cases: dict[str, list[float]] = {}
    for metric in METRICS:
        known = [value for case in values if (value := case.get(metric)) is not None]
        if len(known) == len(values):
            cases[metric] = known
    return cases
