"""The HTML report: what it shows, of whole, crashed and hostile runs."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.errors import MissingFiles
from recipes.report import write_report
from recipes.report_charts import chart, dots, nice_ticks, number

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "</title></pre><script>alert('x')</script><img src=http://evil.example/a onerror=1>\"'&{{7*7}}"


class Reader(HTMLParser):
    """Collects tags, attributes and text, and checks that tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert not reader.open
    assert "script" not in reader.tags and "img" not in reader.tags and "link" not in reader.tags
    assert not [name for name, _ in reader.attributes if name.startswith("on") or name in ("src", "href")]
    return reader


def block(accuracy: float, leaks: float, **sets: Any) -> dict[str, Any]:
    values = {"edit_accuracy": accuracy, "stale_leaks": leaks, "n": 48, "errors": 0}
    values["ci95"] = {"edit_accuracy": [accuracy - 0.05, accuracy + 0.05], "stale_leaks": [0.0, 0.1]}
    return {**values, **sets}


def result(**changes: Any) -> dict[str, Any]:
    paired = {"unseen/edit_accuracy": {"diff": 0.8, "ci95": [0.7, 0.9], "n": 48}}
    return {
        "name": "trial",
        "job": "opd",
        "status": "done",
        "tracker": "tiny",
        "seed": 3,
        "wall_s": 723.4,
        "peak_rss_mb": 5120.0,
        "steps": 40,
        "before": block(0.1, 0.05, unseen=block(0.1, 0.05), gsm8k=block(0.02, 0.0)),
        "after_warmup": block(0.5, 0.1, unseen=block(0.5, 0.1), gsm8k=block(0.2, 0.0)),
        "after": block(0.9, 0.02, unseen=block(0.9, 0.02), gsm8k=block(0.4, 0.0) | {"errors": 2}),
        "paired": paired,
        "paired_opd": {"unseen/edit_accuracy": {"diff": 0.4, "ci95": [0.3, 0.5], "n": 48}},
        "versions": {"python": "3.11.9", "vllm": None},
        **changes,
    }


def write_run(folder: Path, steps: int = 12, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result(**changes)))
    (folder / "config.yaml").write_text("name: trial\nopd:\n  steps: 30\n")
    records = [
        {
            "step": step,
            "phase": "warmup" if step <= 4 else "opd",
            "loss": 2.0 / step,
            "tokens": 5000 + step,
            "lr": None if step == 2 else 1e-4,
            "flag": True,
            "time": {"rollout_s": 1.5, "train_s": 2.5},
        }
        for step in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def write_dialogues(folder: Path, words: str = "Change the budget to 40.") -> None:
    rows = [
        {
            "step": 40,
            "phase": phase,
            "index": index,
            "sample": 0,
            "dialogue_id": f"calls/heldout/{index}|drift|b1|s0",
            "turn": turn,
            "utterance": f"{words} ({phase}, {index}, {turn})",
            "oracle_state": json.dumps(
                {"goals": [{"id": "g", "text": words, "slot": "budget", "value": "40"}]}
            ),
            "tracker_text": "SET budget: 40",
            "tracker_state": json.dumps({"budget": "forty"}),
            "edit_correct": not (index == 7 and turn == 1),
            "exact": index != 7,
        }
        for phase in ("opd", "eval-after-unseen", "eval-after-gsm8k")
        for index in range(8)
        for turn in range(2)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "dialogues.parquet")


def test_a_whole_run_is_shown(tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path / "run"))
    assert path == tmp_path / "run" / "report.html"
    reader = read(path)
    words = reader.words
    assert "Status: done" in words
    for shown in (
        "unseen (48 dialogues)",
        "gsm8k (48 dialogues; 2 could not be finished and count as wrong)",
    ):
        assert shown in words
    assert (
        "0.900 [0.850, 0.950]" in words
        and "0.500 [0.450, 0.550]" in words
        and "0.100 [0.050, 0.150]" in words
    )
    assert "+0.800 [+0.700, +0.900]" in words and "+0.400 [+0.300, +0.500]" in words
    assert "stale leaks (lower is better)" in words
    assert "steps: 30" in words and "3.11.9" in words and "12.1 min" in words and "5.0 GiB" in words
    assert [f.name for f in (tmp_path / "run").iterdir() if f.name.startswith(".")] == []


def test_every_numeric_metric_has_a_curve_with_its_points(tmp_path: Path) -> None:
    text = write_report(write_run(tmp_path)).read_text()
    names = [
        name
        for name in ("loss", "tokens", "lr", "time/rollout_s", "time/train_s")
        if f"<span>{name}</span>" in text
    ]
    assert len(names) == 5
    assert "<span>flag</span>" not in text and "<span>step</span>" not in text
    assert text.count('class="curve"') == 5
    assert text.count('class="point"') == 4 * 12 + 11  # one learning rate is unknown
    assert "step 4, warmup: 0.5" in text
    assert text.count(">opd</text>") == 5  # where the phase begins


