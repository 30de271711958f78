"""What ``kinspan demo`` shows: an index of Python's documentation, and questions to compare ways to search on."""

import hashlib
from pathlib import Path

from data_pipeline.core.files import write_atomically

from .answers import PYTHON_DOCS, Answer, Say, read_answers
from .folder import MANIFEST, read_manifest
from .questions import BI_ENCODER, BM25, CANDIDATES, FUSION

INDEX, EVALUATION, EXAMPLES = PYTHON_DOCS, "how-to", "examples.txt"
QUESTIONS = Path(__file__).with_name("python_questions.tsv")
WAYS = {"BM25": BM25, "bi-encoder": BI_ENCODER, "BM25 and bi-encoder": FUSION}


def read_questions() -> list[tuple[str, list[str]]]:
    """The demo's questions, each with the titles of its right answers: written by hand before any search."""
    rows = (line.split("\t") for line in QUESTIONS.read_text("utf-8").splitlines())
    return [(text, right.split()) for text, right in rows]


def prepare_demo(folder: Path, cross_encoder: str | None, fingerprint: str, say: Say) -> Path:
    """Makes what is not there yet: the index, the examples and the evaluation, whose folder is returned.

    cross_encoder: what ranks the bi-encoder's candidates again, as one more way; None leaves it out
    fingerprint:   names what it holds, so that no other one is shown its figures

    Raises KinspanError where the folder cannot be written, or holds something else.
    """
    from finetune.ranking.embedder import Embedder
    from pretrain.modeling.default_model import default_model

    from .building import build_index

    questions = read_questions()
    if not (folder / INDEX / MANIFEST).is_file():
        answers = read_answers(PYTHON_DOCS, {}, say)
        say(f"indexing {len(answers):,} passages of Python's documentation; once, for a minute or two")
        build_index(folder / INDEX, Embedder(default_model()), answers)
    write_atomically(folder / EXAMPLES, [f"{text}\n" for text, _ in questions])
    place = folder / name_evaluation(folder / INDEX, fingerprint) / EVALUATION  # the page shows the last name
    if not (place / "evaluation.json").is_file():
        say(f"asking {len(questions)} questions in every way")
        evaluate_ways(folder / INDEX, questions, cross_encoder, place)
    return place


def name_evaluation(index: Path, fingerprint: str) -> str:
    """The folder that an evaluation's is in: one for each index and cross-encoder, by what they hold."""
    made_of = f"{read_manifest(index).state} {fingerprint}"
    return f"evaluation-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}"


def evaluate_ways(index: Path, questions: list[tuple[str, list[str]]], cross_encoder: str | None, folder: Path) -> None:
    """Asks every question in each of WAYS, and once more with a cross-encoder, and keeps what was found."""
    from .runs import search_all
    from .search import RERANKED, Searcher
    from .service.evaluations import EvaluatedQuery, write_evaluation

    searcher = Searcher(index, cross_encoder)
    answers = [searcher.index.answer(row) for row in range(len(searcher.index))]
    ways = {name: (stage, 0) for name, stage in WAYS.items()}
    if searcher.cross_encoder:
        ways[f"bi-encoder + {searcher.cross_encoder.name}"] = BI_ENCODER, RERANKED
    asked = {f"q{number}": text for number, (text, _) in enumerate(questions, 1)}
    found: dict[str, dict[str, list[tuple[str, float | None]]]] = {name: {} for name in asked}
    for way, (stage, again) in ways.items():
        for name, hits in search_all(searcher, asked, CANDIDATES, False, print, rerank_k=again, first_stage=stage):
            found[name][way] = [(hit.id, hit.score) for hit in hits]
    right = [find_right(titles, answers) for _, titles in questions]
    kept = [EvaluatedQuery(*one, of_one, found[one[0]]) for one, of_one in zip(asked.items(), right, strict=True)]
    write_evaluation(folder, kept, answers)


def find_right(titles: list[str], answers: list[Answer]) -> list[str]:
    """The ids of the passages of these titles."""
    return [answer.id for answer in answers if answer.id.partition("#")[0] in titles]
