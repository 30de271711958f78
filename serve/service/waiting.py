"""Questions wait in a queue; one thread owns the models, and answers together what waits together."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from ..questions import FUSION
from .contract import Limits, Way
from .marks import find_words, mark_words

if TYPE_CHECKING:
    from ..search import Searcher

LOADING, READY, DRAINING, FAILED = "loading", "ready", "draining", "failed"
# Questions that are answered together at most. A cross-encoder fills a processor with the candidates of a few
TOGETHER, TOGETHER_RERANKED = 16, 4
KEPT = 0.5  # of the former estimate of a question's seconds, at each batch
WARM_UP = "ready"  # asked before anybody else asks


class NotNow(Exception):
    """A question cannot be taken now.

    busy:  whether too many wait; else the service is not ready
    after: seconds until another try is worth it
    """

    def __init__(self, reason: str, busy: bool, after: float) -> None:
        super().__init__(reason)
        self.busy, self.after = busy, max(1, ceil(after))


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
    way: Way
    future: Future = field(default_factory=Future)
    since: float = field(default_factory=time.perf_counter)


class SearchQueue:
    """A searcher, and the questions that wait for it.

    load:     makes the searcher; it is called in the queue's own thread, which then asks it something, so that the
              first caller waits no longer than others
    rerank_k: candidates that the cross-encoder ranks again
    say:      told once, when the cross-encoder has cut a pair
    failure:  what kept the searcher from being made
    """

    def __init__(
        self, load: Callable[[], "Searcher"], limits: Limits, rerank_k: int, say: Callable[[str], Any]
    ) -> None:
        self.searcher: Searcher | None = None
        self.failure: BaseException | None = None
        self.state = LOADING
        self._load, self._limits, self._rerank_k, self._say = load, limits, rerank_k, say
        self._said_cut = False
        self._waiting: deque[_Waiting] = deque()
        self._running: list[_Waiting] = []
        self._seconds: dict[Way, float] = {}  # of a question, by how it is searched
        self._guess = {False: 0.0, True: 0.0}  # the same before one was answered, by whether it is re-ranked
        self._changed = threading.Condition()
        self._thread = threading.Thread()

    def start(self, loaded: Callable[[], Any]) -> None:
        """Starts the thread, which calls ``loaded`` when there is a searcher or a failure."""
        self._thread = threading.Thread(target=self._work, args=[loaded], name="search", daemon=True)
        self._thread.start()

    def ask(self, question: str, k: int, way: Way) -> Future:
        """Puts a question into the queue; the future gives a Result. One that is cancelled is dropped.

        Raises NotNow where the searcher is not ready, or where too many questions wait already: as many as the limit
        says, or more than can be expected to be answered in time.
        """
        with self._changed:
            if self.state != READY:
                raise NotNow(f"the service is {self.state}: try again later", busy=False, after=2)
            self._drop_cancelled()
            ahead = [*self._waiting, *self._running]
            seconds = sum(self._expect(own.way) for own in ahead)
            if len(ahead) >= self._limits.concurrency or seconds > self._limits.timeout / 2:
                raise NotNow(f"{len(ahead)} questions are waiting: try again later", busy=True, after=seconds / 2)
            waiting = _Waiting(question, k, way)
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.future

    def count_waiting(self) -> int:
        return len(self._waiting) + len(self._running)

    def drain(self, seconds: float) -> None:
        """Takes no more questions, and returns when those that wait are answered, or after so many seconds."""
        with self._changed:
            if self.searcher is None:  # nobody waits
                seconds = 0
            if self.state != FAILED:
                self.state = DRAINING
            self._changed.notify()
        self._thread.join(seconds)

    def _work(self, loaded: Callable[[], Any]) -> None:
        try:
            searcher = self._load()
            for rerank in (False, True):
                began = time.perf_counter()
                searcher.search([WARM_UP], k=1, rerank_k=self._rerank_k if rerank else 0, first_stage=FUSION)
                self._guess[rerank] = time.perf_counter() - began
        except BaseException as error:  # whoever started the queue raises it again
            self.failure, self.state = error, FAILED
            loaded()
            return
        with self._changed:
            self.searcher = searcher
            if self.state == LOADING:
                self.state = READY
        self._say_cut(searcher)
        loaded()
        while batch := self._take_batch():
            began = time.perf_counter()
            self._answer(searcher, batch)
            self._learn(batch, time.perf_counter() - began)
            self._say_cut(searcher)

    def _say_cut(self, searcher: "Searcher") -> None:
        if searcher.cross_encoder and not self._said_cut:
            for line in searcher.cross_encoder.describe_cut():
                self._say(f"{line}; this is said once")
                self._said_cut = True

    def _take_batch(self) -> list[_Waiting]:
        """The question that has waited longest, and others that are searched alike; none when it is time to end."""
        with self._changed:
            while True:
                self._drop_cancelled()
                if self._waiting:
                    way = self._waiting[0].way
                    most = TOGETHER_RERANKED if way.rerank else TOGETHER
                    batch = [own for own in self._waiting if own.way == way][:most]
                    self._waiting = deque(own for own in self._waiting if own not in batch)
                    self._running = [own for own in batch if own.future.set_running_or_notify_cancel()]
                    if self._running:
                        return self._running
                elif self.state == DRAINING:
                    return []
                else:
                    self._changed.wait()

    def _drop_cancelled(self) -> None:
        self._waiting = deque(own for own in self._waiting if not own.future.cancelled())

    def _answer(self, searcher: "Searcher", batch: Sequence[_Waiting]) -> None:
        """Where a batch cannot be answered, each of its questions is tried alone: one must not harm the others."""
        way, began = batch[0].way, time.perf_counter()
        try:
            answered = searcher.search(
                [own.question for own in batch],
                k=max(own.k for own in batch),
                rerank_k=self._rerank_k if way.rerank else 0,
                first_stage=way.first_stage,
            )
            results = [
                Result(
                    _describe_hits(own.question, hits[: own.k]),
                    {"wait": 1000 * (began - own.since)}
                    | {stage: ms for stage, ms in answered.timings.items() if stage != "total"},
                    len(batch),
                )
                for own, hits in zip(batch, answered.hits, strict=True)
            ]
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for own in batch:
                self._answer(searcher, [own])
            return
        for own, result in zip(batch, results, strict=True):
            own.future.set_result(result)

    def _learn(self, batch: Sequence[_Waiting], seconds: float) -> None:
        way, each = batch[0].way, seconds / len(batch)
        with self._changed:
            self._seconds[way] = KEPT * self._seconds.get(way, each) + (1 - KEPT) * each
            self._running = []

    def _expect(self, way: Way) -> float:
        return self._seconds.get(way, self._guess[way.rerank])


def _describe_hits(question: str, hits: Sequence[Any]) -> list[dict[str, Any]]:
    words = find_words(question)
    return [{**vars(hit), "marks": mark_words(hit.text, words)} for hit in hits]
