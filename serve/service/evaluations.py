"""Reads and writes evaluations: the results of several models on a set of questions, for the page that compares them.

An evaluation is a folder, whose name is the evaluation's, with three files:

- ``evaluation.json``: ``{"format": 1, "models": [...], "metrics": {model: {metric: number}}}``
- ``questions.jsonl``, a line for each question: ``{"id", "text", "right": [answer ids], "ranks": {model: rank or null},
  "hits": {model: [[answer id, score or null], ...]}}``, best first; ranks count from 1, over all results
- ``answers.jsonl``, a line for each answer in questions.jsonl: ``{"id", "text", "question", "url", "title"}``
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import write_atomically
from finetune.evaluation.metrics import MRR, RETRIEVAL_METRICS
from finetune.evaluation.named_metrics import measure_retrieval

from ..answers import Answer

SETTINGS, QUESTIONS, ANSWERS = "evaluation.json", "questions.jsonl", "answers.jsonl"
KEPT = 10  # results of each model that are stored with a question
Kind = TypeVar("Kind")


class EvaluatedQuery(NamedTuple):
    """Holds a question, the ids of its right answers, and each model's results: ids, with their scores if known."""

    id: str
    text: str
    right: Sequence[str]
    hits: Mapping[str, Sequence[tuple[str, float | None]]]


class _Settings(BaseModel):
    format: Literal[1] = 1
    models: list[str] = Field(min_length=1)
    metrics: dict[str, dict[str, FiniteFloat]]


class _Question(BaseModel):
    id: str
    text: str
    right: list[str]
    ranks: dict[str, int | None]
    hits: dict[str, list[tuple[str, FiniteFloat | None]]]


@dataclass(frozen=True)
class LoadedEvaluation:
    """Holds an evaluation, its ``summary`` for GET /evaluations, and the ``body`` of GET /evaluations/{name}."""

    summary: dict[str, object]
    body: bytes
    questions: dict[str, _Question]
    answers: dict[str, Answer]

    def show_question(self, name: str) -> dict[str, object]:
        """Returns the right answers and each model's answers to the question of this id."""
        question = self.questions[name]

        def show(name: str, score: float | None) -> dict[str, object]:
            return {**self.answers[name]._asdict(), "score": score, "right": name in question.right}

        return {
            **question.model_dump(exclude={"hits"}),
            "right": [show(name, None) for name in question.right if name in self.answers],
            "answers": {model: [show(*hit) for hit in hits] for model, hits in question.hits.items()},
        }


def write_evaluation(folder: Path, queries: Sequence[EvaluatedQuery], answers: Iterable[Answer]) -> None:
    """Writes an evaluation. Metrics and ranks cover all results, of which the first KEPT of each model are stored.

    answers: the answers in the results, and the right answers with known texts
    """
    models = list(queries[0].hits)
    names = {name: name.upper() for name in RETRIEVAL_METRICS} | {MRR: "MRR"}
    metrics = {}
    for model in models:
        rankings = [[answer for answer, _ in question.hits[model]] for question in queries]
        figures = measure_retrieval(rankings, [set(question.right) for question in queries])
        metrics[model] = {names[name]: round(float(values.mean()), 6) for name, values in figures.items()}
    rows = []
    for question in queries:
        ranks: dict[str, int | None] = {}
        for model, hits in question.hits.items():
            ranks[model] = next((rank for rank, (name, _) in enumerate(hits, 1) if name in set(question.right)), None)
        kept = {model: list(hits[:KEPT]) for model, hits in question.hits.items()}
        rows.append(_Question(id=question.id, text=question.text, right=list(question.right), ranks=ranks, hits=kept))
    stored_ids = {name for row in rows for hits in row.hits.values() for name, _ in hits}
    stored_ids |= {name for row in rows for name in row.right}
    folder.mkdir(parents=True, exist_ok=True)
    texts = (json.dumps(answer._asdict()) + "\n" for answer in answers if answer.id in stored_ids)
    write_atomically(folder / ANSWERS, texts)
    write_atomically(folder / QUESTIONS, (row.model_dump_json() + "\n" for row in rows))
    write_atomically(folder / SETTINGS, _Settings(models=models, metrics=metrics).model_dump_json(indent=1) + "\n")


def open_evaluations(folders: Sequence[str]) -> dict[str, LoadedEvaluation]:
    """Returns evaluations by name. Raises KinspanError if one cannot be read, or two have the same name."""
    opened: dict[str, LoadedEvaluation] = {}
    for folder in map(Path, folders):
        name = folder.resolve().name
        if name in opened:
            raise KinspanError(f"--evaluation {folder}: two folders are called {name}: rename one")
        opened[name] = open_evaluation(folder, name)
    return opened


def open_evaluation(folder: Path, name: str) -> LoadedEvaluation:
    """Returns an evaluation. Raises KinspanError, naming file and line, if a file is missing or damaged."""
    (settings,) = _read(folder / SETTINGS, _Settings)
    models = set(settings.models)
    stored, asked = _read(folder / ANSWERS, Answer), _read(folder / QUESTIONS, _Question)
    answers, questions = {answer.id: answer for answer in stored}, {question.id: question for question in asked}
    if (len(answers), len(questions)) != (len(stored), len(asked)):
        raise KinspanError(f"{folder / ANSWERS} or {folder / QUESTIONS}: two lines have the same id")
    for question in questions.values():
        if set(question.hits) != models or set(question.ranks) != models:
            raise KinspanError(f"{folder / QUESTIONS}: question {question.id} has other models than {SETTINGS}")
        if missing := [name for hits in question.hits.values() for name, _ in hits if name not in answers]:
            raise KinspanError(f"{folder / ANSWERS}: the answer {missing[0]} is missing")
    if not questions:
        raise KinspanError(f"{folder / QUESTIONS} has no question")
    common = {"name": name, "models": settings.models, "metrics": settings.metrics}
    shown = [question.model_dump(exclude={"hits"}) for question in questions.values()]
    body = json.dumps({**common, "questions": shown}).encode()
    return LoadedEvaluation({**common, "questions": len(questions)}, body, questions, answers)


def _read(path: Path, kind: type[Kind]) -> list[Kind]:
    """Parses each line of a file, or the whole of ``evaluation.json``."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise KinspanError(f"--evaluation {path.parent}: {path.name} cannot be read: {quote_error(error)}") from error
    adapter, parsed = TypeAdapter(kind), []
    for number, line in enumerate([content] if path.name == SETTINGS else content.splitlines(), 1):
        try:
            parsed.append(adapter.validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise KinspanError(f"{path} line {number}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return parsed
