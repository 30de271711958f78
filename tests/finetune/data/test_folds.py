"""Folds of questions: which are alike, and that those stay together."""

import numpy as np

from finetune.data.folds import assign_folds, group_questions, iterate_folds, pair_similar
from finetune.data.registry import load_split
from tests.conftest import write_jsonl


def test_wording_is_alike_whatever_case_order_and_punctuation():
    first = ["Who brews the beer?", "WHO brews the beer ??", "beer, who brews the", "Who drinks the beer?", "¿?", ""]
    pairs = set(zip(*(indices.tolist() for indices in pair_similar(first, first)), strict=True))
    assert {(0, 1), (0, 2), (1, 2)} <= pairs
    assert not any(3 in pair and pair != (3, 3) for pair in pairs)
    assert not {(4, 4), (5, 5)} & pairs
    thai = ["ประเทศไทยมีเมืองหลวงชื่อกรุงเทพมหานคร", "กรุงเทพมหานครชื่อเมืองหลวงมีประเทศไทย", "มหานครเมืองไทยมีชื่อหลวงกรุงเทพประเทศ"]
    assert 1 not in pair_similar(thai[:1], thai[1:])[1]  # the letters are the same, the words are not
    assert pair_similar(["车险理赔需要多长时间"], ["车险理赔需要多少时间"])[0].tolist() == [0]
    assert [len(indices) for indices in pair_similar(first, [])] == [0, 0]


def test_questions_that_share_an_answer_a_wording_or_a_document_are_of_one_group(tmp_path):
    rows = [
        *[("what is malt", "Malt is dried barley.", 1), ("why barley", "malt is DRIED  barley.", 1)],
        *[("why barley", "Hops are flowers.", 0), ("what are hops", "Hops are flowers.", 1)],
        *[("what are hops !", "Hops are bitter.", 1), ("who invented yeast", "Nobody did.", 1)],
        ("when did it rain", "On Monday.", 1),
    ]
    write_jsonl(tmp_path / "train.jsonl", [{"question": q, "answer": a, "label": label} for q, a, label in rows])
    data = load_split(f"files={tmp_path}", "train")
    assert group_questions(data).tolist() == [0, 0, 1, 1, 2, 3]
    assert group_questions(data, ["", "a", "ab", "", "b", ""]).tolist() == [0, 0, 0, 0, 0, 1]


def test_groups_stay_whole_and_folds_are_about_equally_large():
    groups = np.repeat(np.arange(40), np.random.default_rng(1).integers(1, 6, 40))
    fold_of = assign_folds(groups, 5)
    assert np.ptp(np.bincount(fold_of)) <= 2
    for trained, held_out in iterate_folds(fold_of):
        assert (trained ^ held_out).all()
        assert not set(groups[trained]) & set(groups[held_out])
    assert set(assign_folds(np.zeros(9, int), 5)) == {0}
    np.testing.assert_array_equal(fold_of, assign_folds(groups, 5))
