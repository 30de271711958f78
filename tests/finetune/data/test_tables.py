import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.registry import load_split

ROWS = [
    {"question_id": 5, "query": "who,\n is it?", "answer_id": "a", "answer": 'an "x", y', "label": 0},
    {"question_id": 6, "query": "why", "answer_id": "a", "answer": "tab\tand\nline", "label": 1},
    {"question_id": 5, "query": "who,\n is it?", "answer_id": "b", "answer": "z", "label": 1},
]
COLUMNS = {"question": "query"}


def write(path, rows=ROWS):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = [[" ".join(str(v).split()) for v in row.values()] for row in rows]
        path.write_text("".join("\t".join(fields) + "\n" for fields in [list(rows[0]), *lines]))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_every_format_gives_the_same(tmp_path, suffix):
    write(tmp_path / f"dev{suffix}")
    spec = f"files={tmp_path}"
    data, notes = load_split(spec, "dev", COLUMNS)
    assert data.question_ids == ["5", "6"]
    assert data.questions == ["who, is it?", "why"]
    assert data.answer_ids.to_pylist() == ["a", "b", "a"]
    assert data.answers.to_pylist() == ['an "x", y', "z", "tab and line"]
    assert (data.labels.tolist(), data.starts.tolist(), notes) == ([0, 1, 1], [0, 2, 3], [])


def test_ids_are_optional(tmp_path):
    write(tmp_path / "train.jsonl", [{k: v for k, v in row.items() if not k.endswith("_id")} for row in ROWS])
    data, _ = load_split(f"files={tmp_path}", "train", COLUMNS)
    assert data.question_ids == ["q1", "q2"]
    assert data.answer_ids.to_pylist() == ["q1-2", "q1-1", "q2-1"]  # in the order of a hash of the text


def test_one_file_is_the_split_test(tmp_path):
    write(tmp_path / "mine.csv")
    spec = f"files={tmp_path / 'mine.csv'}"
    assert load_split(spec, "test", COLUMNS)[0].num_pairs == 3
    with pytest.raises(KinspanError, match="a single file is the split test"):
        load_split(spec, "train", COLUMNS)
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(KinspanError, match=r"known are \.jsonl, \.csv, \.tsv, \.parquet"):
        load_split(f"files={tmp_path / 'mine.txt'}", "test")


@pytest.mark.parametrize(("wrong", "right"), [("0.0", "1.0"), ("False", "True"), ("FALSE", "TRUE")])
def test_labels_may_be_as_other_programs_write_them(tmp_path, wrong, right):
    (tmp_path / "test.csv").write_text(f"question,answer,label\nq,a,{wrong}\nq,b,{right}\n")
    data, _ = load_split(f"files={tmp_path}", "test")
    assert data.labels.tolist() == [0, 1]


def test_two_files_of_a_split_are_refused(tmp_path):
    for name in ("train.jsonl", "train.csv"):
        write(tmp_path / name)
    with pytest.raises(KinspanError, match=r"both train\.jsonl and train\.csv are there"):
        load_split(f"files={tmp_path}", "train")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_missing_columns_are_told_those_there(tmp_path, suffix):
    write(tmp_path / f"train{suffix}")
    with pytest.raises(KinspanError, match="no column 'question'; there are question_id, query, answer_id, answer"):
        load_split(f"files={tmp_path}", "train")
    with pytest.raises(
        KinspanError,
        match=r"columns: there is no field 'text'; .*known are .*question_id, answer_id$",
    ):
        load_split(f"files={tmp_path}", "train", {"text": "answer"})
    with pytest.raises(KinspanError, match="no column 'docid'"):
        load_split(f"files={tmp_path}", "train", COLUMNS | {"answer_id": "docid"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 2}, "label 2 is neither 0 nor 1: write 1 for a right answer, 0 for a wrong one"),
        ({"label": None}, "label None is neither 0 nor 1: write 1 for a right answer, 0 for a wrong one"),
        ({"answer": None}, "'answer' is no text: None"),
        ({"question_id": 1.5}, "'question_id' is neither a string nor a whole number: 1.5"),
        ({"answer_id": "a\ud800"}, "'answer_id' holds a character that UTF-8 has not: 'a\\ud800'"),
    ],
)
def test_bad_values_name_their_line(tmp_path, change, message):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in (ROWS[0], ROWS[1] | change)))
    with pytest.raises(KinspanError) as caught:
        load_split(f"files={tmp_path}", "train", COLUMNS)
    assert str(caught.value) == f"{tmp_path}/train.jsonl line 2: {message}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.jsonl", b'{"question": "q"', r"line 1: not JSON"),
        ("train.jsonl", b"[1]", r"line 1: not a JSON object"),
        (
            "train.jsonl",
            b'{"question": "q", "answer": "a", "label": 1}\n{"question": "q"}',
            r"line 2: no column 'answer'",
        ),
        (
            "train.jsonl",
            b'{"question": "q", "answer": "a", "label": 1}\n{"question": "q", "answer": "", "label":0, "answer_id": 7}',
            r"line 2: 'answer_id' is not in the first line: give it in all lines, or in none",
        ),
        ("train.jsonl", b"", r"no rows in this file"),
        ("train.csv", b"", r"no rows in this file"),
        ("train.csv", b"question,answer,label\n", r"no candidate answer in this file"),
        ("train.csv", b'question,answer,label\nq,"a"b,1\n', r"line 2: not CSV"),
        ("train.csv", b"question,answer,label\nq,\xff,1\n", r"line 2: not UTF-8"),
        ("train.csv", b"question,answer,answer\n", r"line 1: two columns have the same name"),
        ("train.csv", b"question;answer;label\n", r"line 1: ';' seems to separate the columns: write them with commas"),
        ("train.parquet", b"PAR1 no", r"not a parquet file"),
        ("train.tsv.gz", b"question", r"line 1: cannot read on"),
    ],
)
def test_broken_files_are_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(KinspanError, match=message) as caught:
        load_split(f"files={tmp_path}", "train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_a_text_may_be_long(tmp_path, suffix):
    long = "word " * 40_000
    write(tmp_path / f"dev{suffix}", [ROWS[0], {**ROWS[1], "answer": long}])
    data, _ = load_split(f"files={tmp_path}", "dev", COLUMNS)
    assert data.answers[1].as_py() == long.strip()


def test_a_byte_order_mark_is_not_part_of_a_name(tmp_path):
    (tmp_path / "test.csv").write_bytes(b"\xef\xbb\xbfquestion,answer,label\nq,a,1\n")
    assert load_split(f"files={tmp_path}", "test")[0].num_pairs == 1


def test_the_hub_is_one_line_where_it_cannot_be_reached():
    with pytest.raises(KinspanError, match="hub=no-such-owner/no-such-set cannot be loaded") as caught:
        load_split("hub=no-such-owner/no-such-set", "train")
    assert "\n" not in str(caught.value)


def test_a_folder_that_datasets_loads(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "mine"
    folder.mkdir()
    for split in ("train", "validation"):
        write(folder / f"{split}.jsonl")
    spec = f"hub={folder}"
    data, _ = load_split(spec, "dev", COLUMNS)
    assert (data.question_ids, data.labels.tolist()) == (["5", "6"], [0, 1, 1])
    with pytest.raises(KinspanError, match="no split test; there are train, validation"):
        load_split(spec, "test", COLUMNS)
    with pytest.raises(KinspanError, match=r"hub=.* train: no column 'question'"):
        load_split(spec, "train")
