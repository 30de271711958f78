"""Judgements in BEIR's form, as its real files have them, and what is refused."""

import gzip

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.trec import read_qrels

HEAD = "query-id\tcorpus-id\tscore\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scifact/qrels").mkdir(parents=True)
    return tmp_path / "scifact"


def write(folder, text):
    (folder / "qrels/test.tsv").write_text(text, encoding="utf-8")
    return folder


def test_a_folder_and_its_file_are_read(folder):
    rows = "1\tMED-10\t2\n1\tMED-14\t0\nPLAIN-2\t<dbpedia:AC/DC>\t1\nPLAIN-2\tx\t-1\n"
    expected = {"1": {"MED-10": 2, "MED-14": 0}, "PLAIN-2": {"<dbpedia:AC/DC>": 1, "x": -1}}
    assert read_qrels(write(folder, HEAD + rows)) == read_qrels(folder / "qrels/test.tsv") == expected
    (folder / "qrels/test.tsv").unlink()
    (folder / "qrels/test.tsv.gz").write_bytes(gzip.compress((HEAD + rows).encode()))
    assert read_qrels(folder) == expected


def test_quoted_names_and_ids_and_windows_line_ends(folder):
    for head in (HEAD, '"query-id"\t"corpus-id"\t"score"\n', "qid\tdocno\trelevance\n"):
        write(folder, head.replace("\n", "\r\n") + '1\t"<dbpedia:""Weird_Al""_Yankovic>"\t1\r\n')
        for place in (folder, folder / "qrels/test.tsv"):
            assert read_qrels(place) == {"1": {'<dbpedia:"Weird_Al"_Yankovic>': 1}}


def test_a_line_that_is_repeated_counts_once(folder):
    assert read_qrels(write(folder, HEAD + "1\ta\t1\n1\ta\t1\n")) == {"1": {"a": 1}}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *[(HEAD + "1\ta\t1\n1\ta\t2\n", r"test.tsv line 3"), (HEAD + "1\ta\t0.5\n", r"test.tsv line 2")],
        *[(HEAD + "1\ta\t99999999999\n", r"test.tsv line 2"), (HEAD + "1\ta\n", r"test.tsv line 2")],
        *[(HEAD, r"test.tsv"), ("1\ta\t1\n", r"test.tsv line 1"), ("", r"test.tsv line 1")],
    ],
)
def test_what_is_wrong_is_named(folder, text, named):
    with pytest.raises(KinspanError, match=named):
        read_qrels(write(folder, text))
