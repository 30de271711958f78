"""Finds the answers to questions in an index: by a bi-encoder, by words, and re-ranked by a cross-encoder."""

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any, Literal

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, NOT_BELOW_0, REQUIRED, setting
from serve.folder import read_manifest
from serve.questions import CANDIDATES, MAX_QUESTION, RERANKED

if TYPE_CHECKING:
    from serve.search import Hit, Searcher

log = logging.getLogger(__name__)

DESCRIPTION = """Prints the best answers to questions, from an index that kinspan index made.

The bi-encoder finds 100 candidates; with --cross_encoder the first --rerank_k of them are ranked again by a model that
reads question and answer together. BM25 can find the candidates too, or both, fused. Without a question the command
asks for questions until the input ends.

Each answer begins with its id. A paragraph of a document has the document's id, which is that of its record or its
file's name, and its number among those indexed, as in manual.pdf#3.

--questions reads questions with ids from a file: a table with columns id and question (or query, or text), a .tsv file
of ids and questions alone, or a folder in BEIR's form. --run writes what is found as a TREC run, for kinspan evaluate
and any other tool. --json prints a line of JSON for each question."""

EPILOG = """examples:
  kinspan search --index index "Does homeowners insurance cover a broken pipe?"
  kinspan search --index index --cross_encoder releases/docs --rerank_k 50 --first_stage fusion "..." "..."
  kinspan search --index index < questions.txt
  kinspan search --index index --questions queries.tsv --run run.txt --k 1000"""

WIDTH, SHOWN = 100, 600  # characters of a line, and of an answer
SHOWN_HITS, RUN_HITS = 3, 1000  # answers to a question
TAG = "kinspan"  # the system's name in a run
NAMES = {"bi_encoder": "bi-encoder", "bm25": "BM25", "cross_encoder": "cross-encoder"}  # of stages, where not their own


@dataclass
class SearcherFlags:
    """Flags of what searches an index: this entry, and kinspan serve."""

    index: str = setting(REQUIRED)
    """Folder of an index, as kinspan index writes it."""
    cross_encoder: str | None = setting(None, is_model=True)
    """What ranks the candidates again: a release, a ranker, or any other model that kinspan rank takes."""
    rerank_k: int = setting(RERANKED, NOT_BELOW_0, needs="cross_encoder")
    """Candidates that the cross-encoder ranks."""
    blend: bool = setting(False, needs="cross_encoder")
    """Rank what the cross-encoder reads by its order and that of the first stage together (the sum of reciprocal
    ranks), and not by the cross-encoder alone. Better where it was trained on little."""
    first_stage: Literal["bi_encoder", "bm25", "fusion"] = setting("bi_encoder")
    """What finds the candidates; fusion adds up reciprocal ranks of both others."""
    model: str | None = setting(None, is_model=True)
    """The bi-encoder of the index, where its folder has moved."""
    max_length: int | None = setting(None, ABOVE_0, needs="cross_encoder")
    """Most tokens of a question with an answer, for the cross-encoder. Without it: its own, that of its training."""
    precision: Literal["fp32", "bf16"] = setting("fp32", needs="cross_encoder")
    """Of the cross-encoder. bf16 is faster where the processor computes in it, and rounds scores."""


@dataclass
class SearchConfig(SearcherFlags):
    """Flags of this entry."""

    POSITIONAL = "question"

    question: list[str] = setting([])
    """The questions; they may also stand without a flag."""
    questions: str | None = setting(None)
    """Questions with ids: a file, or a folder in BEIR's form, see above."""
    run: str | None = setting(None, needs="questions")
    """With --questions: the file that a TREC run is written to."""
    json: bool = setting(False)
    """Print a line of JSON for each question: its id, if it has one, its text and its hits."""
    k: int | None = setting(None, ABOVE_0)
    """Most answers to a question. Without it: 3, and 1,000 with --run."""
    candidates: int = setting(CANDIDATES, ABOVE_0)
    """Candidates of the first stage."""
    exact: bool = setting(False)
    """Compare all vectors, also where the index has an approximate one."""


