"""``kinspan adapt`` as a user runs it, on a few documents and with a tiny model, without labels."""

import gzip
import json
import sys
import zipfile

import pytest
from transformers import AutoConfig, AutoModel

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer, shorten_name
from finetune.adapt import budget
from finetune.adapt import run as adapt_run
from finetune.rank import rank_file
from launch.commands import adapt
from tests.synthetic import short_tokenizer


@pytest.fixture
def model(tmp_path):
    folder, tokenizer = tmp_path / "model", load_tokenizer(short_tokenizer())
    tokenizer.save_pretrained(str(folder))
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    AutoModel.from_config(AutoConfig.for_model("bert", vocab_size=len(tokenizer), **small)).save_pretrained(str(folder))
    return folder


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["kinspan adapt", *map(str, arguments)])
    adapt.main()


def test_documents_alone(model, tiny_documents, monkeypatch, tmp_path, capsys):
    """Then a larger budget goes on: the first run's updates before its decay are not made again."""
    documents, output = tmp_path / "documents.jsonl", tmp_path / "adapted"
    documents.write_text("".join(json.dumps(document) + "\n" for document in tiny_documents))
    monkeypatch.setattr(adapt, "HELD_OUT", 0.2)
    for module in (budget, adapt_run):
        monkeypatch.setattr(module, "FEWEST_UPDATES", 20)
    monkeypatch.setattr("pretrain.engine.schedule.OPEN_ENDED_WARMUP", 5)
    monkeypatch.setattr("finetune.adapt.telling.QUIET", 1e9)  # a busy machine tells more lines
    arguments = ("--documents", documents, "--model", model, "--output_dir", output)
    run(monkeypatch, *arguments, "--budget", "640pairs")
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 31
    assert "This is no verdict" in said
    assert "20 updates are the minimum" in said
    assert "are left (pre-training " in said
    result = json.loads((output / "result.json").read_text())
    names = {row["name"] for row in result["ways"]}
    assert names == {"BM25", f"{shorten_name(str(model))} as it is", "the pre-trained model, without labels"}
    (tmp_path / "candidates.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question": "a", "answer": "c"}\n')
    rank_file(result["release"], tmp_path / "candidates.jsonl", tmp_path / "ranked", None, None, "fp32")
    run(monkeypatch, *arguments, "--budget", "960pairs")
    assert "learned: 30 updates" in capsys.readouterr().out
    assert "it goes on from step 16" in (output / "log.txt").read_text()


def test_documents_that_hold_a_text_are_left_out(tiny_documents, tmp_path):
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps(document) + "\n" for document in tiny_documents))
    every, fewer = (
        adapt.prepare_documents(print, [str(documents)], short_tokenizer(), tmp_path / f"{len(but)}", but)["documents"]
        for but in ([], [tiny_documents[0]["paragraphs"][0]])
    )
    assert fewer == every - 1


def test_what_is_dropped_is_said(tiny_documents, tmp_path):
    documents, said = tmp_path / "documents.jsonl", []
    rows = [*tiny_documents, {"title": "A stub", "paragraphs": ["Too short."]}]
    documents.write_text("".join(json.dumps(document) + "\n" for document in rows))
    adapt.prepare_documents(said.append, [str(documents)], short_tokenizer(), tmp_path / "corpus", [])
    assert said[0].startswith(f"dropped 1 of {len(rows)} documents and ")


def test_what_an_archive_goes_without_is_said_once(tiny_documents, tmp_path):
    said = []
    with zipfile.ZipFile(tmp_path / "documents.zip", "w") as archive:
        archive.writestr("a.jsonl", "".join(json.dumps(document) + "\n" for document in tiny_documents))
        archive.writestr("a.exe", b"MZ")
    for _ in range(2):  # the second time the corpus is there, and its counts are not
        adapt.prepare_documents(
            said.append, [str(tmp_path / "documents.zip")], short_tokenizer(), tmp_path / "corpus", []
        )
    assert sum("rejected" in line for line in said) == 1


def test_held_out_anchors_stand_in_for_questions(tiny_corpus):
    pairs = adapt.hold_out(tiny_corpus, "ssp")
    assert pairs.positives.tolist() == [1] * pairs.num_questions
    assert set(map(int, pairs.starts[1:] - pairs.starts[:-1])) == {5}
    assert all(pairs.questions)
    again = adapt.hold_out(tiny_corpus, "ssp")
    assert again.answers.equals(pairs.answers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--documents", "nowhere", "--output_dir", "out"], "^nowhere: no such file$"),
        (["--documents", "nowhere", "--output_dir", "out", "--budget", "a while"], "--budget a while"),
        (["--documents", "nowhere", "--output_dir", "out", "--columns", "answer=a"], "^--columns needs --questions"),
        (
            ["--documents", "python-docs", "--output_dir", "out", "--questions", "absent"],
            "^--questions absent: there is",
        ),
        (["--documents", "python-docs", "--output_dir", "out", "--questions", "q.xls"], r"^q\.xls: not a known format"),
        (
            ["--documents", "python-docs", "--output_dir", "out", "--model", "absent/x/y"],
            "^no model at .* give the folder",
        ),
        (["--documents", "few.jsonl", "--output_dir", "out"], r"^--documents few.jsonl can train .*; add documents$"),
        (["--documents", "few.jsonl", "wrong.jsonl", "--output_dir", "out"], "^the input: 1 file without a document"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line_and_leaves_nothing(
    arguments, message, tiny_documents, monkeypatch, tmp_path
):
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(document) + "\n" for document in tiny_documents[:1]))
    (tmp_path / "wrong.jsonl").write_text("{}\n")
    (tmp_path / "q.xls").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KinspanError, match=message) as raised:
        run(monkeypatch, *arguments)
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.jsonl", b"{}\n", r"^the input: 1 file without a document: .*b\.jsonl"),
        (
            "b.jsonl.gz",
            gzip.compress(b"{}\n", mtime=0)[:-9],
            r"b\.jsonl\.gz, .*; copy or fetch the file again$",
        ),
    ],
)
def test_a_refusal_names_no_flag_that_is_not_here(tmp_path, tiny_documents, name, content, message):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps(document) + "\n" for document in tiny_documents))
    (folder / name).write_bytes(content)
    with pytest.raises(KinspanError, match=message) as caught:
        adapt.prepare_documents(print, [str(folder)], short_tokenizer(), tmp_path / "corpus", [])
    assert "--allow" not in str(caught.value)
