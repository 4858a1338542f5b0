"""The page of a comparison in a real browser: Chromium, opened from disk, driven by Playwright where both are there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recipes.cases import CaseTurn
from recipes.compare import write_outputs

sys.path.insert(0, str(Path(__file__).parent))
from madecases import made_case, made_cases

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script></script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the Python package playwright is not installed"
    )
    if CHROMIUM is None:
        pytest.skip("there is no chromium on the PATH")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, "--disable-sync"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    turns = tuple(
        CaseTurn(
            utterance=EVIL,
            edits=(EVIL,),
            oracle=(EVIL, f"goal {turn}"),
            tracker=(EVIL,),
            derived=(EVIL,),
            slip=turn == 1,
            shown=EVIL,
            reply=EVIL,
        )
        for turn in range(2)
    )
    hostile = made_case(
        harness=f"zz {EVIL}",
        task_id="evil & <co>#=%",
        answer=EVIL,
        detail={EVIL: EVIL},
        history=turns,
        turns=2,
    )
    write_outputs(folder, [*made_cases(9, seed=3), hostile], resamples=100)
    return folder / "report.html"


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    faults: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on(
        "request", lambda request: faults.append(request.url) if not request.url.startswith("file:") else None
    )
    page.goto(report.as_uri())
    page.wait_for_selector("#items li")
    yield page
    assert faults == [], "errors, blocked scripts or requests to a network"
    context.close()


def count(page: Any) -> int:
    return int(page.inner_text("#count").split()[0])


def test_filters_narrow_the_list_and_a_case_opens(page: Any) -> None:
    everything = count(page)
    assert everything == 9 * 3 * 3 * 9 + 1
    page.select_option("#f-row", "stateforge (trained)")
    page.select_option("#f-condition", "drift")
    assert count(page) == 27
    page.select_option("#f-flag", "tracker slip")
    slipped = count(page)
    assert 0 < slipped < 27
    page.click("#items li a")
    page.wait_for_selector(".turn.slip")
    assert "oracle state" in page.inner_text(".turn.slip") and "tracker state" in page.inner_text(
        ".turn.slip"
    )
    assert page.inner_text("#answer").startswith("book(")
    assert "expected" in page.inner_text(".verdict") and "[object" not in page.inner_text("#case-body")
    assert page.url.split("#")[1].startswith("case=")
    page.keyboard.press("j")
    page.wait_for_function("document.querySelector('#place').textContent.startsWith('2 of')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#overview:not([hidden])")
    assert count(page) == slipped
    page.click("#reset")
    assert count(page) == everything


def test_a_link_opens_its_case_and_the_other_rows_are_one_click_away(page: Any, report: Path) -> None:
    page.goto(report.as_uri() + "#case=sql%2F001%7Cb3%7Cs0&row=oracle&condition=turn_matched")
    page.wait_for_selector(".turn")
    assert page.inner_text("#case-title") == "sql/001|b3|s0"
    page.click("#case-body > details > summary")
    page.click(".rows-table tbody tr:first-child td:nth-child(2) a")
    page.wait_for_function("document.querySelector('#case-body .tag').textContent === 'bare'")
    page.goto(report.as_uri() + "#case=nothing")
    page.wait_for_function("document.querySelector('#case-body').textContent.includes('no such case')")


def test_against_the_reference_counts_what_only_one_side_got_right(page: Any) -> None:
    page.select_option("#f-row", "oracle")
    page.select_option("#f-condition", "drift")
    counts = {}
    for kind in ("gained", "lost", "same", "unpaired"):
        page.select_option("#f-against", kind)
        counts[kind] = count(page)
    assert sum(counts.values()) == 27 and counts["gained"] > counts["lost"]


def test_text_of_a_run_stays_text(page: Any) -> None:
    page.fill("#f-search", "evil")
    assert count(page) == 1
    page.click("#items li a")
    page.wait_for_selector(".turn.slip")
    assert page.inner_text("#answer") == EVIL
    assert page.inner_text(".said p") == EVIL
    assert page.locator("img").count() == 0
    assert page.title().startswith("evil & <co>#=%")


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen(browser: Any, report: Path, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.goto(report.as_uri())
    page.wait_for_selector("#items li")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.fill("#f-search", "evil")
    page.click("#items li a")
    page.wait_for_selector(".turn.slip")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert (brightness(ink) > brightness(paper)) == (scheme == "dark")
    context.close()


def brightness(colour: str) -> float:
    return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
