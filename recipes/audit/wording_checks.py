"""Checks of what users say: nothing restated, nothing leaked, a neutral request, and all of it recoverable."""

from __future__ import annotations

from envs.fidelity import goals_of
from envs.fidelity_rates import wilson
from envs.intent import Goal
from recipes.audit.findings import Check, Finding
from recipes.audit.material import Case
from recipes.audit.model_reader import ModelReader
from recipes.audit.reader import read
from recipes.audit.template_match import fixed
from recipes.audit.wordcheck import masked, names, names_value, parts, states, words

MIN_RECOVERED = 0.95
"""The share of dialogues that the paper's own audit recovered."""


def stated_goals(case: Case) -> list[Goal]:
    """Return every goal that the dialogue ever states, true, stale or decoy, each once."""
    found = dict.fromkeys(goal for turn in case.dialogue.turns for goal in goals_of(turn.edits))
    return list(found | dict.fromkeys(case.dialogue.final.goals))


class NoRestating(Check):
    name = "no_restating"
    says = "no message states a goal that is not of its own edits"

    def see(self, case: Case) -> None:
        goals = stated_goals(case)
        opening = case.task.opening if case.task else ""
        for t, turn in enumerate(case.dialogue.turns):
            own = goals_of(turn.edits)
            own_ids = {goal.id for goal in own}
            phrases = [part for goal in own for part in parts(goal)]
            rest = masked(turn.utterance, [*phrases, *([opening] if t == 0 else [])])
            self.look()
            for goal in goals:
                how = names_value(rest, goal) if goal.id not in own_ids else None
                if how:
                    self.fail(
                        f"{case.dialogue.id}, turn {t}",
                        f"states {goal.text!r} by its {how}: {turn.utterance!r}",
                    )
                    break
        if opening:
            said = words(opening)
            for goal in goals:
                if how := states(said, goal):
                    self.fail(case.dialogue.id, f"the opening states {goal.text!r} by its {how}")


class NoLeak(Check):
    name = "no_leak"
    says = "no message of a dialogue of several turns holds the whole final state"

    def see(self, case: Case) -> None:
        final = case.dialogue.final.goals
        if case.dialogue.condition == "clean" or len(final) < 2:
            return
        for t, turn in enumerate(case.dialogue.turns):
            self.look()
            if set(final) <= set(goals_of(turn.edits)):
                continue
            said = words(turn.utterance)
            if all(states(said, goal) for goal in final):
                self.fail(
                    f"{case.dialogue.id}, turn {t}", f"holds all {len(final)} goals: {turn.utterance!r}"
                )


class NeutralRequest(Check):
    name = "neutral_request"
    says = "the last message only asks for the answer: no edit, no goal's text, slot or value"

    def see(self, case: Case) -> None:
        last = case.dialogue.turns[-1]
        self.look()
        if case.dialogue.condition == "clean":
            request = _request(last.utterance)
        elif last.edits:
            self.fail(case.dialogue.id, "the last turn has edits")
            return
        else:
            request = last.utterance
        if not request.strip():
            self.fail(case.dialogue.id, "the last message does not ask for the answer")
            return
        said = words(request)
        for goal in stated_goals(case):
            if how := names(said, goal, "final"):
                self.fail(case.dialogue.id, f"names {goal.text!r} by its {how}: {request!r}")
                return


def _request(message: str) -> str:
    """Return the request at the end of a clean message: a known wording, else its last line."""
    known = [request for request in fixed("final") if message.endswith(request)]
    return max(known, key=len) if known else message.rsplit("\n", 1)[-1]


class Recoverable(Check):
    name = "recoverable"
    says = f"a rule reader gets G* back from the utterances alone in at least {MIN_RECOVERED:.0%} of the dialogues"

    def __init__(self, templates: bool = True, reader: ModelReader | None = None) -> None:
        super().__init__()
        self.templates = templates
        self.reader = reader
        self.nothing = (
            "the rule reader knows the templates, and this set is worded by a model or with noise; give a model "
            "that reads it with --reader"
        )
        if reader is not None:
            self.says = (
                f"a model ({reader.name}) gets G* back from the utterances alone in at least {MIN_RECOVERED:.0%} of "
                "the dialogues"
            )
        self._by: dict[str, list[int]] = {}
        self._turns = [0, 0]

    def see(self, case: Case) -> None:
        if self.reader is not None:
            self._ask(self.reader, case)
            return
        if not self.templates:
            return
        dialogue, goals = case.dialogue, stated_goals(case)
        reading = read([turn.utterance for turn in dialogue.turns], case.task.opening if case.task else "")
        missed = [g for g in dialogue.final.goals if not any(item.says(g, goals) for item in reading.items)]
        recovered = not missed and len(reading.items) == len(dialogue.final.goals)
        self.look()
        tally = self._by.setdefault(f"{dialogue.family} {case.stratum}", [0, 0])
        tally[0] += recovered
        tally[1] += 1
        for turn, kinds in zip(dialogue.turns, reading.kinds, strict=True):
            self._turns[0] += kinds == [type(edit).__name__.lower() for edit in turn.edits]
            self._turns[1] += 1
        if not recovered:
            extra = len(reading.items) - len(dialogue.final.goals) + len(missed)
            what = [f"lost {goal.text!r}" for goal in missed] + ([f"{extra} too many"] if extra > 0 else [])
            self.fail(dialogue.id, "; ".join(what + [f"cannot read {said!r}" for said in reading.unread]))

    def _ask(self, reader: ModelReader, case: Case) -> None:
        problem = reader.missed(case.dialogue, case.task.opening if case.task else "")
        self.look()
        tally = self._by.setdefault(f"{case.dialogue.family} {case.stratum}", [0, 0])
        tally[0] += problem is None
        tally[1] += 1
        if problem is not None:
            self.fail(case.dialogue.id, problem)

    def bad(self) -> bool:
        return self.checked - self.failed < MIN_RECOVERED * self.checked

    def finish(self) -> Finding:
        if not self.checked:
            return super().finish()
        good = self.checked - self.failed
        self.info = {
            "rate": round(good / self.checked, 4),
            "ci95": [round(bound, 4) for bound in wilson(good, self.checked)],
            "paper": MIN_RECOVERED,
            "reader": "rules" if self.reader is None else self.reader.name,
            "kind_of_edit_read": round(self._turns[0] / self._turns[1], 4) if self._turns[1] else None,
            "by_stratum": {key: f"{good}/{n}" for key, (good, n) in self._by.items()},
        }
        return super().finish()
