"""Hard negatives for the training questions of a data set, found by a model among the right answers of other questions.

Only right answers of training questions are in the pool: a text that is never a right answer would be learned as always
wrong. Candidates above a share of the lowest score of a question's right answers are dropped as probably unlabelled
positives (Moreira et al., 2024, "NV-Retriever", section 3.1, "TopK-PercPos").
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.util import mine_hard_negatives

from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import make_folder, write_atomically
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.data.dataset import find_files
from finetune.data.filters import NO_ALL_NEGATIVE
from finetune.data.registry import load_filtered, parse_columns
from finetune.data.tables import FORMATS

from .config import MineConfig
from .kinds import CROSS_ENCODER, can_embed, find_kind, load_bi_encoder, load_cross_encoder

TRAIN, FACTS = "train.jsonl", "mined.json"
RULES = ("negatives", "depth", "positive_share")  # settings that mined.json holds

Negatives = list[tuple[int, float]]  # (row of the candidate, score), the hardest first


def mine_file(config: MineConfig) -> tuple[AnswerSet, list[Negatives]]:
    """Mines negatives for ``--data``, writes both into ``--output_dir``, and returns the questions and negatives.

    The bi-encoder ``--model`` retrieves candidates; the cross-encoder, if given, scores them instead.
    """
    output, model, cross_encoder = Path(config.output_dir), config.model or default_model(), config.cross_encoder
    old = find_files(output, [f"train{suffix}" for suffix in FORMATS])
    if old and not (output / FACTS).exists():
        raise KinspanError(f"--output_dir {output} holds a {old[0].name} that was not mined: choose another folder")
    if not can_embed(model):
        raise KinspanError(f"--model {model} is not a bi-encoder: give it as --cross_encoder")
    if cross_encoder and find_kind(cross_encoder) != CROSS_ENCODER:
        raise KinspanError(f"--cross_encoder {cross_encoder} is a {find_kind(cross_encoder)}")
    names = parse_columns(config.columns)
    data = load_filtered(config.data, "train", NO_ALL_NEGATIVE, names)
    data = data.keep(data.labels == 1)
    make_folder(output)
    scorer = None
    if cross_encoder:
        scorer = load_cross_encoder(cross_encoder, torch.nn.Sigmoid(), config.max_length, "--cross_encoder")
        if scorer.num_labels != 1:
            raise KinspanError(f"--cross_encoder {cross_encoder} has {scorer.num_labels} labels: give a model with 1")
    mined = mine(data, load_bi_encoder(model, config.max_length), scorer, config)
    facts = {
        "data": data.name,
        "model": shorten_name(model),
        "cross_encoder": cross_encoder and shorten_name(cross_encoder),
        **{name: getattr(config, name) for name in RULES},
        "questions": data.num_questions,
        "mined": sum(map(len, mined)),
        "without_negatives": sum(not negatives for negatives in mined),
    }
    write_atomically(output / FACTS, json.dumps(facts, indent=1) + "\n")  # first: a killed command can be run again
    write_atomically(output / TRAIN, list_lines(data, mined, names or {}))
    return data, mined


def mine(
    data: AnswerSet, model: SentenceTransformer, cross_encoder: CrossEncoder | None, config: MineConfig
) -> list[Negatives]:
    """Returns each question's hardest candidates that are not right for it.

    data: questions with only their right answers; texts that are equal when folded count as one
    """
    pool = data.distinct
    texts = data.answers.take(pa.array(pool.rows)).to_pylist()
    row_of = dict(zip(texts, pool.rows.tolist(), strict=True))
    first = np.unique(pool.groups, return_index=True)[1]
    query_of = [data.questions[first[group]] for group in pool.groups]  # equal questions share their right answers
    pairs = {"question": [query_of[q] for q in data.question_of], "answer": [texts[d] for d in pool.which]}
    lists = mine_hard_negatives(
        Dataset.from_dict(pairs),
        model,
        cross_encoder=cross_encoder,
        relative_margin=1 - config.positive_share,
        num_negatives=config.negatives,
        range_max=max(config.depth, config.negatives),
        output_format="labeled-list",  # a right answer, then the negatives, which are the same for each right answer
        output_scores=True,
        verbose=False,
    )
    negatives_of = {row["question"]: list(zip(row["answer"], row["scores"], strict=True))[1:] for row in lists}
    return [[(row_of[text], score) for text, score in negatives_of.get(question, [])] for question in query_of]


def list_lines(data: AnswerSet, mined: list[Negatives], names: Mapping[str, str]) -> Iterator[str]:
    """Yields the lines of train.jsonl, as ``files=`` reads it.

    names: the user's column names, so that the same --columns fits the data and the mined file
    """
    for number, right in enumerate(data.question_slices()):
        rows = sorted([*range(right.start, right.stop), *(row for row, _ in mined[number])])  # hides the labels
        for row in rows:
            line = {
                "question_id": data.question_ids[number],
                "question": data.questions[number],
                "answer_id": f"c{row}",
                "answer": data.answers[row].as_py(),
                "label": int(right.start <= row < right.stop),
            }
            yield json.dumps({names.get(name, name): value for name, value in line.items()}, ensure_ascii=False) + "\n"
