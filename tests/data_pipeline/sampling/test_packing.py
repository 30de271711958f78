"""Texts laid out in a row, against a loop that does it one example at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.sampling.packing import copy_runs, lay_out
from data_pipeline.tokenizers import PairTemplate

LENGTHS = st.integers(0, 9)


@pytest.mark.parametrize("num_texts", [1, 2, 3])
@given(data=st.data())
def test_any_number_of_texts_is_laid_out(num_texts, data):
    numbers = st.lists(st.integers(900, 999), max_size=3)
    special = tuple(np.array(data.draw(numbers), dtype=np.int32) for _ in range(num_texts + 1))
    types = tuple(data.draw(st.lists(st.integers(0, 1), min_size=num_texts, max_size=num_texts)))
    examples = data.draw(st.lists(st.lists(LENGTHS, min_size=num_texts, max_size=num_texts), min_size=1, max_size=6))
    ids, kinds, places, is_special, starts = [], [], [], [], [0]
    for number, sizes in enumerate(examples):
        pieces = [(special[0], types[0], True)]
        for text, (size, kind) in enumerate(zip(sizes, types, strict=True)):
            pieces += [([100 * number + 10 * text] * size, kind, False), (special[text + 1], kind, True)]
        row = [(int(token), kind, flag) for tokens, kind, flag in pieces for token in tokens]
        ids += [token for token, _, _ in row]
        kinds += [kind for _, kind, _ in row]
        is_special += [flag for _, _, flag in row]
        places += range(len(row))
        starts.append(len(ids))
    lengths = tuple(np.array(column) for column in zip(*examples, strict=True))
    row = lay_out(PairTemplate(special, types), lengths)
    for text, (start, length) in enumerate(zip(row.text_starts, lengths, strict=True)):
        source = 100 * np.arange(len(examples)).repeat(length) + 10 * text
        copy_runs(row.ids, start, source, np.cumsum(length) - length, length)
    assert row.ids.tolist() == ids
    assert row.types.tolist() == kinds
    assert row.positions.tolist() == places
    assert row.special.tolist() == is_special
    assert row.starts.tolist() == starts
