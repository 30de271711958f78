"""The second stage: a cross-encoder reads each question together with its candidates."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from data_pipeline.core.default_model import name_installed
from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.ranking.bi_encoder import is_bi_encoder
from finetune.ranking.model import load_model

MAX_CHARS = 50  # of a token: texts are cut to this many times the most tokens before they are tokenised


class ReRanker:
    """A sequence classifier, loaded once.

    max_length: most tokens of a question with an answer; None: the model's own
    precision:  "bf16" is faster where the processor computes in it, and rounds

    Raises KinspanError where there is no such model, or it is a bi-encoder.
    """

    def __init__(self, name_or_dir: str, max_length: int | None = None, precision: str = "fp32") -> None:
        if is_bi_encoder(name_or_dir):
            raise KinspanError(
                f"--cross_encoder {name_installed(name_or_dir)} is a bi-encoder, which reads question and "
                "answer apart: give a release or a ranker"
            )
        self.name = shorten_name(name_or_dir)
        self._model = load_model(name_or_dir, max_length, precision=precision)
        self.max_length = self._model.max_length
        self._room = MAX_CHARS * self.max_length

    def score(self, questions: Sequence[str], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """The score of each candidate of each question, all in as few forward passes as fit."""
        if not any(map(len, candidates)):
            return [np.zeros(0) for _ in questions]
        data = make_candidates(
            [question[: self._room] for question in questions],
            [[text[: self._room] for text in own] for own in candidates],
        )
        return np.split(self._model.score(data), data.starts[1:-1])

    def describe_cut(self) -> list[str]:
        """A line that says how many of all pairs scored so far were cut, where any was."""
        model = self._model
        counts = f"{model.num_cut:,} of {model.num_pairs:,} pairs cut (--max_length {model.max_length})"
        return [f"{self.name}: {counts}"] if model.num_cut else []


def make_candidates(questions: Sequence[str], candidates: Sequence[Sequence[str]]) -> AnswerSet:
    """Questions and the texts of their candidates in the form that is scored, without labels."""
    texts = [text for own in candidates for text in own]
    return AnswerSet(
        name="search",
        split="candidates",
        question_ids=[str(number) for number in range(len(questions))],
        questions=questions,
        starts=np.append(0, np.cumsum([len(own) for own in candidates])).astype(np.int64),
        answer_ids=pa.array([str(number) for number in range(len(texts))], pa.large_string()),
        answers=pa.array(texts, pa.large_string()),
        labels=np.zeros(len(texts), dtype=np.int8),
    )
