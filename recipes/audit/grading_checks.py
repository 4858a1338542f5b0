"""Checks that the grader takes part in: golds, what a stale goal or decoy does to the verdict, the oracle's answer."""

from __future__ import annotations

from typing import Protocol

from envs.errors import FluxForgeError
from envs.intent import EMPTY, Goal, IntentState, fold
from envs.task import Family, SourceTask
from recipes.audit.findings import Check
from recipes.audit.material import Case, Material
from recipes.realised import decoys_of, variants_of


class Obeyer(Protocol):
    """Something that answers a task as a state says, a model for example, where goals are not structured."""

    def answer(self, task: SourceTask, state: IntentState) -> str: ...


def verdict(family: Family, task: SourceTask, answer: str) -> str:
    """Return "full", "less", or "error: ..." where the grader itself failed."""
    try:
        grade = family.grade(task, answer)
    except Exception as error:  # the grader boundary: a crash is a finding, not the end of the audit
        return f"error: the grader crashed: {error!r}"
    if grade.error is not None:
        return f"error: {grade.error}"
    return "full" if grade.full_credit else "less"


def verdict_of_state(family: Family, task: SourceTask, state: IntentState, obeyer: Obeyer | None) -> str:
    """Return the verdict on an answer that does what `state` says: executed, or by `obeyer`."""
    try:
        if family.structured:
            answer = family.execute(task, state)
        elif obeyer is not None:
            answer = obeyer.answer(task, state)
        else:
            return "error: nothing can execute the state"
    except FluxForgeError as error:
        return f"error: cannot be executed: {error}"
    return verdict(family, task, answer)


class Gold(Check):
    name = "gold"
    says = "the gold answer of every task passes its own grader; tasks whose gold does not are quarantined"

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def see(self, case: Case) -> None:
        task = case.task
        if case.dialogue.task_id in self._seen:
            return
        self._seen.add(case.dialogue.task_id)
        self.look()
        if task is None:
            self.fail(case.dialogue.id, "its source task is neither in the data nor in the set")
            return
        try:
            found = verdict(case.family, task, case.family.gold(task))
        except FluxForgeError as error:
            found = f"error: {error}"
        if found != "full":
            self.fail(task.id, "the grader rejects the gold" if found == "less" else found)

    def whole(self, material: Material) -> None:
        for name, entry in (material.manifest or {}).get("families", {}).items():
            self.count(f"quarantined in {name}", entry["quarantined"])
        for line in material.left_out():
            if line["id"] in self._seen:
                self.fail(line["id"], f"is left out ({line['why']}) and has dialogues all the same")
            if not line["reason"]:
                self.fail(line["id"], "is left out without a reason")


class Flips(Check):
    name = "flips"
    says = "obeying a stale variant or a decoy loses full credit (executed where goals are structured)"

    def __init__(self, obeyer: Obeyer | None = None) -> None:
        super().__init__()
        self.obeyer = obeyer
        self._known: dict[tuple[str, IntentState], str] = {}
        self.nothing = "no variant or decoy that anything here can obey"

    def see(self, case: Case) -> None:
        task = case.task
        if case.dialogue.condition != "drift" or task is None:
            return
        for stale, true in variants_of(case.dialogue).items():
            goals = tuple(stale if goal == true else goal for goal in task.goals)
            self._try(case, task, goals, "variant", stale)
        for decoy in decoys_of(case.dialogue):
            self._try(case, task, (*task.goals, decoy), "decoy", decoy)

    def _try(self, case: Case, task: SourceTask, goals: tuple[Goal, ...], kind: str, goal: Goal) -> None:
        if not case.family.structured and self.obeyer is None:
            self.count(f"{kind}s that nothing here can obey ({case.family.name})")
            return
        self.look()
        how = "executed" if case.family.structured else "by a model's answer"
        self.count(f"{kind}s {how}")
        state = IntentState(goals)
        key = (task.id, state)
        if key not in self._known:
            self._known[key] = verdict_of_state(case.family, task, state, self.obeyer)
        if self._known[key] != "less":
            what = "keeps full credit" if self._known[key] == "full" else self._known[key]
            self.fail(case.dialogue.id, f"obeying the {kind} {goal.text!r} {what}")


class OracleState(Check):
    name = "oracle_state"
    says = "each state is what the edits lead to, and the last one equals the task's goals"

    def see(self, case: Case) -> None:
        self.look()
        state = EMPTY
        for t, turn in enumerate(case.dialogue.turns):
            try:
                state = fold(state, turn.edits)
            except FluxForgeError as error:
                self.fail(f"{case.dialogue.id}, turn {t}", f"its edits cannot be applied: {error}")
                return
            if set(state.goals) != set(turn.state.goals):
                self.fail(f"{case.dialogue.id}, turn {t}", "its state is not what the edits lead to")
                return
        if case.task is None:
            self.count("without a source task to compare with")
        elif set(state.goals) != set(case.task.goals):
            texts = sorted(goal.text for goal in set(state.goals) ^ set(case.task.goals))
            self.fail(case.dialogue.id, f"the last state is not the task's intent; they differ in {texts}")


class OracleAnswer(Check):
    name = "oracle_answer"
    says = "executing the last state gets full credit, in every structured family"

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[str, IntentState], str] = {}

    def see(self, case: Case) -> None:
        if case.task is None or not case.family.structured:
            return
        self.look()
        key = (case.task.id, case.dialogue.final)
        if key not in self._known:
            self._known[key] = verdict_of_state(case.family, case.task, case.dialogue.final, None)
        if self._known[key] != "full":
            self.fail(case.dialogue.id, f"executing the last state: {self._known[key]}")
