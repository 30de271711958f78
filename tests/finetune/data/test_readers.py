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

HEADER = "QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\tLabel"


def wikiqa(folder, *rows, split="train"):
    text = "".join(f"{line}\r\n" for line in (HEADER, *rows))
    (folder / f"WikiQA-{split}.tsv").write_bytes(text.encode())
    return f"wikiqa={folder}"


def asnq(folder, *rows, split="train"):
    (folder / f"{split}.tsv").write_text("".join(f"{row}\n" for row in rows))
    return f"asnq={folder}"


def pairs(data):
    """(question id, question, answer id, answer, label) of each row."""
    ids, texts = data.answer_ids.to_pylist(), data.answers.to_pylist()
    return [
        (data.question_ids[q], data.questions[q], ids[row], texts[row], int(data.labels[row]))
        for row, q in enumerate(data.question_of)
    ]


def test_a_path_in_place_of_a_data_set_is_told_its_spelling(tmp_path):
    (tmp_path / "train.jsonl").write_text("")
    for given in (tmp_path, tmp_path / "train.jsonl"):
        with pytest.raises(KinspanError, match=f"did you mean files={tmp_path}"):
            load_split(str(given), "train")


def test_a_forums_dump_in_place_of_a_data_set_names_the_command_that_makes_one(tmp_path):
    (tmp_path / "Posts.xml.xz").write_text("")
    for place in (tmp_path, tmp_path / "Posts.xml.xz"):
        for refuse in (expect_data, lambda spec: load_split(spec, "test")):
            with pytest.raises(KinspanError, match=f"kinspan data las --input {place} "):
                refuse(f"files={place}")
    (tmp_path / "train.jsonl").write_text("")
    expect_data(f"files={tmp_path}")


@pytest.mark.parametrize("spec", ["wikiqa=absent", "files=absent"])
def test_a_place_that_is_not_there_is_refused_without_reading(spec):
    with pytest.raises(KinspanError, match=f"{spec}: there is no such folder"):
        expect_data(None, spec)


def test_wikiqa_has_quotation_marks_and_no_quoting(tmp_path):
    spec = wikiqa(
        tmp_path,
        'Q1\tso called "a"?\tD1\tT\tD1-0\t"An unclosed quote\t0',
        'Q1\tso called "a"?\tD1\tT\tD1-1\tsays "b"\t1',
        "Q2\twho  is\u2028it\tD2\tT\tD2-0\t\t0",
    )
    data, notes = load_split(spec, "train")
    assert pairs(data) == [
        ("Q1", 'so called "a"?', "D1-0", '"An unclosed quote', 0),
        ("Q1", 'so called "a"?', "D1-1", 'says "b"', 1),
        ("Q2", "who is it", "D2-0", "", 0),
    ]
    assert (data.name, data.split, data.starts.tolist()) == ("wikiqa", "train", [0, 2, 3])
    assert notes == ["wikiqa train: candidates without text, kept: 1"]


