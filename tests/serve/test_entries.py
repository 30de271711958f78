"""kinspan index and kinspan search, from flags to what they print."""

import json
import re
from pathlib import Path

import pytest

from data_pipeline.core.default_model import DEFAULT_MODEL_NAME
from data_pipeline.core.errors import KinspanError
from launch.commands import evaluate, index, rank, search
from launch.kinspan import show
from serve.questions import BI_ENCODER, BM25, FUSION
from serve.search import Searcher
from tests.conftest import write_jsonl


@pytest.fixture
def run(monkeypatch, capsys):
    """``run(entry, *arguments)``: what it prints."""

    def call(entry, *arguments):
        monkeypatch.setattr("sys.argv", [entry.__name__, *map(str, arguments)])
        capsys.readouterr()
        show(entry.main())
        return capsys.readouterr().out

    return call


def write(path, answers):
    return write_jsonl(path, (answer._asdict() for answer in answers))


def test_from_answers_to_a_question(tmp_path, run, bi_encoder, cross_encoder, answers):
    folder = tmp_path / "index"
    build = (index, "--model", bi_encoder, "--answers", write(tmp_path / "a.jsonl", answers[:20]))
    build += ("--output_dir", folder)
    assert "20 answers" in run(*build)
    assert "20 answers" in run(*build)
    write(tmp_path / "a.jsonl", answers[4:20])
    assert "30 answers" in run(*build, "--answers", write(tmp_path / "b.jsonl", answers[20:34]))
    for flags, reason in (
        ([*build[1:], "--precision", "bf16"], "--output_dir"),
        ([*build[1:], "--model", DEFAULT_MODEL_NAME], f"--model {DEFAULT_MODEL_NAME}"),
        (["--output_dir", folder, "--max_length", "9"], "--max_length"),
        ([*build[1:], "--answers", tmp_path / "none.jsonl"], r"none\.jsonl"),
        ([*build[1:], "--answers", write(tmp_path / "c.jsonl", [answers[5]._replace(text="x")])], "c.jsonl: .*'a5'"),
    ):
        with pytest.raises(KinspanError, match=reason):
            run(index, *flags)
    assert "30 answers" in run(index, "--output_dir", folder)

    said = run(search, "--index", folder, "--k", 2, "what of the river?", "number 7")
    assert len(re.findall(r"^ [12]\. a\d+  \(bi-encoder ", said, re.MULTILINE)) == 4
    assert "    question: what of " in said
    assert "https://example.org/" in said
    ranked = run(search, "--index", folder, "--cross_encoder", cross_encoder, "--first_stage", "fusion", "number 7")
    assert re.search(r"^ 1\. a\d+  \(.*fusion .*cross-encoder ", ranked, re.MULTILINE)
    assert re.search(r"encode .* ms, nearest .*, words .*, rerank ", ranked)


