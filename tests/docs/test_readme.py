"""What README says of the studies, held against their pages."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A number with its sign, as the page has it: .652, +.004, 0.624
NUMBER = r"[+-]?\d*\.\d+"


def read_claim():
    """The lines of README's paragraphs between "Does it help?" and the next heading."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"^\*\*Does it help\?\*\*.*?(?=^## )", readme, re.DOTALL | re.MULTILINE)
    return [line for line in found.splitlines() if line]


def read_pages():
    return (ROOT / "benchmarks/DOSE.md").read_text(encoding="utf-8")


def test_the_summary_of_the_evidence_is_short():
    assert 1 < len(read_claim()) <= 10


def test_each_number_of_the_summary_is_in_a_page():
    claim = " ".join(read_claim())
    page = read_pages()
    numbers = re.findall(NUMBER, claim)
    assert numbers
    missing = [number for number in numbers if not re.search(rf"(?<![\d+-]){re.escape(number)}(?!\d)", page)]
    assert not missing


def test_each_interval_of_the_summary_is_that_of_its_difference():
    """A number alone may stand in the page for something else."""
    claim = " ".join(read_claim())
    page = read_pages()
    found = re.findall(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]", claim)
    assert len(found) == claim.count("[+") + claim.count("[-")
    assert not [told for told in found if "| {} | {} to {} |".format(*told) not in page]
