import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.bm25 import MAX_WORD, choose_language, count_words, cut_words, score_bm25, score_bm25_by
from tests.finetune.data.rows import make_answers


def make(questions, candidates):
    """``candidates``: of each question, its texts."""
    texts = [text for of_question in candidates for text in of_question]
    return make_answers(questions, map(len, candidates), texts, np.zeros(len(texts)))


def test_shared_words_score_rare_ones_most(capfd):
    data = make(
        ["Where is the Lighthouse of town?"],
        [["The lighthouse stands.", "A town grew.", "A town fell.", "The town is where.", "Any sea"]],
    )
    scores = score_bm25(data)
    assert scores.shape == (5,)
    assert scores[0] > scores[1] > 0  # a rare word over a frequent one, whatever its case
    assert scores[1] == scores[2]
    assert scores[4] == 0
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""  # no progress bars


def test_words_are_stemmed_and_none_is_left_out():
    assert " ".join(cut_words(["Who was it that RUNS 2 running dogs?"], "en")[0]) == "who was it that run 2 run dog"
    scores = score_bm25(make(["is he running"], [["is he", "a runner runs", "none"]]))
    assert (scores > 0).tolist() == [True, True, False]


def test_letters_that_look_alike_are_equal():
    assert cut_words(["x" * 4000], "none") == [["x" * MAX_WORD]]  # stored stems cannot fill the memory
    texts = ["Donau\u00addampf", "of\ufb01ce", "para\u200bgraph", "\uff26\uff55\uff4c\uff4c", "Cafe\u0301", "Büro"]
    plain = ["Donaudampf", "office", "paragraph", "Full", "Café", "Bu\u0308ro"]
    assert cut_words(texts, "none") == cut_words(plain, "none")


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Die Häuser standen in den Gärten, und die Kinder spielten mit den Bällen auf den grünen Wiesen. " * 2, "de"),
        ("The houses stood in the gardens, and the children played with the balls on the green lawns. " * 2, "en"),
        *[("房子在花园里，孩子们在绿色的草地上玩球，老师坐在旁边看着他们。" * 3, "none"), ("Tür", "en")],
    ],
)
def test_the_language_is_that_of_the_texts(text, language):
    assert choose_language(None, [text] * 3) == count_words([text]).language == language
    assert choose_language("german", [text]) == "german"
    assert cut_words(["Häuser"], "german") == cut_words(["Haus"], "de") == [["haus"]]
    with pytest.raises(KinspanError, match="--language x"):
        choose_language("x", [text])


def test_scripts_without_spaces_share_pairs_of_characters():
    candidates = [["夜に猫は狩りをします。", "鉄道が開通した。"], ["ปลาที่แมวกิน", "ดาว"]]
    scores = score_bm25(make(["猫は夜に狩りをする", "แมวกินปลา"], candidates))
    assert (scores > 0).tolist() == [True, False, True, False]


def test_vowel_signs_are_of_a_word_and_points_are_not_compared():
    assert cut_words(["हिन्दी में शब्द।", "ދިވެހި"], "none") == [["हिन्दी", "में", "शब्द"], ["ދިވެހި"]]
    pointed, plain = "Стрела\u0301 שָׁלוֹם عَرَبِيّ البـــلاد İstanbul IŞIK", "стрела שלום عربي البلاد istanbul ışık"
    assert cut_words([pointed], "none") == cut_words([plain], "none") == [plain.replace("ı", "i").split()]


def test_the_collection_is_the_distinct_candidates():
    """A sentence that many questions have as a candidate does not make its words frequent."""
    once = make(["lighthouse"], [["The lighthouse stands.", "A town grew."]])
    often = make(["lighthouse"] * 3, [["The lighthouse stands.", "A town grew."]] * 3)
    assert np.array_equal(np.tile(score_bm25(once), 3), score_bm25(often))


def test_candidates_without_a_word_score_0():
    assert score_bm25(make(["town"], [["?", ""]])).tolist() == [0, 0]


def test_equals_the_formula():
    """Lucene's BM25 by hand: one word, k1 1.5, b .75."""
    data = make(["lighthouse"], [["lighthouse lighthouse old", "old town", "new town"]])
    idf, average = np.log(1 + (3 - 1 + 0.5) / (1 + 0.5)), (3 + 2 + 2) / 3
    expected = idf * 2 / (2 + 1.5 * (1 - 0.75 + 0.75 * 3 / average))
    assert score_bm25(data)[0] == pytest.approx(expected, rel=1e-5)


def test_scores_by_counts_of_another_collection_depend_on_the_pair_alone():
    """By its own counts they are those of bm25s, and the rest of what is scored with a pair does not change it."""
    texts = [
        ["The lighthouse stands.", "A town grew by the sea, and a lighthouse.", ""],
        ["Any sea", "The town is old"],
    ]
    data = make(["Where is the lighthouse of the town?", "is the sea old"], texts)
    counts = count_words(data.answers.to_pylist())
    scores = score_bm25_by(counts, data)
    np.testing.assert_allclose(scores, score_bm25(data), atol=1e-5)
    np.testing.assert_allclose(score_bm25_by(counts, data.take(np.array([1]))), scores[3:], atol=1e-12)
    other = score_bm25_by(count_words(["a lighthouse", "one lighthouse", "no lighthouse"]), data)
    assert other[3] / other[0] > scores[3] / scores[0] > 0  # a word that the collection does not have is a rare one
