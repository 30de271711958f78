"""docs/architecture.md names what there is: every module, and no other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("data_pipeline", "objectives", "pretrain", "finetune", "serve", "launch")
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")


def named_in_tree():
    """The paths of the page's file tree, folders with a slash at the end."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    (tree,) = re.search(r"## The file tree\n\n```\n(.*?)```", text, re.DOTALL).groups()
    paths, above = set(), []
    for line in filter(None, tree.splitlines()):
        name, _, meaning = line.strip().partition(" ")
        assert meaning.strip(), f"{name} has no line"
        depth = (len(line) - len(line.lstrip())) // 2
        above[depth:] = [name]
        paths.add("".join(above))
    return paths


def test_the_tree_names_every_module_and_folder():
    modules = {p.relative_to(ROOT) for package in PACKAGES for p in (ROOT / package).rglob("*.py")}
    there = {str(p) for p in modules if p.name != "__init__.py"} | {f"{p.parent}/" for p in modules}
    named = named_in_tree()
    assert not there - named, "docs/architecture.md does not name these"
    assert not named - there, "docs/architecture.md names these, which do not exist"


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    folders = "|".join((*PACKAGES, "tests", "docs", "benchmarks", "ds_configs"))
    named = set(re.findall(rf"`((?:{folders})/[\w./-]*)`", text))
    assert len(named) > 10
    assert not {name for name in named if not (ROOT / name).exists()}
