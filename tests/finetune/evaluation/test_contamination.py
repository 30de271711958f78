import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data_pipeline.corpus import Corpus
from data_pipeline.matching import NGRAM, THRESHOLD
from finetune.data.answers import AnswerSet
from finetune.evaluation.contamination import (
    Contamination,
    find_contamination,
    flag_questions,
    format_contamination,
    look_up_titles,
    measure_with_and_without,
    summarize_contamination,
)

FIRST = [
    "The Eiffel Tower was erected in 1889 as the entrance arch to the World's Fair. It cost 5,000 francs (about $100)!",
    'He said: "We don\'t know how many of the café tables were sold in São Paulo that year." Nobody had counted them.',
]
SECOND = [
    "A marlin is a fish of the family Istiophoridae and has an elongated body with a long dorsal fin on its back."
]


def answer_set(candidates: list[list[str]], labels: list[int] | None = None) -> AnswerSet:
    """A question of each list of candidates; the first of each answers it unless ``labels`` says else."""
    texts = [text for of_question in candidates for text in of_question]
    firsts = [int(k == 0) for of_question in candidates for k in range(len(of_question))]
    return AnswerSet(
        "made",
        "test",
        [f"q{k}" for k in range(len(candidates))],
        [f"question {k}?" for k in range(len(candidates))],
        np.cumsum([0] + [len(c) for c in candidates]),
        pa.array([f"a{k}" for k in range(len(texts))], pa.large_string()),
        pa.array(texts, pa.large_string()),
        np.array(firsts if labels is None else labels, dtype=np.int8),
    )


def _here(make_worker: Callable, arguments: tuple, chunks: Iterable, num_workers: int) -> Iterator[Any]:
    yield from map(make_worker(*arguments), chunks)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Contamination]:
    """``search(candidates, folder)`` in this process."""
    monkeypatch.setattr("finetune.evaluation.occurrences.map_chunks", _here)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")

    def run(candidates: list[str], folder: Path) -> Contamination:
        return find_contamination(answer_set([candidates]), Corpus(folder))

    return run


@pytest.fixture(scope="module")
def corpus(make_corpus: Callable[..., Path]) -> Path:
    documents = [
        {"id": "d0", "title": "Paris", "paragraphs": FIRST},
        {
            "id": "d1",
            "title": "",
            "paragraphs": [*SECOND, "Filler text that is long enough to be kept as a paragraph. " * 4],
        },
    ]
    return make_corpus(documents)


@pytest.mark.parametrize(
    ("text", "document"),
    [
        (FIRST[0], "Paris"),  # several sentences
        ("It cost 5,000 francs (about $100)! Or rather more", None),
        ("ERECTED in 1889, as the entrance -- arch to the World 's Fair .", "Paris"),
        ("World 's Fair . It cost 5 , 000 francs -LRB- about $ 100 -RRB- !", "Paris"),
        ("We do n't know how many of the cafe tables were sold in Sa\u0303o Paulo", "Paris"),
        ("the World's Fair. It cost 5,000 francs (about $100)! He said", None),  # goes on in another paragraph
        ("is a fish of the family Istiophoridae and has an elongated body", "d1"),  # a document without a title
    ],
)
def test_a_sentence_is_found_however_it_was_tokenised(
    search: Callable, corpus: Path, text: str, document: str | None
) -> None:
    found = search([text], corpus)
    assert found.judged[0]
    assert found.exact[0] == (document is not None)
    if document:
        assert look_up_titles(Corpus(corpus), found.document) == [document]


def test_sentences_that_begin_alike_and_the_same_one_twice(search: Callable, corpus: Path) -> None:
    whole = SECOND[0]
    part = " ".join(whole.split()[:12])
    assert search([whole, part, whole, part + " and something else"], corpus).exact.tolist() == [
        True,
        True,
        True,
        False,
    ]


def test_a_changed_word_takes_the_n_grams_that_have_it(search: Callable, corpus: Path) -> None:
    words = SECOND[0].rstrip(".").split()
    found = search([" ".join([*words[:k], "unheard", *words[k + 1 :]]) for k in range(len(words))], corpus)
    windows = range(len(words) - NGRAM + 1)
    expected = [np.mean([not start <= place < start + NGRAM for start in windows]) for place in range(len(words))]
    assert not found.exact.any()
    assert found.ngram_share == pytest.approx(expected)
    assert found.rows.tolist() == [share >= THRESHOLD for share in expected]
    of_second = Corpus(corpus).shard(0).rows.column("id").to_pylist().index("d1")
    assert found.document.tolist() == [of_second if share else -1 for share in expected]


def test_short_sentences_are_not_judged(search: Callable, corpus: Path) -> None:
    found = search(["A marlin is a fish.", "", "...", "a b c d e f g h"], corpus)
    assert not found.judged.any()
    assert not found.rows.any()
    assert np.isnan(found.ngram_share).all()
    assert (found.document == -1).all()


