"""Held-out pairs of an objective as texts, the same ones for every model."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from data_pipeline import tokenizers
from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.mixture import Mixture, MixturePart
from data_pipeline.sampling.pairs import Objective
from data_pipeline.sampling.stream import PairStream
from pretrain.config import VALIDATION_SEED


@dataclass(frozen=True)
class HeldOut:
    """The first anchors of an objective in the validation order. ``kinds``: ``[anchors, pairs per anchor]``"""

    stream: PairStream
    kinds: np.ndarray


def select_held_out(corpus: Corpus, objective: Objective, anchors: int) -> HeldOut:
    """Returns the first ``anchors`` of the objective's validation order, or all where there are fewer.

    Raises KinspanError where too few documents are held out.
    """
    template = tokenizers.read_pair_template(tokenizers.load_tokenizer(corpus.tokenizer_folder))
    try:
        mixture = Mixture((MixturePart(objective, corpus=corpus),))
        stream = PairStream(
            mixture, template=template, seed=VALIDATION_SEED, split="validation", max_length=objective.max_length
        )
    except KinspanError as error:
        raise KinspanError(f"corpus {corpus.name}, documents held out for validation: {error}") from error
    group = objective.pairs_per_anchor
    count = min(anchors, stream.epoch_pairs // group)
    kinds = np.concatenate([rows.kinds for rows in stream.pairs(0, count * group)])
    return HeldOut(stream, kinds.reshape(count, group))


def decode_texts(pairs: HeldOut, tokenizer: Any) -> tuple[list[str], list[str]]:
    """Returns both texts of each pair, uncut, decoded by the corpus's tokenizer."""
    sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for rows in pairs.stream.pairs(0, pairs.kinds.size):
        for side, spans in zip(sides, rows.texts, strict=True):
            side.extend(rows.block.read_tokens(spans[row]) for row in range(len(rows.kinds)))
    first, second = (tokenizer.batch_decode(side, clean_up_tokenization_spaces=False) for side in sides)
    return [text.strip() for text in first], [text.strip() for text in second]
