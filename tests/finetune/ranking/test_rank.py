"""Candidates without labels: what is written, and what is refused."""

import json

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.registry import load_split
from finetune.evaluation.trec import read_run
from finetune.ranking.config import RankConfig
from finetune.ranking.measure import rank_file
from finetune.ranking.model import score_answers


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
        rank_file(RankConfig(str(model), str(tmp_path / "out"), str(path), columns=columns, max_length=32))
        return tmp_path / "out"

    return write


def test_scores_and_order_are_those_of_labelled_candidates(rank, sets, model):
    rows = [json.loads(line) for line in (sets / "test.jsonl").read_text().splitlines()]
    data = load_split(f"files={sets}", "test")
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


def test_refusals(rank, tmp_path):
    (tmp_path / "sheet.xlsx").write_bytes(b"PK")
    for match, rows in (
        ("no column 'answer'", [{"question": "a", "text": "b"}]),
        ("candidates.jsonl line 2", [{"question": "a", "answer": "b"}, {"question": "a", "answer": 5}]),
    ):
        with pytest.raises(KinspanError, match=match):
            rank(rows)
    for match, path in (("--data", "absent.jsonl"), ("sheet.xlsx", "sheet.xlsx")):
        with pytest.raises(KinspanError, match=match):
            rank_file(RankConfig("x", str(tmp_path / "out"), str(tmp_path / path)))
    assert not (tmp_path / "out").exists()
