"""SummHay: a cited summary of many documents. Graded by coverage of the insights times citation F1.

Coverage is judged by a language model (`FAMILY.with_judge(...)`, or FLUXFORGE_JUDGE in the environment); an
insight that stands word for word in a bullet needs no judge. Goals are the question, the points wanted and
the way of citing. Variants and decoys are kept only where the citations alone rule out full credit, whatever
a judge may say. Data: salesforce/summary-of-a-haystack (Apache-2.0).
"""

from __future__ import annotations

import copy
import functools
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.coverage_judge import Coverage, CoverageJudge
from envs.endpoint import Endpoint
from envs.errors import GraderError, unknown_name
from envs.families import _summhay_score as scoring
from envs.families._summhay_data import Haystack, read_record, read_sharded, read_topics
from envs.intent import Goal, IntentState
from envs.task import Grade, Quarantined, SourceTask

VERDICTS = ("strict", "official")
JUDGE_ENV, CACHE_ENV = "FLUXFORGE_JUDGE", "FLUXFORGE_CACHE"
_NO_JUDGE = (
    f"summhay needs a judge and none is set: put its address in {JUDGE_ENV}, as in "
    f"{JUDGE_ENV}=openai:http://127.0.0.1:8000/v1#MODEL (with FLUXFORGE_API_KEY where the server wants a "
    f"key, and a folder in {CACHE_ENV} to ask nothing twice)"
)
_READERS = {"topics": read_topics, "sharded": read_sharded}
_CONTEXT = (
    f"Answer with a list of bullets, one point each, in at most {scoring.WORDS} words in total. Where documents "
    "are cited, put the number of each in square brackets at the end of its bullet: [4][17]."
)
# Ways to cite, the wanted one first: value, wording, and which of the supporting documents are cited.
_CITING: tuple[tuple[str, str, slice], ...] = (
    ("every supporting document", "list {} by number after each point", slice(None)),
    ("no documents", "list {} after the points", slice(0)),
    ("only the first supporting document", "list {} after each point", slice(1)),
    ("only the last supporting document", "list {} after each point", slice(-1, None)),
    ("at most two supporting documents", "list {} after each point", slice(2)),
)
_VARIANTS = 6


