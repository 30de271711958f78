"""Measures TREC files, and models on a data set or by search; ranks unlabelled candidates.

Each measuring function yields notes and a table and, with ``as_json``, a last line of JSON.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.default_model import default_model, name_installed
from data_pipeline.core.errors import KinspanError, prefix_errors
from data_pipeline.core.files import make_folder, write_atomically
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.data.collect import collect_answers
from finetune.data.passages import Documents, Paragraphs, RankedRows, find_candidates, locate_answers
from finetune.data.registry import load_filtered, parse_columns
from finetune.data.tables import read_candidates, read_table
from finetune.evaluation import trec
from finetune.evaluation.bm25 import ABOUT, BM25, score_bm25
from finetune.evaluation.comparison import compare_systems, format_per_question, format_table, name_folders
from finetune.evaluation.config import EvaluateConfig
from finetune.evaluation.metrics import SEARCH_METRICS, Figures, compute_question_metrics
from finetune.evaluation.named_metrics import measure_answers, measure_retrieval, measure_run

from .config import RankConfig

log = logging.getLogger(__name__)


def measure_files(config: EvaluateConfig, metrics: Sequence[str]) -> Iterator[str]:
    """Measures TREC run files, the first of which is the baseline, by the judgements of ``--qrels``."""
    judged = trec.read_qrels(Path(str(config.qrels)))
    systems: dict[str, Figures] = {}
    notes = []
    for name in config.run:
        scores = trec.read_run(Path(name))
        with prefix_errors(name):
            notes += [f"{name}: {note}" for note in trec.list_unshared(judged, scores)]
            systems[name] = measure_run(judged, scores, metrics)
    yield f"{config.qrels}: {len(judged):,} questions, {sum(map(len, judged.values())):,} candidates judged"
    facts = {"qrels": config.qrels, "questions": len(judged)}
    yield from _report(compare_systems(systems), notes, facts, config.json)


def measure_models(config: EvaluateConfig, metrics: Sequence[str]) -> Iterator[str]:
    """Measures models, the first of which is the baseline, and BM25 on a data set.

    metrics: by our own names, or by those of ir_measures
    """
    spec, split, models = str(config.data), config.split, config.model
    data = load_filtered(spec, split, config.eval_filter, parse_columns(config.columns))
    output, notes = Path(config.output_dir) if config.output_dir else None, []
    if output:  # first, to fail early if it cannot be made
        make_folder(output)
    title = f"{data.name} {data.split}, {config.eval_filter}"
    yield f"{title}: {data.num_questions:,} questions, {data.num_pairs:,} candidates"
    model_of = {name_installed(model): model for model in models}
    if len(model_of) < len(models):
        raise KinspanError(f"--model {' '.join(models)}: two of them have one name here: give each once, by its folder")
    names = [*model_of, BM25]
    systems: dict[str, Figures] = {}
    for name, folder in zip(names, name_folders(names), strict=True):
        scores = score_bm25(data, config.language) if name == BM25 else _score(model_of[name], data, config)
        with prefix_errors(name):
            systems[name] = measure_answers(data, scores, metrics)
            if output:
                trec.write_predictions(output / folder, data, scores, folder)
    notes.append(ABOUT)
    rows = compare_systems(systems)
    if output:
        write_atomically(output / "per_question.csv", format_per_question(systems, data.question_ids))
        notes.append(f"{output} has the predictions and per_question.csv")
    facts = {"data": spec, "split": split, "filter": config.eval_filter, "questions": data.num_questions}
    yield from _report(rows, notes, {**facts, "candidates": data.num_pairs}, config.json)


def measure_search(
    config: EvaluateConfig, questions: AnswerSet, documents: Documents, paragraphs: Paragraphs
) -> Iterator[str]:
    """Measures models by a search of all paragraphs, beside BM25 and its rank fusion with the first bi-encoder.

    A bi-encoder ranks all paragraphs; if there is none, that of the first fusion with one does, or else the default
    model. Other models re-rank what BM25 and the first bi-encoder find.

    questions, documents: from ``load_passage_questions``
    """
    from .embedder import Embedder  # torch takes seconds to import
    from .kinds import BI_ENCODER, can_embed, find_kind
    from .retrieval import find_exactly, fuse, rank_by_words

    paragraphs, right = locate_answers(questions, documents, paragraphs)
    texts, asked, depth = paragraphs.texts, questions.questions, config.depth
    finders = {model: model for model in config.model if find_kind(model) == BI_ENCODER}
    if not finders:
        inside = [model for model in config.model if can_embed(model)]
        finders = {f"the bi-encoder of {inside[0]}": inside[0]} if inside else {default_model(): default_model()}
    first = next(iter(finders))
    found: dict[str, Sequence[RankedRows]] = {BM25: rank_by_words(texts, asked, depth, config.language)}
    for name, model in finders.items():
        embedder = Embedder(model, config.max_length)
        vectors = embedder.embed_answers(texts, config.precision)
        found[name] = find_exactly(vectors, embedder.embed_queries(asked), depth)
        if num_cut := int(embedder.find_cut(texts).sum()):
            counts = embedder.name, num_cut, len(texts), embedder.max_length
            log.info("%s: %d of %d paragraphs are cut (--max_length %d)", *counts)
    first_two = found[first], found[BM25]  # ties go to the bi-encoder, as in a search of an index
    data, is_found, _ = find_candidates(questions, right, paragraphs, first_two, depth)
    fusion = f"{BM25} and {shorten_name(first)}, fused by rank"
    found[fusion] = [fuse(pair, depth) for pair in zip(*first_two, strict=True)]
    answers = [set(map(str, rows)) for rows in right]
    systems: dict[str, Figures] = {}
    for name in dict.fromkeys([*config.model, *finders, fusion, BM25]):
        if name in found:
            ranked = [rows.astype(str).tolist() for rows, _ in found[name]]
            systems[name_installed(name)] = measure_retrieval(ranked, answers, SEARCH_METRICS)
        else:
            scores = _score(name, data, config)
            systems[name_installed(name)] = compute_question_metrics(data, scores, SEARCH_METRICS, is_found)
    sizes = f"{len(asked):,} questions, {len(texts):,} paragraphs, {data.num_pairs:,} candidates to re-rank"
    yield f"{sizes}, with {is_found[data.labels == 1].mean():.0%} of the right passages"
    facts = {"questions": len(asked), "paragraphs": len(texts), "candidates": data.num_pairs, "depth": depth}
    yield from _report(compare_systems(systems), [ABOUT], facts, config.json)


def rank_file(config: RankConfig) -> None:
    """Ranks the unlabelled candidates of a table by a model's scores, and writes ``run.txt`` and ``ranking.jsonl``."""
    path, output = Path(str(config.data)), Path(config.output_dir)
    if not path.is_file():
        raise KinspanError(f"--data {path}: there is no such file")
    table = read_table(path)
    rows = read_candidates(table, parse_columns(config.columns) or {}, labelled=False)
    data = collect_answers(path.name, "candidates", table.place, rows)
    make_folder(output)  # first, to fail early if it cannot be made
    log.info("%s: %s questions, %s candidates", path, f"{data.num_questions:,}", f"{data.num_pairs:,}")
    trec.write_ranking(output, data, _score(config.model, data, config), shorten_name(config.model))


def _score(name: str, data: AnswerSet, config: EvaluateConfig | RankConfig) -> np.ndarray:
    log.info("loading %s", name_installed(name))
    from .model import score_answers  # torch takes seconds to import

    return score_answers(name, data, config.max_length, config.precision)


def _report(rows: list[dict[str, Any]], notes: list[str], facts: dict[str, Any], as_json: bool) -> Iterator[str]:
    """Yields the notes, the table and perhaps the line of JSON, and warns of systems below BM25."""
    yield from notes
    yield f"\n{format_table(rows)}\n"
    if as_json:
        yield json.dumps({**facts, "notes": notes, "systems": rows}, ensure_ascii=False)
    _, metric, *_ = rows[0]
    bm25 = next((row[metric] for row in rows if row["name"] == BM25), -1)
    for row in rows:
        if row[metric] < bm25:
            log.warning("%s: %s %.4f is below %.4f of %s", row["name"], metric, row[metric], bm25, BM25)
