"""Every kind of data set, as distributed or as a user would write it, and everything that may be wrong with it."""

import gzip
import json
import lzma

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.dataset import MissingSplit
from finetune.data.filters import filter_questions
from finetune.data.registry import PAPER_COUNTS, expect_data, load_split
from finetune.evaluation.metrics import compute_means, compute_question_metrics
from tests.finetune.data.rows import rows_of

HEADER = "QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\tLabel"


def wikiqa(folder, *rows, split="train"):
    text = "".join(f"{line}\r\n" for line in (HEADER, *rows))
    (folder / f"WikiQA-{split}.tsv").write_bytes(text.encode("utf-8", "surrogateescape"))
    return f"wikiqa={folder}"


def asnq(folder, *rows, split="train"):
    (folder / f"{split}.tsv").write_text("".join(f"{row}\n" for row in rows))
    return f"asnq={folder}"


def test_wikiqa_has_quotation_marks_and_no_quoting(tmp_path):
    spec = wikiqa(
        tmp_path,
        'Q1\tso called "a"?\tD1\tT\tD1-0\t"An unclosed quote\t0',
        'Q1\tso called "a"?\tD1\tT\tD1-1\tsays "b"\t1',
        "Q2\twho  is\u2028it\tD2\tT\tD2-0\t\t0",
    )
    data = load_split(spec, "train")
    assert rows_of(data) == [
        *[("Q1", 'so called "a"?', "D1-0", '"An unclosed quote', 0), ("Q1", 'so called "a"?', "D1-1", 'says "b"', 1)],
        ("Q2", "who is it", "D2-0", "", 0),
    ]
    assert (data.name, data.split, data.starts.tolist()) == ("wikiqa", "train", [0, 2, 3])


def test_asnq_leaves_out_labels_that_are_not_asked_for(tmp_path):
    spec = asnq(tmp_path, "a\tx\t1", "a\ty\t4", "b\tz\t1", "b\tz\t1", "c\tu\t2", "c\tv\t3")
    data = load_split(spec, "train", negative_labels=(2,))
    assert rows_of(data) == [("q1", "a", "q1-1", "y", 1), ("q3", "c", "q3-1", "u", 0)]


def test_ids_that_are_made_do_not_give_labels_away(tmp_path):
    """In a file that lists right answers first, ties between all candidates rank them as chance does."""
    rows = [f"question {q}\tcandidate {q * 10 + k}\t{4 if k == 0 else 1}" for q in range(200) for k in range(5)]
    data = load_split(asnq(tmp_path, *rows), "train")
    assert len(set(data.answer_ids.to_pylist())) == 1000
    tied = compute_means(compute_question_metrics(data, np.zeros(1000)))["map"]
    assert tied == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 5, abs=0.07)
    backwards = load_split(asnq(tmp_path, *rows[::-1]), "train")
    numbers = [{(row[3], row[2].rpartition("-")[2]) for row in rows_of(d)} for d in (data, backwards)]
    assert numbers[0] == numbers[1]


def test_insuranceqa_takes_answers_and_negatives(tmp_path):
    with lzma.open(tmp_path / "answers.jsonl.xz", "wt") as file:
        file.writelines(json.dumps({"aid": str(k), "text": f"text\n{k}"}) + "\n" for k in range(5))
    questions = [
        {"qid": "7", "question": "how?", "domain": "d", "answers": ["3"], "negatives": ["0", "4"]},
        {"qid": "8", "question": "why?", "domain": "d", "answers": [], "negatives": []},
    ]
    (tmp_path / "valid.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
    spec = f"insuranceqa={tmp_path}"
    data = load_split(spec, "dev")
    assert rows_of(data) == [("7", "how?", name, f"text {name}", int(name == "3")) for name in "304"]
    for odd in ({"answers": "34"}, {"answers": None}, {"negatives": ["9"]}, {"negatives": [{"aid": "3"}]}):
        (tmp_path / "valid.jsonl").write_text(json.dumps(questions[0] | odd) + "\n")
        with pytest.raises(KinspanError, match=r"valid\.jsonl line 1"):
            load_split(spec, "dev")


GOOD = "Q1\tq\tD1\tT\tD1-0\ta\t1"


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        *[([GOOD, "Q1\tq\tD1\tT\tD1-1\ta"], " line 3"), ([GOOD, "Q1\tq\tD1\tT\tD1-1\ta\t2"], " line 3")],
        *[([GOOD, "Q2\t \tD1\tT\tD1-1\ta\t1"], " line 3"), ([GOOD, " \tq\tD1\tT\tD1-1\ta\t1"], " line 3")],
        *[([GOOD, "Q1\tq\tD1\tT\t\ta\t1"], " line 3"), ([GOOD, "Q1\tr\tD1\tT\tD1-1\ta\t1"], " line 3")],
        *[([GOOD, "Q2\tr\tD1\tT\tD1-0\ta\t1", GOOD], " line 4"), ([GOOD, "Q1\tq\tD1\tT\tD1-1\t\udcff\t1"], " line 3")],
        ([], ""),
    ],
)
def test_what_is_wrong_names_the_line(tmp_path, rows, named):
    spec = wikiqa(tmp_path, *rows)
    with pytest.raises(KinspanError, match=f"{tmp_path / 'WikiQA-train.tsv'}{named}: "):
        load_split(spec, "train")


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_files_may_be_compressed_and_broken(tmp_path, suffix, compress):
    whole = compress("".join(f"question {k % 7}\tanswer {k}\t1\n" for k in range(2000)).encode())
    path = tmp_path / f"train.tsv{suffix}"
    path.write_bytes(whole)
    assert load_split(f"asnq={tmp_path}", "train").num_pairs == 2000
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(KinspanError, match=r"train.tsv.* line \d+"):
        load_split(f"asnq={tmp_path}", "train")


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        *[("squad={0}", "squad"), ("wikiqa=", "wikiqa"), ("{0}", "files="), ("{0}/WikiQA-train.tsv", "files=")],
        *[("wikiqa={0}/absent", "absent"), ("files={0}/absent", "absent"), ("files={0}/dump", "kinspan data las")],
        ("files={0}/dump/Posts.xml.xz", "kinspan data las"),
    ],
)
def test_what_is_no_data_set_is_refused_before_it_is_read(tmp_path, spec, named):
    wikiqa(tmp_path, GOOD)
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump/Posts.xml.xz").write_text("")
    for refuse in (expect_data, lambda given: load_split(given, "train")):
        with pytest.raises(KinspanError, match=named):
            refuse(spec.format(tmp_path))


def test_a_missing_split_is_named(tmp_path):
    spec = wikiqa(tmp_path, GOOD)
    with pytest.raises(MissingSplit, match=r"WikiQA-test\.tsv"):
        load_split(spec, "test")
    with pytest.raises(KinspanError, match="--columns"):
        load_split(spec, "train", {"question": "query"})


@pytest.mark.parametrize("name", ["wikiqa", "trecqa"])
def test_counts_are_the_papers(shared, name):
    """Of the two papers that differ, at least one; trecqa's clean counts come out of the raw files."""
    spec = f"{name}={shared / 'data/as2' / name}"
    data = {split: load_split(spec, split) for split in ("train", "dev", "test")}
    for key, counts in PAPER_COUNTS[name].items():
        split, _, mode = key.partition("/")
        kept = filter_questions(data[split], mode)
        assert [kept.num_questions, kept.num_pairs] in counts.values()