def test_loss_and_sampled_accuracy_come_first(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    record = {"step": 1, "phase": "opd", "tokens": 4, "sampled_edit_accuracy": 0.5, "loss": 1.0}
    (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    text = write_report(run).read_text()
    places = [text.index(f"<span>{name}</span>") for name in ("loss", "sampled_edit_accuracy", "tokens")]
    assert places == sorted(places)


def test_values_as_triples_and_a_flat_result_are_understood(tmp_path: Path) -> None:
    flat = {"edit_accuracy": [0.9, 0.8, 0.95], "final_exact": 0.75}
    words = read(write_report(write_run(tmp_path, before={}, after_warmup=None, after=flat, paired={}))).words
    assert "0.900 [0.800, 0.950]" in words and "0.750" in words
    assert "held-out" in words and "before" not in words.split("Curves")[0].split("Brackets")[0]


def test_a_crashed_run_is_reported_with_what_is_missing(tmp_path: Path) -> None:
    run = write_run(
        tmp_path, status="failed", error="EngineDied: gone", before={}, after={}, after_warmup=None, paired={}
    )
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "loss": 0.')
    words = read(write_report(run)).words
    assert "Status: failed" in words and "EngineDied: gone" in words
    assert "The last line of metrics.jsonl (13) was cut short" in words
    assert "Nothing has been measured yet" in words
    (run / "result.json").unlink()
    words = read(write_report(run)).words
    assert "Status: not ended" in words and "There is no result.json yet" in words
    (run / "result.json").write_text("{")
    (run / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n[3]\n{"step": 2, "loss": NaN}\n')
    words = read(write_report(run)).words
    assert "result.json cannot be read" in words
    assert "cannot be read are left out: 2, 3" in words
    assert "There are no metrics yet" in words


def test_hostile_strings_stay_text(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run", name=HOSTILE, status=HOSTILE, error=HOSTILE, versions={HOSTILE: HOSTILE}
    )
    data = json.loads((run / "result.json").read_text())
    data["after"] = {HOSTILE: {HOSTILE: 0.5, "ci95": {HOSTILE: [0.4, HOSTILE]}}}
    data[HOSTILE] = HOSTILE
    (run / "result.json").write_text(json.dumps(data))
    (run / "config.yaml").write_text(HOSTILE)
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "phase": HOSTILE, HOSTILE: 1.0}) + "\n")
    write_dialogues(run, HOSTILE)
    reader = read(write_report(run))
    assert reader.words.count("<script>alert('x')</script>") >= 10
    assert "{{7*7}}" in reader.words


def test_dialogues_come_from_the_last_evaluation_slips_first(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_dialogues(run)
    reader = read(write_report(run))
    words = reader.words
    titles = [part for part in reader.text if part.startswith("eval-after-unseen, calls/heldout/")]
    assert len(titles) == 6 and "heldout/7" in titles[0]
    assert "not exact" in words and "✗ wrong edit" in words and "SET budget: 40" in words
    assert "budget: forty" in words and "gsm8k, 0" not in words and "(opd, 0" not in words


def test_transcripts_of_another_writer_or_cut_short(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    pq.write_table(pa.table({"utterance": ["hello there"], "turn": [0]}), run / "dialogues.parquet")
    assert "hello there" in read(write_report(run)).words
    (run / "dialogues.parquet").write_bytes(b"PAR1 no")
    assert "dialogues.parquet cannot be read" in read(write_report(run)).words


def test_transcripts_written_by_a_run_are_read(tmp_path: Path) -> None:
    from recipes.transcripts import merge_parts, write_part

    row = {"step": 0, "phase": "eval-after-a", "index": 0, "sample": 0, "dialogue_id": "d", "family": "f"}
    row |= {"condition": "drift", "seed": 0, "turn": 0, "utterance": "Good day", "oracle_state": "{}"}
    run = write_run(tmp_path)
    write_part(run / "parts", 0, "eval-after-a", [row])
    merge_parts(run / "parts", run / "dialogues.parquet")
    assert "Good day" in read(write_report(run)).words


def test_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingFiles, match="is no run folder"):
        write_report(tmp_path)


def test_the_module_can_be_called(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    command = [sys.executable, "-m", "recipes.report"]
    done = subprocess.run([*command, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(run / "report.html")
    failed = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert failed.returncode == 1 and "no run folder" in failed.stderr


def test_a_long_run_is_thinned_by_averaging(tmp_path: Path) -> None:
    drawn = chart("loss", [(step, float(step % 2), "opd") for step in range(10_000)])
    assert drawn.thinned and len(drawn.points) <= 300
    heights = {point.y for point in drawn.points}
    assert max(heights) - min(heights) < 10  # zeros and ones average out near the middle


def test_one_value_and_equal_values_can_be_drawn() -> None:
    for values in ([(1.0, 5.0, "")], [(1.0, 0.0, "a"), (2.0, 0.0, "b")]):
        drawn = chart("x", values)
        assert len(drawn.points) == len(values)
        assert all(0 <= point.y <= 170 and 0 <= point.x <= 340 for point in drawn.points)


def test_dots_lie_on_the_unit_scale() -> None:
    drawn = dots([("before", 0.0, None, None), ("after", 0.5, 0.25, 1.0)])
    assert drawn is not None
    assert drawn.rows == [("before", drawn.zero, drawn.zero, drawn.zero), ("after", 80.0, 43.0, drawn.one)]
    assert dots([("after", 1.5, None, None)]) is None
    assert dots([]) is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.9344, "0.934"),
        (48_213, "48.2k"),
        (2_500_000, "2.5M"),
        (3.1e-5, "3.1e-05"),
        (5012, "5012"),
        (-12.5, "-12.5"),
    ],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown


finite = st.floats(-1e12, 1e12, allow_nan=False)


@given(finite, finite)
def test_ticks_span_the_values_and_are_few(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 7
    assert ticks == sorted(ticks)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert ticks[0] <= low + slack and ticks[-1] >= high - slack


@given(st.lists(st.tuples(finite, finite, st.sampled_from(["warmup", "opd", ""])), min_size=1, max_size=30))
def test_curves_stay_inside_their_frame(values: list[tuple[float, float, str]]) -> None:
    drawn = chart("x", values)
    for mark in [*drawn.points, *drawn.x_ticks, *drawn.y_ticks]:
        assert 0 <= mark.x <= 340 and 0 <= mark.y <= 170
