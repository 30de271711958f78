"""Candidates without labels: what is written, and what is refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.registry import load_split
from finetune.evaluation.trec import read_run
from finetune.rank import rank_file
from finetune.ranking.score import score_answers


@pytest.fixture
def rank(model, tmp_path):
    """``rank(rows, suffix, columns)``: the folder that the ranking of these rows is written to."""

    def write(rows, suffix=".jsonl", columns=None):
        path = tmp_path / f"candidates{suffix}"
        names = list(rows[0])
        lines = [json.dumps(row) for row in rows]
        if suffix == ".tsv":
            lines = ["\t".join(names), *("\t".join(str(row[name]) for name in names) for row in rows)]
        path.write_text("".join(line + "\n" for line in lines))
        rank_file(str(model), path, tmp_path / "out", columns, 32, "fp32")
        return tmp_path / "out"

    return write


def test_scores_and_order_are_those_of_labelled_candidates(rank, sets, model, capsys):
    rows = [json.loads(line) for line in (sets / "test.jsonl").read_text().splitlines()]
    data, _ = load_split(f"files={sets}", "test")
    scores = score_answers(str(model), data, 32)
    folder = rank([{k: v for k, v in row.items() if k != "label"} for row in rows])
    written = [score for of_question in read_run(folder / "run.txt").values() for score in of_question.values()]
    np.testing.assert_allclose(sorted(written), sorted(scores), atol=1e-6)
    lines = [json.loads(line) for line in (folder / "ranking.jsonl").read_text().splitlines()]
    assert [line["question"] for line in lines] == list(data.questions)
    for line in lines:
        found = [candidate["score"] for candidate in line["candidates"]]
        assert found == sorted(found, reverse=True)
        assert line["candidates"][0].keys() == {"id", "text", "score"}
    assert {path.name for path in folder.iterdir()} == {"run.txt", "ranking.jsonl"}
    assert "6 questions, 30 candidates" in capsys.readouterr().out


def test_columns_of_other_names_in_a_table_of_tabs(rank):
    rows = [{"query": "why stone", "passage": f"{word} because"} for word in ("river", "green", "winter")]
    folder = rank(rows, ".tsv", "question=query,answer=passage")
    assert len((folder / "run.txt").read_text().splitlines()) == 3


def test_what_cannot_be_ranked(rank, tmp_path):
    with pytest.raises(KinspanError, match=r"candidates.jsonl: no column 'answer'; there are question, text"):
        rank([{"question": "a", "text": "b"}])
    with pytest.raises(KinspanError, match=r"candidates.jsonl line 2: 'answer' is no text: 5"):
        rank([{"question": "a", "answer": "b"}, {"question": "a", "answer": 5}])
    with pytest.raises(KinspanError, match=r"--data .*absent.jsonl: there is no such file"):
        rank_file("x", tmp_path / "absent.jsonl", tmp_path / "out", None, 32, "fp32")
    (tmp_path / "sheet.xlsx").write_bytes(b"PK")
    with pytest.raises(KinspanError, match=r"sheet.xlsx: not a known format; known are \.jsonl, \.csv, \.tsv"):
        rank_file("x", tmp_path / "sheet.xlsx", tmp_path / "out", None, 32, "fp32")
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_named_before_torch_is_loaded(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "finetune.ranking.score", None)  # importing it fails
    with pytest.raises(KinspanError, match="there is no such file"):
        rank_file("a model", Path("nosuch.jsonl"), tmp_path, None, None, "fp32")
