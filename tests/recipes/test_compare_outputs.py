"""What a comparison leaves behind: terminal, CSV, LaTeX, the page; of ordinary, hostile and broken input."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from envs.errors import DataError
from recipes import cli
from recipes.cases import Case, CaseTurn, case_line
from recipes.compare import Summary, show, summarize, write_outputs
from recipes.compare.files import latex, tex
from recipes.report import write_report

sys.path.insert(0, str(Path(__file__).parent))
from madecases import made_case, made_cases

CASES = made_cases(6, seed=2)
HOSTILE = (
    "</script></title><script>alert('x')</script><img src=http://evil.example/a onerror=alert(1)>"
    "]]>--><!--\"'&{{7*7}}"
)
FILES = ("table.csv", "differences.csv", "table.tex", "report.html")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "trial"
    write_outputs(path, CASES, resamples=200, facts={"model": "tiny"}, config="seed: 0\n")
    return path


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarize(CASES, resamples=200)


class Page(HTMLParser):
    """Collects elements, attributes and visible text, and checks that elements are balanced."""

    VOID = ("meta", "link", "br", "hr", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        self._script = dict(attrs).get("id") or "" if tag == "script" else ""
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def chunk(page: Page, place: int) -> dict[str, Any]:
    packed = json.loads(gzip.decompress(base64.b64decode(page.scripts[f"pair-{place}"])))
    assert isinstance(packed, dict)
    return packed


def numbers(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_it_leaves_every_file_and_returns_the_numbers(folder: Path, summary: Summary) -> None:
    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert json.loads(json.dumps(summary.block(), allow_nan=False))["reference"] == "bare"


def test_the_csv_tables_hold_the_numbers_of_the_summary(folder: Path, summary: Summary) -> None:
    lines = numbers(folder / "table.csv")
    assert len(lines) == len(summary.stats)
    line = next(
        one
        for one in lines
        if (one["row"], one["condition"], one["stratum"], one["family"]) == ("oracle", "drift", "hard", "all")
    )
    one = summary.row("oracle", stratum="hard")
    assert one is not None and one.slips is not None
    assert float(line["car"]) == one.scores.car.value and float(line["car_low"]) == one.scores.car.low
    assert int(line["delete_obeyed_n"]) == one.slips.delete_obeyed.n
    kinds = [line["kind"] for line in numbers(folder / "differences.csv")]
    assert set(kinds) == {
        *("reference", "idg", "not_state", "state_error", "recovered", "length", "drifting"),
    }
    assert kinds.count("reference") == len(summary.differences)


def test_the_latex_table_is_well_formed(folder: Path, summary: Summary) -> None:
    text = (folder / "table.tex").read_text(encoding="utf-8")
    check_latex(text)
    columns = re.search(r"\\begin\{tabular\}\{(l r*|lr*)\}", text)
    assert columns is not None
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    assert len([line for line in body if line]) == len(summary.rows)


def check_latex(text: str) -> None:
    """Raise unless braces and maths are balanced and each line of the table has as many cells as columns."""
    plain = re.sub(
        r"\\[\\{}$&#_%]", "", "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    )
    depth = 0
    for char in plain:
        depth += {"{": 1, "}": -1}.get(char, 0)
        assert depth >= 0
    assert depth == 0
    for line in text.splitlines():
        if line.endswith(r"\\"):
            escaped = re.sub(r"\\[$&%_#{}]", "", line[:-2])
            columns = len(re.search(r"\\begin\{tabular\}\{(\w+)\}", text).group(1))  # type: ignore[union-attr]
            assert escaped.count("&") == columns - 1, line
            assert escaped.count("$") % 2 == 0, line
            assert "%" not in escaped and "#" not in escaped
            for math in re.findall(r"\$(.*?)\$", escaped):
                assert re.fullmatch(r"[-+<]?[\d.]+|\\Delta|p_\\mathrm\{Holm\}|n", math), math


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & 50% of $x #1 {y} ~ ^", r"a\_b \& 50\% of \$x \#1 \{y\} \textasciitilde{} \textasciicircum{}"),
        ("\\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("two\nlines\x00", "two lines "),
        ("5 < 6 → é", r"5 \textless{} 6 ? é"),
    ],
)
def test_latex_reads_no_text_as_a_command(text: str, escaped: str) -> None:
    assert tex(text) == escaped


def test_the_terminal_shows_the_same_numbers(summary: Summary) -> None:
    console = Console(width=170, record=True, file=io.StringIO())
    show(summary, console)
    text = console.export_text()
    one, against = summary.row("oracle"), summary.against("oracle")
    assert one is not None and against is not None
    assert f"{100 * float(one.scores.car.value or 0):.1f} [" in text
    assert f"{100 * float(against.car.value or 0):+.1f} [" in text
    for words in ("Turn-matched control", "Where CAR is lost", "Ungraded: ", "Power: what", "left out"):
        assert words in text


def test_the_terminal_obeys_no_text() -> None:
    out = io.StringIO()
    failed = made_case(harness="[bold]x[/]", score=None, full_credit=None, error="\x1b[2J gone\a")
    show(summarize([failed], resamples=10), Console(width=170, file=out))
    assert "[bold]x[/]" in out.getvalue()
    assert not {"\x1b", "\a"} & set(out.getvalue())


def test_the_page_needs_nothing_from_outside(folder: Path) -> None:
    page = read(folder / "report.html")
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert not {"link", "img", "iframe", "object", "base", "form"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "style")]
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")
    policy = re.search(r'Policy" content="([^"]+)"', text)
    assert policy is not None
    for kind in ("script", "style"):
        source = (
            page.scripts[""] if kind == "script" else re.search(r"<style>(.*?)</style>", text, re.S).group(1)
        )  # type: ignore[union-attr]
        named = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{named}'" in policy.group(1)
    assert "default-src 'none'" in policy.group(1)


def test_the_page_shows_every_part(folder: Path, summary: Summary) -> None:
    page = read(folder / "report.html")
    for words in (
        "CAR by row",
        "Table and tests",
        "Where credit is lost",
        "Turn-matched control",
        "Cases",
        "tiny",
    ):
        assert words in page.text
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert all(value[1:] in ids for name, value in page.attributes if name == "href" and len(value) > 1)
    index = json.loads(page.scripts["index"])
    assert len(index["cases"]) == len(CASES) and index["rows"] == summary.rows
    assert len(index["pairs"]) == 18 and "pair-17" in page.scripts


def test_the_page_holds_each_case_whole(folder: Path) -> None:
    page = read(folder / "report.html")
    index = json.loads(page.scripts["index"])
    place = index["pairs"].index(["math/002|b3|s0", "medium", "math"])
    packed = chunk(page, place)
    mine = {case.key: case for case in CASES if case.case == "math/002|b3|s0"}
    assert len(packed["cases"]) == len(mine) == 27
    for one in packed["cases"]:
        case = mine[(one["harness"], one["condition"], one["case"])]
        assert (one["answer"], one["score"], one["error"]) == (case.answer, case.score, case.error)
        turns = [packed["texts"][turn["utterance"]] for turn in one["history"]]
        assert turns == [turn.utterance for turn in case.history]
        oracle = [[packed["texts"][goal] for goal in turn["oracle"]] for turn in one["history"]]
        assert oracle == [list(turn.oracle) for turn in case.history]


def hostile_case(**changes: Any) -> Case:
    turn = CaseTurn(utterance=HOSTILE, edits=(HOSTILE,), oracle=(HOSTILE,), tracker=(HOSTILE,), reply=HOSTILE)
    plain: dict[str, Any] = {
        "answer": HOSTILE,
        "detail": {HOSTILE: HOSTILE, "nan": float("nan")},
        "history": (turn,),
        "task_id": f"calls/{HOSTILE}",
        "family": HOSTILE,
    }
    return made_case(**(plain | changes))


def test_text_of_a_run_never_becomes_markup_script_or_style(tmp_path: Path) -> None:
    cases = [hostile_case(), hostile_case(harness=HOSTILE, error=HOSTILE, score=None, full_credit=None)]
    write_outputs(
        tmp_path,
        cases,
        name=HOSTILE,
        facts={HOSTILE: HOSTILE},
        config=HOSTILE,
        warnings=[HOSTILE],
        resamples=10,
    )
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert (
        "<script>alert" not in text and "<img" not in text and "49" not in page.text.split("{{7*7}}")[0][-3:]
    )
    assert page.tags.count("script") == 3  # the index, one chunk, ours
    assert chunk(page, 0)["cases"][0]["answer"] == HOSTILE
    assert HOSTILE in page.text
    check_latex((tmp_path / "table.tex").read_text(encoding="utf-8"))


def run_folder(path: Path, **result: Any) -> Path:
    path.mkdir(parents=True)
    (path / "cases.jsonl").write_text("".join(case_line(case) for case in CASES), encoding="utf-8")
    if result:
        (path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return path


def test_fluxforge_report_writes_a_comparison_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    comparison = {"reference": "recap-state", "seed": 0, "resamples": 50}
    path = run_folder(tmp_path / "runs" / "mine", status="done", temperature=0.7, comparison=comparison)
    assert cli.main(["report", "mine"]) == 0
    assert "report.html" in capsys.readouterr().out
    text = read(path / "report.html").text
    assert "CAR vs recap-state" in text and "temperature" in text and "Status: done" in text
    assert {name for name in FILES if (path / name).is_file()} == set(FILES)


@pytest.mark.parametrize("broken", [None, "{", "[1]"])
def test_a_killed_run_still_has_its_report(tmp_path: Path, broken: str | None) -> None:
    path = (
        run_folder(tmp_path / "mine", comparison={"resamples": 20})
        if broken is None
        else run_folder(tmp_path / "mine")
    )
    (path / "result.json").unlink(missing_ok=True)
    if broken is not None:
        (path / "result.json").write_text(broken)
    with (path / "cases.jsonl").open("a") as file:
        file.write('{"harness": "bare", "cut')
    text = read(write_report(path)).text
    assert "not ended" in text and "result.json" in text


def test_a_folder_without_a_finished_case_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cases.jsonl").write_text("")
    with pytest.raises(DataError, match="no finished case"):
        write_report(tmp_path)
    (tmp_path / "cases.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="line 1"):
        write_report(tmp_path)


@pytest.mark.slow
def test_pdflatex_sets_the_table(tmp_path: Path) -> None:
    if (program := shutil.which("pdflatex")) is None:
        pytest.skip("there is no pdflatex on the PATH")
    table = latex(summarize([*CASES, hostile_case(harness=HOSTILE + r"\input{x} ~^ é→")], resamples=20))
    head = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs}\begin{document}"
    (tmp_path / "main.tex").write_text(f"{head}\n{table}\n\\end{{document}}\n", encoding="utf-8")
    done = subprocess.run(
        [program, "-interaction=nonstopmode", "-halt-on-error", "main.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-2000:]
