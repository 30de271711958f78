"""The questions that are shipped, and what is said of them: each sentence has its case."""

import hashlib

import numpy as np
import pytest

from finetune.adapt.sample import BETTER, NOT_LEARNED, QUESTIONS, UNDECIDED, WORSE, choose_sentence
from finetune.data.filters import CLEAN, find_kept
from finetune.data.registry import load_split


@pytest.mark.parametrize(
    ("after", "others", "sentence"),
    [
        (0.7, (0.8, 0.85), WORSE),
        (0.7, (0.6, 0.85), WORSE),
        (0.7, (0.5, 0.6), BETTER),
        (0.7, (0.5, 0.705), UNDECIDED),
        (0.705, (), BETTER),
        (0.31, (0.8, 0.85), NOT_LEARNED),
        (0.2, (0.1, 0.1), NOT_LEARNED),
    ],
)
def test_each_sentence_has_its_case(after, others, sentence):
    random = np.random.default_rng(0)
    before, after, *others = (mean + random.normal(scale=0.1, size=100) for mean in (0.3, after, *others))
    assert choose_sentence(after, before, *others) == sentence


def test_a_hundred_questions_can_be_ranked_and_say_where_they_are_from():
    data, notes = load_split(f"files={QUESTIONS}", "test")
    assert all("stand twice or more" in note for note in notes)
    assert data.num_questions == 100
    assert find_kept(data, CLEAN).all()
    assert all(text for text in data.answers.to_pylist())
    assert "Apache-2.0" in (QUESTIONS / "README.md").read_text()
    assert "Emory" in (QUESTIONS / "LICENSE.txt").read_text()


def test_they_are_those_of_the_test_split_with_the_lowest_hashes(shared):
    whole, _ = load_split(f"selqa={shared}/data/as2/selqa", "test")
    data, _ = load_split(f"files={QUESTIONS}", "test")
    texts = whole.answers.to_pylist()
    complete = {q for q, rows in zip(whole.questions, whole.question_slices(), strict=True) if all(texts[rows])}
    lowest = sorted(complete, key=lambda question: hashlib.sha256(question.encode()).hexdigest())[:100]
    assert sorted(data.questions) == sorted(lowest)
