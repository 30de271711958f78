"""Links lead to what exists, named files exist, and README's numbers are those of the study's page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = "data_pipeline|objectives|pretrain|finetune|serve|launch|tests|docs|benchmarks|ds_configs"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]
NUMBER = r"[+-]?\d*\.\d+"  # with its sign, as the page has it: .652, +.004, 0.624


def read(page):
    """Returns a page without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def name_anchors(page):
    """Returns the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", read(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = read(page)
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[\w+\]: (\S+)$", text, re.MULTILINE):
        if not re.match(r"https?:", link):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in name_anchors(target), link


def test_each_page_of_docs_is_in_the_index():
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+\.md)\)", index)) == {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_names_exists(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", text))
    assert len(named) > 10
    assert not {name for name in named if not (ROOT / name).exists()}
    folders = FOLDERS.split("|")
    beside = set(re.findall(r"`(\w+(?:/|\.py))`", text)) - {f"{folder}/" for folder in folders}  # in a named folder
    assert not {name for name in beside if not any(any(ROOT.glob(f"{folder}/**/{name}")) for folder in folders)}


def test_every_test_that_the_makefile_names_exists():
    named = set(re.findall(r"\btests/[\w./]+", (ROOT / "Makefile").read_text(encoding="utf-8")))
    assert len(named) > 5
    assert not {name for name in named if not (ROOT / name).exists()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_table_begins_with_its_header(page):
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE):
        header, rule, _ = table.split("\n", 2)
        assert re.fullmatch(r"[|: -]+", rule), header
        assert table.count("\n") > 2, header


def test_each_figure_of_the_first_screen_is_in_the_studys_page():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (claim,) = re.findall(r"^- \*\*It can save labels.*?(?=^$)", readme, re.DOTALL | re.MULTILINE)
    page = (ROOT / "benchmarks/DOSE.md").read_text(encoding="utf-8")
    numbers = re.findall(NUMBER, claim)
    assert len(numbers) == 3
    assert not [number for number in numbers if not re.search(rf"(?<![\d+-]){re.escape(number)}(?!\d)", page)]
