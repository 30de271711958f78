"""The code blocks of docs/, run as they are written."""

import json
import re
import shlex
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification

from data_pipeline.core.command_line import parse
from launch.kinspan import find_command, run_command, show
from objectives import OBJECTIVES
from pretrain.config import PretrainConfig
from tests.programs import run_program
from tests.synthetic import write_model

ROOT = Path(__file__).resolve().parents[2]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def place(tmp_path, tiny_corpus):
    """A folder in which the pages' names stand for something small."""
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora/docs").symlink_to(tiny_corpus)
    (tmp_path / "launch").symlink_to(ROOT / "launch")
    write_model(tmp_path / "path/to/model")
    return tmp_path


@pytest.fixture
def run_here(place, monkeypatch, capfd):
    """``run_here(block)``: what the commands of a block print, run in this process, which has imported everything. A
    pre-training that does not say how much has small batches, and validates on few pairs."""
    monkeypatch.chdir(place)

    def run_block(block):
        capfd.readouterr()
        for line in block.replace("\\\n", " ").splitlines():
            kinspan, *words = shlex.split(line)
            assert kinspan == "kinspan"
            command, arguments = find_command(words)
            few = ["--eval_pairs", "20", "--global_batch_size", "8"] if command == "pretrain" else []
            monkeypatch.setattr(sys, "argv", [kinspan, *command.split(), *few, *arguments])
            if arguments != ["--help"]:
                show(run_command())
        return capfd.readouterr().out

    return run_block


@pytest.mark.slow
def test_objectives(place, run_here, monkeypatch):
    (place / "next_paragraph.py").write_text(*blocks("objectives.md", "python"))
    monkeypatch.syspath_prepend(place)
    inspect, train, release, mixture = blocks("objectives.md", "bash")
    seen = run_here(inspect)
    assert re.findall(r"^pair \d+: next_paragraph:OBJECTIVE, (\w+)", seen, re.MULTILINE) == [
        *("positive", "hard", "easy") * 2
    ]
    where = re.findall(r"^  ([AB]): (\S+) .*, paragraph (\d+)", seen, re.MULTILINE)
    for (_, a, p), (_, b, q), kind in zip(where[::2], where[1::2], ("positive", "hard", "easy") * 2, strict=True):
        assert (a == b) == (kind != "easy")
        assert (a == b and int(q) == int(p) + 1) == (kind == "positive")
        assert (a, p) != (b, q)
    run_here(train)
    run_here(release)
    shown = re.findall(r"^pair \d+: (\S+),", run_here(mixture), re.MULTILINE)
    assert set(shown) == {"ssp", "next_paragraph:OBJECTIVE"}


def test_corpora(place, run_here):
    (place / "corpora/news").symlink_to((place / "corpora/docs").resolve())
    (block,) = (block for block in blocks("pretraining.md", "bash") if "show pairs" in block)
    shown = re.findall(r"^pair \d+: (\w+), (\w+),", run_here(block), re.MULTILINE)
    assert Counter(shown) == {("docs", "ssp"): 15, ("news", "psd"): 5}
    (recipe,) = blocks("pretraining.md", "yaml")
    (place / "recipe.yaml").write_text(recipe)
    mixed = json.loads((place / "runs/mixed/summary.json").read_text())["config"]["corpus"]
    assert mixed == ["corpora/docs=3", "corpora/news=1,psd"]
    assert parse(PretrainConfig, "", argv=["--config", str(place / "recipe.yaml")]).corpus == mixed


@pytest.mark.slow
def test_siamese(place, run_here, tiny_documents):
    train, tune, mined = blocks("as2.md", "bash")[7:10]
    run_here(train)
    write_questions(place / "data", tiny_documents)
    run_here(tune)
    run_here(mined)
    for run in ("finder", "mined"):
        assert 0 < json.loads((place / f"runs/{run}/results.json").read_text())["test"]["r@5"]["mean"] <= 1
    (use,) = blocks("as2.md", "python")
    exec(use, {})  # in the folder that run_here has gone to


