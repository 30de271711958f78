import gzip
import json

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.benchmark import Benchmark, read_benchmark
from tests.synthetic import short_tokenizer

SENTENCE = "The Eiffel Tower was erected in 1889 as the entrance arch to the World's Fair."
OTHER = "Nobody who walked along the river that morning had counted the boats below the bridge."


def test_a_document_with_a_sentence_in_it_is_found():
    benchmark = Benchmark([SENTENCE, OTHER])
    documents = [["A paragraph.", f"Before. {SENTENCE} And after."], ["Nothing of the kind."], [OTHER.upper()]]
    assert benchmark.find(documents) == {0: SENTENCE, 2: OTHER}


@pytest.mark.parametrize(("words", "result"), [(18, True), (12, False)])
def test_enough_of_the_ngrams_in_one_document_are_enough(words, result):
    """Of 20 words there are 13 8-grams, and 18 of the words hold 11 of them; 12 hold 5."""
    sentence = " ".join(f"word{k}" for k in range(20))
    part = " ".join(sentence.split()[:words]) + " something else"
    assert bool(Benchmark([sentence]).find([["Before."], [part]])) == result


def test_in_scripts_without_spaces_each_character_is_a_word():
    sentence = "北京是中华人民共和国的首都，也是全国的政治中心。"
    assert Benchmark([sentence]).find([["他说" + sentence.replace("，", "")], ["北京是首都。"]]) == {0: sentence}
    question = "北京是哪个国家的首都？"  # of 10 characters
    assert Benchmark([question]).find([["他问：" + question], ["北京是首都。"]]) == {0: question}


@pytest.mark.parametrize(
    ("text", "paragraph", "found"),
    [
        *[("Restart it.", "restart it", True), ("Restart it.", "Restart it, and wait.", False)],
        *[("Très bien !", "tres bien", True), ("重启它。", "重启它", True)],
        ("a 1 2 3 4 5 6 7 8", "A 1, 2, 3, 4, 5, 6, 7, 8!", True),  # too few letters for its n-grams to tell
        ("...", "!!!", False),
    ],
)
def test_a_short_text_is_found_as_a_whole_paragraph(text, paragraph, found):
    assert Benchmark([text, SENTENCE]).find([["Another."], ["Before.", paragraph]]) == ({1: text} if found else {})


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        (["Off and on?"], 4),  # an answer
        (["It hangs. Why"], 4),  # a body
        (["Any title?"], 0),
        (["off", "t1", "t4"], 3),  # ids
        (["hangs", "and on", "t"], 5),
    ],
)
def test_threads_are_left_out_by_short_texts_and_ids(texts, left, tmp_path, helpers):
    lines = [
        {"id": f"t{n}", "title": "Any title?", "paragraphs": [f"Case {n}.", "Why?"], "answers": [f"Fix {n}."]}
        for n in range(5)
    ]
    lines[2] |= {"paragraphs": ["It hangs.", "Why?"], "answers": ["Try it.", "Off, and on."]}
    source = f"questions:{helpers.write_jsonl(tmp_path / 'desk.jsonl', lines)}"
    if not left:
        with pytest.raises(KinspanError, match="--input"):
            helpers.prepare([source], short_tokenizer(), tmp_path / "out", decontaminate=texts)
    else:
        result = helpers.prepare([source], short_tokenizer(), tmp_path / "out", decontaminate=texts)
        assert result.manifest.totals["documents"] == left


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[("a.txt", f"{SENTENCE}\nshort\n"), ("a.tsv", f"Q1\tshort\t{SENTENCE}\t1\r\n")],
        ("a.jsonl", json.dumps({"id": 3, "answers": [{"text": SENTENCE}, "short"]}) + "\n\n"),
    ],
)
def test_files_of_sentences_are_read(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_benchmark(str(tmp_path / name)) == [SENTENCE]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *[("a.pdf", b"%PDF"), ("a.txt", b"short\n"), ("a.txt", b"\xff\xfe\xff"), ("a.jsonl", b'{"a": "b"}\n{')],
        *[("a.txt.gz", gzip.compress(b"abc" * 99, mtime=0)[:10] + b"\xff" * 20), ("a.txt.xz", b"broken")],
        ("absent.txt", None),
    ],
)
def test_what_holds_no_sentences_is_refused_by_name(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(KinspanError, match=f"--decontaminate .*{name}"):
        read_benchmark(str(tmp_path / name))


def test_prepare_drops_documents_of_a_test_set_and_says_so(tmp_path, helpers):
    documents = helpers.synthetic_documents(6, seed="benchmark")
    leaked = documents[2]["paragraphs"][1]
    source = helpers.write_jsonl(tmp_path / "in.jsonl", documents)
    result = helpers.prepare([source], short_tokenizer(), tmp_path / "out", decontaminate=[leaked, SENTENCE])
    name = "documents with a sentence of --decontaminate"
    assert result.tally.counts[name] == 1
    assert result.tally.counts["documents kept"] == 5
    assert result.tally.samples[name][0].startswith("Title 2: ")
    with pytest.raises(KinspanError, match="--output_dir"):
        helpers.prepare([source], short_tokenizer(), tmp_path / "out", decontaminate=[SENTENCE])
