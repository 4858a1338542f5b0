"""A made-up haystack for tests: six talks about a public library, five facts, in SummHay's two layouts."""

from __future__ import annotations

from typing import Any

FACTS = {
    "a1": ("opening hours", "The library now opens at seven in the morning on weekdays."),
    "a2": ("late fees", "Late fees for books were dropped at the start of the year."),
    "a3": ("quiet room", "A quiet room with twelve desks was added on the second floor."),
    "b1": ("bus line", "Bus line 9 stops at the library twice an hour."),
    "b2": ("bicycles", "There is room for forty bicycles behind the building."),
}
HELD = [["a1", "b1"], ["a1", "a2"], ["a2", "a3"], ["a1", "a3", "b2"], ["b1", "b2"], []]


def insight(id: str) -> dict[str, str]:
    name, text = FACTS[id]
    return {"insight_id": id, "insight_name": name, "insight": text}


def topic() -> dict[str, Any]:
    subtopics = [
        {
            "subtopic_id": sub,
            "subtopic": sub,
            "query": f"What is new about {sub}?",
            "insights": [insight(id) for id in ids],
        }
        for sub, ids in (("service", ["a1", "a2", "a3"]), ("access", ["b1", "b2"]))
    ]
    documents = [
        {"document_id": str(n), "document_text": f"Talk {n}", "insights_included": held}
        for n, held in enumerate(HELD)
    ]
    return {"topic_id": "t", "topic": "A public library", "subtopics": subtopics, "documents": documents}


def sharded() -> dict[str, Any]:
    """An item with documents 2, 3 and 6 of the haystack."""
    documents = [
        {
            "document_id": str(n),
            "document_index": n,
            "document_text": f"Talk {n}",
            "insights_included": HELD[n - 1],
        }
        for n in (2, 3, 6)
    ]
    return {
        "task": "summary",
        "task_id": "sharded-summary_1",
        "topic": "A public library",
        "query": "What is new?",
        "documents": documents,
        "insights": [insight(id) for id in ("a1", "a2", "a3")],
        "insightid2ref_citations": {"a1": [1, 2, 4], "a2": [2, 3], "a3": [3, 4], "b1": [1, 5]},
        "shards": [{"shard_id": 0, "shard": "", "doc_idxs": [2, 3, 6]}],
    }
