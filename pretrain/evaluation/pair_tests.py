"""Pair objectives as tests of a model: how well it tells held-out positives from negatives.

Di Liello et al., 2022, "Pre-training Transformer Models with Sentence-Level Objectives for Answer Sentence Selection",
table 3: accuracy and F1 on the validation set. Every model is asked about the same pairs, whatever its tokenizer, and
runs by the plain forward of ``transformers``.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_pipeline import tokenizers
from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.mixture import Mixture, MixturePart
from data_pipeline.sampling.packing import MIN_TEXT_TOKENS
from data_pipeline.sampling.pairs import KINDS, Objective
from data_pipeline.sampling.stream import PairStream
from pretrain.config import VALIDATION_SEED
from pretrain.modeling.scorer import PackedPairs, Scorer, check_fits, score_padded

from .pair_figures import compute_pair_figures

ANCHORS = 1000
COLUMNS = {
    "accuracy": "accuracy",
    "f1": "F1",
    "auc": "AUC",
    "accuracy_even": "accuracy at 1:1",
    "f1_even": "F1 at 1:1",
}
ROWS = {"all": "all pairs", "hard": "positive against hard", "easy": "positive against easy"}


@dataclass(frozen=True)
class HeldOut:
    """The first anchors of an objective in the validation order. ``kinds``: ``[anchors, pairs per anchor]``"""

    stream: PairStream
    kinds: np.ndarray


def select_held_out(
    corpus: Corpus,
    objective: Objective,
    anchors: int = ANCHORS,
    max_length: int | None = None,
    seed: int = VALIDATION_SEED,
) -> HeldOut:
    """The first ``anchors`` of the objective's validation order, or all where there are fewer. They are the same for
    every model.

    max_length: tokens of a pair; the objective's by default

    Raises KinspanError where too few documents are held out, or ``max_length`` leaves no room for two texts.
    """
    template = tokenizers.read_pair_template(tokenizers.load_tokenizer(corpus.tokenizer_folder))
    max_length = max_length or objective.max_length
    least = template.num_special + MIN_TEXT_TOKENS
    if max_length < least:
        raise KinspanError(f"--max_length {max_length} is too short for two texts: use at least {least}")
    try:
        mixture = Mixture((MixturePart(objective, corpus=corpus),))
        stream = PairStream(mixture, template=template, seed=seed, split="validation", max_length=max_length)
    except KinspanError as error:
        raise KinspanError(f"corpus {corpus.name}, documents held out for validation: {error}") from error
    group = objective.pairs_per_anchor
    count = min(anchors, stream.epoch_pairs // group)
    kinds = np.concatenate([rows.kinds for rows in stream.pairs(0, count * group)])
    return HeldOut(stream, kinds.reshape(count, group))


def encode_held_out(pairs: HeldOut, corpus: Corpus, tokenizer: Any) -> PackedPairs:
    """The pairs as a model with this tokenizer reads them: the ids as they are where it is the corpus's, else encoded
    anew."""
    if shares_tokenizer(corpus, tokenizer):
        stream = copy.copy(pairs.stream)
        stream.template = tokenizers.read_pair_template(tokenizer)  # the special tokens may be others
        batch = stream.batch(0, pairs.kinds.size)
        return PackedPairs(batch.input_ids, batch.token_type_ids, batch.starts)
    first, second = decode_texts(pairs, tokenizers.load_tokenizer(corpus.tokenizer_folder))
    out = tokenizer(
        first,
        second,
        truncation="longest_first",
        max_length=pairs.stream.max_length,
        split_special_tokens=True,
        return_token_type_ids=True,
    )
    starts = np.cumsum([0, *map(len, out["input_ids"])])
    return PackedPairs(np.concatenate(out["input_ids"]), np.concatenate(out["token_type_ids"]), starts)


def shares_tokenizer(corpus: Corpus, tokenizer: Any) -> bool:
    """Whether the corpus was made with this tokenizer."""
    return tokenizers.fingerprint_tokenizer(tokenizer) == corpus.manifest.tokenizer["fingerprint"]


def decode_texts(pairs: HeldOut, tokenizer: Any) -> tuple[list[str], list[str]]:
    """Both texts of each pair, uncut, decoded by the corpus's tokenizer."""
    sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for rows in pairs.stream.pairs(0, pairs.kinds.size):
        for side, spans in zip(sides, rows.texts, strict=True):
            side.extend(rows.block.read_tokens(spans[row]) for row in range(len(rows.kinds)))
    first, second = (tokenizer.batch_decode(side, clean_up_tokenization_spaces=False) for side in sides)
    return [text.strip() for text in first], [text.strip() for text in second]


