"""The benchmarks of MultiCQA but SemEval: small files of their forms, and everything that may be wrong with them."""

import gzip
import json

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.filters import filter_questions
from finetune.data.registry import find_measure, load_split
from tests.finetune.data.rows import rows_of

HEADER = "QID\tQuestion\tDocumentID\tDocumentName\tRelevantPassages"


def wikipassageqa(folder, *lines, passages=None, header=HEADER):
    (folder / "test.tsv").write_text("".join(f"{line}\n" for line in (header, *lines)))
    if passages is not None:
        (folder / "document_passages.json").write_text(
            passages if isinstance(passages, str) else json.dumps(passages, indent=1)
        )
    return f"wikipassageqa={folder}"


DOCUMENTS = {"7": {"0": "first", "2": "third", "10": "last\u2028one", "1": "second"}, "8": {"0": "other"}}


def test_wikipassageqa_is_read_as_it_is_distributed(tmp_path):
    """The JSON is one line, with escapes; documents and passages count from 0; a passage may be empty or span lines."""
    passages = json.dumps({"0": {"0": 'caf\u00e9 "x"\n next', "1": ""}, "1": {"0": "other"}})
    spec = wikipassageqa(tmp_path, '3086\tWhat is "x" in N/A?\t0\tPage_(a).html\t0', passages=passages)
    data = load_split(spec, "test")
    asked = 'What is "x" in N/A?'
    assert rows_of(data) == [("3086", asked, "0-0", 'caf\u00e9 "x" next', 1), ("3086", asked, "0-1", "", 0)]


def test_wikipassageqa_has_all_passages_of_the_document(tmp_path):
    lines = '12\t"Why ""so"", then?"\t7\tA  page.html\t1,10', '13\tIs it 5" long?\t8\tB\t0'
    data = load_split(wikipassageqa(tmp_path, *lines, passages=DOCUMENTS), "test")
    assert rows_of(data) == [
        *[("12", 'Why "so", then?', "7-0", "first", 0), ("12", 'Why "so", then?', "7-1", "second", 1)],
        *[("12", 'Why "so", then?', "7-2", "third", 0), ("12", 'Why "so", then?', "7-10", "last one", 1)],
        ("13", 'Is it 5" long?', "8-0", "other", 1),
    ]


@pytest.mark.parametrize(
    ("line", "passages", "named"),
    [
        *[("", DOCUMENTS, "test.tsv"), ("1\tq\t7\tA\t0", None, "document_passages.json")],
        *[("1\tq\t9\tA\t0", DOCUMENTS, "test.tsv line 2"), ("1\tq\t7\tA\t", DOCUMENTS, "test.tsv line 2")],
        *[("1\tq\t7\tA", DOCUMENTS, "test.tsv line 2"), ("1\tq\t7\tA\t0", "[" * 100_000, "document_passages.json")],
        *[("1\tq\t7\tA\t0", passages, "document_passages.json") for passages in ([], {"7": {"0": 3}})],
    ],
)
def test_broken_wikipassageqa_is_named(tmp_path, line, passages, named):
    with pytest.raises(KinspanError, match=named):
        load_split(wikipassageqa(tmp_path, line, passages=passages), "test")


TEXTS = {"9": ('how do "i" ?', "update manager . ."), "11": ("flash ?", ""), "12": ("", "no title"), "13": ("x", "y")}


def askubuntu(folder, text, split="test", texts=TEXTS):
    name = {"train": "train_random"}.get(split, split)
    (folder / f"{name}.txt").write_text(text)
    lines = "".join(f"{key}\t{title}\t{body}\n" for key, (title, body) in texts.items())
    (folder / "text_tokenized.txt.gz").write_bytes(gzip.compress(lines.encode()))
    return f"askubuntu={folder}"


