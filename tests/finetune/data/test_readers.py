"""Every kind of data set, as distributed or as a user would write it, and everything that may be wrong with it."""

import gzip
import json
import lzma

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.filters import filter_questions
from finetune.data.registry import PUBLIC, SPECS, expect_data, load_split
from finetune.evaluation.metrics import compute_means, compute_question_metrics
from tests.finetune.data.rows import rows_of

HEADER = "QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\tLabel"


def wikiqa(folder, *rows, split="train"):
    text = "".join(f"{line}\r\n" for line in (HEADER, *rows))
    (folder / f"WikiQA-{split}.tsv").write_bytes(text.encode())
    return f"wikiqa={folder}"


def asnq(folder, *rows, split="train"):
    (folder / f"{split}.tsv").write_text("".join(f"{row}\n" for row in rows))
    return f"asnq={folder}"


def test_a_path_or_a_dump_in_place_of_a_data_set_is_named(tmp_path):
    (tmp_path / "train.jsonl").write_text("")
    for given in (tmp_path, tmp_path / "train.jsonl"):
        with pytest.raises(KinspanError, match=f"files={given}"):
            load_split(str(given), "train")
    (tmp_path / "Posts.xml.xz").write_text("")
    expect_data(f"files={tmp_path}")
    (tmp_path / "train.jsonl").unlink()
    for place in (tmp_path, tmp_path / "Posts.xml.xz"):
        for refuse in (expect_data, lambda spec: load_split(spec, "test")):
            with pytest.raises(KinspanError, match=f"kinspan data las --input {place}"):
                refuse(f"files={place}")


@pytest.mark.parametrize("spec", ["wikiqa=absent", "files=absent"])
def test_a_place_that_is_not_there_is_refused_without_reading(spec):
    with pytest.raises(KinspanError, match=spec):
        expect_data(None, spec)


def test_wikiqa_has_quotation_marks_and_no_quoting(tmp_path):
    spec = wikiqa(
        tmp_path,
        'Q1\tso called "a"?\tD1\tT\tD1-0\t"An unclosed quote\t0',
        'Q1\tso called "a"?\tD1\tT\tD1-1\tsays "b"\t1',
        "Q2\twho  is\u2028it\tD2\tT\tD2-0\t\t0",
    )
    data, notes = load_split(spec, "train")
    assert rows_of(data) == [
        ("Q1", 'so called "a"?', "D1-0", '"An unclosed quote', 0),
        ("Q1", 'so called "a"?', "D1-1", 'says "b"', 1),
        ("Q2", "who is it", "D2-0", "", 0),
    ]
    assert (data.name, data.split, data.starts.tolist()) == ("wikiqa", "train", [0, 2, 3])
    assert notes == ["wikiqa train: candidates without text, kept: 1"]


def test_rows_of_a_question_need_not_stand_together(tmp_path):
    rows = ["b\tb0\t1", "a\ta0\t4", "b\tb1\t4", "c\tc0\t3", "a\ta1\t2"]
    data, _ = load_split(asnq(tmp_path, *rows), "train")
    assert rows_of(data) == [
        ("q1", "b", "q1-1", "b0", 0),
        ("q1", "b", "q1-2", "b1", 1),
        ("q2", "a", "q2-1", "a0", 1),
        ("q2", "a", "q2-2", "a1", 0),
        ("q3", "c", "q3-1", "c0", 0),
    ]
    assert data.grades.tolist() == [1, 4, 4, 2, 3]


def test_asnq_leaves_out_labels_that_are_not_asked_for(tmp_path):
    spec = asnq(tmp_path, "a\tx\t1", "a\ty\t4", "b\tz\t1", "b\tz\t1", "c\tu\t2", "c\tv\t3")
    data, notes = load_split(spec, "train", negative_labels=(2,))
    assert rows_of(data) == [("q1", "a", "q1-1", "y", 1), ("q3", "c", "q3-1", "u", 0)]
    assert data.grades.tolist() == [4, 2]
    assert [note.rpartition(": ")[2] for note in notes] == ["3", "1", "1"]
    for wrong in ((), (4,), (0, 1)):
        with pytest.raises(KinspanError, match="negative labels"):
            load_split(spec, "train", negative_labels=wrong)


