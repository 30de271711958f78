"""``kinspan adapt`` as a user runs it, on a few documents and with a tiny model, without labels."""

import json
import sys

import pytest
from transformers import AutoModel

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.benchmark import Benchmark
from finetune.adapt import run as adapt_run
from finetune.ranking.config import RankConfig
from finetune.ranking.measure import rank_file
from launch.commands import adapt
from launch.kinspan import show
from tests.conftest import write_jsonl
from tests.synthetic import short_tokenizer, write_model


@pytest.fixture
def documents(tiny_documents, tmp_path):
    return write_jsonl(tmp_path / "documents.jsonl", tiny_documents)


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["kinspan adapt", *map(str, arguments)])
    show(adapt.main())


def test_documents_alone(documents, monkeypatch, tmp_path, capsys):
    """Then a larger budget goes on: the first run's updates before its decay are not made again."""
    model, output = write_model(tmp_path / "model", AutoModel), tmp_path / "adapted"
    monkeypatch.setattr(adapt, "HELD_OUT", 0.2)
    monkeypatch.setattr(adapt_run, "MEASURED_UPDATES", 20)
    monkeypatch.setattr("pretrain.engine.schedule.OPEN_ENDED_WARMUP", 5)
    arguments = ("--documents", documents, "--model", model, "--output_dir", output)
    run(monkeypatch, *arguments, "--budget", "320pairs")
    (output / "pretrain/summary.json").unlink()  # as if it had been stopped before its end
    capsys.readouterr()
    run(monkeypatch, *arguments, "--budget", "640pairs")
    assert "This is no verdict" in capsys.readouterr().out
    result = json.loads((output / "result.json").read_text())
    (tmp_path / "candidates.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question": "a", "answer": "c"}\n')
    rank_file(RankConfig(result["release"], str(tmp_path / "ranked"), str(tmp_path / "candidates.jsonl")))
    run(monkeypatch, *arguments, "--budget", "960pairs")
    assert json.loads((output / "pretrain/summary.json").read_text())["steps"] == 30
    with pytest.raises(KinspanError, match="--budget"):
        run(monkeypatch, *arguments, "--budget", "640pairs")


def test_documents_that_hold_a_text_are_left_out(documents, tiny_documents, monkeypatch, tmp_path):
    text = tiny_documents[0]["paragraphs"][0]
    every, fewer = (
        adapt.prepare_documents([str(documents)], short_tokenizer(), tmp_path / f"{len(texts)}", texts)["documents"]
        for texts in ([], [text])
    )
    assert fewer == every - 1
    monkeypatch.setattr(Benchmark, "find", lambda *given: {})  # a preparation that overlooks it
    with pytest.raises(KinspanError, match="--questions"):
        adapt.prepare_documents([str(documents)], short_tokenizer(), tmp_path / "2", [text])


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["--documents", "nowhere"], "^nowhere"),
        (["--documents", "nowhere", "--columns", "answer=a"], "^--columns"),
        (["--documents", "python-docs", "--questions", "q.xls"], r"--questions q\.xls"),
        (["--documents", "python-docs", "--model", "absent/x/y"], "absent/x/y"),
        (["--documents", "few.jsonl"], "^--documents few.jsonl"),
    ],
)
def test_refusals(arguments, flag, tiny_documents, monkeypatch, tmp_path):
    (tmp_path / "few.jsonl").write_text(json.dumps(tiny_documents[0]) + "\n")
    (tmp_path / "q.xls").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KinspanError, match=flag):
        run(monkeypatch, *arguments, "--output_dir", "out")