def evaluate_pairs(
    scorer: Scorer,
    corpus: Corpus,
    mixture: Mixture,
    anchors: int = ANCHORS,
    max_length: int | None = None,
    batch_size: int = 64,
    seed: int = VALIDATION_SEED,
) -> dict[str, Any]:
    """Figures of the model on each objective of the mixture (see ``compute_pair_figures``), with what they refer to.

    max_length: tokens of a pair; by default each objective's own, so that its figures do not depend on the mixture
    seed:       of the order of anchors, of their spans, and of the resamples

    Raises KinspanError where the model cannot take such pairs, or too few documents are held out.
    """
    longest = max_length or max(o.max_length for o in mixture.objectives)
    check_fits(scorer.name, scorer.model, scorer.tokenizer, longest)
    objectives = {}
    for objective in mixture.objectives:
        pairs = select_held_out(corpus, objective, anchors, max_length, seed)
        encoded = encode_held_out(pairs, corpus, scorer.tokenizer)
        scores = score_padded(scorer, encoded, batch_size).reshape(pairs.kinds.shape)
        objectives[objective.name] = {
            "anchors": len(pairs.kinds),
            "anchors_held_out": pairs.stream.orders[0].epoch_anchors,
            "max_length": pairs.stream.max_length,
            "pairs": {kind: int((pairs.kinds == number).sum()) for number, kind in enumerate(KINDS)},
            **compute_pair_figures(scores, pairs.kinds, seed),
        }
    return {
        "model": scorer.name,
        "head": scorer.head,
        "corpus": {"name": corpus.short_name, "fingerprint": corpus.manifest.fingerprint},
        "tokenizer": "corpus" if shares_tokenizer(corpus, scorer.tokenizer) else "model",
        "seed": seed,
        "objectives": objectives,
    }


def format_figures(result: dict[str, Any]) -> str:
    """The model, and of each objective the counts of pairs and a table of figures with confidence intervals."""
    tokenizer = {
        "corpus": "the model's tokenizer is the corpus's: ids as they are",
        "model": "the model's tokenizer is another: texts were decoded, and encoded anew",
    }
    lines = [f"{result['model']}: {result['head']}; above 0 is called positive", tokenizer[result["tokenizer"]]]
    for name, figures in result["objectives"].items():
        pairs = figures["pairs"]
        counts = ", ".join(f"{count:,} {kind}" for kind, count in pairs.items() if count)
        lines += [
            "",
            f"{name}: the first {figures['anchors']:,} of {figures['anchors_held_out']:,} held-out anchors of seed "
            f"{result['seed']}, {sum(pairs.values()):,} pairs ({counts}) of up to {figures['max_length']} tokens",
            " " * 24 + "".join(f"{title:<20}" for title in COLUMNS.values()).rstrip(),
        ]
        for group, title in ROWS.items():
            if group in figures:
                lines.append(
                    f"{title:<24}" + "".join(f"{_format_interval(figures[group][c]):<20}" for c in COLUMNS).rstrip()
                )
        lines += [f"{f'accuracy on {kind}':<24}{_format_interval(value)}" for kind, value in figures["kinds"].items()]
    return "\n".join(lines)


def _format_interval(figure: list[float]) -> str:
    return "{:.3f} [{:.3f} {:.3f}]".format(*figure)
