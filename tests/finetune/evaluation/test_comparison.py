import csv
import io

import pytest

from finetune.evaluation.comparison import compare_systems, format_per_question, name_folders
from finetune.evaluation.metrics import METRICS


def test_every_row_is_tested_against_the_first(systems):
    good, bad, again = compare_systems(systems)
    assert good["against_first"] is None
    assert good["map"] == systems["good"]["map"].mean()
    for metric in METRICS:
        assert bad["against_first"][metric]["difference"] == pytest.approx(bad[metric] - good[metric])
        assert bad["against_first"][metric]["difference"] < 0
        assert bad["against_first"][metric]["p"] < 0.01
        assert again["against_first"][metric] == {"difference": 0, "p": 1, "corrected": 1}


def test_per_question_is_csv_that_reads_back(data, systems):
    rows = list(csv.DictReader(io.StringIO(format_per_question(systems, data.question_ids))))
    assert len(rows) == 3 * data.num_questions
    assert [float(row["p@1"]) for row in rows if row["system"] == "bad"] == systems["bad"]["p@1"].tolist()


def test_folder_names_tell_systems_apart(tmp_path, monkeypatch):
    assert name_folders(["runs/a", "org/model-1.5", "BM25"]) == ["runs-a", "org-model-1.5", "BM25"]
    assert name_folders(["x/seed-1/best", "y/seed-1/best", "BM25"]) == ["1-seed-1-best", "2-seed-1-best", "BM25"]
    alike = name_folders(["/a b", "/a_b", "runs/A B"])
    assert len(set(map(str.casefold, alike))) == 3
    assert all("/" not in name and " " not in name for name in alike)
    (tmp_path / "seed-1/best").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "seed-1/best")
    assert name_folders([".", "../../seed-1", "one"]) == ["seed-1-best", f"{tmp_path.name}-seed-1", "one"]