def test_texts_that_a_question_has_twice_are_counted(tmp_path):
    _, notes = load_split(asnq(tmp_path, "a\tx\t1", "a\tx\t4", "b\tx\t1", "b\tx\t1", "c\ty\t1"), "train")
    assert notes == ["asnq train: answers that stand twice or more under one question, kept: 2"]


@pytest.mark.parametrize(("first", "extreme"), [(9, "highest"), (0, "lowest"), (5, None)])
def test_ids_that_follow_the_labels_are_told_since_they_order_equal_scores(tmp_path, first, extreme):
    rows = [
        {"question": f"question {q}", "answer_id": str(k), "answer": f"candidate {q} {k}", "label": int(k == first)}
        for q in range(30)
        for k in range(10)
    ]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data, notes = load_split(f"files={tmp_path}", "test")
    assert [f"the {extreme} ids" in note and note.endswith(": 30") for note in notes] == [True] * bool(extreme)
    tied = compute_means(compute_question_metrics(data, np.zeros(300)))["map"]
    assert tied == pytest.approx({"highest": 1.0, "lowest": 0.1, None: 0.2}[extreme])
    assert not load_split(f"files={tmp_path}", "train")[1]  # nothing is measured on it


def test_ids_that_are_made_do_not_give_labels_away(tmp_path):
    """In a file that lists right answers first, ties between all candidates rank them as chance does."""
    rows = [f"question {q}\tcandidate {q * 10 + k}\t{4 if k == 0 else 1}" for q in range(200) for k in range(5)]
    data, notes = load_split(asnq(tmp_path, *rows), "train")
    assert not notes
    assert len(set(data.answer_ids.to_pylist())) == 1000
    tied = compute_means(compute_question_metrics(data, np.zeros(1000)))["map"]
    assert tied == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 5, abs=0.07)
    backwards, _ = load_split(asnq(tmp_path, *rows[::-1]), "train")
    assert number_by_text(backwards) == number_by_text(data)


def number_by_text(data):
    """The number at the end of each candidate's id."""
    numbers = [answer_id.rpartition("-")[2] for answer_id in data.answer_ids.to_pylist()]
    return dict(zip(data.answers.to_pylist(), numbers, strict=True))


def test_insuranceqa_takes_answers_and_negatives(tmp_path):
    with lzma.open(tmp_path / "answers.jsonl.xz", "wt") as file:
        file.writelines(json.dumps({"aid": str(k), "text": f"text\n{k}"}) + "\n" for k in range(5))
    questions = [
        {"qid": "7", "question": "how?", "domain": "d", "answers": ["3"], "negatives": ["0", "4"]},
        {"qid": "8", "question": "why?", "domain": "d", "answers": [], "negatives": []},
    ]
    (tmp_path / "valid.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
    spec = f"insuranceqa={tmp_path}"
    data, notes = load_split(spec, "dev")
    assert rows_of(data) == [
        ("7", "how?", "3", "text 3", 1),
        ("7", "how?", "0", "text 0", 0),
        ("7", "how?", "4", "text 4", 0),
    ]
    assert notes == ["insuranceqa dev: questions without a candidate, left out: 1"]

    for odd in ("34", None):  # a text is no list of one-letter ids
        (tmp_path / "valid.jsonl").write_text(json.dumps(questions[0] | {"answers": odd}) + "\n")
        with pytest.raises(KinspanError, match=r"valid\.jsonl line 1"):
            load_split(spec, "dev")

    for odd in ("9", {"aid": "3"}):
        questions[1]["negatives"] = [odd]
        (tmp_path / "valid.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
        with pytest.raises(KinspanError, match=r"valid\.jsonl line 2"):
            load_split(spec, "dev")


def test_white_space_in_ids_is_mended_and_said(tmp_path):
    row = {"question_id": "one two", "question": "q", "answer_id": "a b", "answer": "x", "label": 1}
    (tmp_path / "dev.jsonl").write_text(json.dumps(row) + "\n")
    data, notes = load_split(f"files={tmp_path}", "dev")
    assert rows_of(data) == [("one_two", "q", "a_b", "x", 1)]
    assert notes == [
        'files dev: question ids with white space, which became "_": 1',
        'files dev: answer ids with white space, which became "_": 1',
    ]


GOOD = "Q1\tq\tD1\tT\tD1-0\ta\t1"


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([GOOD, "Q1\tq\tD1\tT\tD1-1\ta"], " line 3"),
        ([GOOD, "Q1\tq\tD1\tT\tD1-1\ta\t2"], " line 3"),
        ([GOOD, "Q2\t \tD1\tT\tD1-1\ta\t1"], " line 3"),
        ([GOOD, " \tq\tD1\tT\tD1-1\ta\t1"], " line 3"),
        ([GOOD, "Q1\tq\tD1\tT\t\ta\t1"], " line 3"),
        ([GOOD, "Q1\tr\tD1\tT\tD1-1\ta\t1"], " line 3"),
        ([GOOD, "Q2\tr\tD1\tT\tD1-0\ta\t1", GOOD], " line 4"),
        ([GOOD, "Q1\tq\tD1\tT\tD1-1\t\udcff\t1"], " line 3"),
        ([], ""),
    ],
)
def test_what_is_wrong_names_the_line(tmp_path, rows, named):
    path = tmp_path / "WikiQA-train.tsv"
    path.write_bytes("".join(f"{line}\r\n" for line in (HEADER, *rows)).encode("utf-8", "surrogateescape"))
    with pytest.raises(KinspanError, match=f"{path}{named}: "):
        load_split(f"wikiqa={tmp_path}", "train")