class SummHay:
    name = "summhay"
    structured = True
    splits = tuple(_READERS)
    variants_flip = True
    """Each variant is kept only if no judge could give its obeying answer full credit."""
    verdict = "strict"
    judge: CoverageJudge | None = None

    def with_verdict(self, verdict: str) -> SummHay:
        """Return the family with another verdict as its score: "strict" or "official"."""
        if verdict not in VERDICTS:
            raise unknown_name("verdict", verdict, VERDICTS)
        other = copy.copy(self)
        other.verdict = verdict
        return other

    def with_judge(self, judge: CoverageJudge | Endpoint) -> SummHay:
        """Return the family with a judge; an endpoint is asked with our own prompt."""
        other = copy.copy(self)
        other.judge = judge if isinstance(judge, CoverageJudge) else CoverageJudge.over(judge)
        return other

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        """Yield the tasks of "topics" (whole haystacks, long contexts) or "sharded", in file order.

        Raises `MissingFiles`, `DataError`, `UnknownName`. `skipped` lists what cannot be used.
        """
        for task in self._scan(source, split):
            if isinstance(task, SourceTask):
                yield task

    def from_record(self, record: Mapping[str, Any]) -> SourceTask | Quarantined:
        """Return the task of a sharded record, see `envs.sharded`; its goals are those of split "sharded"."""
        return self._task(read_record(record), "sharded")

    def skipped(self, source: Path | None, split: str) -> list[Quarantined]:
        """Return the items that `load` leaves out, each with the reason."""
        return [task for task in self._scan(source, split) if isinstance(task, Quarantined)]

    def gold(self, task: SourceTask) -> str:
        """Return each insight in the reference's words with every document that supports it."""
        return self.execute(task, task.intent)

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        """Return other points of the same documents, or other ways to cite; the question has none.

        Ids are fixed, the order is `rng`'s.
        """
        base = goal.id.split(".")[0]
        if base == task.payload["citing"]:
            found = [
                Goal(f"{base}.v{n}", wording.format(value), goal.slot, value)
                for n, (value, wording, _) in enumerate(_CITING[1:], 1)
            ]
        elif base in task.payload["points"]:
            found = [
                Goal(f"{base}.v{n}", _point(other["name"]), goal.slot, other["name"])
                for n, other in enumerate(task.payload["others"], 1)
            ]
        else:
            return []
        kept: list[Goal] = []
        for variant in rng.sample(found, len(found)):
            state = IntentState(tuple(variant if known.id == base else known for known in task.goals))
            if len(kept) < _VARIANTS and self._cannot_pass(task, state):
                kept.append(variant)
        return kept

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return wishes about which documents count; each spoils the citations when obeyed."""
        found = [
            Goal(id, known["text"], known["slot"], known["value"])
            for id, known in task.payload["decoys"].items()
        ]
        return [
            decoy
            for decoy in rng.sample(found, len(found))
            if self._cannot_pass(task, IntentState((*task.goals, decoy)))
        ]

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Write the points of `state` in the reference's words, cited as it says; without a way, uncited.

        Raises `GraderError` for a goal that is not of this task.
        """
        points, citing, decoys = task.payload["points"], slice(0), []
        chosen: dict[int, Mapping[str, Any]] = {}
        ways = {value: kept for value, _, kept in _CITING}
        for goal in state.goals:
            base, _, variant = goal.id.partition(".v")
            if base in points:
                number = int(variant) - 1 if variant.isdigit() else -1
                if variant and not 0 <= number < len(task.payload["others"]):
                    raise GraderError(f"{task.id}: goal {goal.id!r} ({goal.text!r}) is no point of it")
                own = task.payload["insights"][points[base]]
                chosen[points[base]] = task.payload["others"][number] if variant else own
            elif base == task.payload["citing"] and goal.value in ways:
                citing = ways[goal.value]
            elif goal.id in task.payload["decoys"]:
                decoys.append(task.payload["decoys"][goal.id])
            elif base != task.payload["question"]:
                raise GraderError(f"{task.id}: goal {goal.id!r} ({goal.text!r}) is not of this task")
        lines: list[str] = []
        for at in sorted(chosen):
            numbers = sorted(chosen[at]["wanted"])[citing]
            for decoy in decoys:
                numbers = _obey(decoy, numbers)
            lines.append(f"- {chosen[at]['text']} {''.join(f'[{n}]' for n in numbers)}".rstrip())
        return "\n".join(lines)

    def grade(self, task: SourceTask, answer: str) -> Grade:
        """Score coverage times citation F1, mean over insights; full credit is a score of 1.

        Ungraded (`error`) without a judge where one is needed, or when it gives no usable verdict. `detail`
        keeps bullets, the coverage of each insight and every reply of the judge.
        """
        insights = task.payload["insights"]
        strict = self.verdict == "strict"
        asked = [one for one in insights if one["wanted"]] if strict else insights
        own = scoring.bullets_of(answer)
        published = scoring.official_bullets(answer, task.payload["layout"])
        bullets = own if strict else published
        covered, judge = self._cover([one["text"] for one in asked], bullets)
        detail: dict[str, Any] = {
            "verdict": self.verdict,
            "bullets": bullets,
            "words": len(answer.split()),
            "ceiling": scoring.ceiling(bullets, [set(one["wanted"]) for one in insights if one["wanted"]]),
            "insights": [_shown(one, found) for one, found in zip(asked, covered, strict=True)],
            "judge": None if judge is None else judge.about(),
        }
        problems = list(dict.fromkeys(found.error for found in covered if found.error is not None))
        if problems:
            open_ = sum(found.error is not None for found in covered)
            return Grade(
                0.0, False, detail, error=f"{open_} of {len(covered)} insights unjudged: {problems[0]}"
            )
        same = scoring.same_bullets(own, published) and all(one["wanted"] for one in insights)
        scores: dict[str, Any] = {}
        for verdict in VERDICTS:
            if verdict == self.verdict or same:
                try:
                    numbered = own if verdict == "strict" else published
                    scores[verdict] = _score(verdict, numbered, asked, covered)
                except (IndexError, KeyError, ValueError) as error:
                    scores[verdict] = None
                    detail["official_problem"] = f"the published code crashes on this answer: {error!r}"
            else:
                scores[verdict] = None  # its bullets are numbered otherwise: judge it with `with_verdict`
        detail["scores"] = {name: found and found.as_dict() for name, found in scores.items()}
        detail |= {name: None if found is None else found.joint == 1.0 for name, found in scores.items()}
        mine = scores[self.verdict]
        if mine is None:
            return Grade(0.0, False, detail, error=detail["official_problem"])
        return Grade(mine.joint, mine.joint == 1.0, detail)

    def _cover(
        self, insights: Sequence[str], bullets: Sequence[str]
    ) -> tuple[list[Coverage], CoverageJudge | None]:
        """Return the coverage of each insight, and the judge if it was asked."""
        if not any(bullet.strip() for bullet in bullets):
            return [Coverage("NO_COVERAGE", None, how="no bullets")] * len(insights), None
        known: dict[str, Coverage] = {}
        if self.verdict == "strict":
            for insight in insights:
                at = scoring.verbatim(insight, bullets)
                if at is not None:
                    known[insight] = Coverage("FULL_COVERAGE", at, how="verbatim")
        left = [insight for insight in insights if insight not in known]
        judge = (self.judge or _judge_of_environment()) if left else None
        if judge is not None:
            known |= zip(left, judge.cover_all(left, bullets), strict=True)
        return [known.get(insight, Coverage(None, None, _NO_JUDGE)) for insight in insights], judge

    def _cannot_pass(self, task: SourceTask, state: IntentState) -> bool:
        """Return whether the citations alone keep the answer that obeys `state` from full credit."""
        wanted = tuple(frozenset(one["wanted"]) for one in task.payload["insights"] if one["wanted"])
        return _ceiling(self.execute(task, state), wanted) < 1

    def _scan(self, source: Path | None, split: str) -> Iterator[SourceTask | Quarantined]:
        if split not in _READERS:
            raise unknown_name("split of summhay:", split, _READERS)
        for haystack in _READERS[split](source):
            yield self._task(haystack, split)

    def _task(self, haystack: Haystack, split: str) -> SourceTask | Quarantined:
        supported = [at for at, one in enumerate(haystack.insights) if one.wanted]
        if not supported:
            return Quarantined(haystack.id, "no insight is stated by a document of the item")
        question = Goal("g1", f'answer the question "{haystack.question}"', "question", haystack.question)
        points = {f"g{n}": at for n, at in enumerate(supported, 2)}
        goals = [question] + [
            Goal(id, _point(haystack.insights[at].name), f"point {n}", haystack.insights[at].name)
            for n, (id, at) in enumerate(points.items(), 1)
        ]
        citing = f"g{len(goals) + 1}"
        value, wording, _ = _CITING[0]
        goals.append(Goal(citing, wording.format(value), "citations", value))
        cited = sorted({number for at in supported for number in haystack.insights[at].wanted})
        payload = {
            "layout": split,
            "question": "g1",
            "points": points,
            "citing": citing,
            "insights": [one.as_dict() for one in haystack.insights],
            "others": [one.as_dict() for one in haystack.others],
            "decoys": _decoys(cited, [n for n, _ in haystack.documents], random.Random(haystack.id)),
        }
        opening = "I need a summary of these documents."
        context = _context(haystack.topic, haystack.documents)
        return SourceTask(haystack.id, self.name, split, opening, context, tuple(goals), payload)


