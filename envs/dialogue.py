"""Dialogues: plain data built from (task, condition, budget, seed), and the environment that plays them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from envs.drift import Script, build_script, clean_script, resolve_budget, turn_matched_script
from envs.errors import ConfigError, FluxForgeError, unknown_name
from envs.intent import EMPTY, Add, Delete, Edit, Goal, IntentState, Replace
from envs.merge import Merging, draw_groups, merge_script
from envs.simulator import Simulator, Staged, TemplateSimulator, split_of
from envs.task import Family, Grade, SourceTask

CONDITIONS = ("clean", "drift", "turn_matched")


@dataclass(frozen=True, slots=True)
class Turn:
    """One user message, the edits it realises (empty for small talk and the final request), and G_t."""

    utterance: str
    edits: tuple[Edit, ...]
    state: IntentState


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A task shown under a condition. `id` is readable: "calls/heldout/12|drift|b1|s0"."""

    id: str
    task_id: str
    family: str
    condition: str
    budget: int
    seed: int
    turns: tuple[Turn, ...]

    @property
    def final(self) -> IntentState:
        return self.turns[-1].state

    def superseded(self, t: int) -> list[Goal]:
        """Return goals that were stated up to turn `t` (0-based, inclusive) and are not wanted after it."""
        stated: dict[Goal, None] = {}
        for turn in self.turns[: t + 1]:
            for edit in turn.edits:
                if isinstance(edit, Add):
                    stated[edit.goal] = None
                elif isinstance(edit, Replace):
                    stated[edit.new] = None
                    stated[edit.old] = None
                elif isinstance(edit, Delete):
                    stated[edit.goal] = None
        live: Sequence[Goal] = self.turns[t].state.goals
        return [goal for goal in stated if goal not in live]


def build(
    family: Family,
    task: SourceTask,
    condition: str,
    budget: int | str,
    seed: int,
    simulator: Simulator | None = None,
    turns_at_least: int = 0,
) -> Dialogue:
    """Return the dialogue of a task under a condition, the same for the same arguments.

    The three conditions of a task share its id and its final intent; `turn_matched` has as many turns as
    `drift`. Without a `simulator`, training tasks get the training wordings and all others the held-out ones.
    One with options (`Staged`: a model, noise) leaves its tag in the id, and may merge turns.
    Raises `UnknownName` for a condition or budget, and what `build_script` raises.
    """
    budget = resolve_budget(budget)
    longer = f"|t{turns_at_least}" if turns_at_least else ""
    dialogue_id = f"{task.id}|{condition}|b{budget}|s{seed}{longer}"
    rng = random.Random(f"wording|{dialogue_id}")
    merging = None
    if simulator is None:
        simulator = TemplateSimulator(split_of(task))
    elif isinstance(simulator, Staged):
        merging = simulator.merging
        dialogue_id += simulator.tag
        simulator = simulator.staged(dialogue_id, task)
    script = _script(family, task, condition, budget, seed, turns_at_least, merging)
    turns: list[Turn] = []
    live, total = EMPTY, len(script.turns)
    for t, (edits, state) in enumerate(zip(script.turns, script.states, strict=True)):
        turns.append(Turn(simulator.utter(edits, t, total, task.opening, rng, live), edits, state))
        live = state
    return Dialogue(dialogue_id, task.id, task.family, condition, budget, seed, tuple(turns))


def _script(
    family: Family,
    task: SourceTask,
    condition: str,
    budget: int,
    seed: int,
    turns_at_least: int,
    merging: Merging | None,
) -> Script:
    if condition == "clean":
        return clean_script(task)
    if condition not in CONDITIONS:
        raise unknown_name("condition", condition, CONDITIONS)
    drift = build_script(family, task, budget, seed, turns_at_least=turns_at_least)
    script = drift if condition == "drift" else turn_matched_script(task, len(drift.turns), seed)
    if merging is None:
        return script
    # One cut for all conditions, so that they keep as many turns.
    rng = random.Random(f"merge|{task.id}|{budget}|{seed}|{turns_at_least}")
    return merge_script(script, draw_groups(drift, merging, rng))


class Env:
    """Plays a dialogue to an agent: the next user message after each reply, and the grade after the last.

    The task's context is the system message. The user's messages do not depend on the replies.
    Raises `ConfigError` when dialogue, family and task do not belong together.
    """

    def __init__(self, dialogue: Dialogue, family: Family, task: SourceTask) -> None:
        if (dialogue.task_id, dialogue.family) != (task.id, family.name):
            raise ConfigError(
                f"dialogue {dialogue.id!r} is of task {dialogue.task_id!r} in family {dialogue.family!r}, "
                f"not of task {task.id!r} in family {family.name!r}"
            )
        self.dialogue = dialogue
        self.family = family
        self.task = task
        self._messages: list[dict[str, str]] = []
        self._turn = 0
        self._done = True

    def reset(self) -> list[dict[str, str]]:
        """Start again; return the conversation so far: the system message and the first user message."""
        self._messages = [{"role": "system", "content": self.task.context}] if self.task.context else []
        self._turn = 0
        self._done = False
        return self._say()

    def step(self, reply: str) -> list[dict[str, str]] | Grade:
        """Take the agent's reply; return the whole conversation with the next user message, or the grade.

        The reply to the last message is graded by the family; a grader that crashes gives `Grade.error`.
        Raises `FluxForgeError` before `reset` and after the grade.
        """
        if self._done:
            raise FluxForgeError(f"dialogue {self.dialogue.id!r} is not running: call reset() before step()")
        self._messages.append({"role": "assistant", "content": reply})
        self._turn += 1
        if self._turn < len(self.dialogue.turns):
            return self._say()
        self._done = True
        try:
            return self.family.grade(self.task, reply)
        except Exception as error:  # the grader boundary: a crash leaves the case ungraded, never wrong
            return Grade(0.0, False, {"answer": reply}, error=f"the grader crashed: {error!r}")

    def _say(self) -> list[dict[str, str]]:
        self._messages.append({"role": "user", "content": self.dialogue.turns[self._turn].utterance})
        return [dict(message) for message in self._messages]
