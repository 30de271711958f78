"""What an epoch is made of."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from finetune.data.answers import resolve_pairs
from finetune.training.groups import draw_examples, draw_negatives, draw_pairs, flip_labels, read_labels
from tests.finetune.data.rows import make_answers

ANSWERS, NEGATIVES = [1, 0, 3, 2], [6, 4, 0, 3]  # of four questions


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    labels = [rng.permutation([1] * p + [0] * n) for p, n in zip(ANSWERS, NEGATIVES, strict=True)]
    flat = np.concatenate(labels)
    return make_answers([f"q{k}" for k in range(4)], map(len, labels), [f"a{k}" for k in range(len(flat))], flat)


def members(groups):
    rows, group_of = groups.select(np.arange(len(groups)))
    return [sorted(rows[group_of == g].tolist()) for g in range(len(groups))]


@pytest.mark.parametrize(
    "make",
    [
        lambda d, s, e: draw_pairs(d, s, e, 1.5),
        lambda d, s, e: draw_examples(d, s, e, 2),
        lambda d, s, e: draw_negatives(d, s, e, 2, False),
        lambda d, s, e: draw_negatives(d, s, e, 2, True),
    ],
)
def test_a_function_of_seed_and_epoch(data, make):
    one, other = make(data, 1, 3), make(data, 1, 3)
    assert one.rows.tolist() == other.rows.tolist()
    assert one.starts.tolist() == other.starts.tolist()
    for seed, epoch in ((1, 4), (2, 3)):
        assert members(make(data, seed, epoch)) != members(one)
        assert len(make(data, seed, epoch)) == len(one)  # epochs are equally long, which steps are counted by


def test_an_epoch_of_pairs_has_each_once(data):
    groups = draw_pairs(data, 1, 0)
    assert sorted(groups.rows.tolist()) == list(range(data.num_pairs))
    assert np.diff(groups.starts).tolist() == [1] * data.num_pairs
    assert groups.rows.tolist() != sorted(groups.rows.tolist())


@pytest.mark.parametrize(("ratio", "count"), [(1.0, 6), (1.5, 9), (0.5, 3), (100.0, 13)])
def test_negatives_of_the_whole_set_to_an_answer(data, ratio, count):
    rows = draw_pairs(data, 1, 0, ratio).rows
    assert len(set(rows.tolist())) == len(rows)
    assert data.labels[rows].sum() == data.labels.sum() == 6
    assert (data.labels[rows] == 0).sum() == count


@pytest.fixture
def repeated():
    """Two questions that ask the same, with a right answer each, and its text as a wrong candidate in other letters."""
    texts = ["Yes it is", "no", "never", "right too", "YES  it is", "no idea", "right TOO", "yes it is", "none"]
    texts.append("Never ")
    return make_answers(["Is it?", "is  it?", "what else?"], [3, 4, 3], texts, [1, 0, 0, 1, 0, 0, 0, 1, 0, 0])


WRONG = {"no", "never", "no idea", "none"}


@pytest.mark.parametrize(
    ("draw", "wrong"),
    [
        (lambda d, e: draw_negatives(d, 1, e, 9, False), [{"no", "never"}, {"no idea"}, {"none", "never"}]),
        (lambda d, e: draw_negatives(d, 1, e, 2, True), [WRONG, WRONG, WRONG | {"right too"}]),
        (lambda d, e: draw_examples(d, 1, e, 3), [WRONG, WRONG, WRONG | {"right too"}]),  # first its own, then others'
    ],
)
def test_what_is_right_by_its_text_is_never_a_negative(repeated, draw, wrong):
    """Whatever its label, its letters and spaces, and at whichever of two questions that ask the same."""
    found: list[set[str]] = [set(), set(), set()]
    for epoch in range(40):
        groups = draw(repeated, epoch)
        asked, rows = resolve_pairs(groups.rows, repeated.question_of)
        negative = read_labels(repeated.labels, groups.rows) == 0
        if np.diff(groups.starts).max() > 1:  # a group is an answer and negatives of its question
            first = groups.starts[np.searchsorted(groups.starts, np.arange(len(rows)), side="right") - 1]
            asked, negative = asked[first], np.arange(len(rows)) != first
        for question, row in zip(asked[negative], rows[negative], strict=True):
            found[question].add(" ".join(repeated.answers[int(row)].as_py().lower().split()))
    assert found == wrong


def negatives_of(data, groups):
    """The negatives of each question, as rows."""
    asked, rows = resolve_pairs(groups.rows, data.question_of)
    labels = read_labels(data.labels, groups.rows)
    assert sorted(groups.rows[labels == 1].tolist()) == np.flatnonzero(data.labels).tolist()
    return [sorted(rows[(labels == 0) & (asked == q)].tolist()) for q in range(data.num_questions)]


@pytest.mark.parametrize("count", [1, 3, 5])
def test_negatives_of_a_question_among_its_candidates(data, count):
    for question, rows in enumerate(negatives_of(data, draw_negatives(data, 1, 0, count, False))):
        assert len(set(rows)) == len(rows) == min(count, NEGATIVES[question])
        assert set(data.question_of[rows]) <= {question}
        assert not data.labels[rows].any()


@pytest.mark.parametrize("count", [1, 3, 9])
def test_negatives_of_a_question_among_all(data, count):
    """Also of questions without a candidate that is wrong; never a right answer of its own, by its text."""
    names = [f"{'Aa'[k % 2]} {k % 13}" for k in range(data.num_pairs)]
    twice = replace(data, answers=pa.array(names, pa.large_string()))
    texts = np.array([name.lower() for name in names])
    groups = draw_negatives(twice, 1, 0, count, True)
    for question, rows in enumerate(negatives_of(twice, groups)):
        right = texts[(twice.question_of == question) & (twice.labels == 1)]
        assert len(set(texts[rows])) == len(rows) == count
        assert not set(texts[rows]) & set(right)
    assert np.diff(groups.starts).tolist() == [1] * len(groups.rows)


@pytest.mark.parametrize("from_corpus", [False, True])
def test_negatives_do_not_depend_on_other_questions(data, from_corpus):
    alone = data.take(np.array([True, False, True, True]))
    if from_corpus:  # the corpus is that of all questions
        alone = replace(data, question_ids=["q0", "another", "q2", "q3"])
    ours = [n for k, n in enumerate(negatives_of(data, draw_negatives(data, 3, 7, 2, from_corpus))) if k != 1]
    theirs = negatives_of(alone, draw_negatives(alone, 3, 7, 2, from_corpus))
    if from_corpus:
        assert [n for k, n in enumerate(theirs) if k != 1] == ours
        assert theirs[1] != negatives_of(data, draw_negatives(data, 3, 7, 2, True))[1]
    else:
        assert [[f"{alone.answers[r]}" for r in n] for n in theirs] == [[f"{data.answers[r]}" for r in n] for n in ours]


def test_some_and_longest_first(data):
    groups = draw_examples(data, 1, 0, 3)
    lengths = np.random.default_rng(0).integers(5, 60, data.num_pairs)
    batch = groups.order_longest_first(1, 2, lengths.__getitem__)
    assert sorted(batch.tolist()) == [1, 2]
    rows, group_of = groups.select(batch)
    assert group_of.tolist() == sorted(group_of.tolist())
    longest = [lengths[rows[group_of == k]].max() for k in range(2)]
    assert longest == sorted(longest, reverse=True)
    for k, group in enumerate(batch):
        assert rows[group_of == k].tolist() == groups.rows[groups.starts[group] : groups.starts[group + 1]].tolist()


@pytest.mark.parametrize(
    ("pairs", "share", "flipped"), [(8672, 0.1, 867), (8672, 0.2, 1734), (53417, 0.1, 5341), (53417, 0.2, 10683)]
)
def test_noise_flips_what_the_paper_says(pairs, share, flipped):
    """Garg et al., 2020, section 5.4."""
    labels = (np.arange(pairs) % 9 == 0).astype(np.int8)
    noisy = flip_labels(labels, share, 1)
    assert (noisy != labels).sum() == flipped
    assert noisy.dtype == labels.dtype
    assert set(noisy.tolist()) == {0, 1}
    assert (flip_labels(labels, share, 1) == noisy).all()
    assert (flip_labels(labels, share, 2) != noisy).any()
    assert labels.sum() == (np.arange(pairs) % 9 == 0).sum()  # the given ones stay
