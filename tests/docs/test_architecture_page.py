"""docs/architecture.md and CONTRIBUTING.md name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("data_pipeline", "objectives", "pretrain", "finetune", "serve", "launch")
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    folders = "|".join((*PACKAGES, "tests", "docs", "benchmarks", "ds_configs"))
    named = set(re.findall(rf"`((?:{folders})/[\w./-]*)`", text))
    assert len(named) > 10
    assert not {name for name in named if not (ROOT / name).exists()}
