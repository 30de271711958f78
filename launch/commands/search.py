"""Finds the answers to questions in an index: by a bi-encoder, by words, and re-ranked by a cross-encoder."""

import json
import sys
import time
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


def main() -> None:
    config = parse(SearchConfig, DESCRIPTION, EPILOG)
    if config.questions and config.question:
        raise KinspanError("--questions: leave the other questions out, or put them into the file")
    questions = _read_questions(config.questions) if config.questions else {}
    read_manifest(Path(config.index))  # what is no index is said before torch is imported, which takes seconds
    _note(f"opening {config.index}")
    begun = time.monotonic()
    from serve.search import Searcher  # brings torch

    searcher = Searcher(
        config.index, config.cross_encoder, config.model, config.precision, config.max_length, config.blend, _note
    )
    _note(f"PyTorch and the index are loaded, in {time.monotonic() - begun:.0f} s; kinspan serve does so once")
    if config.questions:
        _answer_all(searcher, questions, config)
    elif config.question:
        for given in config.question:
            _answer(searcher, given, config)
    else:
        _answer_input(searcher, config)
    for line in searcher.describe_cut():
        _note(line)


def _answer_input(searcher: "Searcher", config: SearchConfig) -> None:
    """Answers questions until the input ends."""
    print(f"{len(searcher.index):,} answers. Ask; an empty line or the end of input ends.", file=sys.stderr, flush=True)
    at_terminal = sys.stdin.isatty()
    while (question := _ask()) is not None and (question or not at_terminal):
        if question:
            _answer(searcher, question, config)


def _ask() -> str | None:
    """The next question; None at the end of input."""
    try:
        return input("\n> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        raise KinspanError("a question is not UTF-8: type it again") from error


def _answer(searcher: "Searcher", question: str, config: SearchConfig) -> None:
    if len(question) > MAX_QUESTION:
        _note(f"the question has more than {MAX_QUESTION:,} characters, and is cut there")
    answered = searcher.search([question], config.k or SHOWN_HITS, **_list_ways(config))
    if config.json:
        _print_json({"question": question}, answered.hits[0])
        return
    _print_hits(question, answered.hits[0])
    stages = ", ".join(f"{stage} {ms:.1f}" for stage, ms in answered.timings.items() if stage != "total")
    print(f"\n  answered in {answered.timings['total']:.1f} ms, once loaded: {stages}", flush=True)


def _read_questions(source: str) -> dict[str, str]:
    from serve.question_files import keep_judged, read_questions

    questions = read_questions(source, _note)
    return keep_judged(Path(source), questions, _note) if Path(source).is_dir() else questions


def _answer_all(searcher: "Searcher", questions: dict[str, str], config: SearchConfig) -> None:
    from finetune.evaluation.trec import write_run
    from serve.runs import list_scores, search_all

    of_beir, k = Path(str(config.questions)).is_dir(), config.k or (RUN_HITS if config.run else SHOWN_HITS)
    every = search_all(searcher, questions, k, of_beir, _note, **_list_ways(config))

    def show() -> "Iterator[tuple[str, list[Hit]]]":
        for name, hits in every:
            if config.json:
                _print_json({"question_id": name, "question": questions[name]}, hits)
            elif not config.run:
                _print_hits(questions[name], hits)
            yield name, hits

    if config.run:
        count = write_run(Path(config.run), ((name, list_scores(hits)) for name, hits in show()), TAG)
        _note(f"{config.run}: {len(questions):,} questions, {count:,} answers")
    else:
        for _ in show():
            pass


def _list_ways(config: SearchConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("rerank_k", "first_stage", "candidates", "exact")}


def _print_json(question: dict[str, str], hits: "list[Hit]") -> None:
    print(json.dumps({**question, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False), flush=True)


def _print_hits(question: str, hits: "list[Hit]") -> None:
    print(f"\n{shorten(question, WIDTH)}")
    for rank, hit in enumerate(hits, 1):
        _show(rank, hit)
    if not hits:
        print("  nothing found")


def _note(text: str) -> None:
    """Says it where it is not taken for a result."""
    print(text, file=sys.stderr, flush=True)


def _show(rank: int, hit: "Hit") -> None:
    scores = ", ".join(f"{NAMES.get(stage, stage)} {score:.4g}" for stage, score in hit.scores.items())
    print(f"\n{rank:2d}. {_clean(hit.id)}  ({scores})")
    heading = (("question: ", hit.question), ("title: ", hit.title))
    for name, text in (*heading, ("", shorten(hit.text, SHOWN)), ("", hit.url)):
        if text:
            print(fill(_clean(f"{name}{text}"), WIDTH, initial_indent="    ", subsequent_indent="    "))


def _clean(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)
