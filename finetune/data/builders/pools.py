"""InsuranceQA with pools of candidates that BM25 finds among all answers, as its version 2 has them.

Feng et al., 2015, and Rücklé et al., 2020, "MultiCQA", section 3.2: 500 candidates, and a question whose right answers
are not among them is not measured on. Version 2 comes with pools that Solr found; these are for who has the questions
and answers alone.
"""

import json
from pathlib import Path
from typing import NamedTuple

import bm25s
import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import make_folder, write_atomically
from data_pipeline.core.progress import show_progress
from data_pipeline.matching import pair_up

from ..dataset import find_split
from ..insuranceqa import ANSWERS, INSURANCEQA, read_texts
from ..tables import check_fields, read_json_lines

CANDIDATES = 500  # of a question in dev and test
TRAIN_CANDIDATES = 100
SPLITS = ("train", "dev", "test")


class Count(NamedTuple):
    """Of a split: its questions, and those that have a right answer among their candidates."""

    questions: int
    found: int


def build_pools(
    source: Path, target: Path, candidates: int = CANDIDATES, train_candidates: int = TRAIN_CANDIDATES
) -> dict[str, Count]:
    """Writes the data set of ``source`` with other candidates to ``target``, in the same form, and returns its counts.

    The right answers of a question in dev and test are those that are among its candidates, which may be none; in
    training they are all of them.

    Raises KinspanError where a file is missing or not as it must be, where there are fewer answers than candidates, and
    where ``target`` is ``source``.
    """
    if source.resolve() == target.resolve():
        raise KinspanError(f"--output_dir {target} is the folder that is read: choose another")
    path, texts = read_texts(source / ANSWERS)
    place, name_files = f"--input {source}", INSURANCEQA.file_names
    files = {split: find_split(place, source, split, name_files(split))[0] for split in SPLITS}
    index, ids = bm25s.BM25(), list(texts)
    words = bm25s.tokenize([pair_up(text) for text in texts.values()], show_progress=False)
    if not words.vocab:
        raise KinspanError(f"{path}: no answer has a word")
    index.index(words, show_progress=False)
    for flag, number in (("candidates", candidates), ("train_candidates", train_candidates)):
        if number > len(ids):
            raise KinspanError(f"--{flag} {number}: {path} has {len(ids):,} answers: give at most that")
    make_folder(target)
    counts = {}
    for split, file in files.items():
        number = train_candidates if split == "train" else candidates
        counts[split] = _write_split(split, file, target / name_files(split)[0], index, ids, number)
    lines = (json.dumps({"aid": aid, "text": text}, ensure_ascii=False) + "\n" for aid, text in texts.items())
    write_atomically(target / ANSWERS, lines)
    return counts


def _write_split(split: str, file: Path, target: Path, index: bm25s.BM25, ids: list[str], candidates: int) -> Count:
    known, lines, answered = set(ids), [], 0
    for line, record in show_progress(split, "questions", read_json_lines(file)):
        where = f"{file} line {line}"
        check_fields(record, where, str, "qid", "question")
        check_fields(record, where, list, "answers")
        right = record["answers"]
        if unknown := [aid for aid in right if not isinstance(aid, str) or aid not in known]:
            raise KinspanError(f"{where}: answers has aid {unknown[0]!r}, which {ANSWERS} lacks")
        pool = [ids[row] for row in rank_best(index, record["question"], candidates)]
        there = [aid for aid in right if aid in pool]
        answered += bool(there)
        kept = right if split == "train" else there
        others = [aid for aid in pool if aid not in right]
        row = {"qid": record["qid"], "question": record["question"], "answers": kept, "negatives": others}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    write_atomically(target, lines)
    return Count(len(lines), answered)


def rank_best(index: bm25s.BM25, text: str, count: int | None = None) -> list[int]:
    """Returns all documents, or ``count``, by falling BM25 with a text, and among equals by their place."""
    words = bm25s.tokenize(pair_up(text), return_ids=False, show_progress=False)[0]
    scores = index.get_scores(words) if words else np.zeros(index.scores["num_docs"])
    return np.argsort(-scores, kind="stable")[:count].tolist()
