"""ToTTo: one sentence about highlighted table cells. The goals are the cells, the grade is sentence BLEU.

A goal's slot is the path of column headers above its cell. The answer that obeys a changed state is the
reference that says most goals, with the values in it changed: so only goals that this reference says word
for word have variants. Data: google-research-datasets/ToTTo (CC BY-SA 3.0),
`totto/totto_{train,dev}_data.jsonl`, or the samples `totto/{train,dev}_sample.jsonl`.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.bleu import sentence_bleu
from envs.errors import DataError, GraderError, MissingFiles, unknown_name
from envs.families._totto_table import Cell, Table
from envs.families._totto_text import extend, locate, mentions, rewrite
from envs.intent import Goal, IntentState
from envs.jsonl import benchmark_file, read_jsonl
from envs.sharded import shard_goals, text_field
from envs.task import Grade, Quarantined, SourceTask

MARGIN = 0.05
"""Obeying a variant or decoy lowers the score by more than this. BLEU moves a little with any wording."""

VERDICTS = ("strict", "official")
_FILES = ("totto_{split}_data.jsonl", "{split}_sample.jsonl")
_ORIGIN = "totto_data.zip of google-research-datasets/ToTTo"
_FIELDS = ("table", "highlighted_cells", "table_page_title", "sentence_annotations", "example_id")
_OPENING = "I need one sentence that describes part of a table."
_CONTEXT = "Answer with one sentence in plain English that describes the part of the table that is asked for."
_WORDINGS = (
    "give {value} as the {slot}",
    "use {value} for the {slot}",
    "include the {slot}, {value}",
    "show the {slot} as {value}",
    "report {value} as the {slot}",
)
_VARIANTS, _DECOYS = 6, 6
_CANDIDATES = 16  # cells a goal that are tried
_LONGEST = 80  # characters of a cell that a variant or decoy may state


class Totto:
    name = "totto"
    structured = True
    splits = ("train", "dev")
    variants_flip = True
    """`variants` grades each one itself, and against the margin."""
    verdict = "strict"

    def with_verdict(self, verdict: str) -> Totto:
        """Return the family with another verdict as its score: "strict" or "official"."""
        if verdict not in VERDICTS:
            raise unknown_name("verdict", verdict, VERDICTS)
        other = copy.copy(self)
        other.verdict = verdict
        return other

    def load(self, source: Path | None, split: str) -> Iterator[SourceTask]:
        """Yield the tasks that have a variant or a decoy to try, in file order.

        Raises `MissingFiles`, `DataError`, `UnknownName`. `skipped` tells the others apart.
        """
        for task in self._scan(source, split):
            if isinstance(task, SourceTask):
                yield task

    def skipped(self, source: Path | None, split: str) -> list[Quarantined]:
        """Return the items that `load` leaves out, each with the reason."""
        return [task for task in self._scan(source, split) if isinstance(task, Quarantined)]

    def gold(self, task: SourceTask) -> str:
        """Return the reference that says most goals word for word."""
        return task.payload["base"]

    def from_record(self, record: Mapping[str, Any]) -> SourceTask | Quarantined:
        """Return the task of a sharded record, see `envs.sharded`. It has no variants and no decoys."""
        references = [str(one).strip() for one in record["references"]]
        references = list(dict.fromkeys(one for one in references if one))
        if not references:
            return Quarantined(record["task_id"], "the item has no reference sentence")
        payload = {"references": references, "base": references[0], "sharded": True}
        payload |= {key: {} for key in ("spans", "wordings", "others", "decoys")}
        context = f"{text_field(record, 'table_html')}\n{_CONTEXT}"
        goals = shard_goals(record)
        return SourceTask(record["task_id"], self.name, "sharded", _OPENING, context, goals, payload)

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        """Return the goal with other cells of its column; each lowers the score by more than `MARGIN`.

        A goal that the gold does not say word for word has none. Ids are fixed, the order is `rng`'s.
        """
        base = goal.id.split(".")[0]
        wording = task.payload["wordings"].get(base, "")
        others = [
            Goal(f"{base}.v{n}", wording.replace("{value}", value), goal.slot, value)
            for n, value in enumerate(task.payload["others"].get(base, ()), 1)
        ]
        found: list[Goal] = []
        for variant in rng.sample(others, len(others)):
            state = IntentState(tuple(variant if known.id == base else known for known in task.goals))
            if len(found) < _VARIANTS and self._lowers(task, state):
                found.append(variant)
        return found

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        """Return wishes to say a further cell; each lowers the score by more than `MARGIN` when obeyed."""
        candidates = [
            Goal(id, known["text"], known["slot"], known["value"])
            for id, known in task.payload["decoys"].items()
        ]
        found: list[Goal] = []
        for decoy in rng.sample(candidates, len(candidates)):
            if len(found) < _DECOYS and self._lowers(task, IntentState((*task.goals, decoy))):
                found.append(decoy)
        return found

    def execute(self, task: SourceTask, state: IntentState) -> str:
        """Write the gold with the values of `state`: changed, left out where a goal is missing, or added.

        Raises `GraderError` for a foreign goal, and for a changed value that the gold does not say.
        """
        if task.payload.get("sharded"):  # shards are free text: nothing says what a part of them would answer
            if set(state.goals) != set(task.goals):
                raise GraderError(f"{task.id}: only the whole intent of a sharded item can be executed")
            return task.payload["base"]
        spans, known = task.payload["spans"], {goal.id: goal for goal in task.goals}
        held: dict[str, Goal] = {}
        added: list[Goal] = []
        for goal in state.goals:
            base = goal.id.split(".")[0]
            if goal.value is None or (base not in known and base not in task.payload["decoys"]):
                raise GraderError(f"{task.id}: goal {goal.id!r} ({goal.text!r}) is no cell of this task")
            if base not in known:
                added.append(goal)
                continue
            held[base] = goal
            if goal.value != known[base].value and base not in spans:
                raise GraderError(f"{task.id}: the reference does not say {known[base].slot!r}")
        changes: list[tuple[tuple[int, int], str]] = []
        for base, places in spans.items():
            value = held[base].value if base in held else ""
            if value != known[base].value:
                changes += [((start, end), value or "") for start, end in places]
        sentence = rewrite(task.payload["base"], changes) if changes else task.payload["base"]
        for goal in added:
            sentence = extend(sentence, f"with {goal.value} as the {goal.slot}")
        return sentence

    def grade(self, task: SourceTask, answer: str) -> Grade:
        """Score sentence BLEU over all references; full credit is a score of 1.

        `detail` holds both verdicts, and `missing`: slots whose value the gold says and the answer does not.
        """
        references = task.payload["references"]
        try:
            scores = {
                name: sentence_bleu(answer, references, official=name == "official") for name in VERDICTS
            }
        except GraderError as error:
            return Grade(0.0, False, {"answer": answer}, error=str(error))
        missing = [
            goal.slot
            for goal in task.goals
            if goal.id in task.payload["spans"] and not mentions(answer, goal.value or "")
        ]
        verdicts = {name: score == 1.0 for name, score in scores.items()}
        detail = {"answer": answer.strip(), "scores": scores, "missing": missing, **verdicts}
        return Grade(scores[self.verdict], verdicts[self.verdict], detail)

    def _lowers(self, task: SourceTask, state: IntentState) -> bool:
        """Return whether obeying `state` costs more than the margin. Raises `GraderError` without sacreBLEU."""
        answer, references = self.execute(task, state), task.payload["references"]
        return sentence_bleu(answer, references, official=self.verdict == "official") < 1 - MARGIN

    def _scan(self, source: Path | None, split: str) -> Iterator[SourceTask | Quarantined]:
        if split not in self.splits:
            raise unknown_name("split of totto:", split, self.splits)
        path, seen = _file(source, split), set()
        for row, record in read_jsonl(path, _FIELDS):
            if record["example_id"] in seen:
                raise DataError(f"{path}, row {row + 1}: example_id {record['example_id']} comes twice")
            seen.add(record["example_id"])
            try:
                yield self._task(f"totto/{split}/{record['example_id']}", split, record)
            except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise DataError(f"{path}, row {row + 1}: not shaped as a ToTTo item ({error})") from error

    def _task(self, id: str, split: str, record: Mapping[str, Any]) -> SourceTask | Quarantined:
        references = [str(note["final_sentence"]).strip() for note in record["sentence_annotations"]]
        references = list(dict.fromkeys(reference for reference in references if reference))
        if not references:
            return Quarantined(id, "the item has no reference sentence")
        table = Table(record["table"])
        marked = [table.at(row, place) for row, place in record["highlighted_cells"]]
        cells = [cell for cell in dict.fromkeys(marked) if cell.text]
        if not cells:
            return Quarantined(id, "no highlighted cell holds text")
        rng = random.Random(id)
        slots = _slots(table, cells)
        wordings = {f"g{n}": rng.choice(_WORDINGS).replace("{slot}", slot) for n, slot in enumerate(slots, 1)}
        goals = [
            Goal(f"g{n}", wordings[f"g{n}"].replace("{value}", cell.text), slot, cell.text)
            for n, (slot, cell) in enumerate(zip(slots, cells, strict=True), 1)
        ]
        for slot in ("page title", "section title"):
            title = " ".join(str(record.get(f"table_{slot.replace(' ', '_')}") or "").split())
            if title:
                goals.append(Goal(f"g{len(goals) + 1}", f'the {slot} is "{title}"', slot, title))
        forms = {goal.id: _forms(goal) for goal in goals}
        placed = [locate(reference, forms) for reference in references]
        best = max(range(len(references)), key=lambda n: (len(placed[n]), -n))
        others = {
            f"g{n}": _others(table, cell, cells) for n, cell in enumerate(cells, 1) if f"g{n}" in placed[best]
        }
        decoys = _decoys(table, cells, {goal.slot or "" for goal in goals}, rng)
        if not any(others.values()) and not decoys:
            return Quarantined(
                id, "no cell can be changed in a reference, and there is no further cell to add"
            )
        payload = {
            "references": references,
            "base": references[best],
            "spans": {id: [list(span) for span in spans] for id, spans in placed[best].items()},
            "wordings": wordings,
            "others": others,
            "decoys": decoys,
        }
        return SourceTask(
            id, self.name, split, _OPENING, f"{table.html()}\n{_CONTEXT}", tuple(goals), payload
        )


def _file(source: Path | None, split: str) -> Path:
    names = [name.format(split=split) for name in _FILES]
    for name in names:
        try:
            return benchmark_file(source, "totto", name, _ORIGIN)
        except MissingFiles as error:
            problem = error
            if source is None:
                break
    raise MissingFiles(f"{problem} ({' or '.join(names)})")


def _slots(table: Table, cells: list[Cell]) -> list[str]:
    """Return a name for each highlighted cell, all different: header path, and which entry (row) it is of."""
    names = [_lower(table.path(cell)) or ("table heading" if cell.is_header else "cell") for cell in cells]
    rows = list(dict.fromkeys(cell.row for cell in cells))
    entries = [
        f"{name} of entry {rows.index(cell.row) + 1}" if names.count(name) > 1 else name
        for name, cell in zip(names, cells, strict=True)
    ]
    return [
        f"{name} ({entries[:n].count(name) + 1})" if entries.count(name) > 1 else name
        for n, name in enumerate(entries)
    ]


def _lower(name: str) -> str:
    """Return a header as it stands in running text: "Year" is "year", "GP" and "St. Louis" stay."""
    return name[:1].lower() + name[1:] if re.match(r"[A-Z][a-z]+(\s+[a-z(/]|\s*$)", name) else name


def _forms(goal: Goal) -> list[str]:
    """Return how a sentence may say a goal's value: in full, without a remark in brackets, or up to a comma."""
    value = goal.value or ""
    shorter = re.sub(r"\s*\([^()]*\)$", "", value)
    head = re.match(r"[^\W\d]{3,}[^,]*(?=,\s)", value)  # "Riga, Latvia" is "Riga", but "1, 2" stays
    return [form for form in dict.fromkeys([value, shorter, head[0] if head else ""]) if form]


