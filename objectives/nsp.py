"""Next Sentence Prediction (NSP): does B follow A?

Devlin et al., 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", section 3.1
(task 2). An anchor is a paragraph P of at least two sentences, and makes two pairs:

- A is a span of 1-3 sentences of P, the same one in both pairs;
- the positive's B is the 1-5 sentences of P that follow A;
- the easy negative's B is a span of another document, of as many sentences. There are no hard ones.

The counts of sentences are those of SSP.
"""

import numpy as np

from data_pipeline.sampling.block import Block, Spans
from data_pipeline.sampling.pairs import TWO_SENTENCES, Objective, Pairs, has_two_sentences
from data_pipeline.sampling.random_bits import draw_below

from .negatives import TRIES, Pool, assemble, find_equal_texts, list_spans
from .ssp import MAX_A, MAX_B, index_by_min_sentences

# An anchor's draws: 3 for A and the positive, then (paragraph, start) for each try of the negative.
FOR_POSITIVE, PER_TRY = 3, 2
NUM_DRAWS = -(-(FOR_POSITIVE + TRIES * PER_TRY) // 4) * 4


def sample(block: Block, anchors: np.ndarray, random_bits: np.ndarray) -> Pairs:
    """Returns the two pairs of each anchor: the next text, and one of another document.

    anchors: ``[n]`` usable paragraphs of ``block``;  random_bits: ``[n, NUM_DRAWS]``
    """
    a, positive = _draw_positive(block, anchors, random_bits)
    counts = (positive.end - positive.start)[:, None]
    pool = Pool.of(block, anchors, block.make_once(index_by_min_sentences), counts, slots=1, max_hard=0)
    tries = random_bits[:, FOR_POSITIVE : FOR_POSITIVE + TRIES * PER_TRY].reshape(len(anchors), TRIES, 1, PER_TRY)

    def draw(attempt: int) -> Spans:
        paragraphs = pool.draw(tries[:, attempt, :, 0])
        start = draw_below(tries[:, attempt, :, 1], block.num_sentences[paragraphs] - counts + 1)
        return Spans(paragraphs, start, start + counts)

    def rejects(rows: np.ndarray, texts: Spans) -> np.ndarray:
        return find_equal_texts(block, positive[rows], texts)

    def cut(row: int, paragraph: int) -> Spans:
        return list_spans(paragraph, int(block.num_sentences[paragraph]), int(counts[row, 0]))

    return assemble(block, a, positive, pool, draw, rejects, cut)


def _draw_positive(block: Block, anchors: np.ndarray, random_bits: np.ndarray) -> tuple[Spans, Spans]:
    sentences = block.num_sentences[anchors].astype(np.int64)
    a = np.minimum(1 + draw_below(random_bits[:, 0], MAX_A), sentences - 1)
    b = np.minimum(1 + draw_below(random_bits[:, 1], MAX_B), sentences - a)
    index, document = block.make_once(index_by_min_sentences), block.document[anchors]
    inside = index.before[:, block.document_first[document + 1]] - index.before[:, block.document_first[document]]
    b = np.minimum(b, np.maximum((index.total[:, None] > inside).sum(axis=0) - 1, 1))  # what other documents allow
    start = draw_below(random_bits[:, 2], sentences - a - b + 1)
    return Spans(anchors, start, start + a), Spans(anchors, start + a, start + a + b)


NSP = Objective(
    name="nsp",
    max_length=128,
    num_draws=NUM_DRAWS,
    usable=has_two_sentences,
    needs=TWO_SENTENCES,
    sample=sample,
    pairs_per_anchor=2,
    asks="whether B follows A",
    negatives="a text of another document, of as many sentences",
    source="Devlin et al., 2019, *BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding*",
)
