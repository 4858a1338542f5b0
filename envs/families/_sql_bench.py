"""What the text-to-SQL benchmarks share: gold queries become goals, states become queries, rows decide."""

from __future__ import annotations

import copy
import json
import random
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from envs.errors import DataError, GraderError, MissingFiles, unknown_name
from envs.families._sql_changes import Changes
from envs.families._sql_goals import Part
from envs.families._sql_names import in_words
from envs.families._sql_rebuild import rebuild
from envs.families._sql_sort import sort_keys
from envs.families._sql_store import Store, store
from envs.intent import Goal, IntentState
from envs.sandbox_sql import Refused, Row, extract_sql
from envs.sql_match import Wanted, strict_match
from envs.task import Grade, Quarantined, SourceTask

VERDICTS = ("strict", "official")
_VARIANTS, _DECOYS = 6, 5
_OWN = 50_000  # queries of ours that are remembered as such
_FORMAT = "Answer with one SQLite SELECT statement that returns exactly the columns asked for, in that order."


@dataclass(frozen=True, slots=True)
class Item:
    """One record of a benchmark file: task id, database, gold query, question, and hints for the agent."""

    id: str
    db_id: str
    sql: str
    question: str
    hint: str = ""
    exclude: str = ""
    """Why the item is left out by review, "" if it is not."""


