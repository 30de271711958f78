"""What goes in and out of the service, as its OpenAPI page shows it, and its limits."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic.config import JsonDict

from ..questions import MAX_QUESTION

EXAMPLE: JsonDict = {"query": "The printer does not print", "k": 3}
FirstStage = Literal["bi_encoder", "bm25", "fusion"]


@dataclass(frozen=True)
class Limits:
    """What a caller may ask of the service.

    max_question: characters of a question
    max_k:        answers to a question, at most as many as a first stage finds candidates
    concurrency:  questions that wait or are being answered
    timeout:      seconds until a question that has no answer yet is given up
    """

    max_question: int = MAX_QUESTION
    max_k: int = 20
    concurrency: int = 64
    timeout: float = 30


class Way(NamedTuple):
    """How a question is searched; questions that are searched alike go through the models together."""

    first_stage: str
    rerank: bool


class Hit(BaseModel):
    """An answer that was found."""

    id: str
    text: str
    question: str = Field(description="That the answer came from; empty where it is not known.")
    url: str = Field(description="Where the answer is from; empty where it is not known.")
    score: float = Field(description="That it was ranked by.")
    scores: dict[str, float] = Field(description="Of each stage that gave it one.")
    marks: list[tuple[int, int]] = Field(
        description="Where in the text the words of the question stand: first character and the one after the last, "
        "counted in Unicode characters."
    )


class Found(BaseModel):
    """The answers to a question, the best first."""

    query: str = Field(description="The question as it was read: without control characters and on one line.")
    hits: list[Hit]
    timings: dict[str, float] = Field(
        description="Milliseconds of each stage, for all questions that went through it together; `wait` is the time "
        "before that."
    )
    total: float = Field(description="Milliseconds from the question's arrival to its answer.")


class Examples(BaseModel):
    """Questions to pick from."""

    questions: list[str]


class About(BaseModel):
    """What this service searches, and what it allows."""

    index: str
    answers: int
    bi_encoder: str
    cross_encoder: str | None
    first_stage: FirstStage = Field(description="That is used where a question names none.")
    rerank_k: int = Field(description="Candidates that the cross-encoder ranks again.")
    blend: bool = Field(description="Whether these are ranked by the first stage's order too.")
    limits: dict[str, float] = Field(
        description="`max_question` characters, `max_k` answers, `concurrency` questions at a time, `timeout` seconds."
    )
    version: str


class Health(BaseModel):
    """Whether questions are answered now."""

    status: Literal["ready", "loading", "draining"]


class EvaluationSummary(BaseModel):
    """An evaluation as the list of all has it."""

    name: str
    models: list[str]
    questions: int
    metrics: dict[str, dict[str, float]]


class Evaluations(BaseModel):
    evaluations: list[EvaluationSummary]


class EvaluatedQuestion(BaseModel):
    id: str
    text: str
    right: list[str] = Field(description="Ids of the right answers.")
    ranks: dict[str, int | None] = Field(
        description="Of each model the rank of the first right answer; null where it found none."
    )


class Evaluation(BaseModel):
    """Models side by side on the questions of a set."""

    name: str
    models: list[str]
    metrics: dict[str, dict[str, float]] = Field(description="MRR and R@k of each model.")
    questions: list[EvaluatedQuestion]


class EvaluatedAnswer(BaseModel):
    id: str
    text: str
    question: str
    url: str
    score: float | None = Field(description="Null where it was not kept.")
    right: bool


class Answers(BaseModel):
    """The best answers of each model to a question of an evaluation, and the right ones."""

    id: str
    text: str
    ranks: dict[str, int | None]
    right: list[EvaluatedAnswer]
    answers: dict[str, list[EvaluatedAnswer]]


class Problem(BaseModel):
    """Why a request was not answered."""

    detail: str


def make_question(limits: Limits) -> Any:
    """The class of what is posted to /search, with the service's own limits."""
    text = Field(min_length=1, max_length=limits.max_question, description="The question, in words.")
    count = Field(ge=1, le=limits.max_k, description="Answers to find.")
    again = Field(description="Whether the cross-encoder ranks the best candidates again; where there is one, it does.")
    stage = Field(description="What finds the candidates; without it, what /about names.")
    return create_model(
        "Question",
        __config__=ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]}),
        __doc__="A question to the index.",
        query=(Annotated[str, text], ...),
        k=(Annotated[int, BeforeValidator(_spell_truth), count], min(3, limits.max_k)),
        rerank=(Annotated[bool | None, again], None),
        first_stage=(Annotated[FirstStage | None, stage], None),
    )


def _spell_truth(value: Any) -> Any:
    """Write a truth value as a word, which is refused as a number; pydantic takes true itself for 1."""
    return str(value) if isinstance(value, bool) else value
