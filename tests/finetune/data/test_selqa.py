"""SelQA as published: its questions, their split by article, and what may be wrong with its files."""

import json
import lzma

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.filters import check_overlaps
from finetune.data.registry import load_split
from finetune.data.selqa import choose_split

QUESTION = {"question": "Who  dug it?", "article": "Aardvark", "section": "Habits", "topic": "SCIENCE"}
QUESTION |= {"candidates": ["It digs.", " ", "Nobody did."], "answers": [2], "is_paraphrase": True, "q_types": ["who"]}


def write(folder, *questions, split="dev"):
    (folder / f"selqa-ass-{split}.json.xz").write_bytes(lzma.compress(json.dumps(questions).encode()))
    return f"selqa={folder}"


def test_a_question_is_read_with_its_section(tmp_path):
    spec = write(tmp_path, QUESTION, QUESTION)  # the same text twice: two questions
    data = load_split(spec, choose_split("Aardvark"))
    assert (data.question_ids, data.questions) == (["dev-1", "dev-2"], ["Who dug it?"] * 2)
    assert data.answers.to_pylist()[:3] == ["It digs.", "", "Nobody did."]
    assert data.labels.tolist() == [0, 0, 1] * 2
    (tmp_path / "selqa-ass-dev.json").write_text(json.dumps([QUESTION, QUESTION]))  # beside the compressed one
    assert load_split(spec, choose_split("Aardvark")).num_pairs == data.num_pairs


def test_all_questions_of_an_article_are_in_one_split(tmp_path):
    articles = [f"Article {number}" for number in range(200)]
    questions = [{**QUESTION, "question": f"Who is {name}?", "article": name} for name in articles]
    write(tmp_path, *questions)
    spec = write(tmp_path, *questions, split="test")
    found = {split: set(load_split(spec, split).questions) for split in ("train", "dev", "test")}
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 200
    assert len(found["dev"]) < len(found["train"]) < len(found["test"])


def test_the_published_files_have_the_known_counts(shared, caplog):
    caplog.set_level("INFO")
    splits = [load_split(f"selqa={shared}/data/as2/selqa", split) for split in ("train", "dev", "test")]
    assert [data.num_questions for data in splits] == [1017, 225, 1133]
    assert all(data.positives.min() > 0 for data in splits)
    check_overlaps(splits)
    assert "share" not in caplog.text


@pytest.mark.parametrize(
    "change", [{"section": None}, {"answers": 2}, {"answers": [3]}, {"answers": [-1]}, {"candidates": ["a", None, "b"]}]
)
def test_a_broken_question_is_refused_by_its_number(tmp_path, change):
    spec = write(tmp_path, QUESTION, {**QUESTION, **change})
    with pytest.raises(KinspanError, match="question 2:"):
        load_split(spec, choose_split("Aardvark"))
