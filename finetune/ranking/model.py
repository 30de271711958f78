"""Any model that ranks, loaded once: known families packed, others as their libraries run them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_pipeline.core.default_model import name_installed
from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import WordCounts, score_bm25_by
from pretrain.modeling import attention
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.scorer import PackedPairs, check_fits, load_scorer, score_padded

from .bi_encoder import find_cut_texts, has_modules, is_bi_encoder, limit_length, load_bi_encoder, score_by_similarity
from .encode import EncodedPairs, encode_pairs, find_cut, log_cut
from .fusion import is_fusion, read_parts, read_words
from .ranker import Ranker, find_max_length, find_trained_length, load_own_tokenizer
from .score import BATCH_TOKENS, score_pairs

log = logging.getLogger(__name__)

NO_LIMIT = 1_000_000  # tokens: BM25 reads whole texts


@dataclass
class RankingModel:
    """A ranker that scores the candidates of any AnswerSet.

    max_length: most tokens that it reads at a time
    run:        returns the scores ``[N]``, and which pairs are cut, ``[N]``
    num_pairs, num_cut: of all that was scored so far
    """

    name: str
    max_length: int
    run: Callable[[AnswerSet], tuple[np.ndarray, np.ndarray]]
    num_pairs: int = 0
    num_cut: int = 0

    def score(self, data: AnswerSet) -> np.ndarray:
        """Returns the scores ``[N]``. Raises KinspanError where one is not finite."""
        scores, cut = self.run_checked(data)
        self.num_pairs, self.num_cut = self.num_pairs + len(cut), self.num_cut + int(cut.sum())
        return scores

    def run_checked(self, data: AnswerSet) -> tuple[np.ndarray, np.ndarray]:
        scores, cut = self.run(data)
        if not np.isfinite(scores).all():
            row = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise KinspanError(f"{self.name}: its score of candidate {data.answer_ids[row]} is not finite")
        return scores, cut


def score_answers(
    name_or_dir: str,
    data: AnswerSet,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    precision: str = "fp32",
) -> np.ndarray:
    """Returns the scores ``[N]`` of the candidates by any model that ranks, see ``load_model``; logs cut pairs."""
    model = load_model(name_or_dir, max_length, batch_tokens, precision)
    scores, cut = model.run_checked(data)
    log_cut(data, cut, model.max_length)
    return scores


def load_model(
    name_or_dir: str, max_length: int | None = None, batch_tokens: int | None = None, precision: str = "fp32"
) -> RankingModel:
    """Loads any model that ranks.

    name_or_dir: a sequence classifier of one or two labels (a release, a fine-tuned model, a CrossEncoder), BERT or
        ALBERT with its head of pre-training; a bi-encoder of sentence-transformers or an encoder without a head,
        which score by the similarity of their embeddings; or a learned fusion of such models and BM25
    max_length: most tokens of a pair, or of a text for a bi-encoder; None: the model's own, or of a fusion's part the
        number that its weight was learned at
    precision:  "bf16" is taken only where the model's pairs can be packed; else it is fp32

    Raises KinspanError where there is no such model.
    """
    if is_fusion(name_or_dir):
        return _load_fusion(Path(name_or_dir), max_length, batch_tokens, precision)
    if is_bi_encoder(name_or_dir):
        return _load_similarity(name_or_dir, max_length)
    return _load_classifier(name_or_dir, max_length, batch_tokens, precision)


def _load_fusion(folder: Path, max_length: int | None, batch_tokens: int | None, precision: str) -> RankingModel:
    parts, intercept = read_parts(folder)
    log.info("%s is a fusion: %s", folder.name, ", ".join(f"{part.weight:.2f} {part.name}" for part in parts))
    loaded = [
        load_model(str(folder / part.folder), max_length or part.max_length, batch_tokens, precision)
        if part.folder
        else RankingModel(part.name, NO_LIMIT, partial(_run_bm25, read_words(folder)))
        for part in parts
    ]

    def run(data: AnswerSet) -> tuple[np.ndarray, np.ndarray]:
        scores, cut = np.full(data.num_pairs, intercept), np.zeros(data.num_pairs, dtype=bool)
        for part, model in zip(parts, loaded, strict=True):
            of_part, cut_by_part = model.run(data)
            scores += part.weight * (of_part - part.mean) / part.scale
            cut |= cut_by_part
        return scores, cut

    length = max((model.max_length for model in loaded if model.max_length < NO_LIMIT), default=NO_LIMIT)
    return RankingModel(folder.name, length, run)


def _run_bm25(words: WordCounts, data: AnswerSet) -> tuple[np.ndarray, np.ndarray]:
    return score_bm25_by(words, data), np.zeros(data.num_pairs, dtype=bool)


def _load_similarity(name_or_dir: str, max_length: int | None) -> RankingModel:
    model, name = load_bi_encoder(name_or_dir), shorten_name(name_installed(name_or_dir))
    limit_length(model, name, max_length)
    pooling = "" if has_modules(name_or_dir) else ", the mean over its tokens, for want of a head"
    log.info("%s is scored by the %s of embeddings%s", name, model.similarity_fn_name, pooling)
    length = model.max_seq_length or NO_LIMIT
    return RankingModel(name, length, lambda data: (score_by_similarity(model, data), find_cut_texts(model, data)))


def _load_classifier(
    name_or_dir: str, max_length: int | None, batch_tokens: int | None, precision: str
) -> RankingModel:
    scorer, tokenizer = load_scorer(name_or_dir), load_own_tokenizer(name_or_dir)
    default = find_trained_length(name_or_dir) or find_max_length(tokenizer, scorer.model)
    length = max_length or default
    check_fits(scorer.name, scorer.model, tokenizer, length)
    if length != default:
        log.info("%s: pairs are cut at --max_length %s, where the model's own is %s", scorer.name, length, default)
    tokens = batch_tokens or BATCH_TOKENS[scorer.model.device.type]
    if can_pack(scorer.model):
        scorer.model.set_attn_implementation(attention.NAME)
        ranker, title = Ranker(scorer.model).eval(), f"scoring with {scorer.name}"

        def score(pairs: EncodedPairs) -> np.ndarray:
            return score_pairs(ranker, pairs, scorer.model.device, tokens, title, precision)
    else:
        if precision != "fp32":
            log.warning("%s is scored in fp32: its pairs cannot be packed", scorer.name)

        def score(pairs: EncodedPairs) -> np.ndarray:
            return score_padded(scorer, unpack(pairs), max(1, tokens // length))

    def run(data: AnswerSet) -> tuple[np.ndarray, np.ndarray]:
        pairs = encode_pairs(data, tokenizer, length)
        return score(pairs), find_cut(pairs)

    return RankingModel(scorer.name, length, run)


def can_pack(model: torch.nn.Module) -> bool:
    """Returns whether the model is of one of FAMILIES, and has one logit, taken from the first token."""
    config: Any = model.config
    family = FAMILIES.get(config.model_type)
    if family is None or type(model).__name__ != family.classifier:
        return False
    return bool(config.num_labels == 1 and getattr(config, "classifier_pooling", "cls") == "cls")


def unpack(pairs: EncodedPairs) -> PackedPairs:
    inputs = pairs.pack(np.arange(len(pairs.lengths)), torch.device("cpu"))
    ids, types, starts = (inputs[name].numpy() for name in ("input_ids", "token_type_ids", "starts"))
    return PackedPairs(ids, types, starts)