class SqlBenchmark:
    """A family of gold queries over databases in files. Subclasses say where files are and how to compare.

    `verdict` decides what counts as full credit: "strict" (right rows) or "official" (the benchmark's own
    rules). Every variant and decoy was seen to lose it.
    """

    name: str
    splits: tuple[str, ...]
    structured = True
    variants_flip = True
    errors: ClassVar[str]
    limits: ClassVar[Mapping[str, Any]]
    permute: ClassVar[bool]
    """Whether the strict verdict lets the columns stand in another order."""
    get: ClassVar[str]
    """What to get where the databases are not there."""

    def __init__(self, verdict: str = "strict") -> None:
        if verdict not in VERDICTS:
            raise unknown_name("verdict", verdict, VERDICTS)
        self.verdict = verdict
        self._own: OrderedDict[str, None] = OrderedDict()
        self._proven: dict[tuple[str, str, str], list[Goal]] = {}
        self._made: OrderedDict[tuple[str, str], list[Part]] = OrderedDict()

    def with_verdict(self, verdict: str) -> Self:
        """Return this family with another verdict. Raises `UnknownName`."""
        other = copy.copy(self)
        SqlBenchmark.__init__(other, verdict)
        return other

    # What a benchmark says.

    def items(self, source: Path | None, split: str) -> Iterator[Item]:
        """Yield the records of a split. Raises `MissingFiles`, `DataError`, `UnknownName`."""
        raise NotImplementedError

    def databases(self, source: Path | None) -> Path:
        """Return the folder with one folder a database."""
        raise NotImplementedError

    def tables_file(self, source: Path | None) -> Path | None:
        """Return the file that names tables and columns, None if there is none."""
        raise NotImplementedError

    def official(self, base: Store, gold: str, sql: str, own: bool) -> bool:
        """Return the verdict of the benchmark's own evaluator. Raises `GraderError`."""
        raise NotImplementedError

    # The family.

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        """Yield the usable tasks in file order; `skipped` tells the others apart.

        Raises `MissingFiles` if no database is there, `DataError`, `UnknownName`.
        """
        for item in self._scan(source, split):
            if isinstance(item, SourceTask):
                yield item

    def skipped(self, source: Path | None, split: str) -> list[Quarantined]:
        """Return the items that `load` leaves out, each with the reason."""
        return [item for item in self._scan(source, split) if isinstance(item, Quarantined)]

    def gold(self, task: SourceTask) -> str:
        return self._remember(task.payload["sql"])

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        """Return other values of a goal, each executed and rejected by the verdict; shuffled by rng."""
        key = (task.payload["key"], goal.id, self.verdict)
        if key not in self._proven:
            known = task.payload["parts"].get(goal.id)
            found: list[Goal] = []
            for n, part in enumerate(self._variants_of(task, goal.id) if known else (), 1):
                parts = [part.data() if id == goal.id else one for id, one in task.payload["parts"].items()]
                if self._flips(task, parts):
                    found.append(Goal(f"{goal.id}.v{n}", part.text, goal.slot, part.value))
                    if len(found) == _VARIANTS:
                        break
            self._proven[key] = found
        return rng.sample(self._proven[key], len(self._proven[key]))

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return goals beyond the task, each executed and rejected by the verdict; shuffled by rng."""
        key = (task.payload["key"], "", self.verdict)
        if key not in self._proven:
            found: list[Goal] = []
            for n, part in enumerate(self._decoys_of(task), 1):
                if self._flips(task, [*task.payload["parts"].values(), part.data()]):
                    found.append(Goal(f"d{n}", part.text, part.slot, part.value))
                    if len(found) == _DECOYS:
                        break
            self._proven[key] = found
        return rng.sample(self._proven[key], len(self._proven[key]))

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Return the query that the state describes. Raises `GraderError` for a foreign goal."""
        if task.payload.get("sharded"):
            return self._remember(rebuild(self._sharded_parts(task, state), task.payload["tables"]))
        parts = [self._part(task, goal) for goal in state.goals]
        return self._remember(rebuild(parts, task.payload["tables"]))

    def grade(self, task: SourceTask, answer: str) -> Grade:
        """Score 1 iff the answer's query is right by `verdict`; `detail` holds both verdicts.

        A query that fails, is forbidden or takes too long is a wrong answer with its "problem".
        """
        sql = extract_sql(answer)
        detail: dict[str, Any] = {"sql": sql, "verdict": self.verdict, "official": False, "strict": False}
        if flags := task.payload["flags"]:
            detail["flags"] = list(flags)
        if sql is None:
            return Grade(0.0, False, detail | {"problem": "no SQL statement found"})
        own = sql in self._own
        try:
            base = self._store(task)
            problem = self._problem(base, task, sql, own)
            detail["strict"] = problem is None
            detail["official"] = self.official(base, task.payload["sql"], sql, own)
        except (GraderError, DataError, MissingFiles) as error:
            return Grade(0.0, False, detail, error=str(error))
        if problem is not None:
            detail["problem"] = problem
        passed = detail[self.verdict]
        return Grade(float(passed), passed, detail)

    # Verdicts.

    def run(self, base: Store, sql: str, own: bool, at: int) -> list[Row] | Refused:
        """Return the rows of an answer: our own queries in this process, all others in the sandbox's."""
        return base.rows(sql, at) if own else base.untrusted(sql, at)

    def _problem(self, base: Store, task: SourceTask, sql: str, own: bool) -> str | None:
        """Return what is wrong with an answer by the strict verdict, None if it is right."""
        for at in range(len(base.paths)):
            want = self._wanted(base, task, at)
            rows = self.run(base, sql, own, at)
            if isinstance(rows, Refused):
                return rows.reason
            if not strict_match(want, rows, self.permute):
                return f"other rows: {len(rows)}, gold {len(want.rows)}"
        return None

    def _wanted(self, base: Store, task: SourceTask, at: int) -> Wanted:
        payload = task.payload
        keyed, keys, offset = payload["keyed"] or (None, 0, 0)
        return base.wanted(payload["sql"], payload["ordered"], keyed, keys, offset, at)

    def _flips(self, task: SourceTask, parts: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the query of these parts runs and is wrong."""
        base, sql = self._store(task), rebuild(parts, task.payload["tables"])
        if any(isinstance(base.rows(sql, at), Refused) for at in range(len(base.paths))):
            return False
        if self.verdict == "official":
            return not self.official(base, task.payload["sql"], sql, own=True)
        return self._problem(base, task, sql, own=True) is not None

    # Goals and parts.

    def _part(self, task: SourceTask, goal: Goal) -> Mapping[str, Any]:
        known = task.payload["parts"].get(goal.id)
        if known is not None and any(goal.id == own.id and goal.value == own.value for own in task.goals):
            return known
        if goal.id.startswith("d"):
            candidates, number = self._decoys_of(task), goal.id[1:]
        else:
            first, _, number = goal.id.partition(".v")
            candidates = self._variants_of(task, first) if first in task.payload["parts"] else []
        if number.isdigit() and 0 < int(number) <= len(candidates):
            part = candidates[int(number) - 1]
            if part.value == goal.value:
                return part.data()
        raise GraderError(f"{task.id}: goal {goal.id!r} ({goal.text!r}) is none of this task's")

    def _sharded_parts(self, task: SourceTask, state: IntentState) -> list[Mapping[str, Any]]:
        """Return the gold's parts, which only all shards together say, and those of the decoys in the state."""
        held = {(goal.id, goal.text) for goal in state.goals}
        lacking = [goal.text for goal in task.goals if (goal.id, goal.text) not in held]
        if lacking:
            raise GraderError(f"{task.id}: the state lacks {lacking[0]!r}, without which no query is known")
        own = {goal.id for goal in task.goals}
        extra = [self._part(task, goal) for goal in state.goals if goal.id not in own]
        return [*task.payload["parts"].values(), *extra]

    def _variants_of(self, task: SourceTask, id: str) -> list[Part]:
        at = list(task.payload["parts"]).index(id)
        return self._candidates(task, id, lambda changes: changes.variants(changes.query.parts[at]))

    def _decoys_of(self, task: SourceTask) -> list[Part]:
        return self._candidates(task, "", lambda changes: changes.decoys())

    def _candidates(self, task: SourceTask, id: str, make: Any) -> list[Part]:
        key = (task.payload["key"], id)
        if key not in self._made:
            base = self._store(task)
            self._made[key] = make(Changes(base.query(task.payload["sql"]), base.cells, task.id))
            if len(self._made) > _OWN:
                self._made.popitem(last=False)
        return self._made[key]

    def _remember(self, sql: str) -> str:
        self._own[sql] = None
        if len(self._own) > _OWN:
            self._own.popitem(last=False)
        return sql

    # Reading.

    def _store(self, task: SourceTask) -> Store:
        tables = task.payload["tables_file"]
        return self._open(
            Path(task.payload["database"]), task.payload["db_id"], Path(tables) if tables else None
        )

    def _open(self, folder: Path, db_id: str, tables_file: Path | None) -> Store:
        return store(folder, db_id, tables_file, self.errors, tuple(sorted(self.limits.items())))

    def _scan(self, source: Path | None, split: str) -> Iterator[SourceTask | Quarantined]:
        if split not in self.splits:
            raise unknown_name(f"split of {self.name}:", split, self.splits)
        items = list(self.items(source, split))
        databases, tables_file = self.databases(source), self.tables_file(source)
        there = {item.db_id: (databases / item.db_id / f"{item.db_id}.sqlite").is_file() for item in items}
        if not any(there.values()):
            raise MissingFiles(f"no database below {databases}: {self.get}")
        seen: set[str] = set()
        for item in items:
            if item.id in seen:
                yield Quarantined(item.id, "an earlier item has this id")
                continue
            seen.add(item.id)
            if not there[item.db_id]:
                yield Quarantined(item.id, f"its database is missing: {item.db_id}")
            elif item.exclude:
                yield Quarantined(item.id, f"excluded by review: {item.exclude}")
            else:
                yield self._task(item, split, databases / item.db_id, tables_file)

    def _task(
        self, item: Item, split: str, folder: Path, tables_file: Path | None
    ) -> SourceTask | Quarantined:
        base = self._open(folder, item.db_id, tables_file)
        try:
            query = base.query(item.sql)
        except DataError as error:
            return Quarantined(item.id, str(error))
        rows = base.rows(item.sql)
        if isinstance(rows, Refused):
            return Quarantined(item.id, f"the gold query fails: {rows.reason}")
        if not rows:
            return Quarantined(item.id, "the gold returns no row, so that wrong queries pass")
        parts = {f"g{at}": part for at, part in enumerate(query.parts, 1)}
        goals = tuple(Goal(id, part.text, part.slot, part.value) for id, part in parts.items())
        payload: dict[str, Any] = {
            "key": f"{folder}|{item.sql}|{item.id}",
            "database": str(folder),
            "db_id": item.db_id,
            "tables_file": str(tables_file) if tables_file else None,
            "question": item.question,
            "sql": item.sql,
            "parts": {id: part.data() for id, part in parts.items()},
            "tables": list(query.tables),
            "ordered": query.root.args.get("order") is not None,
            "keyed": sort_keys(query.root),
            "flags": [],
        }
        hint = f"\nHint: {item.hint}" if item.hint else ""
        opening = f"I need one query over the {in_words(item.db_id)} database."
        context = f"{base.ddl}\n{_FORMAT}{hint}"
        task = SourceTask(item.id, self.name, split, opening, context, goals, payload)
        want = self._wanted(base, task, 0)
        again = base.fresh(item.sql)
        if isinstance(again, Refused) or not strict_match(want, again, permute=False):
            return Quarantined(item.id, "the gold gives other rows when it runs again")
        rebuilt = rebuild(list(payload["parts"].values()), payload["tables"])
        problem = self._problem(base, task, rebuilt, own=True)
        if problem is not None:
            return Quarantined(item.id, f"the query rebuilt from its goals differs ({problem}): {rebuilt}")
        if want.tied:
            payload["flags"].append("a limit cuts a tie: which rows the gold gives depends on SQLite")
        if strict_match(want, [(1,)], self.permute):
            payload["flags"].append("SELECT 1 passes")
        return task


def read_records(path: Path, required: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSON array. Raises `DataError`, naming the record."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); is it cut short?") from None
    if not isinstance(records, list):
        raise DataError(f"{path}: expected a JSON array, got {type(records).__name__}")
    for row, record in enumerate(records):
        missing = [key for key in required if not isinstance(record, dict) or key not in record]
        if missing:
            raise DataError(f"{path}, item {row}: no field {', '.join(map(repr, missing))}")
        yield record
