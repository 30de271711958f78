"""Holds the settings of the service, and the queue in which waiting questions are batched by their search mode."""

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from bm25s.tokenization import Tokenizer
from starlette.exceptions import HTTPException

from data_pipeline.matching import locate_words
from finetune.evaluation.bm25 import stem_word

from ..questions import SearcherFlags
from ..search import Hit, Searcher

logger = logging.getLogger(__name__)

# Questions per model call: fewer with re-ranking, where the candidates of a few questions keep the processor busy
MAX_BATCH, MAX_RERANKED_BATCH = 16, 4


@dataclass
class ServiceSettings(SearcherFlags):
    """Adds the settings of the service to those of its searcher. ``first_stage``: default for questions without one"""

    examples: str | None = None  # file of example questions, one on each line; without it, some from the index
    evaluation: Sequence[str] = ()  # folders of evaluations
    token: str | None = None  # every caller must send it; None: no token is needed
    concurrency: int = 64  # maximum number of questions that wait or are being answered
    timeout: float = 30  # seconds until an unanswered question is refused

    @property
    def can_rerank(self) -> bool:
        return bool(self.cross_encoder) and self.rerank_k > 0


@dataclass(frozen=True)
class MarkedHit(Hit):
    """Adds to a hit where its text has words of the question: [start, end) in Unicode characters."""

    marks: list[tuple[int, int]]


Result = tuple[list[MarkedHit], dict[str, float]]  # the hits, and the milliseconds of each stage


class SearchMode(NamedTuple):
    """Says how a question is searched; questions with the same mode share a model call."""

    first_stage: str
    rerank: bool


@dataclass(eq=False)
class _PendingQuestion:
    question: str
    k: int
    mode: SearchMode
    future: asyncio.Future[Result]
    arrived: float = field(default_factory=time.perf_counter)


class SearchQueue:
    """Queues questions for a searcher. One thread runs the models; everything else runs in the event loop."""

    def __init__(self, searcher: Searcher, settings: ServiceSettings) -> None:
        self.searcher, self._settings = searcher, settings
        self._executor = ThreadPoolExecutor(1, "search")
        self._logged: set[str] = set()  # models for which truncation has been logged
        self._pending: list[_PendingQuestion] = []
        self._running: list[_PendingQuestion] = []
        self._arrived = asyncio.Event()

    async def ask(self, question: str, k: int, mode: SearchMode) -> Result:
        """Waits for the hits; a question is dropped if its caller stops waiting.

        Raises HTTPException if too many questions are queued, or after the timeout.
        """
        if (count := len(self._pending) + len(self._running)) >= self._settings.concurrency:
            raise HTTPException(429, f"{count} questions are waiting", {"retry-after": "2"})
        pending = _PendingQuestion(question, k, mode, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._arrived.set()
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await pending.future
        except TimeoutError:
            raise HTTPException(504, f"no answer within {self._settings.timeout:g} seconds") from None
        finally:
            if pending in self._pending:
                self._pending.remove(pending)

    async def work(self) -> None:
        """Answers questions until it is cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._pending:
                mode = self._pending[0].mode
                size = MAX_RERANKED_BATCH if mode.rerank else MAX_BATCH
                batch = self._running = [question for question in self._pending if question.mode == mode][:size]
                self._pending = [question for question in self._pending if question not in batch]
                results = await asyncio.get_running_loop().run_in_executor(self._executor, self._answer, batch)
                for question, result in zip(batch, results, strict=True):
                    if question.future.done():
                        continue  # its caller has stopped waiting
                    if isinstance(result, Exception):
                        question.future.set_exception(result)
                    else:
                        question.future.set_result(result)
                self._running = []

    def _answer(self, batch: Sequence[_PendingQuestion]) -> list[Result | Exception]:
        """Returns the result of each question, or its exception. If the batch fails, each question is tried alone."""
        mode, began = batch[0].mode, time.perf_counter()
        try:
            answered = self.searcher.search(
                [pending.question for pending in batch],
                k=max(pending.k for pending in batch),
                rerank_k=self._settings.rerank_k if mode.rerank else 0,
                first_stage=mode.first_stage,
            )
            language = self.searcher.language
            stems = [stem_question(pending.question, language) for pending in batch]
            marked = [
                [MarkedHit(**vars(hit), marks=mark_words(hit.text, words, language)) for hit in hits[: pending.k]]
                for pending, hits, words in zip(batch, answered.hits, stems, strict=True)
            ]
        except Exception as error:
            return [error] if len(batch) == 1 else [self._answer([pending])[0] for pending in batch]
        for line in self.searcher.list_truncations():
            if (name := line.partition(": ")[0]) not in self._logged:
                logger.warning("%s; further truncation is not logged", line)
                self._logged.add(name)
        stages = {stage: milliseconds for stage, milliseconds in answered.timings.items() if stage != "total"}
        waits = [1000 * (began - pending.arrived) for pending in batch]
        return [(hits, {"wait": wait} | stages) for hits, wait in zip(marked, waits, strict=True)]


def stem_question(question: str, language: str) -> set[str]:
    """Returns the stems of the question's words, except stop words, which would mark every line."""
    words, stop_words = [question[start:end] for start, end in locate_words(question)], list[str]()
    with suppress(ValueError):  # bm25s has no stop words of some languages
        stop_words = Tokenizer(stopwords=language).stopwords
    return {stem_word(word, language) for word in words if word.lower() not in stop_words}


def mark_words(text: str, stems: set[str], language: str) -> list[tuple[int, int]]:
    """Returns [start, end) of each word of the text with one of the stems; overlapping words are joined."""
    marks: list[tuple[int, int]] = []
    for start, end in locate_words(text):
        if stem_word(text[start:end], language) in stems:
            begin = marks.pop()[0] if marks and start < marks[-1][1] else start
            marks.append((begin, end))
    return marks