def test_agrees_with_a_plain_search_of_the_text(
    search: Callable, tiny_corpus: Path, tiny_documents: list[dict]
) -> None:
    """tiny_corpus has several shards; its documents are all of plain words."""
    rng = random.Random(3)
    paragraphs = [re.findall("[a-z]+", p.lower()) for d in tiny_documents for p in d["paragraphs"]]
    texts = []
    for _ in range(200):
        words = rng.choice(paragraphs)
        start = rng.randrange(max(1, len(words) - 25))
        words = words[start : start + rng.randint(8, 25)]
        texts.append([rng.choice(words) if rng.random() < 0.05 else word for word in words])
    joined = ["".join(words) for words in paragraphs]
    grams = {tuple(words[k : k + NGRAM]) for words in paragraphs for k in range(len(words) - NGRAM + 1)}
    found = search([" ".join(words) for words in texts], tiny_corpus)
    kept = [len(words) >= NGRAM for words in texts]
    assert found.judged.tolist() == kept
    assert found.exact.tolist() == [
        k and any("".join(t) in p for p in joined) for k, t in zip(kept, texts, strict=True)
    ]
    assert 20 < found.exact.sum() < 180
    for share, words in zip(found.ngram_share[kept], [t for t, k in zip(texts, kept, strict=True) if k], strict=True):
        own = [tuple(words[k : k + NGRAM]) for k in range(len(words) - NGRAM + 1)]
        assert share == pytest.approx(np.mean([gram in grams for gram in own]))
    sources = {d["title"]: re.sub("[^a-z]", "", " ".join(d["paragraphs"]).lower()) for d in tiny_documents}
    for row, title in zip(
        np.flatnonzero(found.exact), look_up_titles(Corpus(tiny_corpus), found.document[found.exact]), strict=True
    ):
        assert "".join(texts[row]) in sources[title]


def test_workers_find_the_same(
    search: Callable, tiny_corpus: Path, tiny_documents: list[dict], monkeypatch: Any
) -> None:
    texts = [d["paragraphs"][0][:120] for d in tiny_documents]
    here = search(texts, tiny_corpus)
    monkeypatch.undo()
    there = find_contamination(answer_set([texts]), Corpus(tiny_corpus), num_workers=2)
    for name in ("judged", "exact", "ngram_share", "document"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name))


def test_tokenizers_lose_the_same_on_both_sides(
    search: Callable, bert_corpus: Path, roberta_corpus: Path, real_documents: list[dict]
) -> None:
    """Of real text, every sentence of the corpus is found, whatever its characters; and of accents and case all."""
    rng = random.Random(5)
    paragraphs = [" ".join(p.split()) for d in real_documents for p in d["paragraphs"] if len(p) > 200]
    rare = [p for p in paragraphs if not p.isascii()]
    texts = [p.rsplit(" ", 2)[0] for p in rng.sample(paragraphs, 150) + rng.sample(rare, 150)]
    for folder in (bert_corpus, roberta_corpus):
        found = search(texts, folder)
        assert found.exact[found.judged].mean() == 1
        assert (found.ngram_share[found.judged] == 1).mean() > 0.99


ROWS = np.array([True, False, False, True, False, False])
DATA = answer_set([["a", "b"], ["c", "d"], ["e", "f"]], labels=[1, 0, 1, 0, 0, 0])


def test_a_question_is_contaminated_by_a_right_answer() -> None:
    assert flag_questions(DATA, ROWS).tolist() == [True, False, False]
    assert flag_questions(DATA, ROWS, positives_alone=False).tolist() == [True, True, False]


def test_figures_with_and_without() -> None:
    scores = np.array([2.0, 1.0, 1.0, 2.0, 0.0, 1.0])  # ranks the answer first, second, and there is none
    figures = measure_with_and_without(DATA, scores, np.array([True, False, False]))
    assert {name: figures[name]["questions"] for name in figures} == {"all": 3, "clean": 2, "contaminated": 1}
    assert figures["contaminated"]["map"] == 1
    assert figures["clean"]["map"] == pytest.approx(0.25)
    assert figures["all"]["map"] == pytest.approx(0.5)
    assert set(measure_with_and_without(DATA, scores, np.zeros(3, dtype=bool))) == {"all", "clean"}


def test_text_and_json(search: Callable, corpus: Path) -> None:
    data = answer_set([[FIRST[1], "Nothing of the kind was ever said by anybody there."], ["A fish.", SECOND[0]]])
    opened = Corpus(corpus)
    found = find_contamination(data, opened)
    scores = {"a model": np.arange(4.0)}
    facts = summarize_contamination(data, opened, found, scores)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["contaminated"]["exact"] == {
        "candidates": 2,
        "answers": 1,
        "questions_by_answer": 1,
        "questions_by_candidate": 2,
    }
    text = format_contamination(data, opened, found, scores)
    assert "a model" in text
    assert text.index(FIRST[1]) < text.index(SECOND[0])  # right answers first
    assert "'Paris'" in text
    assert "question 1?" not in format_contamination(data, opened, found, examples=1)
