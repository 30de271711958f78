"""Any model that ranks, loaded once: known families run without padding, others in sentence-transformers."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoConfig

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25, score_bm25_by
from pretrain.modeling.limits import check_fits
from pretrain.modeling.pair_model import holds_no_weights

from .embedder import Embedder
from .encode import encode_pairs
from .fusion import combine, read_fusion
from .kinds import ADAPTER, BI_ENCODER, CLASSIFIER, CROSS_ENCODER, FUSION, find_kind, load_cross_encoder
from .ranker import Ranker, can_pack, find_max_length, load_own_tokenizer, load_trained_ranker
from .score import score_pairs

log = logging.getLogger(__name__)

NO_LIMIT = 1_000_000  # tokens; BM25 never truncates


@dataclass
class RankingModel:
    """Scores the candidates of any AnswerSet by a loaded model of any kind.

    max_length: maximum number of tokens of a pair, or of a text for a bi-encoder; a fusion has its longest part's
    run:        returns the scores ``[N]``, and which pairs are truncated (cut), ``[N]``
    known:      parts of a fusion whose scores ``[N]`` are given to ``run``, and to ``score``, by name
    num_pairs, num_cut: number of pairs that were scored, and truncated, so far
    """

    name: str
    max_length: int
    run: Callable[..., tuple[np.ndarray, np.ndarray]]
    known: Collection[str] = ()
    num_pairs: int = 0
    num_cut: int = 0

    def score(self, data: AnswerSet, **known: np.ndarray) -> np.ndarray:
        """Returns the scores ``[N]``. Raises KinspanError if one is not finite."""
        scores, cut = self.run(data, **known)
        if not np.isfinite(scores).all():
            row = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise KinspanError(f"{self.name}: its score of candidate {data.answer_ids[row]} is not finite")
        self.num_pairs, self.num_cut = self.num_pairs + len(cut), self.num_cut + int(cut.sum())
        return scores


def score_answers(
    name_or_dir: str, data: AnswerSet, max_length: int | None = None, precision: str = "fp32"
) -> np.ndarray:
    """Returns the scores ``[N]`` of the candidates by a model, see ``load_model``; logs truncated pairs."""
    model = load_model(name_or_dir, max_length, precision)
    scores = model.score(data)
    if model.num_cut:
        counts = model.num_cut, model.num_pairs, model.max_length
        log.info("%s %s: %d of %d pairs are truncated (--max_length %d)", data.name, data.split, *counts)
    return scores


def load_model(
    name_or_dir: str, max_length: int | None = None, precision: str = "fp32", known: Collection[str] = ()
) -> RankingModel:
    """Loads any model that ranks: a classifier of one or two labels, an adapter, a bi-encoder, or a fusion of these.

    max_length: maximum number of tokens of a pair, or of a text for a bi-encoder; None: the model's own
    precision:  "bf16" applies only to models whose texts can be packed; others use fp32
    known:      parts of a fusion that are not loaded, since their scores will be given
    """
    kind = find_kind(name_or_dir)
    if kind == FUSION:
        return _load_fusion(Path(name_or_dir), max_length, precision, known)
    if kind == BI_ENCODER:
        return _load_bi_encoder(name_or_dir, max_length, precision)
    return _load_cross_encoder(name_or_dir, kind, max_length, precision)


def _load_fusion(folder: Path, max_length: int | None, precision: str, known: Collection[str]) -> RankingModel:
    weights, by_rank, words = read_fusion(folder)
    log.info("%s is a fusion: %s", folder.name, ", ".join(f"{weight:.2f} {name}" for name, weight in weights.items()))
    load = {
        BM25: lambda: RankingModel(BM25, NO_LIMIT, lambda d: (score_bm25_by(words, d), np.zeros(d.num_pairs, bool))),
        BI_ENCODER: lambda: _load_bi_encoder(str(folder), max_length, precision),
        CROSS_ENCODER: lambda: load_model(str(folder / CROSS_ENCODER), max_length, precision),
    }
    parts = {name: load[name]() for name in weights if name not in known}

    def run(data: AnswerSet, **scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cut = np.zeros(data.num_pairs, dtype=bool)
        for name, model in parts.items():
            scores[name], part_cut = model.run(data)
            cut |= part_cut
        return combine(scores, weights, data.starts, by_rank), cut

    length = max((model.max_length for model in parts.values() if model.max_length < NO_LIMIT), default=NO_LIMIT)
    return RankingModel(folder.name, length, run, weights.keys() - parts.keys())


def _load_bi_encoder(name_or_dir: str, max_length: int | None, precision: str) -> RankingModel:
    embedder = Embedder(name_or_dir, max_length)
    log.info("%s is scored by the %s of embeddings", embedder.name, embedder.similarity)
    return RankingModel(embedder.name, embedder.max_length, partial(embedder.score, precision=precision))


def _load_cross_encoder(name_or_dir: str, kind: str, max_length: int | None, precision: str) -> RankingModel:
    if kind != ADAPTER and holds_no_weights(name_or_dir):
        raise KinspanError(f"--model {name_or_dir} holds no weights: give a trained model")
    name, tokenizer = shorten_name(name_or_dir), load_own_tokenizer(name_or_dir)
    is_packable = kind == ADAPTER or can_pack(name_or_dir)
    scorer: Ranker | CrossEncoder = load_trained_ranker(name_or_dir) if is_packable else _load_by_library(name_or_dir)
    classifier = scorer.classifier if isinstance(scorer, Ranker) else scorer.transformers_model
    length = max_length or find_max_length(name_or_dir)
    check_fits(name, classifier, tokenizer, length)
    if isinstance(scorer, Ranker):
        scorer.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    else:
        scorer.max_seq_length = length

    def run(data: AnswerSet) -> tuple[np.ndarray, np.ndarray]:
        pairs = encode_pairs(data, tokenizer, length)
        if isinstance(scorer, Ranker):
            scores = score_pairs(scorer, pairs, scorer.classifier.device, f"scoring with {name}", precision)
        else:
            texts = zip((data.questions[n] for n in data.question_of), data.answers.to_pylist(), strict=True)
            logits = scorer.predict(list(texts), show_progress_bar=False)
            scores = (logits if logits.ndim == 1 else logits[:, 1] - logits[:, 0]).astype(np.float64)
        return scores, pairs.find_cut()

    return RankingModel(name, length, run)


def _load_by_library(name_or_dir: str) -> CrossEncoder:
    config = AutoConfig.from_pretrained(name_or_dir, trust_remote_code=False)
    architecture = next(iter(config.architectures or []), config.model_type)
    if not architecture.endswith(CLASSIFIER):
        raise KinspanError(f"--model {name_or_dir} is a {architecture}, which has no head to score pairs")
    if config.num_labels not in (1, 2):
        raise KinspanError(f"--model {name_or_dir} has {config.num_labels} labels: give a model with 1 or 2")
    return load_cross_encoder(name_or_dir, torch.nn.Identity())  # logits, as for a Ranker
