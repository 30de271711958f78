"""launch/index.py and launch/search.py, from flags to what they print."""

import io
import json
import re

import pytest

from data_pipeline.errors import KinspanError
from launch import index, search


@pytest.fixture
def run(monkeypatch, capsys):
    """``run(entry, *arguments)``: what it prints."""

    def call(entry, *arguments):
        monkeypatch.setattr("sys.argv", [entry.__name__, *map(str, arguments)])
        capsys.readouterr()
        entry.main()
        return capsys.readouterr().out

    return call


def write(path, answers):
    path.write_text("".join(json.dumps(answer._asdict()) + "\n" for answer in answers))
    return path


def test_from_answers_to_a_question(tmp_path, run, monkeypatch, bi_encoder, cross_encoder, answers):
    folder = tmp_path / "index"
    build = (
        index,
        "--model",
        bi_encoder,
        "--answers",
        write(tmp_path / "a.jsonl", answers[:20]),
        "--output_dir",
        folder,
    )
    assert "20 answers" in run(*build)
    assert f"{folder} is complete: nothing to do" in run(*build)
    said = run(index, "--output_dir", folder, "--add", write(tmp_path / "b.jsonl", answers[15:30]))
    assert "5 answers are there as they are: left" in said
    assert f"{folder}: 30 answers" in said
    for flags, reason in (
        (["--add", tmp_path / "b.jsonl", "--precision", "bf16"], "--precision bf16: the index was built in fp32"),
        (["--add", tmp_path / "b.jsonl", "--approximate"], "--approximate: the index was built without"),
        (["--remove", "a0", "--max_length", "9"], "--remove encodes nothing"),
    ):
        with pytest.raises(KinspanError, match=reason):
            run(index, "--output_dir", folder, *flags)
    with pytest.raises(KinspanError, match=r"none\.jsonl"):  # before anything is removed
        run(index, "--output_dir", folder, "--remove", "a0", "--add", tmp_path / "none.jsonl")
    (tmp_path / "ids.txt").write_text("a1\na2\n")
    assert "27 answers" in run(index, "--output_dir", folder, "--remove", "a0", tmp_path / "ids.txt")
    assert "27 answers" in run(index, "--output_dir", folder)

    said = run(search, "--index", folder, "--k", 2, "what of the river?", "number 7")
    assert len(re.findall(r"^ [12]\. a\d+  \(bi-encoder ", said, re.MULTILINE)) == 4
    assert "    question: what of " in said
    assert "https://example.org/" in said
    ranked = run(search, "--index", folder, "--cross_encoder", cross_encoder, "--first_stage", "fusion", "number 7")
    assert re.search(r"^ 1\. a\d+  \(.*fusion .*cross-encoder ", ranked, re.MULTILINE)
    assert re.search(r" ms: encode .*, nearest .*, words .*, rerank ", ranked)
    monkeypatch.setattr("sys.stdin", io.StringIO("number 7\n\nnumber 8\n"))
    asked = run(search, "--index", folder)
    assert "number 7" in asked
    assert "number 8" in asked.splitlines()  # an empty line ends at a terminal alone


@pytest.mark.parametrize(
    ("entry", "arguments", "reason"),
    [
        (search, ("--index", "{}/none", "q"), "is no index, see launch/index.py"),
        (index, ("--output_dir", "{}/none", "--remove", "a"), "is no index"),
        (index, ("--output_dir", "{}/none", "--answers", "x.jsonl", "--remove", "a"), "builds a new index"),
        (index, ("--output_dir", "{}/none", "--answers", "x.jsonl"), "there is no such file"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path, run, entry, arguments, reason):
    with pytest.raises(KinspanError, match=reason) as error:
        run(entry, *(argument.format(tmp_path) for argument in arguments))
    assert "\n" not in str(error.value)


def test_an_argument_too_many_is_refused(run, capsys):
    with pytest.raises(SystemExit):
        run(index, "--output_dir", "x", "stray")
    assert "unrecognized arguments: stray" in capsys.readouterr().err
