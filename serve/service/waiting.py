"""The settings of the service, and its queue: waiting questions with the same mode are answered together."""

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from bm25s.stopwords import STOPWORDS_EN
from starlette.exceptions import HTTPException

from data_pipeline.matching import locate_words
from finetune.evaluation.bm25 import stem_words

from ..questions import SearcherFlags
from ..search import Hit, Searcher

logger = logging.getLogger(__name__)


# Most questions that are answered together. A cross-encoder fills a processor with the candidates of a few
TOGETHER, TOGETHER_RERANKED = 16, 4


@dataclass
class Service(SearcherFlags):
    """Holds the settings of a service. ``first_stage`` is for questions that name none."""

    examples: str | None = None  # file of questions to pick from, one a line; without it, questions of the index
    evaluation: Sequence[str] = ()  # folders
    token: str | None = None  # that every caller must send; None: anyone may ask
    concurrency: int = 64  # questions that wait or are being answered
    timeout: float = 30  # seconds until a question without an answer is given up

    @property
    def can_rerank(self) -> bool:
        return bool(self.cross_encoder) and self.rerank_k > 0


@dataclass(frozen=True)
class MarkedHit(Hit):
    """A hit with the places of the question's words in its text, [start, end) in Unicode characters."""

    marks: list[tuple[int, int]]


Result = tuple[list[MarkedHit], dict[str, float]]  # hits, and milliseconds of each stage


class SearchMode(NamedTuple):
    """How a question is searched; questions with the same mode go through the models together."""

    first_stage: str
    rerank: bool


@dataclass(eq=False)
class _Waiting:
    question: str
    k: int
    mode: SearchMode
    future: asyncio.Future[Result]
    since: float = field(default_factory=time.perf_counter)


class SearchQueue:
    """A searcher, and the questions that wait for it. One thread uses the models; all else runs in the event loop."""

    def __init__(self, searcher: Searcher, service: Service) -> None:
        self.searcher, self._service = searcher, service
        self._models = ThreadPoolExecutor(1, "search")
        self._logged: set[str] = set()  # names of models of which a cut was logged
        self._waiting: list[_Waiting] = []
        self._running: list[_Waiting] = []
        self._arrived = asyncio.Event()

    async def ask(self, question: str, k: int, mode: SearchMode) -> Result:
        """Waits for the answer. A question whose caller stops waiting is dropped.

        Raises HTTPException if too many questions wait, or the answer takes too long.
        """
        if (count := len(self._waiting) + len(self._running)) >= self._service.concurrency:
            raise HTTPException(429, f"{count} questions are waiting", {"retry-after": "2"})
        waiting = _Waiting(question, k, mode, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        try:
            async with asyncio.timeout(self._service.timeout):
                return await waiting.future
        except TimeoutError:
            raise HTTPException(504, f"no answer within {self._service.timeout:g} seconds") from None
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    async def work(self) -> None:
        """Answers questions until it is cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                mode = self._waiting[0].mode
                most = TOGETHER_RERANKED if mode.rerank else TOGETHER
                batch = self._running = [waiting for waiting in self._waiting if waiting.mode == mode][:most]
                self._waiting = [waiting for waiting in self._waiting if waiting not in batch]
                results = await asyncio.get_running_loop().run_in_executor(self._models, self._answer, batch)
                for waiting, result in zip(batch, results, strict=True):
                    if waiting.future.done():
                        continue  # its caller has stopped waiting
                    if isinstance(result, Exception):
                        waiting.future.set_exception(result)
                    else:
                        waiting.future.set_result(result)
                self._running = []

    def _answer(self, batch: Sequence[_Waiting]) -> list[Result | Exception]:
        """Tries each question alone if the batch cannot be answered: one must not harm the others."""
        mode, began = batch[0].mode, time.perf_counter()
        try:
            answered = self.searcher.search(
                [waiting.question for waiting in batch],
                k=max(waiting.k for waiting in batch),
                rerank_k=self._service.rerank_k if mode.rerank else 0,
                first_stage=mode.first_stage,
            )
            marked = [_mark(waiting, hits) for waiting, hits in zip(batch, answered.hits, strict=True)]
        except Exception as error:
            return [error] if len(batch) == 1 else [self._answer([waiting])[0] for waiting in batch]
        for line in self.searcher.list_cuts():
            if (name := line.partition(": ")[0]) not in self._logged:
                logger.warning("%s; further ones are not logged", line)
                self._logged.add(name)
        stages = {stage: milliseconds for stage, milliseconds in answered.timings.items() if stage != "total"}
        return [
            (hits, {"wait": 1000 * (began - waiting.since)} | stages)
            for waiting, hits in zip(batch, marked, strict=True)
        ]


def _mark(waiting: _Waiting, hits: Sequence[Hit]) -> list[MarkedHit]:
    words = find_words(waiting.question)
    return [MarkedHit(**vars(hit), marks=mark_words(hit.text, words)) for hit in hits[: waiting.k]]


def find_words(question: str) -> set[str]:
    """Returns the stems of the question's words without English function words, which would mark every line."""
    words = [question[start:end].lower() for start, end in locate_words(question)]
    return set(stem_words([word for word in words if word not in STOPWORDS_EN]))


def mark_words(text: str, words: set[str]) -> list[tuple[int, int]]:
    """Returns [start, end) of each of the words in the text; overlapping ones are joined."""
    places = list(locate_words(text))
    marks: list[tuple[int, int]] = []
    for (start, end), stem in zip(places, stem_words([text[a:b].lower() for a, b in places]), strict=True):
        if stem in words:
            begin = marks.pop()[0] if marks and start < marks[-1][1] else start
            marks.append((begin, end))
    return marks
