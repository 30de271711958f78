import numpy as np
import pytest

from data_pipeline.sampling.random_bits import draw_random_bits
from data_pipeline.tokenizers import find_continuations
from objectives.mlm import MaskedLM

MASK, VOCABULARY = 4, 1000


def packed(num_pairs, max_length, seed=0, shortest=6):
    """Random pairs: ids (above the special ones), starts, which are special."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(rng.integers(shortest, max_length + 1, num_pairs))]).astype(np.int32)
    ids = rng.integers(10, VOCABULARY, starts[-1]).astype(np.int32)
    special = np.zeros(len(ids), dtype=bool)
    special[starts[:-1]] = special[starts[1:] - 1] = special[(starts[:-1] + starts[1:]) // 2] = True
    ids[special] = 1
    return ids, starts, special


def words(num_pairs, max_length, seed=0):
    return draw_random_bits(seed, "mask", 0, num_pairs, -(-max_length // 8) * 4)


def applied(ids, *rest, masking=None):
    out = ids.copy()
    positions, labels = (masking or MaskedLM(MASK, VOCABULARY)).apply(out, *rest)
    return out, positions, labels


def close(observed, probability, count):
    return abs(observed - probability) < 5 * np.sqrt(probability * (1 - probability) / count)


@pytest.fixture(scope="module")
def large():
    ids, starts, special = packed(6000, 64)
    return ids, starts, special, *applied(ids, starts, special, words(6000, 64))


def test_every_place_of_a_pair_is_chosen_as_often(large):
    """The last place too, at the end of the random numbers."""
    _, starts, special, _, positions, _ = large
    places = np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))
    for place in (1, 5, 30, 55, 61, 62):
        there = (places == place) & ~special
        assert there.sum() > 100
        assert close(np.isin(np.flatnonzero(there), positions).mean(), 0.15, there.sum())


def test_fifteen_in_a_hundred_are_chosen_of_which_eighty_are_masked_and_ten_are_random(large):
    ids, _, special, out, positions, labels = large
    assert close(len(positions) / (~special).sum(), 0.15, (~special).sum())
    assert not special[positions].any()
    assert np.array_equal(labels, ids[positions])
    others = np.delete(np.arange(len(ids)), positions)
    assert np.array_equal(out[others], ids[others])
    assert (np.diff(positions) > 0).all()
    now, count = out[positions], len(positions)
    assert close((now == MASK).mean(), 0.8 + 0.1 / VOCABULARY, count)
    assert close((now == labels).mean(), 0.1 + 0.1 / VOCABULARY, count)
    drawn = now[(now != MASK) & (now != labels)]
    tenths = np.bincount(drawn * 10 // VOCABULARY, minlength=10) / len(drawn)
    assert all(close(share, 0.1, len(drawn)) for share in tenths)


@pytest.mark.parametrize("vocabulary", [30_522, 50_265, 250_002])
def test_random_tokens_reach_the_ends_of_any_vocabulary(vocabulary):
    ids, starts, special = packed(4000, 64)
    out, positions, labels = applied(ids, starts, special, words(4000, 64), masking=MaskedLM(MASK, vocabulary, 0.9))
    now = out[positions]
    drawn = now[(now != MASK) & (now != labels)]
    assert drawn.min() < 0.01 * vocabulary
    assert 0.99 * vocabulary < drawn.max() < vocabulary


# Whole words ----------------------------------------------------------------------------------------------

CONTINUES = np.arange(VOCABULARY) % 3 == 0  # a third of the tokens go on with the word before them


@pytest.fixture(scope="module")
def whole():
    """With the number of each token's word; a special token is a word by itself."""
    ids, starts, special = packed(6000, 64)
    masking = MaskedLM(MASK, VOCABULARY, continues=CONTINUES)
    _, positions, _ = applied(ids, starts, special, words(6000, 2 * 64), masking=masking)  # two numbers a token
    return special, np.cumsum(special | np.append(True, special[:-1]) | ~CONTINUES[ids]), positions


def test_all_tokens_of_a_word_are_chosen_or_none(whole):
    special, word, positions = whole
    chosen = np.zeros(len(word), dtype=bool)
    chosen[positions] = True
    share = np.bincount(word, chosen) / np.maximum(np.bincount(word), 1)
    assert set(share.tolist()) == {0.0, 1.0}
    assert (np.bincount(word) > 2).any()
    assert not special[positions].any()


def test_fifteen_in_a_hundred_words_and_tokens_are_chosen(whole):
    special, word, positions = whole
    words, tokens = len(np.unique(word[~special])), (~special).sum()
    assert close(len(np.unique(word[positions])) / words, 0.15, words)
    assert close(len(positions) / tokens, 0.15, tokens / 3)  # tokens of a word are chosen together


@pytest.mark.parametrize("objective", ["ssp", "sp"])
def test_words_of_a_stream_are_those_of_the_text(any_corpus, make_stream, helpers, objective):
    """By the tokenizer's own marks, read here from the tokens' names."""
    tokenizer = helpers.tokenizer(any_corpus / "tokenizer")
    masking = MaskedLM(tokenizer.mask_token_id, len(tokenizer), continues=find_continuations(tokenizer))
    plain = make_stream(any_corpus, objective=objective).batch(0, 300)
    masked = make_stream(any_corpus, objective=objective, masking=masking).batch(0, 300)
    names = tokenizer.convert_ids_to_tokens(plain.input_ids.tolist())
    special = np.isin(plain.input_ids, [tokenizer.cls_token_id, tokenizer.sep_token_id])
    opens = [not n.startswith("##") if tokenizer.mask_token == "[MASK]" else n.startswith("Ġ") for n in names]
    word = np.cumsum(np.array(opens) | special | np.append(True, special[:-1]))
    chosen = np.zeros(len(names), dtype=bool)
    chosen[masked.masked_positions] = True
    assert set((np.bincount(word, chosen)[1:] / np.bincount(word)[1:]).tolist()) == {0.0, 1.0}
    assert not chosen[special].any()
    assert close(chosen[~special].mean(), 0.15, (~special).sum() / 3)
