"""Encoded pairs against the tokenizer itself."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.normalizers import NFC

from data_pipeline.core.errors import KinspanError
from finetune.ranking.encode import CACHED_SETS, encode_pairs, group_by_length
from finetune.ranking.ranker import load_own_tokenizer
from tests.finetune.data.rows import make_answers
from tests.synthetic import short_tokenizer

QUESTIONS = {
    "what is [SEP] a </s> token?": ["It ends.", "", "  [CLS] <s> one two three  "],
    "": ["x", "naïve café — 東京"],
}
PIECES = ["a", "bee", "[SEP]", "</s>", "##", "Ġ", "東京", "é"]
TEXTS = st.text(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=30).map(" ".join)


def answers_of(questions):
    flat = [answer for answers in questions.values() for answer in answers]
    return make_answers(list(questions), map(len, questions.values()), flat, np.zeros(len(flat)))


@pytest.fixture(scope="module", params=["minilm", "bert-uncased_electra-small", "roberta-base-tokenizer"])
def tokenizer(request):
    if request.param == "minilm":
        return load_own_tokenizer(str(short_tokenizer()))
    return load_own_tokenizer(str(request.getfixturevalue("shared") / "tokenizers" / request.param))


def check(tokenizer, questions, max_length):
    data = answers_of(questions)
    pairs = encode_pairs(data, tokenizer, max_length)
    rows = np.arange(data.num_pairs)[::-1]  # packing is by row, in any order
    packed = {k: np.array(v) for k, v in pairs.pack(rows, torch.device("cpu")).items()}
    expected = tokenizer(
        [data.questions[q] for q in data.question_of[rows]],
        data.answers.take(rows).to_pylist(),
        truncation="longest_first",
        max_length=max_length,
        split_special_tokens=True,
        return_token_type_ids=True,
    )
    cuts = packed["starts"][1:-1]
    for name in ("input_ids", "token_type_ids"):
        assert [a.tolist() for a in np.split(packed[name], cuts)] == expected[name]
    lengths = [len(ids) for ids in expected["input_ids"]]
    assert packed["max_length"] == max(lengths)
    assert pairs.lengths[rows].tolist() == lengths
    assert packed["position_ids"].tolist() == [place for length in lengths for place in range(length)]


@pytest.mark.parametrize("max_length", [16, 19, 128])
def test_ids_are_the_tokenizers(tokenizer, max_length):
    long = {"why " * 40: ["short", "long " * 30, "just " * 40], "short": ["answer " * 200]}
    check(tokenizer, QUESTIONS | long, max_length)


@settings(max_examples=25)
@given(question=TEXTS, answers=st.lists(TEXTS, min_size=1, max_size=3), max_length=st.integers(16, 40))
def test_ids_are_the_tokenizers_for_any_text(tokenizer, question, answers, max_length):
    check(tokenizer, {question: answers, "other": ["text", *answers]}, max_length)


def test_texts_are_tokenised_again_by_another_tokenizer_with_the_same_special_tokens():
    one, other = (load_own_tokenizer(str(short_tokenizer())) for _ in range(2))
    other.backend_tokenizer.normalizer = NFC()
    for tokenizer in (one, other):
        check(tokenizer, {"What is A?": ["The River"]}, 32)


def test_a_length_with_no_room_is_refused(tokenizer):
    with pytest.raises(KinspanError, match="--max_length 4"):
        encode_pairs(answers_of(QUESTIONS), tokenizer, 4)


def test_batches_by_length_hold_each_example_once():
    lengths = np.array([*range(3, 53), *[5] * 7])
    batches = list(group_by_length(lengths, 200, np.arange(57)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(57))
    assert all(len(rows) == 1 or len(rows) * lengths[rows].max() <= 200 for rows in batches)
    assert sorted(np.concatenate(list(group_by_length(lengths, 1, np.array([3, 5])))).tolist()) == [3, 5]


def test_a_set_is_tokenised_once_for_all_lengths():
    tokenizer = load_own_tokenizer(str(short_tokenizer()))
    first, second = (encode_pairs(answers_of(QUESTIONS), tokenizer, length) for length in (16, 20))
    assert first.answers is second.answers
    for number in range(2 * CACHED_SETS):  # the number of kept sets is bounded
        other = encode_pairs(answers_of({"q": [f"answer {number}"]}), tokenizer, 16)
    assert other.answers.ids.tolist() == tokenizer(f"answer {number}", add_special_tokens=False)["input_ids"]
    assert encode_pairs(answers_of(QUESTIONS), tokenizer, 16).answers is not first.answers