def test_askubuntu_labels_its_candidates(tmp_path):
    spec = askubuntu(tmp_path, "9\t12\t11 12 13\t30.5 20.1 19\n11\t\t9 13\t3.5 2.5\n")
    data = load_split(spec, "test")
    assert rows_of(data) == [
        ("9", 'how do "i" ? update manager . .', "11", "flash ?", 0),
        ("9", 'how do "i" ? update manager . .', "12", "no title", 1),
        ("9", 'how do "i" ? update manager . .', "13", "x y", 0),
        *[("11", "flash ?", "9", 'how do "i" ? update manager . .', 0), ("11", "flash ?", "13", "x y", 0)],
    ]
    assert find_measure(spec) == (False, "no-all-negative")
    assert filter_questions(data, "no-all-negative").question_ids == ["9"]  # as its authors measure


def test_askubuntu_trains_on_what_has_a_text(tmp_path):
    lines = ["9\t12 12 77\t11 13 11 9", "78\t9\t13", "12\t11\t13 11"]
    data = load_split(askubuntu(tmp_path, "\n".join(lines) + "\n\n", "train"), "train")
    assert [(q, a, label) for q, _, a, _, label in rows_of(data)] == [
        *[("9", "11", 0), ("9", "13", 0), ("9", "12", 1), ("12", "13", 0), ("12", "11", 1)]
    ]


@pytest.mark.parametrize("text", ["9\t12\n", "9 12 13\n", "", "99\t12\t11\t1.0\n"])
def test_broken_askubuntu_is_named(tmp_path, text):
    with pytest.raises(KinspanError, match=r"test.txt"):
        load_split(askubuntu(tmp_path, text), "test")


def insuranceqa_v2(folder, pool, vocabulary="idx_1\tdoes\nidx_2\tit\nidx_3\tpay"):
    (folder / "vocabulary").write_text(vocabulary + "\n")
    answers = b"1\tidx_2 idx_3\n2\tidx_2\n3\tidx_3 idx_3\n"
    (folder / "InsuranceQA.label2answer.token.encoded.gz").write_bytes(gzip.compress(answers))
    name = "InsuranceQA.question.anslabel.token.500.pool.solr.test.encoded.gz"
    (folder / name).write_bytes(gzip.compress(pool.encode()))
    return f"insuranceqa_v2={folder}"


def test_insuranceqa_v2_has_words_of_any_kind(tmp_path):
    """Marks of quotation, words that other readers take for a missing value, white space within a word, which several
    readers of the real vocabulary meet, and a number that stands twice, of which they take the first."""
    words = ['"', "null", "401\xa0k", "N/A", "''", "caf\u00e9", "a\u2028b"]
    vocabulary = "\n".join([*(f"idx_{n}\t{word}" for n, word in enumerate(words, 1)), "idx_2\tx"])
    spec = insuranceqa_v2(tmp_path, "life\tidx_1 idx_2  idx_3 idx_7\t3\t1 3\n", vocabulary=vocabulary)
    data = load_split(spec, "test")
    assert data.questions == ['" null 401 k a b']
    assert data.answers.to_pylist() == ["null 401 k", "401 k 401 k"]


def test_insuranceqa_v2_ranks_its_pools(tmp_path):
    spec = insuranceqa_v2(tmp_path, "life\tidx_1 idx_2 idx_3\t2 3\t1 3\nauto\tidx_1 idx_2\t2\t1 3\n\n")
    data = load_split(spec, "test")
    assert rows_of(data) == [
        ("test-1", "does it pay", "1", "it pay", 0),
        ("test-1", "does it pay", "3", "pay pay", 1),
        ("test-2", "does it", "1", "it pay", 0),  # its right answer was not found
        ("test-2", "does it", "3", "pay pay", 0),
    ]
    assert find_measure(spec) == (True, "no-all-negative")
    assert filter_questions(data, "no-all-negative").question_ids == ["test-1"]


@pytest.mark.parametrize("pool", ["life\tidx_1\t2\n", "life\tidx_9\t2\t1\n", "life\tidx_1\t2\t8\n", ""])
def test_broken_insuranceqa_v2_is_named(tmp_path, pool):
    with pytest.raises(KinspanError, match=r"solr.test.encoded"):
        load_split(insuranceqa_v2(tmp_path, pool), "test")
