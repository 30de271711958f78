"""Questions wait in a queue, and those with the same mode are answered together."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from bm25s.stopwords import STOPWORDS_EN
from starlette.exceptions import HTTPException

from data_pipeline.matching import locate_words
from finetune.evaluation.bm25 import stem_words

from ..questions import FUSION
from .contract import SearchMode, Service

if TYPE_CHECKING:
    from ..search import Hit, Searcher

# Most questions that are answered together. A cross-encoder fills a processor with the candidates of a few
TOGETHER, TOGETHER_RERANKED = 16, 4
KEPT = 0.5  # of the former estimate of a question's seconds, at each batch
WARM_UP = "ready"  # asked before anybody else asks


class Overloaded(HTTPException):
    """A question cannot be taken now; ``after``: seconds until another try is worth it."""

    def __init__(self, status: int, reason: str, after: float) -> None:
        super().__init__(status, f"{reason}: try again later", {"retry-after": str(max(1, ceil(after)))})


@dataclass
class Result:
    """hits as JSON has them, milliseconds of each stage, and how many questions were answered together."""

    hits: list[dict[str, Any]]
    timings: dict[str, float]
    together: int


@dataclass(eq=False)
class _Waiting:
    question: str
    k: int
    mode: SearchMode
    future: asyncio.Future[Result]
    since: float = field(default_factory=time.perf_counter)


class SearchQueue:
    """A searcher, and the questions that wait for it. One thread uses the models; all else runs in the event loop.

    load: makes the searcher, which is then asked something, so that the first caller waits no longer than others
    say:  told once for each model, when it has cut a question or a pair
    """

    def __init__(self, load: Callable[[], "Searcher"], service: Service, say: Callable[[str], Any]) -> None:
        self.searcher: Searcher | None = None
        self._load, self._service, self._say = load, service, say
        self._models = ThreadPoolExecutor(1, "search")
        self._said_cut: set[str] = set()  # names of models
        self._waiting: list[_Waiting] = []
        self._running: list[_Waiting] = []
        self._seconds: dict[bool, float] = {}  # of a question, by whether it is re-ranked
        self._arrived = asyncio.Event()

    async def ask(self, question: str, k: int, mode: SearchMode) -> Result:
        """Waits for the answer. A question whose caller stops waiting is dropped.

        Raises Overloaded where the searcher is not ready, or too many questions wait: as many as the limit says, or
        more than can be expected to be answered in half of the timeout.
        """
        if self.searcher is None:
            raise Overloaded(503, "the service is loading", after=2)
        ahead = [*self._waiting, *self._running]
        seconds = sum(self._seconds[own.mode.rerank] for own in ahead)
        if len(ahead) >= self._service.concurrency or seconds > self._service.timeout / 2:
            raise Overloaded(429, f"{len(ahead)} questions are waiting", after=seconds / 2)
        waiting = _Waiting(question, k, mode, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        try:
            return await waiting.future
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def count_waiting(self) -> int:
        return len(self._waiting) + len(self._running)

    async def work(self, tell_ready: Callable[["Searcher"], Any]) -> None:
        """Answers questions until it is cancelled. Raises what kept the searcher from being made."""
        loop = asyncio.get_running_loop()
        self.searcher = searcher = await loop.run_in_executor(self._models, self._open)
        tell_ready(searcher)
        try:
            await self._answer_all(searcher)
        finally:
            for own in (*self._running, *self._waiting):
                if not own.future.done():
                    own.future.set_exception(Overloaded(503, "the service has ended", after=2))

    async def _answer_all(self, searcher: "Searcher") -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                batch, began = self._take_batch(), time.perf_counter()
                results = await loop.run_in_executor(self._models, self._answer, searcher, batch)
                for own, result in zip(batch, results, strict=True):
                    if own.future.done():
                        continue  # its caller has left
                    if isinstance(result, Exception):
                        own.future.set_exception(result)
                    else:
                        own.future.set_result(result)
                rerank, each = batch[0].mode.rerank, (time.perf_counter() - began) / len(batch)
                self._seconds[rerank] = KEPT * self._seconds[rerank] + (1 - KEPT) * each
                self._running = []

    def _open(self) -> "Searcher":
        searcher = self._load()
        for rerank in (False, True):
            began = time.perf_counter()
            searcher.search([WARM_UP], k=1, rerank_k=self._service.rerank_k if rerank else 0, first_stage=FUSION)
            self._seconds[rerank] = time.perf_counter() - began
        self._say_cut(searcher)
        return searcher

    def _say_cut(self, searcher: "Searcher") -> None:
        for line in searcher.describe_cut():
            if (name := line.partition(": ")[0]) not in self._said_cut:
                self._say(f"{line}; this is said once")
                self._said_cut.add(name)

    def _take_batch(self) -> list[_Waiting]:
        """The question that has waited longest, and others with its mode."""
        mode = self._waiting[0].mode
        most = TOGETHER_RERANKED if mode.rerank else TOGETHER
        self._running = [own for own in self._waiting if own.mode == mode][:most]
        self._waiting = [own for own in self._waiting if own not in self._running]
        return self._running

    def _answer(self, searcher: "Searcher", batch: Sequence[_Waiting]) -> list[Result | Exception]:
        """Where a batch cannot be answered, each of its questions is tried alone: one must not harm the others."""
        mode, began = batch[0].mode, time.perf_counter()
        try:
            answered = searcher.search(
                [own.question for own in batch],
                k=max(own.k for own in batch),
                rerank_k=self._service.rerank_k if mode.rerank else 0,
                first_stage=mode.first_stage,
            )
            hits = [_describe_hits(own, found) for own, found in zip(batch, answered.hits, strict=True)]
        except Exception as error:
            return [error] if len(batch) == 1 else [self._answer(searcher, [own])[0] for own in batch]
        self._say_cut(searcher)
        stages = {stage: ms for stage, ms in answered.timings.items() if stage != "total"}
        pairs = zip(batch, hits, strict=True)
        return [Result(found, {"wait": 1000 * (began - own.since)} | stages, len(batch)) for own, found in pairs]


def _describe_hits(own: _Waiting, hits: Sequence["Hit"]) -> list[dict[str, Any]]:
    words = find_words(own.question)
    return [{**vars(hit), "marks": mark_words(hit.text, words)} for hit in hits[: own.k]]


def find_words(question: str) -> set[str]:
    """The question's words by their stems, as BM25 compares them; English function words would mark every line."""
    words = [question[start:end].lower() for start, end in locate_words(question)]
    return set(stem_words([word for word in words if word not in STOPWORDS_EN]))


def mark_words(text: str, words: set[str]) -> list[tuple[int, int]]:
    """The first character of each of the words in the text, and the one after its last; pairs that overlap are one."""
    found = list(locate_words(text))
    marks: list[tuple[int, int]] = []
    for (start, end), stem in zip(found, stem_words([text[a:b].lower() for a, b in found]), strict=True):
        if stem in words:
            begin = marks.pop()[0] if marks and start < marks[-1][1] else start
            marks.append((begin, end))
    return marks
