import pytest

from finetune.data.answers import FILTERS, filtered
from finetune.data.registry import load_split
from finetune.data.statistics import PAPER_COUNTS, count_lines, statistics


@pytest.fixture
def data(tmp_path):
    rows = ["one two\ta b c\t1", "one two\t\t4", "three\td\t4", "four five six\te f\t2", "four five six\tg\t1"]
    (tmp_path / "train.tsv").write_text("".join(f"{row}\n" for row in rows))
    return load_split(f"asnq={tmp_path}", "train")[0]


def test_figures_of_a_small_set(data):
    assert statistics(data) == {
        "questions": 3,
        "pairs": 5,
        "positives": 2,
        "candidates_per_question": pytest.approx(5 / 3),
        "positives_per_question": pytest.approx(2 / 3),
        "question_words": 2,
        "answer_words": pytest.approx(7 / 5),
        "share_all_negative": pytest.approx(1 / 3),
        "share_all_positive": pytest.approx(1 / 3),
    }


def test_counts_stand_beside_the_papers_where_they_differ(data):
    ours, tanda_and_others = count_lines("asnq", "test", "raw", data)
    assert ours == "asnq test (raw): 3 questions, 5 pairs"
    assert tanda_and_others == "  Di Liello et al., 2022, table 4 has 1,336 questions, 466,148 pairs"
    assert count_lines("files", "train", "raw", data) == ["files train (raw): 3 questions, 5 pairs"]


def test_agreement_is_said(shared):
    data, _ = load_split(f"wikiqa={shared / 'data/as2/wikiqa'}", "dev")
    assert count_lines("wikiqa", "dev", "clean", filtered(data, "clean")) == [
        "wikiqa dev (clean): 122 questions, 1,126 pairs, as in Di Liello et al., 2022, table 4",
        "  Garg et al., 2020, table 2 has 121 questions, 1,126 pairs",
    ]


def test_the_papers_counts_agree_with_themselves():
    """ASNQ's table of labels adds up, and the development set is the two halves."""
    from finetune.data.build_asnq import TANDA_TABLE_1

    (train, _), (dev, half), (other,) = (PAPER_COUNTS["asnq", split, "raw"] for split in ("train", "dev", "test"))
    assert train.pairs == sum(TANDA_TABLE_1["train"].values())
    assert dev.pairs == sum(TANDA_TABLE_1["dev"].values()) == half.pairs + other.pairs
    assert dev.questions == half.questions + other.questions
    assert {mode for _, _, mode in PAPER_COUNTS} == set(FILTERS)
