"""Masking for replaced-token detection: the mask token throughout, and a number to draw each replacement by."""

import numpy as np
import pytest

from data_pipeline.sampling.random_bits import draw_random_bits
from data_pipeline.tokenizers import find_continuations
from objectives.rtd import mask_for_generator

COUNT = 3000


@pytest.fixture(scope="module", params=[False, True], ids=["tokens", "whole words"])
def masking(request, tiny_corpus, helpers):
    tokenizer = helpers.tokenizer(tiny_corpus / "tokenizer")
    continues = find_continuations(tokenizer) if request.param else None
    return mask_for_generator(tokenizer.mask_token_id, len(tokenizer), continues=continues)


@pytest.fixture(scope="module")
def batch(tiny_corpus, make_stream, masking):
    return make_stream(tiny_corpus, masking=masking).batch(0, COUNT)


def test_all_chosen_tokens_become_the_mask_token(batch, tiny_corpus, make_stream, masking):
    plain = make_stream(tiny_corpus).batch(0, COUNT)
    expected = plain.input_ids.copy()
    expected[batch.masked_positions] = masking.mask_id
    assert np.array_equal(batch.input_ids, expected)
    assert np.array_equal(batch.masked_labels, plain.input_ids[batch.masked_positions])
    assert abs(len(batch.masked_positions) / (batch.num_tokens - 3 * COUNT) - 0.15) < 0.005


def test_noise_is_uniform_and_one_number_a_masked_token(batch):
    assert batch.noise.shape == batch.masked_positions.shape
    assert batch.noise.min() >= 0
    assert batch.noise.max() < 1
    tenths = np.bincount((batch.noise * 10).astype(int), minlength=10)
    expected = len(batch.noise) / 10
    assert (np.abs(tenths - expected) < 5 * np.sqrt(expected)).all()
    assert len(np.unique(batch.noise)) > 0.999 * len(batch.noise)  # of 2**32 numbers


def test_noise_has_nothing_to_do_with_what_was_chosen(batch, tiny_corpus, make_stream, masking):
    stream = make_stream(tiny_corpus, masking=masking)
    numbers = draw_random_bits(
        stream.seed, "mask", 0, COUNT, -(-stream.max_length // 8) * 4 * masking.numbers_per_token
    )
    pair = np.searchsorted(batch.starts, batch.masked_positions, side="right") - 1
    place = batch.position_ids[batch.masked_positions]
    of_mask = numbers.view(np.uint32)[pair, place] / 2**32
    assert (batch.noise == of_mask).mean() < 0.001
    few = np.flatnonzero(of_mask < 0.15)
    assert abs(np.corrcoef(batch.noise[few], of_mask[few])[0, 1]) < 5 / np.sqrt(len(few))
    assert abs(np.corrcoef(batch.noise[1:], batch.noise[:-1])[0, 1]) < 5 / np.sqrt(len(batch.noise))
