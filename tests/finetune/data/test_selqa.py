"""SelQA as published: its questions, their split by article, and what may be wrong with its files."""

import json
import lzma

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.dataset import MissingSplit
from finetune.data.overlap import find_overlaps
from finetune.data.registry import load_split
from finetune.data.selqa import choose_split

QUESTION = {
    "question": "Who  dug it?",
    "article": "Aardvark",
    "section": "Habits",
    "candidates": ["It digs.", " ", "Nobody did."],
    "answers": [2],
    "is_paraphrase": True,
    "topic": "SCIENCE",
    "q_types": ["who"],
}


def write(folder, *questions, split="dev"):
    (folder / f"selqa-ass-{split}.json.xz").write_bytes(lzma.compress(json.dumps(questions).encode()))
    return f"selqa={folder}"


def test_a_question_is_read_with_its_section(tmp_path):
    spec = write(tmp_path, QUESTION, QUESTION)  # the same text twice: two questions
    data, notes = load_split(spec, choose_split("Aardvark"))
    assert (data.question_ids, data.questions) == (["dev-1", "dev-2"], ["Who dug it?"] * 2)
    assert data.answers.to_pylist()[:3] == ["It digs.", "", "Nobody did."]
    assert data.labels.tolist() == [0, 0, 1] * 2
    assert any("candidates without text, kept: 2" in note for note in notes)
    (tmp_path / "selqa-ass-dev.json").write_text(json.dumps([QUESTION, QUESTION]))  # beside the compressed one
    assert load_split(spec, choose_split("Aardvark"))[0].num_pairs == data.num_pairs


def test_all_questions_of_an_article_are_in_one_split(tmp_path):
    articles = [f"Article {number}" for number in range(200)]
    questions = [{**QUESTION, "question": f"Who is {name}?", "article": name} for name in articles]
    write(tmp_path, *questions)
    spec = write(tmp_path, *questions, split="test")
    found = {split: set(load_split(spec, split)[0].questions) for split in ("train", "dev", "test")}
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 200
    assert len(found["dev"]) < len(found["train"]) < len(found["test"])


def test_the_published_files_have_the_known_counts(shared):
    splits = [load_split(f"selqa={shared}/data/as2/selqa", split)[0] for split in ("train", "dev", "test")]
    assert [data.num_questions for data in splits] == [1017, 225, 1133]
    assert all(data.positives.min() > 0 for data in splits)
    assert not find_overlaps(splits)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"section": None}, 'question 2: "question", "article", "section" must be there, as strings'),
        ({"answers": 2}, 'question 2: "candidates", "answers" must be there, as lists'),
        ({"answers": [3]}, "question 2: answer 3 is no number of a candidate"),
        ({"answers": [-1]}, "question 2: answer -1 is no number"),
        ({"candidates": ["a", None, "b"]}, "question 2: candidate 1 is no text"),
    ],
)
def test_a_broken_question_is_refused_by_its_number(tmp_path, change, told):
    spec = write(tmp_path, QUESTION, {**QUESTION, **change})
    with pytest.raises(KinspanError, match=told):
        load_split(spec, choose_split("Aardvark"))


def test_files_that_are_no_selqa_are_refused(tmp_path):
    with pytest.raises(MissingSplit, match=r"selqa-ass-dev\.json"):
        load_split(f"selqa={tmp_path}", "test")
    for broken in (b"{}", b"[", lzma.compress(b"[]")[:20]):
        (tmp_path / "selqa-ass-dev.json").write_bytes(broken)
        with pytest.raises(KinspanError, match=r"selqa-ass-dev\.json"):
            load_split(f"selqa={tmp_path}", "test")
    (tmp_path / "selqa-ass-dev.json").unlink()
    (tmp_path / "selqa-ass-test.json.xz").write_bytes(lzma.compress(json.dumps([QUESTION]).encode())[:40])
    with pytest.raises(KinspanError, match="cannot read on"):
        load_split(f"selqa={tmp_path}", "test")
