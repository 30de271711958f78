"""The release of an adaptation: a folder of up to three rankers, whose scores are added up with weights.

Its root is the bi-encoder, as sentence-transformers loads it; ``cross-encoder/`` is a folder that CrossEncoder loads;
``words.json`` holds the word counts that BM25 needs, and ``fusion.json`` the weights. ``ranking.model`` ranks by it.
"""

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from data_pipeline.core.default_model import list_versions
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object
from finetune.evaluation.bm25 import BM25, WordCounts
from finetune.evaluation.metrics import METRICS, TITLES
from pretrain.release.card import CardOverrides, make_metadata, render_card
from pretrain.release.folder import CARD, FACTS, copy_model, replace_release
from pretrain.release.siamese import write_json

from .kinds import BI_ENCODER, CROSS_ENCODER, FUSION_FILE, MODULES, WORDS, load_bi_encoder

FORMAT, BY_SCORE, BY_RANK = 3, "scores", "ranks"
REPAIR = "make it anew with kinspan adapt"
RANK_OFFSET = 60  # added to each rank in reciprocal rank fusion (Cormack et al., 2009)
ROUNDING = 1e-6  # scores that differ by a smaller share of the largest count as equal
# Files of a hub repository that PyTorch does not load
NOT_NEEDED = ("*.onnx", "*.h5", "*.ot", "*.msgpack", "onnx/*", "openvino/*", "coreml/*")
NOT_COPIED = shutil.ignore_patterns("ranker.json", "*.tmp")


def standardise(scores: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns the scores ``[N]`` with mean 0 and standard deviation 1 within each question; 0 where all are equal."""

    def scale(part: np.ndarray) -> np.ndarray:
        centred = part - part.mean() if len(part) else part
        spread = centred.std() if len(part) else 0.0
        return centred / spread if spread > ROUNDING * np.abs(part).max(initial=0) else np.zeros(len(part))

    return np.concatenate([scale(part) for part in np.split(scores.astype(np.float64), starts[1:-1])])


def reciprocal_ranks(scores: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns 1 / (RANK_OFFSET + rank) of each score ``[N]`` within its question. Equal scores share the last of their
    ranks, so that the order of rows never counts."""
    parts = np.split(scores, starts[1:-1])
    return np.concatenate([1 / (RANK_OFFSET + rankdata(-part, method="max")) for part in parts])


def combine(
    scores: Mapping[str, np.ndarray], weights: Mapping[str, float], starts: np.ndarray, by_rank: bool
) -> np.ndarray:
    """Returns the weighted sum ``[N]`` of the parts' standardised scores, or of their reciprocal ranks."""
    scale = reciprocal_ranks if by_rank else standardise
    return np.sum([weight * scale(scores[name], starts) for name, weight in weights.items()], axis=0)


def write_fusion(
    output: Path,
    *,
    bi_encoder: str | None,
    cross_encoder: str | None,
    weights: Mapping[str, float],
    by_rank: bool,
    words: WordCounts,
    about: Mapping[str, Any],
) -> None:
    """Writes the folder of a fusion, with copies of its models.

    bi_encoder, cross_encoder: folder or hub name; a bi-encoder without a weight serves as the first stage of a search
    weights: by BM25, BI_ENCODER and CROSS_ENCODER
    by_rank: whether reciprocal ranks are added up, instead of standardised scores
    about:   ``data``, the name of the data set, and ``figures``, by split
    """
    with replace_release(output) as partial:
        folder = find_folder(bi_encoder) if bi_encoder else None
        if folder and (Path(folder) / MODULES).is_file():
            copy_model(folder, partial, ignore=NOT_COPIED)
        elif folder:  # an encoder without a head
            load_bi_encoder(folder).save(str(partial), create_model_card=False)
        if cross_encoder:
            copy_model(find_folder(cross_encoder), partial / CROSS_ENCODER, ignore=NOT_COPIED)
        partial.mkdir(parents=True, exist_ok=True)
        content = {"format": FORMAT, "by": BY_RANK if by_rank else BY_SCORE, "weights": dict(weights)}
        write_json(partial / FUSION_FILE, content)
        write_json(partial / WORDS, asdict(words))
        write_json(partial / FACTS, {**about, "kind": "fusion", "kinspan": list_versions()["kinspan"]})
        library = "sentence-transformers" if bi_encoder or cross_encoder else None
        card = render_card(
            "fusion.md",
            make_metadata(CardOverrides(), ["fusion", "answer-sentence-selection", "kinspan"], library=library),
            CardOverrides(),
            title=f"Ranker for {about['data']}",
            has_bi_encoder=bi_encoder is not None,
            has_cross_encoder=cross_encoder is not None,
            weights=weights,
            by_rank=by_rank,
            figures=about["figures"],
            titles={metric: TITLES[metric] for metric in METRICS},
        )
        (partial / CARD).write_text(card, encoding="utf-8")


def find_folder(model: str) -> str:
    """Returns the folder of a model's files; a hub model is downloaded unless it is cached."""
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download

    return snapshot_download(model, ignore_patterns=list(NOT_NEEDED))


def read_fusion(folder: Path) -> tuple[dict[str, float], bool, WordCounts]:
    """Returns the weights of a fusion, whether they are of reciprocal ranks, and the word counts of BM25."""
    content, words = (read_object(folder / name, REPAIR) for name in (FUSION_FILE, WORDS))
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, where {FORMAT} is read")
        weights = {name: float(weight) for name, weight in content["weights"].items()}
        if weights.keys() - {BM25, BI_ENCODER, CROSS_ENCODER} or content["by"] not in (BY_SCORE, BY_RANK):
            raise ValueError("unknown part, or way of adding up")
        return weights, content["by"] == BY_RANK, WordCounts(**words)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise KinspanError(f"{folder / FUSION_FILE}, or {WORDS}, is damaged ({error!r}): {REPAIR}") from error
