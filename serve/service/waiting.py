"""Questions wait in a queue; one thread owns the models, and answers questions with the same mode together."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from ..questions import FUSION
from .contract import Limits, SearchMode
from .marks import find_words, mark_words

if TYPE_CHECKING:
    from ..search import Searcher

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
    future: Future = field(default_factory=Future)
    since: float = field(default_factory=time.perf_counter)


class SearchQueue:
    """A searcher, and the questions that wait for it.

    load:     makes the searcher, in the queue's own thread, which then asks it something, so that the first caller
              waits no longer than others
    rerank_k: how many candidates the cross-encoder re-ranks
    say:      told once, when the cross-encoder has cut a pair
    failure:  what kept the searcher from being made
    """

    def __init__(
        self, load: Callable[[], "Searcher"], limits: Limits, rerank_k: int, say: Callable[[str], Any]
    ) -> None:
        self.searcher: Searcher | None = None
        self.failure: BaseException | None = None
        self._load, self._limits, self._rerank_k, self._say = load, limits, rerank_k, say
        self._said_cut = False
        self._waiting: deque[_Waiting] = deque()
        self._running: list[_Waiting] = []
        self._seconds: dict[bool, float] = {}  # of a question, by whether it is re-ranked
        self._changed = threading.Condition()

    def start(self, loaded: Callable[[], Any]) -> None:
        """Starts the thread, which calls ``loaded`` when there is a searcher or a failure."""
        threading.Thread(target=self._work, args=[loaded], name="search", daemon=True).start()

    def ask(self, question: str, k: int, mode: SearchMode) -> Future:
        """Puts a question into the queue; the future gives a Result. A cancelled one is dropped.

        Raises Overloaded where the searcher is not ready, or too many questions wait: as many as the limit says, or
        more than can be expected to be answered in half of the timeout.
        """
        with self._changed:
            if self.searcher is None:
                raise Overloaded(503, "the service is loading", after=2)
            self._drop_cancelled()
            ahead = [*self._waiting, *self._running]
            seconds = sum(self._seconds[own.mode.rerank] for own in ahead)
            if len(ahead) >= self._limits.concurrency or seconds > self._limits.timeout / 2:
                raise Overloaded(429, f"{len(ahead)} questions are waiting", after=seconds / 2)
            waiting = _Waiting(question, k, mode)
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.future

    def count_waiting(self) -> int:
        return len(self._waiting) + len(self._running)

    def _work(self, loaded: Callable[[], Any]) -> None:
        try:
            searcher = self._load()
            for rerank in (False, True):
                began = time.perf_counter()
                searcher.search([WARM_UP], k=1, rerank_k=self._rerank_k if rerank else 0, first_stage=FUSION)
                self._seconds[rerank] = time.perf_counter() - began
            self._say_cut(searcher)
            self.searcher = searcher
        except BaseException as error:  # whoever started the queue raises it again
            self.failure = error
            return
        finally:
            loaded()
        while True:
            batch, began = self._take_batch(), time.perf_counter()
            self._answer(searcher, batch)
            self._say_cut(searcher)
            rerank, each = batch[0].mode.rerank, (time.perf_counter() - began) / len(batch)
            with self._changed:
                self._seconds[rerank] = KEPT * self._seconds[rerank] + (1 - KEPT) * each
                self._running = []

    def _say_cut(self, searcher: "Searcher") -> None:
        if searcher.cross_encoder and not self._said_cut:
            for line in searcher.cross_encoder.describe_cut():
                self._say(f"{line}; this is said once")
                self._said_cut = True

    def _take_batch(self) -> list[_Waiting]:
        """The question that has waited longest, and others with its mode."""
        with self._changed:
            while True:
                self._drop_cancelled()
                if self._waiting:
                    mode = self._waiting[0].mode
                    most = TOGETHER_RERANKED if mode.rerank else TOGETHER
                    batch = [own for own in self._waiting if own.mode == mode][:most]
                    self._waiting = deque(own for own in self._waiting if own not in batch)
                    self._running = [own for own in batch if own.future.set_running_or_notify_cancel()]
                    if self._running:
                        return self._running
                else:
                    self._changed.wait()

    def _drop_cancelled(self) -> None:
        self._waiting = deque(own for own in self._waiting if not own.future.cancelled())

    def _answer(self, searcher: "Searcher", batch: Sequence[_Waiting]) -> None:
        """Where a batch cannot be answered, each of its questions is tried alone: one must not harm the others."""
        mode, began = batch[0].mode, time.perf_counter()
        try:
            answered = searcher.search(
                [own.question for own in batch],
                k=max(own.k for own in batch),
                rerank_k=self._rerank_k if mode.rerank else 0,
                first_stage=mode.first_stage,
            )
            stages = {stage: ms for stage, ms in answered.timings.items() if stage != "total"}
            pairs = zip(batch, answered.hits, strict=True)
            hits = [_describe_hits(own.question, found[: own.k]) for own, found in pairs]
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
            else:
                for own in batch:
                    self._answer(searcher, [own])
            return
        for own, found in zip(batch, hits, strict=True):
            own.future.set_result(Result(found, {"wait": 1000 * (began - own.since)} | stages, len(batch)))


def _describe_hits(question: str, hits: Sequence[Any]) -> list[dict[str, Any]]:
    words = find_words(question)
    return [{**vars(hit), "marks": mark_words(hit.text, words)} for hit in hits]