def _others(table: Table, cell: Cell, cells: list[Cell]) -> list[str]:
    """Return other values of a cell's column, nearest row first, none of which is highlighted."""
    used = {known.text.casefold() for known in cells}
    near = sorted(table.same_column(cell), key=lambda other: abs(other.top - cell.top))
    values = {o.text.casefold(): o.text for o in near if o.text.casefold() not in used and _short(o)}
    return list(values.values())[:_CANDIDATES]


def _decoys(table: Table, cells: list[Cell], used: set[str], rng: random.Random) -> dict[str, dict[str, str]]:
    """Return decoy id -> slot, value and text: other cells of the highlighted rows, then of other rows."""
    rows = {cell.row for cell in cells}
    data = [cell for cell in table.cells() if cell.text and not cell.is_header and cell not in cells]
    free = [cell for cell in data if _short(cell) and cell.right == cell.left + 1]
    same = [cell for cell in free if cell.row in rows]
    far = [cell for cell in free if cell.row not in rows]
    found: dict[str, dict[str, str]] = {}
    slots = set(used)
    for cell in [*rng.sample(same, min(len(same), 12)), *rng.sample(far, min(len(far), 12))]:
        name = _lower(table.path(cell)) or "cell"
        slot = name if cell.row in rows else f"{name} of another entry"
        if slot in slots or len(found) == _DECOYS:
            continue
        slots.add(slot)
        text = rng.choice(_WORDINGS).replace("{slot}", slot).replace("{value}", cell.text)
        found[f"d{len(found) + 1}"] = {"slot": slot, "value": cell.text, "text": text}
    return found


def _short(cell: Cell) -> bool:
    return len(cell.text) <= _LONGEST


FAMILY = Totto()
