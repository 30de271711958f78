import random
import re
from contextlib import nullcontext

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.matching import NGRAM, THRESHOLD
from finetune.data.collect import SourceRow, collect_answers
from finetune.evaluation.contamination import check_left_out, count_contamination, find_overlap
from tests.synthetic import short_tokenizer

FIRST = [
    "The Eiffel Tower was erected in 1889 as the entrance arch to the World's Fair. It cost 5,000 francs (about $100)!",
    'He said: "We don\'t know how many of the café tables were sold in São Paulo that year." Nobody had counted them.',
]
SECOND = [
    "A marlin is a fish of the family Istiophoridae and has an elongated body with a long dorsal fin on its back."
]


@pytest.fixture(scope="module")
def corpus(make_corpus):
    filler = "Filler text that is long enough to be kept as a paragraph. " * 4
    documents = [
        {"id": "d0", "title": "Paris", "paragraphs": FIRST},
        {"id": "d1", "title": "", "paragraphs": [*SECOND, filler]},
    ]
    return Corpus(make_corpus(documents))


@pytest.mark.parametrize(
    ("text", "stands"),
    [
        (FIRST[0], True),  # several sentences
        ("It cost 5,000 francs (about $100)! Or rather more", False),
        ("ERECTED in 1889, as the entrance -- arch to the World 's Fair .", True),
        ("World 's Fair . It cost 5 , 000 francs -LRB- about $ 100 -RRB- !", True),
        ("We do n't know how many of the cafe tables were sold in Sa\u0303o Paulo", True),
        ("the World's Fair. It cost 5,000 francs (about $100)! He said so", False),  # goes on in another paragraph
        ("is a fish of the family Istiophoridae and has an elongated body", True),
    ],
)
def test_a_sentence_is_found_however_it_was_tokenised(corpus, text, stands):
    judged, found = find_overlap([text], corpus)
    assert (judged.tolist(), found.tolist()) == ([True], [stands])


def test_agrees_with_a_plain_search_of_the_text(tiny_corpus, tiny_documents):
    """tiny_corpus has several shards; its documents are all of plain words."""
    rng = random.Random(3)
    paragraphs = [re.findall("[a-z]+", p.lower()) for d in tiny_documents for p in d["paragraphs"]]
    texts = []
    for _ in range(200):
        words = rng.choice(paragraphs)
        start = rng.randrange(max(1, len(words) - 25))
        words = words[start : start + rng.randint(8, 25)]
        texts.append([rng.choice(words) if rng.random() < 0.05 else word for word in words])
    grams = {tuple(words[k : k + NGRAM]) for words in paragraphs for k in range(len(words) - NGRAM + 1)}
    judged, found = find_overlap([" ".join(words) for words in texts], Corpus(tiny_corpus))
    assert judged.tolist() == [len(words) >= NGRAM for words in texts]
    for words, keep, stands in zip(texts, judged, found, strict=True):
        occur = [tuple(words[k : k + NGRAM]) in grams for k in range(len(words) - NGRAM + 1)]
        assert stands == (keep and np.mean(occur) >= THRESHOLD)
    assert 20 < found.sum() < 180


def test_tokenizers_lose_the_same_on_both_sides(bert_corpus, roberta_corpus, real_documents):
    """Of real text, every sentence of the corpus is found, whatever its characters."""
    rng = random.Random(5)
    paragraphs = [" ".join(p.split()) for d in real_documents for p in d["paragraphs"] if len(p) > 200]
    rare = [p for p in paragraphs if not p.isascii()]
    texts = [p.rsplit(" ", 2)[0] for p in rng.sample(paragraphs, 150) + rng.sample(rare, 150)]
    for folder in (bert_corpus, roberta_corpus):
        judged, found = find_overlap(texts, Corpus(folder))
        assert found[judged].all()


@pytest.mark.parametrize(
    ("text", "stands"),
    [
        (FIRST[1].upper(), True),
        ("We don't know how many of the café tables were sold in São Paulo", False),  # a part, for the n-grams
        ("Sans café?", True),
        ("café", False),
        ("\u0bf5 \u0bf5", False),  # unknown to the tokenizer
    ],
)
def test_a_text_that_was_to_be_left_out_is_refused(text, stands, tmp_path, helpers):
    lines = [{"id": "t1", "title": "?", "paragraphs": FIRST[1:], "answers": ["No.", "sans CAFE"]}]
    lines += [{"id": f"t{n}", "title": "?", "text": f"Case {n} \u0bf5"} for n in range(2, 9)]
    source = f"questions:{helpers.write_jsonl(tmp_path / 'desk.jsonl', lines)}"
    helpers.prepare([source], short_tokenizer(), tmp_path / "corpus")
    with pytest.raises(KinspanError, match="--questions") if stands else nullcontext():
        check_left_out(["Nothing.", text], Corpus(tmp_path / "corpus"), "--questions")


def test_answers_and_their_questions_are_counted(corpus):
    pairs = [(0, FIRST[1], 1), (0, "Nothing of the kind was ever said by anybody there.", 0), (1, "A fish.", 1)]
    rows = [
        SourceRow(k, str(q), f"{q}?", None, text, label)
        for k, (q, text, label) in enumerate([*pairs, (1, SECOND[0], 0)])
    ]
    assert count_contamination(collect_answers("made", "test", "line", rows), corpus) == {
        "judged_candidates": 3,
        "candidates": 2,
        "judged_answers": 1,
        "answers": 1,
        "all_questions": 2,
        "questions": 1,
    }
