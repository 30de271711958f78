"""Measures the search service under load: many clients, each of which asks again as soon as it has its answer.

The service is started as a process of its own, asked by one client and then by all, killed, started again, asked the
same, and told to end. Refusals that are announced (429) are counted, and their Retry-After is waited for; anything else
than an answer is an error. Clients run on the same machine as the service, and take their share of it."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import _common
from data_pipeline.errors import KinspanError

EPILOG = """example:
  python -m benchmarks.search.load --index index --clients 50 --seconds 120"""

PERCENTILES = (50, 90, 99, 100)
TOLERANCE = 1e-5  # of scores: other questions in the same batch may change how sums are rounded


@dataclass
class Measured:
    """seconds of each answer, how often each status came, and answers that differ from those asked for alone."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter = field(default_factory=Counter)
    other_answers: int = 0

    @property
    def errors(self) -> int:
        """Whatever is neither an answer nor an announced refusal; 0 stands for a broken connection."""
        return sum(count for status, count in self.statuses.items() if status not in (200, 429))


class Served:
    """A process of launch/serve.py."""

    def __init__(self, arguments: Sequence[str]) -> None:
        began = time.perf_counter()
        command = [sys.executable, str(_common.ROOT / "launch/serve.py"), *arguments, "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        assert self.process.stderr
        said = next((line for line in self.process.stdout if "ready: http" in line), None)  # notes may come before
        if said is None:
            self.process.wait(10)
            raise KinspanError(f"the service did not start: {self.process.stderr.read().strip()[-300:]}")
        self.port = int(said.rsplit(":", 1)[1])
        self.seconds = time.perf_counter() - began
        self.processor_seconds = self.measure_processor()

    def end(self, how: signal.Signals) -> tuple[int, float]:
        """Its exit status, and the seconds that ending took."""
        began = time.perf_counter()
        self.process.send_signal(how)
        status = self.process.wait(60)
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
        return status, time.perf_counter() - began

    def measure_processor(self) -> float:
        """Seconds of processor time until now, which other work on the machine changes less than the clock's."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    def peak_megabytes(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024


def ask(connection: HTTPConnection, body: bytes) -> tuple[int, Any, float]:
    """Status, JSON and the seconds after which to ask again. A broken connection has status 0."""
    try:
        connection.request("POST", "/search", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read()), float(response.headers.get("retry-after") or 0)
    except (OSError, HTTPException, ValueError) as error:
        connection.close()
        return 0, {"detail": repr(error)}, 0.1


def as_body(question: str, settings: dict[str, Any]) -> bytes:
    return json.dumps({"query": question, **settings}).encode()


def ask_alone(port: int, questions: Sequence[str], settings: dict[str, Any]) -> tuple[dict[str, Any], list[float]]:
    """The hits of each question, asked one at a time, and the seconds of each."""
    connection, hits, seconds = HTTPConnection("127.0.0.1", port, timeout=60), {}, []
    for question in questions:
        began = time.perf_counter()
        status, found, _ = ask(connection, as_body(question, settings))
        seconds.append(time.perf_counter() - began)
        if status != 200:
            raise KinspanError(f"the service answered {status} to a client alone: {found.get('detail')}")
        hits[question] = found["hits"]
    connection.close()
    return hits, seconds


def are_same(one: Sequence[dict], other: Sequence[dict]) -> bool:
    """Whether two lists of hits have equal scores within TOLERANCE, and equal answers.

    Answers of scores so near may have changed places, the last one with one that is not in the list.
    """
    if len(one) != len(other):
        return False
    pairs = list(zip(one, other, strict=True))
    if any(abs(a["score"] - b["score"]) > TOLERANCE for a, b in pairs):
        return False
    scores = [hit["score"] for hit in one]
    may_swap = [place == len(scores) - 1 or _has_equal(scores, place) for place in range(len(scores))]
    return all(a["id"] == b["id"] or free for (a, b), free in zip(pairs, may_swap, strict=True))


def _has_equal(scores: Sequence[float], place: int) -> bool:
    return any(abs(scores[place] - score) <= 2 * TOLERANCE for n, score in enumerate(scores) if n != place)


def press(port: int, expected: dict[str, Any], settings: dict[str, Any], clients: int, seconds: float) -> Measured:
    """So many clients ask for so many seconds, and at least once; each goes round in an order of its own."""
    measured, lock, end = Measured(), threading.Lock(), time.monotonic() + seconds

    def work(seed: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=90)
        questions = list(expected)
        random.Random(seed).shuffle(questions)
        turn = 0
        while turn == 0 or time.monotonic() < end:
            question = questions[turn % len(questions)]
            began = time.perf_counter()
            status, found, again = ask(connection, as_body(question, settings))
            took = time.perf_counter() - began
            same = status != 200 or are_same(expected[question], found["hits"])
            with lock:
                measured.statuses[status] += 1
                measured.other_answers += not same
                if status == 200:
                    measured.seconds.append(took)
            turn += status == 200
            if again:
                connection.close()  # the service would, before the wait is over
                time.sleep(min(again, max(0.0, end - time.monotonic())))
        connection.close()

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return measured


def measure(
    arguments: Sequence[str], settings: dict[str, Any], clients: int, seconds: float, questions: Sequence[str] = ()
) -> dict[str, Any]:
    """The whole course; what was measured, and whether the same answers came after the service was killed.

    arguments: of launch/serve.py
    settings:  sent with each question, such as k
    questions: to ask; without them the examples of the service
    """
    service = Served(arguments)
    started = service.seconds
    if not questions:
        connection = HTTPConnection("127.0.0.1", service.port, timeout=60)
        connection.request("GET", "/examples")
        questions = json.loads(connection.getresponse().read())["questions"]
    if not questions:
        raise KinspanError("the index has no questions of its own: give some with --questions")
    expected, alone = ask_alone(service.port, questions, settings)
    worked = service.measure_processor()
    measured = press(service.port, expected, settings, clients, seconds)
    worked = service.measure_processor() - worked
    memory = service.peak_megabytes()
    service.end(signal.SIGKILL)
    again = Served(arguments)
    after, _ = ask_alone(again.port, questions, settings)
    status, ending = again.end(signal.SIGTERM)
    return {
        "start_seconds": started,
        "start_again_seconds": again.seconds,
        "start_again_processor_seconds": again.processor_seconds,
        "alone_ms": 1000 * float(np.median(alone)),
        **{f"p{p}_ms": 1000 * float(np.percentile(measured.seconds or [0], p)) for p in PERCENTILES},
        "answers_per_second": measured.statuses[200] / seconds,
        "processor_ms_per_answer": 1000 * worked / max(1, measured.statuses[200]),
        "answers": measured.statuses[200],
        "refused_429": measured.statuses[429],
        "errors": measured.errors,
        "statuses": {str(status): count for status, count in measured.statuses.items()},
        "other_answers": measured.other_answers,
        "same_after_kill": after == expected or all(are_same(expected[q], after[q]) for q in expected),
        "end_status": status,
        "end_seconds": ending,
        "peak_mb": memory,
    }


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.prog = "python -m benchmarks.search.load"
    parser.add_argument("--index", required=True, help="Index to search.")
    parser.add_argument("--cross_encoder", help="What ranks the candidates again.")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="Of the cross-encoder.")
    parser.add_argument("--first_stage", choices=("bi_encoder", "bm25", "fusion"), default="bi_encoder")
    parser.add_argument("--k", type=int, default=3, help="Answers to a question.")
    parser.add_argument("--questions", help="File of questions, one a line. Without it: the examples of the service.")
    parser.add_argument("--clients", type=int, default=50, help="That ask at the same time.")
    parser.add_argument("--seconds", type=float, default=120)
    args = parser.parse_args()
    arguments = ["--index", args.index, "--first_stage", args.first_stage, "--precision", args.precision]
    arguments += ["--cross_encoder", args.cross_encoder] if args.cross_encoder else []
    lines = Path(args.questions).read_text(encoding="utf-8").splitlines() if args.questions else []
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    questions = [line for line in lines if line.strip()]
    figures = measure(arguments, {"k": args.k}, args.clients, args.seconds, questions)
    shown = {name: f"{value:,.1f}" if isinstance(value, float) else str(value) for name, value in figures.items()}
    print(f"{args.clients} clients, {args.seconds:g} seconds, {os.cpu_count()} cores")
    _common.print_table(("", ""), [(name.replace("_", " "), value) for name, value in shown.items()])
    _common.report("search load", figures)


if __name__ == "__main__":
    _common.run(main)
