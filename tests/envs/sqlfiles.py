"""Small databases in the layouts of Spider and BIRD, for tests without the real files."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

SCRIPT = """
CREATE TABLE guild (guild_id INTEGER PRIMARY KEY, guild_name TEXT, founded INTEGER, town TEXT);
CREATE TABLE baker (baker_id INTEGER PRIMARY KEY, name TEXT, age INTEGER, wage REAL,
    guild_id INTEGER REFERENCES guild(guild_id));
CREATE TABLE loaf (loaf_id INTEGER PRIMARY KEY, baker_id INTEGER REFERENCES baker(baker_id), kind TEXT,
    weight INTEGER, "sold on" TEXT);
"""
GUILDS = [(1, "Rye Hands", 1899, "Ulm"), (2, "Old Oven", 1950, "Graz"), (3, "Night Crust", 1950, "Ulm")]
BAKERS = [
    (1, "Ada", 31, 20.5, 1),
    (2, "Ben", 44, 19.0, 1),
    (3, "Cyd", 27, 22.25, 2),
    (4, "Dov", 44, 18.0, 2),
    (5, "Eli", 52, 30.0, 3),
    (6, "Ada", 39, 19.5, 3),
]
LOAVES = [
    (at, 1 + at * 5 % 6, ("rye", "spelt", "wheat")[at % 3], 300 + 50 * (at * 7 % 8), f"2020-0{1 + at % 4}-11")
    for at in range(1, 25)
]
GOLDS = (
    "SELECT name FROM baker WHERE age > 30",
    "SELECT count(*) FROM loaf",
    "SELECT name, age FROM baker ORDER BY age DESC, name",
    "SELECT DISTINCT kind FROM loaf WHERE weight >= 400",
    "SELECT T2.guild_name, count(*) FROM baker AS T1 JOIN guild AS T2 ON T1.guild_id = T2.guild_id "
    "GROUP BY T2.guild_id HAVING avg(T1.wage) > 19",
    "SELECT name FROM baker WHERE wage > (SELECT avg(wage) FROM baker)",
    "SELECT name FROM baker WHERE baker_id NOT IN (SELECT baker_id FROM loaf WHERE kind = 'rye')",
    "SELECT town FROM guild WHERE founded < 1920 INTERSECT SELECT town FROM guild WHERE founded > 1920",
    'SELECT guild_name FROM guild WHERE town = "Ulm"',
    "SELECT name FROM baker ORDER BY wage DESC LIMIT 2",
    "SELECT max(weight), min(weight) FROM loaf WHERE kind LIKE '%e%' OR weight < 350",
    "SELECT kind FROM loaf GROUP BY kind ORDER BY count(*) DESC LIMIT 1",
    "SELECT T1.name FROM baker AS T1 JOIN loaf AS T2 ON T1.baker_id = T2.baker_id "
    "WHERE T2.kind NOT LIKE '%y%' AND T2.weight BETWEEN 350 AND 500 AND T1.age != 44",
    'SELECT "sold on" FROM loaf WHERE loaf_id = 3',
    "SELECT name FROM baker EXCEPT SELECT T1.name FROM baker AS T1 JOIN loaf AS T2 "
    "ON T1.baker_id = T2.baker_id WHERE T2.weight > 600",
    "SELECT CAST(SUM(CASE WHEN kind = 'rye' THEN 1 ELSE 0 END) AS REAL) / COUNT(*) AS share FROM loaf",
    "SELECT name FROM baker WHERE age > 200",  # empty
    "SELECT nme FROM baker",  # fails
)
EMPTY, FAILS = "a gold without rows", "a gold that fails"


def make_database(folder: Path, db_id: str, guilds: list[tuple[Any, ...]] = GUILDS) -> Path:
    path = folder / db_id / f"{db_id}.sqlite"
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(SCRIPT)
    connection.executemany("INSERT INTO guild VALUES (?, ?, ?, ?)", guilds)
    connection.executemany("INSERT INTO baker VALUES (?, ?, ?, ?, ?)", BAKERS)
    connection.executemany("INSERT INTO loaf VALUES (?, ?, ?, ?, ?)", LOAVES)
    connection.commit()
    connection.close()
    return path


def make_spider(folder: Path, golds: tuple[str, ...] = GOLDS) -> Path:
    """Write the Spider layout below `folder`: one database, one more that is missing, `tables.json`."""
    base = folder / "spider"
    make_database(base / "database", "bakery")
    records = [
        {"db_id": "bakery", "query": sql, "question": f"Question {at}?"} for at, sql in enumerate(golds)
    ]
    records.append({"db_id": "gone", "query": "SELECT 1", "question": "Where is it?"})
    (base / "dev.json").write_text(json.dumps(records))
    columns = [
        (0, "guild_id", "guild id", "number"),
        (0, "guild_name", "name of the guild", "text"),
        (1, "wage", "hourly wage", "number"),
    ]
    described = {
        "db_id": "bakery",
        "table_names_original": ["guild", "baker"],
        "table_names": ["guild", "baker"],
        "column_names_original": [[-1, "*"], *([at, name] for at, name, _, _ in columns)],
        "column_names": [[-1, "*"], *([at, words] for at, _, words, _ in columns)],
        "column_types": ["text", *(kind for *_, kind in columns)],
    }
    (base / "tables.json").write_text(json.dumps([described]))
    return folder


def make_bird(folder: Path, golds: tuple[str, ...] = GOLDS) -> Path:
    """Write the BIRD layout below `folder`."""
    base = folder / "bird"
    make_database(base / "dev_databases", "bakery")
    records = [
        {
            "question_id": 100 + at,
            "db_id": "bakery",
            "question": f"Question {at}?",
            "evidence": f"evidence {at}" if at % 2 else "",
            "SQL": sql,
            "difficulty": "simple",
        }
        for at, sql in enumerate(golds)
    ]
    (base / "mini_dev.json").write_text(json.dumps(records))
    return folder
