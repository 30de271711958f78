"""The settings of the service, its requests and its answers, as its OpenAPI document shows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from ..questions import MAX_QUESTION, RERANKED

MAX_K = 20  # answers to a question
FirstStage = Literal["bi_encoder", "bm25", "fusion"]


@dataclass(frozen=True)
class Service:
    """Holds what is served, and how.

    index, cross_encoder, model, precision, max_length, blend: as a Searcher takes them
    first_stage, rerank_k: as its search takes them, for questions that name none
    examples:    file of questions to pick from, one a line; without it, questions of the index
    evaluation:  folders of evaluations
    token:       the token that every caller must send; None: anyone may ask
    concurrency: questions that wait or are being answered
    timeout:     seconds until a question without an answer is given up
    """

    index: str
    cross_encoder: str | None = None
    model: str | None = None
    precision: str = "fp32"
    max_length: int | None = None
    first_stage: str = "bi_encoder"
    rerank_k: int = RERANKED
    blend: bool = False
    examples: str | None = None
    evaluation: Sequence[str] = ()
    token: str | None = None
    concurrency: int = 64
    timeout: float = 30

    @property
    def can_rerank(self) -> bool:
        return bool(self.cross_encoder) and self.rerank_k > 0


class SearchMode(NamedTuple):
    """How a question is searched; questions with the same mode go through the models together."""

    first_stage: str
    rerank: bool


class Question(BaseModel):
    """A question to the index."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"query": "The printer does not print", "k": 3}]}
    )

    query: str = Field(min_length=1, max_length=MAX_QUESTION, description="The question, in words.")
    k: int = Field(3, ge=1, le=MAX_K, strict=True, description="Number of answers.")
    rerank: bool | None = Field(
        None, description="Whether the cross-encoder re-ranks the best candidates. Without it: if there is one."
    )
    first_stage: FirstStage | None = Field(
        None, description="Finds the candidates. Without it: the service's first stage, see /about."
    )


class Hit(BaseModel):
    """An answer to a question."""

    id: str = Field(description="The answer's id in the index, such as `manual.pdf#3` for a paragraph.")
    text: str
    question: str = Field(description="The question this answer was given to; empty if unknown.")
    url: str = Field(description="Where the answer is from; empty if unknown.")
    title: str = Field(description="The title of the document this answer is from; empty if there is none.")
    score: float = Field(description="The score this hit was ranked by.")
    scores: dict[str, float] = Field(description="The score of each stage that gave one.")
    marks: list[tuple[int, int]] = Field(
        description="Where the question's words are in the text: [start, end) in Unicode characters."
    )


class SearchResponse(BaseModel):
    """The answers to a question, the best first."""

    query: str = Field(description="The question as it was read: without control characters and on one line.")
    hits: list[Hit]
    timings: dict[str, float] = Field(
        description="Milliseconds of each stage, for all questions answered together; `wait` is the time before that."
    )
    total: float = Field(description="Milliseconds from the question's arrival to its answer.")


class Problem(BaseModel):
    """A reason why a request was not answered."""

    detail: str