def test_python(place):
    (place / "page.py").write_text("\n".join(blocks("pretraining.md", "python")))
    done = run_program(place / "page.py", cwd=place, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert (place / "releases/python/model.safetensors").exists()


def write_questions(folder, documents):
    """Questions in jsonl, and in ASNQ's form: the sentence that a question is about, and four others."""
    sentences = [s for d in documents for p in d["paragraphs"] for s in p.split(". ")]
    (folder / "questions").mkdir(parents=True)
    (folder / "asnq").mkdir()
    for number, split in enumerate(("train", "dev", "test")):
        groups = [sentences[5 * q : 5 * q + 5] for q in range(10 * number, 10 * number + 10)]
        rows = [(f"what of {group[0][:30]} ?", text, text == group[0]) for group in groups for text in group]
        lines = [json.dumps({"question": q, "answer": a, "label": int(right)}) + "\n" for q, a, right in rows]
        (folder / "questions" / f"{split}.jsonl").write_text("".join(lines))
        graded = [f"say {q}\t{a}\t{4 if right else 1 + n % 3}\n" for n, (q, a, right) in enumerate(rows)]
        (folder / "asnq" / f"{split}.tsv").write_text("".join(graded))


@pytest.mark.slow
def test_as2(place, run_here, tiny_documents):
    write_questions(place / "data", tiny_documents)
    study, _ = blocks("as2.md", "yaml")
    (place / "study.yaml").write_text(study)
    (place / "releases").mkdir()
    (place / "releases/docs").symlink_to(place / "path/to/model")
    commands = blocks("as2.md", "bash")[:6]
    tune, tanda, studied, _, trec, models = map(run_here, commands)
    figures = json.loads((place / "runs/as2/results.json").read_text())
    assert f"{figures['seeds'][0]['test']['map']:.4f}" in trec
    assert "test mean" in tune
    assert "transferred from asnq" in tanda
    assert "four to an answer" in studied
    assert "BM25" in models
    assert len((place / "runs/ranked/ranking.jsonl").read_text().splitlines()) == 10


def test_search(place, run_here, monkeypatch):
    line, *_ = blocks("search.md", "json")
    more = [{"id": f"s{n}", "text": f"Turn knob {n} until the screen is bright."} for n in range(5)]
    (place / "solved.jsonl").write_text(line + "".join(json.dumps(answer) + "\n" for answer in more))
    (place / "new.jsonl").write_text(json.dumps({"text": "Buy another one."}) + "\n")
    write_model(place / "releases/docs", AutoModelForSequenceClassification, num_labels=1)
    build, change, ask, measure, *_ = blocks("search.md", "bash")
    assert "index: 6 answers" in run_here(build)
    whole = (place / "index").rename(place / "kept")
    shutil.copytree(whole, place / "index")
    assert "index: 7 answers" in run_here(change)
    shutil.rmtree(place / "index")
    whole.rename(place / "index")
    assert re.search(r" 1\. t1  \(bi-encoder .*cross-encoder ", run_here(ask), re.DOTALL)
    (place / "queries.tsv").write_text("q1\tThe printer does not print\nq2\tThe screen is dark\n")
    (place / "qrels.txt").write_text("q1 0 t1 1\nq2 0 s1 1\nq2 0 s2 2\n")
    figures = run_here(measure)
    assert "R@100" in figures
    assert "found.txt" in figures
    assert len((place / "reranked/run.txt").read_text().splitlines()) == 12
    seen = []
    monkeypatch.setattr("builtins.print", lambda *values: seen.append(values))
    exec(blocks("search.md", "python")[0], {})
    assert [len(values) for values in seen] == [6, 6, 6, 1]
    assert set(seen[-1][0]) == {"encode", "nearest", "rerank", "read", "total"}


def test_the_table_lists_every_objective_as_it_is():
    page = (ROOT / "docs/objectives.md").read_text(encoding="utf-8").partition("## What their pairs look like")[0]
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if re.match(r"\| `\w", line)]
    listed = {row[1].strip("`"): (int(row[6]), int(row[7])) for row in rows}
    assert listed == {name: (o.pairs_per_anchor, o.max_length) for name, o in OBJECTIVES.items()}