def test_rows_of_a_question_need_not_stand_together(tmp_path):
    rows = ["b\tb0\t1", "a\ta0\t4", "b\tb1\t4", "c\tc0\t3", "a\ta1\t2"]
    data, _ = load_split(asnq(tmp_path, *rows), "train")
    assert pairs(data) == [
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
    assert pairs(data) == [("q1", "a", "q1-1", "y", 1), ("q3", "c", "q3-1", "u", 0)]
    assert data.grades.tolist() == [4, 2]
    assert notes == [
        "asnq train: candidates of label 1 are left out: 3",
        "asnq train: candidates of label 3 are left out: 1",
        "asnq train: questions without a candidate, left out: 1",
    ]
    for wrong in ((), (4,), (0, 1)):
        with pytest.raises(KinspanError, match="one or more of 1, 2 and 3"):
            load_split(spec, "train", negative_labels=wrong)


def test_texts_that_a_question_has_twice_are_counted(tmp_path):
    _, notes = load_split(asnq(tmp_path, "a\tx\t1", "a\tx\t4", "b\tx\t1", "b\tx\t1", "c\ty\t1"), "train")
    twice = "asnq train: answers that stand twice or more under one question"
    assert notes == [f"{twice}, with different labels, kept: 1", f"{twice}, kept: 1"]


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
    assert [f"right answers have the {extreme} ids in 30 of 30 questions" in note for note in notes] == [True] * bool(
        extreme
    )
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
    assert pairs(data) == [
        ("7", "how?", "3", "text 3", 1),
        ("7", "how?", "0", "text 0", 0),
        ("7", "how?", "4", "text 4", 0),
    ]
    assert notes == ["insuranceqa dev: questions without a candidate, left out: 1"]

    for odd in ("34", None):  # a text is no list of one-letter ids
        (tmp_path / "valid.jsonl").write_text(json.dumps(questions[0] | {"answers": odd}) + "\n")
        with pytest.raises(KinspanError, match=r'valid\.jsonl line 1: "answers", "negatives" must be there, as lists'):
            load_split(spec, "dev")

    for odd, shown in (("9", "'9'"), ({"aid": "3"}, r"\{'aid': '3'\}")):
        questions[1]["negatives"] = [odd]
        (tmp_path / "valid.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
        wanted = rf"valid\.jsonl line 2: negatives has aid {shown}, which answers\.jsonl\.xz"
        with pytest.raises(KinspanError, match=wanted):
            load_split(spec, "dev")


def test_white_space_in_ids_is_mended_and_said(tmp_path):
    row = {"question_id": "one two", "question": "q", "answer_id": "a b", "answer": "x", "label": 1}
    (tmp_path / "dev.jsonl").write_text(json.dumps(row) + "\n")
    data, notes = load_split(f"files={tmp_path}", "dev")
    assert pairs(data) == [("one_two", "q", "a_b", "x", 1)]
    assert notes == [
        'files dev: question ids with white space, which became "_": 1',
        'files dev: answer ids with white space, which became "_": 1',
    ]


GOOD = "Q1\tq\tD1\tT\tD1-0\ta\t1"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([GOOD, "Q1\tq\tD1\tT\tD1-1\ta"], "line 3: 6 fields, but the first line has 7"),
        (
            [GOOD, "Q1\tq\tD1\tT\tD1-1\ta\t2"],
            "line 3: label '2' is neither 0 nor 1: write 1 for a right answer, 0 for a wrong one",
        ),
        ([GOOD, "Q2\t \tD1\tT\tD1-1\ta\t1"], "line 3: the question is empty"),
        ([GOOD, " \tq\tD1\tT\tD1-1\ta\t1"], "line 3: the question id is empty"),
        ([GOOD, "Q1\tq\tD1\tT\t\ta\t1"], "line 3: the answer id is empty"),
        ([GOOD, "Q1\tr\tD1\tT\tD1-1\ta\t1"], "line 3: question id 'Q1' has another text here ('r') than before ('q')"),
        (
            [GOOD, "Q2\tr\tD1\tT\tD1-0\ta\t1", GOOD],
            "line 4: answer id 'D1-0' stands twice in question 'Q1': ids must differ within a question",
        ),
        ([GOOD, "Q1\tq\tD1\tT\tD1-1\t\udcff\t1"], "line 3: not UTF-8 (byte 16 of the line)"),
        ([], "no candidate answer in this file"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_line(tmp_path, rows, message):
    wikiqa(tmp_path)
    path = tmp_path / "WikiQA-train.tsv"
    path.write_bytes("".join(f"{line}\r\n" for line in (HEADER, *rows)).encode("utf-8", "surrogateescape"))
    with pytest.raises(KinspanError) as caught:
        load_split(f"wikiqa={tmp_path}", "train")
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).removesuffix(": save it as UTF-8").endswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a\tb", "line 2: 2 fields, not 3: question, sentence, label"),
        ("a\tb\t0", "line 2: label '0' is none of 1, 2, 3 and 4"),
    ],
)
def test_what_is_wrong_with_asnq(tmp_path, row, message):
    with pytest.raises(KinspanError, match=message):
        load_split(asnq(tmp_path, "a\tb\t1", row), "train")


def test_missing_files_are_named(tmp_path):
    spec = wikiqa(tmp_path, GOOD)
    with pytest.raises(KinspanError, match=r"no split test: looked for WikiQA-test\.tsv"):
        load_split(spec, "test")
    with pytest.raises(KinspanError, match=r"looked for dev\.raw\.jsonl"):
        load_split(f"trecqa={tmp_path}", "dev")
    with pytest.raises(KinspanError, match="no such folder"):
        load_split(f"trecqa={tmp_path}/absent", "train")
    with pytest.raises(KinspanError, match="this is a file, not a folder"):
        load_split(f"trecqa={tmp_path}/WikiQA-train.tsv", "train")
    with pytest.raises(KinspanError, match=r"only files= and hub= take others"):
        load_split(spec, "train", {"question": "query"})


@pytest.mark.parametrize("spec", ["squad=folder", "wikiqa", "wikiqa=", "=x"])
def test_unknown_names_are_told_the_known_ones(spec):
    with pytest.raises(KinspanError, match=r"one of wikiqa, trecqa, jacana, .*askubuntu, files, hub"):
        load_split(spec, "train")


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_files_may_be_compressed_and_broken(tmp_path, suffix, compress):
    whole = compress("".join(f"question {k % 7}\tanswer {k}\t1\n" for k in range(2000)).encode())
    path = tmp_path / f"train.tsv{suffix}"
    path.write_bytes(whole)
    assert load_split(f"asnq={tmp_path}", "train")[0].num_pairs == 2000
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(KinspanError, match=r"line \d+: cannot read on"):
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
