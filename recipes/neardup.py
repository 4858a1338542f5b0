"""Near copies of tasks by their text: Jaccard similarity of word 8-grams, with an index for many tasks.

Texts are compared in lower case, as words, every number as "#" (the same story with other numbers is a near
copy). A text of fewer than eight words is one gram.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envs.task import SourceTask

N = 8
_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+")
_WHOLE = ("question", "prompt", "fully_specified_question")
"""Payload keys under which families keep a task's whole text; the goals may be shards of it."""


def grams(text: str) -> frozenset[int]:
    """Return the hashes of the word 8-grams of a text; within one process equal grams have equal hashes."""
    words = ["#" if token[0].isdigit() else token for token in _TOKEN.findall(text.casefold())]
    if not words:
        return frozenset()
    return frozenset(hash(tuple(words[at : at + N])) for at in range(max(1, len(words) - N + 1)))


def texts_of(task: SourceTask) -> Iterator[str]:
    """Yield the texts that tell a task: its goals as one, and the whole text where the payload has it."""
    yield " ".join(goal.text for goal in task.goals)
    for key in _WHOLE:
        text = task.payload.get(key)
        if isinstance(text, str):
            yield text


@dataclass(frozen=True, slots=True)
class NearCopy:
    """A task, the held-out task it copies, and the Jaccard similarity of their 8-grams, in [0, 1]."""

    task_id: str
    held_out_id: str
    similarity: float


class HeldOut:
    """An index of held-out tasks; `near_copy` finds the most similar one of another task."""

    def __init__(self, tasks: Iterable[SourceTask] = ()) -> None:
        self._ids: set[str] = set()
        self._texts: list[tuple[str, int]] = []  # (task id, number of grams)
        self._where: defaultdict[int, list[int]] = defaultdict(list)
        for task in tasks:
            self.add(task)

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, task: SourceTask) -> None:
        self._ids.add(task.id)
        for text in dict.fromkeys(texts_of(task)):
            found = grams(text)
            for gram in found:
                self._where[gram].append(len(self._texts))
            self._texts.append((task.id, len(found)))

    def near_copy(self, task: SourceTask, similarity: float) -> NearCopy | None:
        """Return the held-out task that `task` is, or is nearest to with at least `similarity`; else None."""
        if task.id in self._ids:
            return NearCopy(task.id, task.id, 1.0)
        best: NearCopy | None = None
        for text in dict.fromkeys(texts_of(task)):
            mine = grams(text)
            shared = Counter(at for gram in mine for at in self._where.get(gram, ()))
            for at, count in sorted(shared.items()):
                id, size = self._texts[at]
                jaccard = count / (len(mine) + size - count)
                if jaccard >= similarity and (best is None or jaccard > best.similarity):
                    best = NearCopy(task.id, id, round(jaccard, 3))
        return best
