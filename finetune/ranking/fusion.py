"""A learned fusion: a ranker that adds up the scores of other rankers, its parts, with learned weights.

Its folder holds ``fusion.json``, the word counts that BM25 needs, and a sub-folder for each model. ``ranking.fuse``
learns the weights and writes the folder; ``ranking.model`` scores by it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object
from finetune.evaluation.bm25 import WordCounts

FUSION, WORDS = "fusion.json", "words.json"
FORMAT = 1
REPAIR = "make it anew with kinspan fuse"
SEED, FOLDS_KEY = 0, 2**33  # of the random numbers that assign questions to folds


@dataclass(frozen=True)
class FusedRanker:
    """A ranker within a fusion.

    name:        for people; BM25 is one
    folder:      of the model, within that of the fusion; "" of BM25
    weight:      of its standardised scores
    mean, scale: standardise its scores: those of the questions that the weights were fitted on
    fingerprint: of the model
    max_length:  the most tokens that it read when the weights were learned; None: its own number, or BM25
    """

    name: str
    folder: str
    weight: float
    mean: float
    scale: float
    fingerprint: str = ""
    max_length: int | None = None


def is_fusion(name_or_dir: str) -> bool:
    """Returns whether a folder holds a learned fusion."""
    return (Path(name_or_dir) / FUSION).is_file()


def split_folds(num_questions: int, num_folds: int) -> np.ndarray:
    """Returns the fold of each question, ``[Q]``; the sizes of the folds differ by one at most."""
    random = np.random.Generator(np.random.Philox(key=np.array([SEED, FOLDS_KEY], dtype=np.uint64)))
    return random.permutation(np.arange(num_questions) % num_folds)


def describe_fusion(parts: Sequence[FusedRanker], intercept: float) -> dict[str, Any]:
    """Returns the content of ``fusion.json``."""
    return {"format": FORMAT, "intercept": intercept, "parts": [asdict(part) for part in parts]}


def read_parts(folder: Path) -> tuple[list[FusedRanker], float]:
    """Returns the parts of a fusion and its intercept. Raises KinspanError where the folder is damaged."""
    path = folder / FUSION
    content = read_object(path, REPAIR)
    try:
        if content["format"] != FORMAT:
            raise KinspanError(f"{path} has format {content['format']}, and this version reads {FORMAT}")
        parts, intercept = [FusedRanker(**part) for part in content["parts"]], float(content["intercept"])
    except (LookupError, TypeError, ValueError) as error:
        raise KinspanError(f"{path} is damaged ({error!r}): {REPAIR}") from error
    for part in parts:
        if part.folder and (Path(part.folder).name != part.folder or not (folder / part.folder).is_dir()):
            raise KinspanError(f"{path}: there is no folder {part.folder!r} beside it: {REPAIR}")
    return parts, intercept


def read_words(folder: Path) -> WordCounts:
    """Returns the word counts of BM25. Raises KinspanError where the file is damaged."""
    try:
        return WordCounts(**read_object(folder / WORDS, REPAIR))
    except TypeError as error:
        raise KinspanError(f"{folder / WORDS} is damaged ({error}): {REPAIR}") from error
