"""Finds the answers to questions in an index: by a bi-encoder, BM25 or both, re-ranked by a cross-encoder."""

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from data_pipeline.core.command_line import parse, shorten
from data_pipeline.core.errors import KinspanError, make_printable
from data_pipeline.core.files import make_folder
from data_pipeline.core.settings import ABOVE_0, setting
from serve.folder import read_manifest
from serve.questions import CANDIDATES, MAX_QUESTION, SearcherFlags, keep_judged, read_questions

if TYPE_CHECKING:
    from serve.search import Hit

log = logging.getLogger(__name__)

DESCRIPTION = """Prints the best answers to questions, from an index that kinspan index made.

The bi-encoder, BM25 or a fusion of both finds --candidates answers; --cross_encoder re-ranks the first --rerank_k by a
model that reads question and answer together.

--questions reads questions with ids from a file: a table with columns id and question (or query, or text), a .tsv file
with ids and questions only, or a folder in BEIR's form. --run writes a TREC run, for kinspan evaluate and other tools.
--json prints a line of JSON for each question."""

EPILOG = """examples:
  kinspan search --index index "Does homeowners insurance cover a broken pipe?"
  kinspan search --index index --cross_encoder releases/docs --rerank_k 50 --first_stage fusion "Who pays?"
  kinspan search --index index --questions queries.tsv --run run.txt --k 1000"""

WIDTH, MAX_SHOWN = 100, 600  # characters of a line, and of an answer
SHOWN_HITS, RUN_HITS = 3, 1000  # default numbers of answers to a question, on the screen and in a run
TAG = "kinspan"  # the system's name in a run
STAGE_NAMES = {"bi_encoder": "bi-encoder", "bm25": "BM25", "cross_encoder": "cross-encoder"}


@dataclass
class SearchConfig(SearcherFlags):
    POSITIONAL = "question"

    question: list[str] = setting([])
    """The questions; the flag's name may be omitted."""
    questions: str | None = setting(None)
    """Questions with ids: a file or a folder in one of the forms above."""
    run: str | None = setting(None, needs="questions")
    """With --questions: file to write a TREC run to."""
    json: bool = setting(False)
    """Print a line of JSON for each question: its id, if it has one, its text and its hits."""
    k: int | None = setting(None, ABOVE_0)
    """Maximum number of answers to a question. Without it: 3, or 1,000 with --run."""
    candidates: int = setting(CANDIDATES, ABOVE_0)
    """Number of candidates of the first stage."""


def main() -> Iterator[str]:
    config = parse(SearchConfig, DESCRIPTION, EPILOG)
    if bool(config.questions) == bool(config.question):
        raise KinspanError("give questions, either on the command line or as a file by --questions")
    questions = read_questions(config.questions) if config.questions else {}
    is_beir = bool(config.questions and Path(config.questions).is_dir())
    if is_beir:
        questions = keep_judged(Path(str(config.questions)), questions)  # those with relevance judgements
    read_manifest(Path(config.index))  # before torch is imported, which takes seconds
    if config.run:
        if Path(config.run).is_dir():
            raise KinspanError(f"--run {config.run} is a folder: name a file")
        make_folder(Path(config.run).parent)
    log.info("loading PyTorch and %s", config.index)
    from finetune.evaluation.trec import is_trec_id, write_run
    from serve.search import Searcher, list_scores, search_all

    settings = config.cross_encoder, config.model, config.precision, config.max_length, config.blend
    searcher = Searcher(config.index, *settings)
    if config.run:
        ids = chain(questions, searcher.index.texts["id"].to_pylist())
        if wrong := next((name for name in ids if not is_trec_id(name)), None):
            raise KinspanError(f"--run {config.run}: the id {wrong!r} is empty or has white space")
    search = partial(
        searcher.search, rerank_k=config.rerank_k, first_stage=config.first_stage, candidates=config.candidates
    )
    if config.questions:
        k = config.k or (RUN_HITS if config.run else SHOWN_HITS)
        answers = list(search_all(search, questions, k, skip_same_id=is_beir))
        if config.json or not config.run:
            for name, hits in answers:
                yield _format_hits({"question_id": name, "question": questions[name]}, hits, config.json)
        if config.run:
            write_run(Path(config.run), ((name, list_scores(hits)) for name, hits in answers), TAG)
            log.info("%s: %d questions, %d answers", config.run, len(questions), sum(len(hits) for _, hits in answers))
    for question in config.question:
        if len(question) > MAX_QUESTION:
            log.info("a question is truncated to %s characters", f"{MAX_QUESTION:,}")
        answered = search([question], config.k or SHOWN_HITS)
        timings = ", ".join(f"{stage} {ms:.1f} ms" for stage, ms in answered.timings.items())
        shown = _format_hits({"question": question}, answered.hits[0], config.json)
        yield shown if config.json else f"{shown}\n\n  {timings}"
    for line in searcher.list_truncations():
        log.info(line)


def _format_hits(question: dict[str, str], hits: "list[Hit]", as_json: bool) -> str:
    if as_json:
        return json.dumps({**question, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False)
    lines = [f"\n{shorten(question['question'], WIDTH)}"]
    for rank, hit in enumerate(hits, 1):
        scores = ", ".join(f"{STAGE_NAMES.get(stage, stage)} {score:.4g}" for stage, score in hit.scores.items())
        lines.append(f"\n{rank:2d}. {make_printable(hit.id)}  ({scores})")
        texts = (hit.question and f"question: {hit.question}", hit.title and f"title: {hit.title}")
        for text in filter(None, (*texts, shorten(hit.text, MAX_SHOWN), hit.url)):
            lines.append(fill(make_printable(text), WIDTH, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines if hits else [*lines, "  nothing found"])
