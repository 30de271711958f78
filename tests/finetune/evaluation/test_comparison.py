import csv
import io
import re

import pytest

from finetune.evaluation.comparison import compare_systems, format_per_question, format_table, name_folders
from finetune.evaluation.metrics import METRICS


def test_every_row_is_tested_against_the_first(systems):
    good, bad, again = compare_systems(systems)
    assert good["against_first"] is None
    assert good["map"] == systems["good"]["map"].mean()
    for metric in METRICS:
        assert bad["against_first"][metric]["difference"] == pytest.approx(bad[metric] - good[metric])
        assert bad["against_first"][metric]["difference"] < 0
        assert bad["against_first"][metric]["over_questions"] < 0.01
        assert again["against_first"][metric] == {"difference": 0, "over_questions": 1, "corrected": 1}


def test_the_table_has_four_decimals(systems):
    rows = compare_systems(systems)
    lines = format_table(rows).splitlines()
    assert re.split("  +", lines[0].strip()) == ["MAP", "MRR", "P@1", "nDCG@10", "95% interval of MAP"]
    name, *means, interval = re.split("  +", lines[1])
    assert (name, *means) == ("good", *(f"{rows[0][metric]:.4f}" for metric in METRICS))
    low, high = map(float, interval.split(" to "))
    assert low <= rows[0]["map"] <= high
    assert lines[-2].startswith(f"bad    {rows[1]['map'] - rows[0]['map']:+.4f} (<.001)")
    assert lines[-1].count("+0.0000 (1.000)") == 4
    assert "corrected by Holm's method for 2 comparisons" in format_table(rows)
    assert "corrected" not in format_table(rows[:2])
    assert len(format_table(rows[:1]).splitlines()) == 2


def test_per_question_is_csv_that_reads_back(data, systems):
    rows = list(csv.DictReader(io.StringIO(format_per_question(systems, data.question_ids))))
    assert len(rows) == 3 * data.num_questions
    assert [float(row["p@1"]) for row in rows if row["system"] == "bad"] == systems["bad"]["p@1"].tolist()


def test_folder_names_tell_systems_apart():
    assert name_folders(["runs/a", "org/model-1.5", "BM25"]) == ["runs-a", "org-model-1.5", "BM25"]
    assert name_folders(["x/seed-1/best", "y/seed-1/best", "BM25"]) == ["1-seed-1-best", "2-seed-1-best", "BM25"]
    alike = name_folders(["/a b", "/a_b", "runs/A B"])
    assert len(set(map(str.casefold, alike))) == 3
    assert all("/" not in name and " " not in name for name in alike)