def main() -> Iterator[str]:
    config = parse(SearchConfig, DESCRIPTION, EPILOG)
    if config.questions and config.question:
        raise KinspanError("--questions: leave the other questions out, or put them into the file")
    questions = _read_questions(config.questions) if config.questions else {}
    read_manifest(Path(config.index))  # before torch is imported, which takes seconds
    log.info("loading PyTorch and %s", config.index)
    from serve.search import Searcher

    searcher = Searcher(
        config.index, config.cross_encoder, config.model, config.precision, config.max_length, config.blend
    )
    if config.questions:
        yield from _answer_all(searcher, questions, config)
    else:
        for question in config.question or _ask():
            yield _answer(searcher, question, config)
    for line in searcher.describe_cut():
        log.info(line)


def _ask() -> Iterator[str]:
    """Yields the questions of the input, until it ends or, at a terminal, until an empty line."""
    at_terminal = sys.stdin.isatty()
    while True:
        try:
            question = input("\n> " if at_terminal else "").strip()
        except EOFError:
            return
        except UnicodeDecodeError as error:
            raise KinspanError("a question is not UTF-8: type it again") from error
        if question:
            yield question
        elif at_terminal:
            return


def _answer(searcher: "Searcher", question: str, config: SearchConfig) -> str:
    if len(question) > MAX_QUESTION:
        log.warning("the question is cut at %d characters", MAX_QUESTION)
    answered = searcher.search([question], config.k or SHOWN_HITS, **_pick_stages(config))
    if config.json:
        return _format_json({"question": question}, answered.hits[0])
    stages = ", ".join(f"{stage} {ms:.1f}" for stage, ms in answered.timings.items() if stage != "total")
    return f"{_format_hits(question, answered.hits[0])}\n\n  {answered.timings['total']:.1f} ms: {stages}"


def _read_questions(source: str) -> dict[str, str]:
    from serve.question_files import keep_judged, read_questions

    questions = read_questions(source)
    return keep_judged(Path(source), questions) if Path(source).is_dir() else questions


def _answer_all(searcher: "Searcher", questions: dict[str, str], config: SearchConfig) -> Iterator[str]:
    from finetune.evaluation.trec import write_run
    from serve.runs import list_scores, search_all

    of_beir, k = Path(str(config.questions)).is_dir(), config.k or (RUN_HITS if config.run else SHOWN_HITS)
    found = list(search_all(searcher, questions, k, of_beir, **_pick_stages(config)))
    for name, hits in found:
        if config.json:
            yield _format_json({"question_id": name, "question": questions[name]}, hits)
        elif not config.run:
            yield _format_hits(questions[name], hits)
    if config.run:
        count = write_run(Path(config.run), ((name, list_scores(hits)) for name, hits in found), TAG)
        log.info("%s: %d questions, %d answers", config.run, len(questions), count)


def _pick_stages(config: SearchConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("rerank_k", "first_stage", "candidates", "exact")}


def _format_json(question: dict[str, str], hits: "list[Hit]") -> str:
    return json.dumps({**question, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False)


def _format_hits(question: str, hits: "list[Hit]") -> str:
    lines = [f"\n{shorten(question, WIDTH)}"]
    for rank, hit in enumerate(hits, 1):
        scores = ", ".join(f"{NAMES.get(stage, stage)} {score:.4g}" for stage, score in hit.scores.items())
        lines.append(f"\n{rank:2d}. {_make_printable(hit.id)}  ({scores})")
        texts = (hit.question and f"question: {hit.question}", hit.title and f"title: {hit.title}")
        for text in filter(None, (*texts, shorten(hit.text, SHOWN), hit.url)):
            lines.append(fill(_make_printable(text), WIDTH, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines if hits else [*lines, "  nothing found"])


def _make_printable(text: str) -> str:
    """Replaces what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)
