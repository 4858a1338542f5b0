"""SummHay's two layouts, `topic_*.json` and the sharded items, read into one shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import DataError, MissingFiles

_TOPICS = "the data folder of salesforce/summary-of-a-haystack (git lfs) at <data folder>/summhay/"
_SHARDED = "data/sharded_instructions_600.json of microsoft/lost_in_conversation at <data folder>/sharded/"


@dataclass(frozen=True, slots=True)
class Insight:
    """A fact to be found. `wanted`: documents of this item that state it; `official`: as published."""

    id: str
    name: str
    text: str
    wanted: tuple[int, ...]
    official: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "text": self.text,
            "wanted": list(self.wanted),
            "official": list(self.official),
        }


@dataclass(frozen=True, slots=True)
class Haystack:
    """One question over numbered documents. `others`: insights of the same documents on other questions."""

    id: str
    topic: str
    question: str
    documents: tuple[tuple[int, str], ...]
    insights: tuple[Insight, ...]
    others: tuple[Insight, ...]


def read_topics(source: Path | None) -> Iterator[Haystack]:
    """Yield one haystack a subtopic, files by name. Documents count from 1 in the order of the file.

    Raises `MissingFiles`, and `DataError` with file and place.
    """
    for path in _files(source, "summhay", "topic_*.json", _TOPICS):
        topic = _load(path)
        try:
            yield from _topic(path.stem, topic)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(f"{path}: not shaped as a SummHay topic ({error!r})") from error


def read_sharded(source: Path | None) -> Iterator[Haystack]:
    """Yield one haystack a summary item of every file below `sharded`, in order; others are passed over.

    Raises `MissingFiles`, and `DataError` with file and item, also for a task_id that comes twice.
    """
    seen: dict[str, Path] = {}
    for path in _files(source, "sharded", "*.json", _SHARDED):
        items = _load(path)
        if not isinstance(items, list):
            raise DataError(f"{path}: expected a JSON list of items, got {type(items).__name__}")
        for number, item in enumerate(items, 1):
            if not isinstance(item, dict) or item.get("task") != "summary":
                continue
            try:
                haystack = read_record(item)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise DataError(f"{path}, item {number}: not shaped as a summary item ({error!r})") from error
            if haystack.id in seen:
                raise DataError(
                    f"{path}, item {number}: {haystack.id!r} is in {seen[haystack.id]} already; keep one of the two"
                )
            seen[haystack.id] = path
            yield haystack


def _topic(stem: str, topic: Mapping[str, Any]) -> Iterator[Haystack]:
    supports: dict[str, list[int]] = {}
    for number, document in enumerate(topic["documents"], 1):
        for id in document["insights_included"]:
            supports.setdefault(id, []).append(number)
    documents = tuple((n, str(d["document_text"])) for n, d in enumerate(topic["documents"], 1))
    by_subtopic = {
        subtopic["subtopic_id"]: tuple(
            _insight(record, supports, supports) for record in subtopic["insights"]
        )
        for subtopic in topic["subtopics"]
    }
    for subtopic in topic["subtopics"]:
        own = subtopic["subtopic_id"]
        others = [one for id, insights in by_subtopic.items() if id != own for one in insights if one.wanted]
        question = str(subtopic.get("query") or subtopic["subtopic"])
        yield Haystack(
            f"summhay/{stem}/{own}",
            str(topic["topic"]),
            question,
            documents,
            by_subtopic[own],
            tuple(others),
        )


def read_record(item: Mapping[str, Any]) -> Haystack:
    """Return the haystack of a sharded summary record."""
    documents = tuple((int(d["document_index"]), str(d["document_text"])) for d in item["documents"])
    # The item holds some of the haystack's documents; only those can be cited.
    present = {number for number, _ in documents}
    published = item["insightid2ref_citations"]
    here = {id: sorted(present.intersection(numbers)) for id, numbers in published.items()}
    insights = tuple(_insight(record, here, published) for record in item["insights"])
    return Haystack(
        f"summhay/{item['task_id']}", str(item["topic"]), str(item["query"]), documents, insights, ()
    )


def _insight(
    record: Mapping[str, Any], wanted: Mapping[str, Sequence[int]], official: Mapping[str, Sequence[int]]
) -> Insight:
    id = record["insight_id"]
    text = " ".join(str(record["insight"]).split())
    name = " ".join(str(record.get("insight_name") or record.get("query") or text).split())
    return Insight(id, name, text, tuple(wanted.get(id, ())), tuple(official.get(id, ())))


def _files(source: Path | None, folder: str, pattern: str, origin: str) -> list[Path]:
    if source is None:
        raise MissingFiles(
            f"summhay needs a data folder and none was given. Get {origin}, then name it with DATA=."
        )
    for place in (Path(source) / folder, Path(source)):
        found = sorted(place.glob(pattern)) if place.is_dir() else []
        if found:
            return found
    raise MissingFiles(
        f"no {pattern} in {Path(source) / folder}. Get {origin}; then name that folder with DATA=."
    )


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); is it cut short, or a git lfs pointer?") from None
