"""InsuranceQA with pools that BM25 finds."""

import json

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.builders.pools import Count, build_pools
from finetune.data.registry import load_split

ANSWERS = {
    "1": "A car policy covers the driver.",
    "2": "Life policies pay the family.",
    "3": "A house burns rarely.",
    "4": "Dogs bite drivers of a car.",
    "5": "Flood is not covered.",
}


def write(folder, **splits):
    (folder / "answers.jsonl").write_text(
        "".join(json.dumps({"aid": aid, "text": text}) + "\n" for aid, text in ANSWERS.items())
    )
    for split in ("train", "valid", "test"):
        rows = splits.get(split, [("what of a car driver", ["1"]), ("does life pay", ["2", "3"])])
        lines = [
            {"qid": str(n), "question": question, "answers": right, "negatives": ["5"]}
            for n, (question, right) in enumerate(rows)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def candidates(folder, split):
    data, _ = load_split(f"insuranceqa={folder}", split)
    ids = data.answer_ids.to_pylist()
    return {
        name: {ids[row]: int(data.labels[row]) for row in range(rows.start, rows.stop)}
        for name, rows in zip(data.question_ids, data.question_slices(), strict=True)
    }


def test_candidates_are_what_bm25_finds(tmp_path):
    source = write(tmp_path, valid=[("what of a car driver", ["3"])])
    counts = build_pools(source, tmp_path / "out", candidates=2, train_candidates=3)
    assert counts == {"train": Count(2, 2), "dev": Count(1, 0), "test": Count(2, 2)}
    assert candidates(tmp_path / "out", "test") == {"0": {"1": 1, "4": 0}, "1": {"2": 1, "1": 0}}
    assert candidates(tmp_path / "out", "dev") == {"0": {"1": 0, "4": 0}}  # its right answer was not found
    train = candidates(tmp_path / "out", "train")
    assert {name: len(found) for name, found in train.items()} == {"0": 3, "1": 3}
    assert train["1"] == {"2": 1, "3": 1, "1": 0}  # all right answers, found or not


def test_a_question_of_unknown_words_has_candidates(tmp_path):
    source = write(tmp_path, test=[("zzz", ["1"]), ("the of", ["1"])])
    assert build_pools(source, tmp_path / "out", 2, 2)["test"] == Count(2, 2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("q", ["9"])], "test.jsonl line 1"),
        ([("q", [["1"]])], "test.jsonl line 1"),
        ([(3, ["1"])], "test.jsonl line 1"),
    ],
)
def test_a_broken_line_is_named(tmp_path, rows, message):
    with pytest.raises(KinspanError, match=message):
        build_pools(write(tmp_path, test=rows), tmp_path / "out", 2, 2)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(KinspanError, match=r"answers.jsonl"):
        build_pools(tmp_path, tmp_path / "out")
    with pytest.raises(KinspanError, match="--output_dir"):
        build_pools(write(tmp_path), tmp_path)
    with pytest.raises(KinspanError, match="--train_candidates 6"):
        build_pools(tmp_path, tmp_path / "out", 5, 6)
    with pytest.raises(KinspanError, match="--output_dir"):
        build_pools(tmp_path, tmp_path / "answers.jsonl", 5, 5)
    (tmp_path / "valid.jsonl").unlink()
    with pytest.raises(KinspanError, match=r"valid.jsonl"):
        build_pools(tmp_path, tmp_path / "out")
