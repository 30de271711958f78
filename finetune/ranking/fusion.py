"""A learned fusion: a ranker that adds up the scores of other rankers, its parts, with weights that were learned.

Its folder holds ``fusion.json``, the counts of words that BM25 needs, and a sub-folder for each model.
``finetune.fuse`` learns the weights and writes the folder.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import WordCounts, score_bm25_by

FUSION, WORDS = "fusion.json", "words.json"
FORMAT = 1
ANY_LENGTH = 1_000_000  # tokens: BM25 reads whole texts
REPAIR = "copy the folder again, or make it anew with kinspan fuse"

# Scores the candidates of any AnswerSet, ``[N]``
Scoring = Callable[[AnswerSet], np.ndarray]
# Is told which pairs of an AnswerSet are cut, ``[N]``, and at how many tokens
SeeCut = Callable[[AnswerSet, np.ndarray, int], None]


@dataclass(frozen=True)
class FusedRanker:
    """A ranker within a fusion.

    name:        how people call it; BM25 is one
    folder:      of the model, within that of the fusion; "" of BM25
    weight:      of its standardised scores
    mean, scale: what standardises its scores: those of the questions that the weights were fitted on
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
    """Whether a folder holds a learned fusion."""
    return (Path(name_or_dir) / FUSION).is_file()


def describe_fusion(parts: Sequence[FusedRanker], intercept: float) -> dict[str, Any]:
    """Returns what ``fusion.json`` holds."""
    return {"format": FORMAT, "intercept": intercept, "parts": [asdict(part) for part in parts]}


def read_parts(folder: Path) -> tuple[list[FusedRanker], float]:
    """Returns the parts of a fusion and its intercept. Raises KinspanError where the folder is damaged."""
    path = folder / FUSION
    found = read_object(path, REPAIR)
    try:
        if found["format"] != FORMAT:
            raise KinspanError(f"{path} has format {found['format']}, and this version reads {FORMAT}: update kinspan")
        parts, intercept = [FusedRanker(**part) for part in found["parts"]], float(found["intercept"])
    except (LookupError, TypeError, ValueError) as error:
        raise KinspanError(f"{path} is damaged ({error!r}): {REPAIR}") from error
    for part in parts:
        if part.folder and (Path(part.folder).name != part.folder or not (folder / part.folder).is_dir()):
            raise KinspanError(f"{path}: its part {part.name} is not in the folder {part.folder!r} beside it: {REPAIR}")
    return parts, intercept


def load_fusion(
    folder: Path, load: Callable[[str, int | None, SeeCut], tuple[Scoring, int]], see: SeeCut
) -> tuple[Scoring, int]:
    """Returns what scores candidates by the fusion in ``folder``, and the most tokens that a part of it reads.

    load: loads a part that is a model, and is given its ``max_length`` and what sees its cut pairs
    see:  is told which pairs any part cuts

    Raises KinspanError where the folder is damaged.
    """
    parts, intercept = read_parts(folder)
    seen: list[tuple[np.ndarray, int]] = []

    def note_cut(data: AnswerSet, cut: np.ndarray, length: int) -> None:
        seen.append((cut, length))

    loaded = [
        load(str(folder / part.folder), part.max_length, note_cut)
        if part.folder
        else (partial(score_bm25_by, _read_words(folder)), ANY_LENGTH)
        for part in parts
    ]

    def score(data: AnswerSet) -> np.ndarray:
        seen.clear()
        scores = np.full(data.num_pairs, intercept)
        for part, (score_part, _) in zip(parts, loaded, strict=True):
            scores += part.weight * (score_part(data) - part.mean) / part.scale
        if seen:
            see(data, np.any([cut for cut, _ in seen], axis=0), max(length for _, length in seen))
        return scores

    return score, max((length for _, length in loaded if length < ANY_LENGTH), default=ANY_LENGTH)


def _read_words(folder: Path) -> WordCounts:
    try:
        return WordCounts(**read_object(folder / WORDS, REPAIR))
    except TypeError as error:
        raise KinspanError(f"{folder / WORDS} is damaged ({error}): {REPAIR}") from error


def name_parts(folder: Path) -> str:
    """The parts of a fusion with their weights, for people."""
    return ", ".join(f"{part.weight:.2f} {part.name}" for part in read_parts(folder)[0])
