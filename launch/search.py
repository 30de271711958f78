"""Finds the answers to questions in an index: by a bi-encoder, by words, and re-ranked by a cross-encoder."""

import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Literal

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline.errors import KinspanError
from launch._cli import parse, run
from pretrain.runtime.settings import ABOVE_0, NOT_BELOW_0, REQUIRED, setting

if TYPE_CHECKING:
    from serve.search import Hit, Searcher

DESCRIPTION = """Prints the best answers to questions, from an index that launch/index.py made.

The bi-encoder finds 100 candidates; with --cross_encoder the first --rerank_k of them are ranked again by a model that
reads question and answer together. BM25 can find the candidates too, or both, fused. Without a question the command
asks for questions until the input ends."""

EPILOG = """examples:
  python launch/search.py --index index "Does homeowners insurance cover a broken pipe?"
  python launch/search.py --index index --cross_encoder releases/docs --rerank_k 50 --first_stage fusion "..." "..."
  python launch/search.py --index index < questions.txt"""

WIDTH, SHOWN = 100, 600  # characters of a line, and of an answer
NAMES = {"bi_encoder": "bi-encoder", "bm25": "BM25", "cross_encoder": "cross-encoder"}  # of stages, where not their own


@dataclass
class SearchConfig:
    """Flags of this entry."""

    REST = "question"

    index: str = setting(REQUIRED, "Folder of an index, as launch/index.py writes it.")
    question: list[str] = setting([], "The questions; they may also stand without a flag.")
    cross_encoder: str | None = setting(
        None, "What ranks the candidates again: a release, a ranker, or any other model that launch/rank.py takes."
    )
    rerank_k: int = setting(30, "Candidates that the cross-encoder ranks.", within=NOT_BELOW_0)
    blend: bool = setting(
        False,
        "Rank what the cross-encoder reads by its order and that of the first stage together (the sum of reciprocal "
        "ranks), and not by the cross-encoder alone. Better where it was trained on little.",
    )
    first_stage: Literal["bi_encoder", "bm25", "fusion"] = setting(
        "bi_encoder", "What finds the candidates; fusion adds up reciprocal ranks of both others."
    )
    k: int = setting(3, "Answers to show.", within=ABOVE_0)
    candidates: int = setting(100, "Candidates of the first stage.", within=ABOVE_0)
    exact: bool = setting(False, "Compare all vectors, also where the index has an approximate one.")
    model: str | None = setting(None, "The bi-encoder of the index, where its folder has moved.")
    max_length: int | None = setting(
        None,
        "Most tokens of a question with an answer, for the cross-encoder. Without it: its own, that of its training.",
        within=ABOVE_0,
    )
    precision: Literal["fp32", "bf16"] = setting(
        "fp32", "Of the cross-encoder. bf16 is faster where the processor computes in it, and rounds scores."
    )


def main() -> None:
    config = parse(SearchConfig, DESCRIPTION, EPILOG)
    from serve.search import Searcher  # after the flags: torch takes seconds to import

    searcher = Searcher(
        config.index, config.cross_encoder, config.model, config.precision, config.max_length, config.blend
    )
    if config.question:
        for given in config.question:
            _answer(searcher, given, config)
        return
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
    answered = searcher.search(
        [question], config.k, config.rerank_k, config.first_stage, config.candidates, config.exact
    )
    print(f"\n{shorten(question, WIDTH)}")
    for rank, hit in enumerate(answered.hits[0], 1):
        _show(rank, hit)
    if not answered.hits[0]:
        print("  nothing found")
    stages = ", ".join(f"{stage} {ms:.1f}" for stage, ms in answered.timings.items() if stage != "total")
    print(f"  {answered.timings['total']:.1f} ms: {stages}", flush=True)


def _show(rank: int, hit: "Hit") -> None:
    scores = ", ".join(f"{NAMES.get(stage, stage)} {score:.4g}" for stage, score in hit.scores.items())
    print(f"\n{rank:2d}. {_clean(hit.id)}  ({scores})")
    for name, text in (("question: ", hit.question), ("", shorten(hit.text, SHOWN)), ("", hit.url)):
        if text:
            print(fill(_clean(f"{name}{text}"), WIDTH, initial_indent="    ", subsequent_indent="    "))


def _clean(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)


if __name__ == "__main__":
    run(main)
