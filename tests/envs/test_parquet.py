"""Parquet: dialogues come back equal, writes are atomic, other files are refused by name and row."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.dialogue import CONDITIONS, Dialogue, Turn
from envs.errors import ConfigError, DataError, MissingFiles
from envs.intent import EMPTY, Add, Conclusion, Delete, Edit, Goal, IntentState, Replace, Switch, fold
from envs.mix import dialogue_stream
from envs.parquet import SCHEMA, read_dialogues, read_notes, write_dialogues


def some(count: int) -> list[Dialogue]:
    mix = {"drift": 0.6, "turn_matched": 0.2, "clean": 0.2}
    return list(islice(dialogue_stream(["calls"], "heldout", 0, 3, mix), count))


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


@st.composite
def dialogues(draw: st.DrawFn) -> Dialogue:
    """Any dialogue at all: goals come and go, functions switch, conclusions are drawn."""
    turns: list[Turn] = []
    state = EMPTY
    for number in range(draw(st.integers(1, 5))):
        goal = Goal(f"g{number}", draw(texts), draw(st.none() | texts), draw(st.none() | texts))
        edits: list[Edit] = []
        kind = draw(st.sampled_from(("add", "delete", "replace", "switch", "none")))
        if kind == "switch":
            edits = [Switch(state.function, draw(texts))]
        elif kind == "add" or (kind != "none" and not state.goals):
            edits = [Add(goal)]
        elif kind == "delete":
            edits = [Delete(draw(st.sampled_from(state.goals)))]
        elif kind == "replace":
            edits = [Replace(draw(st.sampled_from(state.goals)), goal)]
        state = fold(state, edits)
        shown = state
        if state.goals and draw(st.booleans()):
            shown = state.conclude(Conclusion(f"c{number}", draw(texts), frozenset({state.goals[0].id})))
        turns.append(Turn(draw(texts), tuple(edits), shown))
    seed = draw(st.integers(-(2**63), 2**63 - 1))
    return Dialogue(
        draw(texts), draw(texts), draw(texts), draw(st.sampled_from(CONDITIONS)), 3, seed, tuple(turns)
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(dialogues(), max_size=5), st.integers(1, 3))
def test_round_trip(written: list[Dialogue], rows_per_group: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "d.parquet"
        assert write_dialogues(path, written, rows_per_group) == len(written)
        back = list(read_dialogues(path))
    assert back == written
    # Equality of states ignores the order of goals; the file keeps it.
    assert [t.state.goals for d in back for t in d.turns] == [t.state.goals for d in written for t in d.turns]


def test_the_schema_is_written_with_name_and_version(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    write_dialogues(path, some(3))
    schema = pq.read_schema(path)
    assert schema.equals(SCHEMA)
    assert schema.metadata[b"schema"] == b"fluxforge.dialogue" and schema.metadata[b"schema_version"] == b"1"


def test_groups_are_written_and_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    drawn: list[int] = []

    def rows() -> Iterator[Dialogue]:
        for number, dialogue in enumerate(some(10)):
            drawn.append(number)
            yield dialogue

    assert write_dialogues(path, rows(), rows_per_group=4) == 10 == len(drawn)
    assert pq.ParquetFile(path).num_row_groups == 3
    assert next(read_dialogues(path)) == some(1)[0]


def test_a_failed_write_leaves_the_old_file_and_no_scrap(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    write_dialogues(path, some(2))

    def failing() -> Iterator[Dialogue]:
        yield from some(3)
        raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        write_dialogues(path, failing(), rows_per_group=1)
    assert list(read_dialogues(path)) == some(2)
    assert [file.name for file in tmp_path.iterdir()] == ["d.parquet"]


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingFiles, match=r"none\.parquet"):
        next(read_dialogues(tmp_path / "none.parquet"))


def test_another_schema_or_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"x": [1, 2]}), path)
    with pytest.raises(DataError, match=r"other\.parquet.*row 0.*None"):
        next(read_dialogues(path))
    newer = SCHEMA.with_metadata({"schema": "fluxforge.dialogue", "schema_version": "2"})
    pq.write_table(pa.Table.from_pylist([], schema=newer), path)
    with pytest.raises(DataError, match="version '2'"):
        next(read_dialogues(path))
    fewer = pa.schema([SCHEMA.field("id")], metadata=SCHEMA.metadata)
    pq.write_table(pa.Table.from_pylist([], schema=fewer), path)
    with pytest.raises(DataError, match="columns"):
        next(read_dialogues(path))


def test_no_parquet_at_all_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.parquet"
    path.write_text("id,task_id\n1,2\n")
    with pytest.raises(DataError, match=r"text\.parquet"):
        next(read_dialogues(path))
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"text\.parquet"):
        next(read_dialogues(path))


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_refused(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "cut.parquet"
    write_dialogues(path, some(20), rows_per_group=5)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(DataError, match=r"cut\.parquet.*row"):
        list(read_dialogues(path))


def test_flipped_bytes_never_pass_unseen(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    written = some(20)
    write_dialogues(path, written, rows_per_group=5)
    data = path.read_bytes()
    refused = 0
    for at in range(4, len(data) - 8, len(data) // 60):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            assert (
                list(read_dialogues(path)) == written
            )  # a byte that means nothing (statistics, names of writers)
        except DataError as error:
            assert "bad.parquet" in str(error)
            refused += 1
    assert refused > 30


def test_a_row_that_contradicts_itself_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.parquet"
    good = some(3)
    turn = dataclasses.replace(good[2].turns[0], state=IntentState((Goal("z", "not wanted"),)))
    odd = dataclasses.replace(good[2], turns=(turn, *good[2].turns[1:]))
    write_dialogues(path, [*good[:2], odd])
    rows = read_dialogues(path)
    assert [next(rows), next(rows)] == good[:2]
    with pytest.raises(DataError, match=r"odd\.parquet: row 2 .*turn 0"):
        next(rows)


@pytest.mark.parametrize("change", [{"turns": ()}, {"condition": "chaos"}])
def test_rows_of_no_known_kind_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "odd.parquet"
    write_dialogues(path, [dataclasses.replace(some(1)[0], **change)])  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"odd\.parquet: row 0"):
        list(read_dialogues(path))


def test_notes_come_back_and_change_nothing_else(tmp_path: Path) -> None:
    plain, noted = tmp_path / "plain.parquet", tmp_path / "noted.parquet"
    seen: list[int] = []

    def rows() -> Iterator[Dialogue]:
        for dialogue in some(5):
            seen.append(1)
            yield dialogue

    write_dialogues(plain, some(5))
    write_dialogues(noted, rows(), notes=lambda: {"wording": f"after {len(seen)}"})
    assert read_notes(plain) == {} and read_notes(noted) == {"wording": "after 5"}
    assert list(read_dialogues(noted)) == list(read_dialogues(plain)) == some(5)
    with pytest.raises(ConfigError, match="schema_version"):
        write_dialogues(noted, some(1), notes=lambda: {"schema_version": "9"})
    assert read_notes(noted) == {"wording": "after 5"}
    with pytest.raises(MissingFiles):
        read_notes(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("x")
    with pytest.raises(DataError, match="text"):
        read_notes(tmp_path / "text.parquet")
