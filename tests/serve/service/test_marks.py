"""Marked are the words that BM25 compares, where they stand."""

import pytest

from finetune.evaluation.bm25 import cut_words
from serve.service.waiting import mark_words, stem_question

TEXTS = [
    "The printer's tray, re-loaded: a tray of 3 trays; TRAY_2 and Tray!",
    "Straße, naïve café and ÉTÉ été; HP打印机2不工作 не печатает",
    "emoji \U0001f600 before words shift no marks \U0001f600 words",
    "x y z 1 22 __ a_b, of\ufb01ce para\u200bgraph Cafe\u0301 บ้าน 서울은",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_all_words_of_bm25_are_marked_and_no_others(text):
    words = cut_words([text], "none")[0]
    marked = [
        word for start, end in mark_words(text, set(words), "none") for word in cut_words([text[start:end]], "none")[0]
    ]
    assert marked == words


def test_only_words_of_the_question_are_marked():
    text = "Load the Tray of the printer. A tray may jam."
    marks = mark_words(text, stem_question("the trays in my PRINTER jammed", "en"), "en")
    assert [text[start:end] for start, end in marks] == ["Tray", "printer", "tray", "jam"]
    assert mark_words(text, stem_question("is it?", "en"), "en") == []
    assert mark_words(text, stem_question("?", "en"), "en") == []
