"""kinspan evaluate: scoring files by its path, and models with ones that cost nothing."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from finetune.evaluation import trec
from finetune.evaluation.metrics import METRICS
from launch.commands import evaluate
from launch.commands.evaluate import EvaluateConfig, check
from launch.kinspan import show
from tests.launch.entries import program_of
from tests.programs import run_program


def test_files_give_a_table_notes_and_a_line_of_json(tmp_path):
    (tmp_path / "run.txt").write_text("q1 Q0 a 1 0.5 t\nq1 Q0 b 2 0.7 t\nq2 Q0 a 1 1 t\nq9 Q0 a 1 1 t\n")
    (tmp_path / "qrels.txt").write_text("q1 0 a 1\nq1 0 b 0\nq2 0 a 1\nq3 0 a 1\n")
    files = ("--run", "run.txt", "--qrels", "qrels.txt")
    done = run_program(*program_of("evaluate"), *files, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *text, last = done.stdout.splitlines()
    assert "run.txt   0.5000   0.5000   0.3333   0.5436  0.0000 to 1.0000" in text  # (1/2 + 1 + 0) / 3, and so on
    assert "run.txt: questions of the qrels that are not in the run, which count 0: 1" in text
    assert "run.txt: questions of the run that are not in the qrels, which are ignored: 1" in text
    result = json.loads(last)
    assert result["questions"] == 3
    assert result["systems"][0]["map"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        *[("", "--run"), ("--qrels q", "--qrels"), ("--run r", "--run"), ("--model m", "--model")],
        *[("--run r --qrels q --model m", "--model"), ("--run r --qrels q --split dev", "--split")],
        *[("--model m --data d=f --qrels x", "--qrels"), ("--documents d --model m", "--data")],
        *[("--documents d --data d=f --metrics P@5", "--metrics"), ("--model m --data d=f --depth 9", "--depth")],
        ("--model m --model n m --data d=f", "--model m"),
    ],
)
def test_flags_that_do_not_go_together(flags, text):
    with pytest.raises(KinspanError, match=text):
        check(parse(EvaluateConfig, "", argv=flags.split()))


@pytest.fixture
def data_set(tmp_path):
    """12 questions with one answer in four, and one without any, which the filter leaves out."""
    lines = [
        {
            "question": f"Where is number {n} ?",
            "question_id": f"q{n}",
            "answer": f"{word} {n}",
            "label": int(k == n % 4),
        }
        for n in range(12)
        for k, word in enumerate(("harbour", "number", "castle", "mill"))
    ]
    lines.append({"question": "Where is nothing ?", "question_id": "none", "answer": "nothing here", "label": 0})
    (tmp_path / "data").mkdir()
    (tmp_path / "data/test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"files={tmp_path / 'data'}"


@pytest.fixture
def scored(monkeypatch):
    """Models by name: one that knows, one that is always wrong. What was asked of them."""
    asked = []

    def score_answers(name, data, max_length=128, batch_tokens=None, precision="fp32"):
        asked.append((name, data.num_questions, max_length))
        noise = np.random.default_rng(0).random(data.num_pairs) / 2
        return {"knows": data.labels + noise, "wrong": noise - data.labels, "breaks": noise * np.nan}[Path(name).name]

    monkeypatch.setitem(sys.modules, "finetune.ranking.model", SimpleNamespace(score_answers=score_answers))
    return asked


def evaluate_here(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--json", *map(str, arguments)])
    show(evaluate.main())
    *text, last = capsys.readouterr().out.splitlines()
    return text, json.loads(last)


def test_models_are_compared_with_bm25(data_set, scored, monkeypatch, capsys, tmp_path):
    flags = ["--model", "runs/knows", "--model", "runs/wrong", "--data", data_set, "--output_dir", tmp_path / "out"]
    text, result = evaluate_here(monkeypatch, capsys, *flags, "--max_length", 64)
    assert scored == [("runs/knows", 12, 64), ("runs/wrong", 12, 64)]
    assert text[0] == "files test, clean: 12 questions, 48 candidates"
    knows, wrong, bm25 = result["systems"]
    assert [knows["name"], wrong["name"], bm25["name"]] == ["runs/knows", "runs/wrong", "BM25"]
    assert all(knows[metric] == 1 for metric in METRICS)
    assert wrong["mrr"] == 0.25
    assert wrong["against_first"]["map"]["difference"] == -0.75
    for folder in ("runs-knows", "runs-wrong", "BM25"):
        run_file, qrels_file = tmp_path / "out" / folder / "run.txt", tmp_path / "out" / folder / "qrels.txt"
        assert trec.list_unshared(trec.read_qrels(qrels_file), trec.read_run(run_file)) == []
    assert len((tmp_path / "out/per_question.csv").read_text().splitlines()) == 1 + 3 * 12
    files = ["--run", tmp_path / "out/runs-wrong/run.txt", "--qrels", tmp_path / "out/runs-wrong/qrels.txt"]
    _, again = evaluate_here(monkeypatch, capsys, *files)  # what is written scores as what was measured
    assert all(again["systems"][0][metric] == wrong[metric] for metric in METRICS)


def test_the_split_the_filter_and_the_language_are_as_asked(scored, monkeypatch, capsys, tmp_path):
    rows = [*(("Gärten", f"Mauer {n}", 0) for n in range(5)), ("Gärten", "Garten", 1), ("Was noch", "nichts", 0)]
    for split, asked in (("dev", rows), ("test", rows[:6])):
        lines = [dict(zip(("question", "answer", "label"), row, strict=True)) for row in asked]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--model", "knows", "--data", f"files={tmp_path}", "--split", "dev"]
    assert evaluate_here(monkeypatch, capsys, *flags, "--eval_filter", "raw")[1]["questions"] == 2
    _, result = evaluate_here(monkeypatch, capsys, *flags, "--language", "german")
    assert result["split"] == "dev"
    assert result["systems"][1]["map"] == 1


def test_real_data(shared, scored, monkeypatch, capsys):
    """BM25's MAP on the clean test sets. 237 questions of WikiQA and 68 of TREC-QA (Garg et al., 2020, table 2)."""
    for name, questions, value in (("wikiqa", 237, 0.6015), ("trecqa", 68, 0.7171)):
        data = f"{name}={shared / 'data/as2' / name}"
        _, result = evaluate_here(monkeypatch, capsys, "--model", "knows", "--data", data)
        assert result["questions"] == questions
        assert result["systems"][1]["map"] == pytest.approx(value, abs=1e-3)
