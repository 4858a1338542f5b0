"""README and docs say what is there: links, keys, make targets, metrics, bench modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recipes.bench import modules
from recipes.config import known_keys, load_config
from recipes.eval_schema import SWITCHES, EvalConfig
from rollout.harness import registry as harnesses
from rollout.score import METRICS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
PARTS = {key for key in known_keys() if any(other.startswith(f"{key}.") for other in known_keys())}
TOP = {key.split(".")[0] for key in PARTS}
SOURCES = "\n".join(
    file.read_text(encoding="utf-8")
    for folder in ("rollout", "trainer", "recipes")
    for file in sorted((ROOT / folder).rglob("*.py"))
)


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def code_spans(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def section(text: str, title: str) -> str:
    """What stands below a heading, up to the next one of its level."""
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_column(table: str) -> list[str]:
    """The code spans in the first cells of a table."""
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    return [span for cell in cells for span in code_spans(cell)]


@pytest.mark.parametrize("page", TEXTS)
def test_every_relative_link_and_anchor_resolves(page: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", TEXTS[page])
    for link in links:
        if "://" in link:
            continue
        path, _, name = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert target.exists(), f"{page} links to {link}, which is not there"
        assert target.is_relative_to(ROOT), f"{page} links out of the repository: {link}"
        if name:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert name in {anchor(heading) for heading in headings}, f"{page}: no heading for {link}"


def test_readme_links_every_page() -> None:
    missing = [name for name in TEXTS if name != "README.md" and f"]({name})" not in TEXTS["README.md"]]
    assert not missing


@pytest.mark.parametrize("page", TEXTS)
def test_every_recipe_key_that_is_named_exists(page: str) -> None:
    known = {*known_keys(), *known_keys(EvalConfig)}
    commands = re.findall(r"--([a-z_]+\.[a-z_.]+)", TEXTS[page])
    spans = [span for span in code_spans(TEXTS[page]) if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", span)]
    keys = [
        span
        for span in spans
        if span.split(".")[0] in TOP and not span.endswith((".yaml", ".py", ".md", ".json"))
    ]
    unknown = [k for k in (*commands, *keys) if k not in known and not k.startswith("trackers.")]
    assert not unknown, f"{page} names keys that do not exist: {unknown}"


def test_parameter_table_lists_every_key() -> None:
    listed = first_column(section(TEXTS["docs/opd.md"], "Parameters"))
    leaves = set(known_keys()) - PARTS | {"student.lora"}
    assert sorted(listed) == sorted(leaves)


def test_eval_page_lists_every_key_and_harness_page_every_harness() -> None:
    listed = first_column(section(TEXTS["docs/eval.md"], "Parameters"))
    keys = known_keys(EvalConfig)
    parts = {key for key in keys if any(other.startswith(f"{key}.") for other in keys)}
    engine = {key for key in keys if key.startswith("engine.")}
    assert sorted(listed) == sorted({*keys, "engine"} - parts - engine | {"engine"})
    assert set(first_column(section(TEXTS["docs/harness.md"], "Harnesses"))) == set(harnesses())
    assert all(f"`{switch}`" in TEXTS["docs/harness.md"] for switch in SWITCHES)


def test_parameter_table_gives_the_schema_s_defaults() -> None:
    from recipes.schema import OpdConfig

    plain = OpdConfig().model_dump(mode="json")
    rows = [line.split("|") for line in section(TEXTS["docs/opd.md"], "Parameters").splitlines()]
    checked = 0
    for row in rows:
        names = code_spans(row[1]) if len(row) > 3 else []
        value = plain
        for part in names[0].split(".") if names else []:
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        assert float(row[2]) == float(value), f"{names[0]}: the page says {row[2]}, the schema {value}"
        checked += 1
    assert checked > 20


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(
        re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    for page, text in TEXTS.items():
        spans = "\n".join([*code_spans(text), *re.findall(r"```\n(.*?)```", text, flags=re.DOTALL)])
        named = set(re.findall(r"^make ([a-z]+)", spans, flags=re.MULTILINE))
        assert named <= targets, f"{page} names make targets that do not exist: {named - targets}"
    assert "opd" in targets


def test_readme_lists_every_documented_target() -> None:
    listed = re.findall(
        r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    missing = [name for name in listed if f"`make {name}`" not in TEXTS["README.md"]]
    assert not missing


def test_every_metric_that_is_named_is_made_somewhere() -> None:
    metrics = first_column(section(TEXTS["docs/opd.md"], "Metrics"))
    assert len(metrics) > 30
    for metric in metrics:
        scored = metric.removeprefix("sampled_")
        if scored != metric:
            assert scored in (*METRICS, "n", "turns", "errors"), metric
        else:
            assert re.search(rf'["\']{metric}["\']', SOURCES), f"no code makes the metric {metric!r}"


def test_every_score_has_its_line() -> None:
    named = {*first_column(section(TEXTS["docs/tracker.md"], "Scores"))}
    assert set(METRICS) <= named


def test_bench_modules_that_are_named_exist() -> None:
    named = first_column(TEXTS["docs/bench.md"])
    assert named and set(named) <= set(modules())


def test_wrong_and_right_settings_are_as_the_page_says() -> None:
    from envs.errors import ConfigError

    block = section(TEXTS["docs/opd.md"], "Wrong and right")
    lines = [
        re.split(r"\s{3,}", line.strip())[0].split()
        for line in block.splitlines()
        if line.startswith(("WRONG", "RIGHT"))
    ]
    wrong = [words[1:] for words in lines if words[0] == "WRONG"]
    right = [
        ["tiny" if word == "FOLDER" else word for word in words[1:]] for words in lines if words[0] == "RIGHT"
    ]
    assert len(wrong) == len(right) == 8
    for words in right:
        load_config("opd", words)
    for words in wrong[:-2]:
        with pytest.raises(ConfigError):
            load_config("opd", words)
    for words in wrong[-2:]:
        load_config("opd", words)
