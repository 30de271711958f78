from dataclasses import replace

import pytest

from finetune.data.asnq import ASNQ, PAPER_GRADE_COUNTS
from finetune.data.filters import FILTERS, describe_left_out, filter_questions
from finetune.data.registry import PUBLIC, describe_counts, load_split


@pytest.fixture
def data(tmp_path):
    rows = ["one two\ta b c\t1", "one two\t\t4", "three\td\t4", "four five six\te f\t2", "four five six\tg\t1"]
    (tmp_path / "train.tsv").write_text("".join(f"{row}\n" for row in rows))
    return load_split(f"asnq={tmp_path}", "train")[0]


def test_counts_stand_beside_the_papers_where_they_differ(data):
    ours, tanda_and_others = describe_counts(replace(data, split="test"), "raw")
    assert ours == "asnq test (raw): 3 questions, 5 pairs"
    assert tanda_and_others == "  Di Liello et al., 2022, table 4 has 1,336 questions, 466,148 pairs"
    assert describe_counts(replace(data, name="files"), "raw") == ["files train (raw): 3 questions, 5 pairs"]


def test_questions_that_a_filter_leaves_out_are_said(data):
    for mode in FILTERS:
        lost = data.num_questions - filter_questions(data, mode).num_questions
        said = describe_left_out(data, mode)
        assert [f"{lost} of 3 questions" in line for line in said] == [True] * bool(lost)


def test_agreement_is_said(shared):
    data, _ = load_split(f"wikiqa={shared / 'data/as2/wikiqa'}", "dev")
    assert describe_counts(filter_questions(data, "clean"), "clean") == [
        "wikiqa dev (clean): 122 questions, 1,126 pairs, as in Di Liello et al., 2022, table 4",
        "  Garg et al., 2020, table 2 has 121 questions, 1,126 pairs",
    ]


def test_the_papers_counts_agree_with_themselves():
    """ASNQ's table of labels adds up, and the development set is the two halves."""
    (train, _), (dev, half), (other,) = (ASNQ.paper_counts[split, "raw"] for split in ("train", "dev", "test"))
    assert train.pairs == sum(PAPER_GRADE_COUNTS["train"].values())
    assert dev.pairs == sum(PAPER_GRADE_COUNTS["dev"].values()) == half.pairs + other.pairs
    assert dev.questions == half.questions + other.questions
    assert {mode for data_set in PUBLIC.values() for _, mode in data_set.paper_counts} == set(FILTERS)