@pytest.mark.parametrize("row", ["a\tb", "a\tb\t0"])
def test_what_is_wrong_with_asnq(tmp_path, row):
    with pytest.raises(KinspanError, match=r"train.tsv line 2"):
        load_split(asnq(tmp_path, "a\tb\t1", row), "train")


def test_missing_files_are_named(tmp_path):
    spec = wikiqa(tmp_path, GOOD)
    for given, split, named in (
        (spec, "test", "WikiQA-test.tsv"),
        (f"trecqa={tmp_path}", "dev", "dev.raw.jsonl"),
        (f"trecqa={tmp_path}/absent", "train", "absent"),
        (f"trecqa={tmp_path}/WikiQA-train.tsv", "train", "WikiQA-train.tsv"),
    ):
        with pytest.raises(KinspanError, match=named):
            load_split(given, split)
    with pytest.raises(KinspanError, match=spec):
        load_split(spec, "train", {"question": "query"})


@pytest.mark.parametrize("spec", ["squad=folder", "wikiqa", "wikiqa=", "=x"])
def test_unknown_names_are_told_the_known_ones(spec):
    with pytest.raises(KinspanError, match="wikiqa, trecqa, jacana"):
        load_split(spec, "train")


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_files_may_be_compressed_and_broken(tmp_path, suffix, compress):
    whole = compress("".join(f"question {k % 7}\tanswer {k}\t1\n" for k in range(2000)).encode())
    path = tmp_path / f"train.tsv{suffix}"
    path.write_bytes(whole)
    assert load_split(f"asnq={tmp_path}", "train")[0].num_pairs == 2000
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(KinspanError, match=r"train.tsv.* line \d+"):
        load_split(f"asnq={tmp_path}", "train")


def test_the_help_names_every_kind_and_its_files():
    for name, data_set in PUBLIC.items():
        assert f"  {name}=" in SPECS
        files = [data_set.file_names(split) for split in ("train", "dev", "test")]  # none of a split that a set lacks
        assert any(files)
        assert all(names[0] in SPECS for names in files if names)
    assert "  files=" in SPECS
    assert "  hub=" in SPECS
    assert all(len(line) <= 120 for line in SPECS.splitlines())


@pytest.mark.parametrize("name", ["wikiqa", "trecqa"])
def test_counts_are_the_papers(shared, name):
    """Of the two papers that differ, at least one; trecqa's clean counts come out of the raw files."""
    spec = f"{name}={shared / 'data/as2' / name}"
    data = {split: load_split(spec, split) for split in ("train", "dev", "test")}
    assert all("stand twice or more" in note for _, notes in data.values() for note in notes)
    checked = 0
    for (split, mode), counts in PUBLIC[name].paper_counts.items():
        left = filter_questions(data[split][0], mode)
        assert (left.num_questions, left.num_pairs) in [(c.questions, c.pairs) for c in counts]
        checked += 1
    assert checked == (9 if name == "wikiqa" else 3)


def test_insuranceqa_is_read_whole(shared):
    data, notes = load_split(f"insuranceqa={shared / 'data/as2/insuranceqa'}", "test")
    assert (data.num_questions, int(data.positives.sum()), len(notes)) == (2000, 3308, 0)
    assert ((data.starts[1:] - data.starts[:-1]) - data.positives == 200).all()
