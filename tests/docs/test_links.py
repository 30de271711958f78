"""The links of README.md, CHANGELOG.md, CONTRIBUTING.md, docs/ and benchmarks/ lead to what exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]


def name_anchors(page):
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def find_broken(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[\w+\]: (\S+)$", text, re.MULTILINE):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in name_anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert not find_broken(page)


def test_each_page_of_docs_is_in_the_index():
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+\.md)\)", index)) == {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
