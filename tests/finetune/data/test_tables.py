import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.dataset import MissingSplit
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
    data = load_split(f"files={tmp_path}", "dev", COLUMNS)
    assert data.question_ids == ["5", "6"]
    assert data.questions == ["who, is it?", "why"]
    assert data.answer_ids.to_pylist() == ["a", "b", "a"]
    assert data.answers.to_pylist() == ['an "x", y', "z", "tab and line"]
    assert (data.labels.tolist(), data.starts.tolist()) == ([0, 1, 1], [0, 2, 3])


def test_ids_have_many_names(tmp_path, caplog):
    known = {"question_id": "qid", "query": "question", "answer_id": "pid"}
    write(tmp_path / "dev.csv", [{known.get(name, name): value for name, value in row.items()} for row in ROWS])
    data = load_split(f"files={tmp_path}", "dev")
    assert (data.question_ids, data.answer_ids.to_pylist()) == (["5", "6"], ["a", "b", "a"])
    write(tmp_path / "test.csv", [{"id": 1, "doc_id": 1, "question": "why", "answer": a, "label": 1} for a in "ab"])
    assert load_split(f"files={tmp_path}", "test").question_ids == ["q1"]
    assert [record.args[1] for record in caplog.records if record.levelname == "WARNING"] == ["id, doc_id"]


def test_ids_are_optional(tmp_path):
    rows = [{k: v for k, v in row.items() if not k.endswith("_id")} for row in ROWS]
    write(tmp_path / "train.jsonl", [rows[0] | {"query": f"\u200b{rows[0]['query']}"}, *rows[1:]])
    data = load_split(f"files={tmp_path}", "train", COLUMNS)
    assert data.question_ids == ["q1", "q2"]
    assert data.answer_ids.to_pylist() == ["q1-2", "q1-1", "q2-1"]  # in the order of a hash of the text


def test_a_file_alone_is_split_in_three_unless_its_name_says_the_split(tmp_path):
    """The same three splits as a file, as a folder with one file, and with the questions in another order."""
    rows = [
        {"question": f"{n}?", "answer": f"{'xX'[n % 2]} {n // 2} {k}", "label": k} for n in range(40) for k in (0, 1)
    ]
    write(tmp_path / "mine.jsonl", rows)
    splits = {split: load_split(f"files={tmp_path}", split) for split in ("train", "dev", "test")}
    questions = {split: set(data.questions) for split, data in splits.items()}
    assert [data.split for data in splits.values()] == list(splits)
    assert sum(map(len, questions.values())) == len(set.union(*questions.values())) == 40
    assert all(f"{int(text[:-1]) ^ 1}?" in texts for texts in questions.values() for text in texts)  # of one answer
    assert 0 < len(questions["dev"]) < len(questions["test"]) < len(questions["train"]) + 10
    write(tmp_path / "mine.jsonl", rows[::-1])
    for split, expected in questions.items():
        assert set(load_split(f"files={tmp_path / 'mine.jsonl'}", split).questions) == expected
    (tmp_path / "mine.jsonl").rename(tmp_path / "test.jsonl")
    for place in (tmp_path, tmp_path / "test.jsonl"):
        assert load_split(f"files={place}", "test").num_questions == 40
        with pytest.raises(MissingSplit, match="train"):
            load_split(f"files={place}", "train")
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(KinspanError, match=r"mine.txt"):
        load_split(f"files={tmp_path / 'mine.txt'}", "test")


@pytest.mark.parametrize(("wrong", "right"), [("0.0", "1.0"), ("False", "True"), ("FALSE", "TRUE")])
def test_labels_may_be_as_other_programs_write_them(tmp_path, wrong, right):
    (tmp_path / "test.csv").write_text(f"question,answer,label\nq,a,{wrong}\nq,b,{right}\n")
    assert load_split(f"files={tmp_path}", "test").labels.tolist() == [0, 1]


def test_two_files_of_a_split_are_refused(tmp_path):
    for name in ("train.jsonl", "train.csv"):
        write(tmp_path / name)
    with pytest.raises(KinspanError, match=r"train\.csv and train\.jsonl"):
        load_split(f"files={tmp_path}", "train")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_missing_columns_are_named(tmp_path, suffix):
    write(tmp_path / f"train{suffix}")
    for columns, named in (({}, "'question'"), ({"text": "answer"}, "'text'"), ({"answer_id": "docid"}, "'docid'")):
        with pytest.raises(KinspanError, match=named):
            load_split(f"files={tmp_path}", "train", COLUMNS | columns if columns else {})


@pytest.mark.parametrize(
    "change", [{"label": 2}, {"label": None}, {"answer": None}, {"question_id": 1.5}, {"answer_id": "a\ud800"}]
)
def test_bad_values_name_their_line(tmp_path, change):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in (ROWS[0], ROWS[1] | change)))
    with pytest.raises(KinspanError, match=r"train\.jsonl line 2: "):
        load_split(f"files={tmp_path}", "train", COLUMNS)


FIRST = b'{"question": "q", "answer": "a", "label": 1}\n'


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        *[("train.jsonl", b'{"question": "q"', "train.jsonl line 1"), ("train.jsonl", b"[1]", "train.jsonl line 1")],
        ("train.jsonl", FIRST.replace(b"{", b'{"label": 0, '), "train.jsonl line 1"),
        ("train.jsonl", FIRST + b'{"question": "q"}', "train.jsonl line 2"),
        ("train.jsonl", FIRST + FIRST.replace(b"}", b', "answer_id": 7}'), "train.jsonl line 2: 'answer_id'"),
        *[("train.jsonl", b"", "train.jsonl"), ("train.csv", b"", "train.csv")],
        ("train.csv", b"question,answer,label\n", "train.csv"),
        ("train.csv", b'question,answer,label\nq,"a"b,1\n', "train.csv line 2"),
        ("train.csv", b"question,answer,label\nq,\xff,1\n", "train.csv line 2"),
        ("train.csv", b"question,answer,answer\n", "train.csv line 1"),
        ("train.csv", b"question;answer;label\n", "train.csv line 1"),
        *[("train.parquet", b"PAR1 no", "train.parquet"), ("train.tsv.gz", b"question", "train.tsv.gz line 1")],
    ],
)
def test_broken_files_are_named(tmp_path, name, content, named):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(KinspanError, match=named):
        load_split(f"files={tmp_path}", "train")


def test_a_folder_that_datasets_loads(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "mine"
    folder.mkdir()
    for split in ("train", "validation"):
        write(folder / f"{split}.jsonl")
    spec = f"hub={folder}"
    data = load_split(spec, "dev", COLUMNS)
    assert (data.question_ids, data.labels.tolist()) == (["5", "6"], [0, 1, 1])
    with pytest.raises(KinspanError, match="no split test"):
        load_split(spec, "test", COLUMNS)
    with pytest.raises(KinspanError, match=r"hub=.* 'question'"):
        load_split(spec, "train")