@pytest.fixture
def built(tmp_path, run, bi_encoder, answers):
    """A folder in BEIR's form, and an index of it."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    write_jsonl(folder / "corpus.jsonl", [{"_id": a.id, "title": "", "text": a.text} for a in answers])
    write_jsonl(folder / "queries.jsonl", [{"_id": f"q{n}", "text": f"number {n}"} for n in range(10, 19)])
    judged = "".join(f"q{number}\ta{number}\t1\n" for number in range(10, 15))
    (folder / "qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    run(index, "--model", bi_encoder, "--answers", folder, "--output_dir", tmp_path / "index")
    return folder


def test_from_a_benchmark_to_its_figures(tmp_path, run, built, cross_encoder):
    found, ranked = tmp_path / "made/run.txt", tmp_path / "ranked"
    flags = ("--index", tmp_path / "index", "--questions", built)
    assert run(search, *flags, "--run", found, "--first_stage", "bm25", "--k", 20) == ""
    with pytest.raises(KinspanError, match="--run"):
        run(search, *flags, "--run", found.parent)
    given = ("--model", cross_encoder, "--run", found, "--queries", built, "--collection", built)
    run(rank, *given, "--depth", 3, "--max_length", 32, "--output_dir", ranked)
    measured = ("--qrels", built, "--metrics", "MRR R@20", "R@3", "--json")
    last = run(evaluate, "--run", found, ranked / "run.txt", *measured).splitlines()[-1]
    first, second = json.loads(last)["systems"]
    assert first["mrr"] == first["R@3"] == first["R@20"] == 1  # the number stands in one answer alone
    assert second["R@3"] == 1 > second["mrr"]


def test_lines_of_json(tmp_path, run, built):
    flags = ("--index", tmp_path / "index", "--k", 2, "--json")
    lines = [json.loads(line) for line in run(search, *flags, "--questions", built).splitlines()]
    assert [line["question_id"] for line in lines] == [f"q{number}" for number in range(10, 15)]
    (alone,) = (json.loads(line) for line in run(search, *flags, "number 13").splitlines())
    assert alone.keys() == {"question", "hits"}
    assert [hit["id"] for hit in alone["hits"]] == [hit["id"] for hit in lines[3]["hits"]]
    assert alone["hits"][0].keys() == {"id", "text", "question", "url", "title", "score", "scores"}
    assert run(search, "--index", tmp_path / "index", "--questions", built, "--k", 1).count("\n 1. a") == 5


@pytest.mark.parametrize(
    ("entry", "arguments", "named"),
    [
        (search, ("--index", "{}/none", "q"), "{}/none"),
        (search, ("--index", "{}/none", "--max_length", "9", "q"), "--max_length"),
        (index, ("--documents", "{}", "--output_dir", "{}/index"), "--output_dir"),
        (search, ("--index", "{}/none"), "--questions"),
        (search, ("--index", "{}/none", "--run", "r", "q"), "--run"),
        (search, ("--index", "{}/none", "--questions", "x.tsv", "q"), "--questions"),
        (search, ("--index", "{}/none", "--questions", "{}/x.tsv"), "x.tsv"),
        (rank, ("--model", DEFAULT_MODEL_NAME, "--output_dir", "{}/o"), "--data"),
        (rank, ("--model", DEFAULT_MODEL_NAME, "--output_dir", "{}/o", "--run", "r", "--queries", "q"), "--run"),
        (rank, ("--model", DEFAULT_MODEL_NAME, "--output_dir", "{}/o", "--data", "d", "--depth", "5"), "--depth"),
        *[(index, ("--output_dir", "{}/none"), "{}/none"), (index, ("--output_dir", "{}/none", "stray"), "stray")],
        (index, ("--output_dir", "{}/none", "--answers", "x.jsonl"), "x.jsonl"),
        (index, ("--output_dir", str(Path(__file__).parent), "--answers", "x.jsonl"), "--output_dir"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, run, entry, arguments, named):
    with pytest.raises(KinspanError, match=named.format(tmp_path)) as error:
        run(entry, *(argument.format(tmp_path) for argument in arguments))
    assert "\n" not in str(error.value)


def test_documents_are_searched_as_an_index_of_them(tmp_path, run, bi_encoder, cross_encoder, tiny_documents):
    texts = {paragraph for document in tiny_documents for paragraph in document["paragraphs"]}
    documents = write_jsonl(tmp_path / "documents.jsonl", tiny_documents)
    asked = {" ".join(text.split()[:6]): text for text in sorted(texts)[::9]}
    questions = write_jsonl(tmp_path / "questions.jsonl", [{"question": q, "answer": a} for q, a in asked.items()])
    flags = ("--documents", documents, "--data", f"files={questions}", "--depth", 20, "--json")
    result = json.loads(run(evaluate, *flags, "--model", cross_encoder, bi_encoder).splitlines()[-1])
    assert result["questions"] == len(asked)
    systems = {row["name"]: row for row in result["systems"]}
    run(index, "--documents", documents, "--model", bi_encoder, "--output_dir", tmp_path / "index")
    searcher = Searcher(tmp_path / "index")
    for (name, row), stage in zip(list(systems.items())[1:], (BI_ENCODER, FUSION, BM25), strict=True):
        hits = searcher.search(list(asked), 20, first_stage=stage, candidates=20).hits
        lists = ([hit.text for hit in of_question] for of_question in hits)
        ranks = [[*found, text].index(text) for found, text in zip(lists, asked.values(), strict=True)]
        mrr = sum(1 / (rank + 1) for rank in ranks if rank < 10) / len(asked)
        assert row["mrr@10"] == pytest.approx(mrr, abs=1e-3), name
        assert row["r@10"] == pytest.approx(sum(rank < 10 for rank in ranks) / len(asked))
    assert 0 < systems[str(cross_encoder)]["mrr@10"] < 1