@functools.lru_cache(maxsize=10_000)  # the same candidates come again with each seed
def _ceiling(answer: str, wanted: tuple[frozenset[int], ...]) -> float:
    return scoring.ceiling(scoring.bullets_of(answer), wanted)


@functools.lru_cache(maxsize=2)  # the questions of a topic share one long text
def _context(topic: str, documents: tuple[tuple[int, str], ...]) -> str:
    texts = [f"Document {number}:\n{text}" for number, text in documents]
    return "\n\n".join([f"Topic: {topic}", *texts, _CONTEXT])


def _point(name: str) -> str:
    return f'cover the point "{name}"'


def _decoys(cited: list[int], numbers: list[int], rng: random.Random) -> dict[str, dict[str, Any]]:
    """Return decoy id -> wording and what it does to the documents cited."""
    left_out, added = rng.choice(cited), rng.choice(numbers)
    middle = sorted(cited)[len(cited) // 2]
    found = [
        ("ignored document", f"document {left_out}", "skip {}, do not list it", "skip", left_out),
        ("extra document", f"document {added}", "list {} after every point as well", "add", added),
        ("document range", f"documents up to number {middle}", "use only {}", "up to", middle),
        ("first document number", "0", "count the documents from {} instead of 1", "shift", 1),
    ]
    return {
        f"d{n}": {"slot": slot, "value": value, "text": text.format(value), "kind": kind, "number": number}
        for n, (slot, value, text, kind, number) in enumerate(found, 1)
    }


def _obey(decoy: Mapping[str, Any], numbers: list[int]) -> list[int]:
    number = decoy["number"]
    match decoy["kind"]:
        case "skip":
            return [n for n in numbers if n != number]
        case "add":
            return sorted({*numbers, number})
        case "up to":
            return [n for n in numbers if n <= number]
    return [n - number for n in numbers]


def _score(
    verdict: str, bullets: list[str], asked: Sequence[Mapping[str, Any]], covered: Sequence[Coverage]
) -> scoring.Score:
    if verdict == "strict":
        verdicts = [(found.level or "", found.bullet) for found in covered]
        return scoring.score(bullets, verdicts, [set(one["wanted"]) for one in asked])
    evals = [
        {"insight_id": one["id"], "coverage": found.level, "bullet_id": found.bullet or "NA"}
        for one, found in zip(asked, covered, strict=True)
    ]
    # An insight that no document states has no entry in the published table either.
    return scoring.official_score(
        bullets, evals, {one["id"]: set(one["official"]) for one in asked if one["official"]}
    )


def _shown(insight: Mapping[str, Any], found: Coverage) -> dict[str, Any]:
    return {
        "id": insight["id"],
        "coverage": found.level,
        "bullet": found.bullet,
        "how": found.how,
        "error": found.error,
        "outputs": list(found.outputs),
    }


def _judge_of_environment() -> CoverageJudge | None:
    """Return the judge that the environment names, or None. Raises `ConfigError` for what cannot be read."""
    spec = os.environ.get(JUDGE_ENV, "")
    return _judge(spec, os.environ.get(CACHE_ENV, "")) if spec else None


@functools.lru_cache(maxsize=4)
def _judge(spec: str, cache: str) -> CoverageJudge:
    return CoverageJudge.over(Endpoint.parse(spec, cache=Path(cache) if cache else None))


FAMILY = SummHay()
