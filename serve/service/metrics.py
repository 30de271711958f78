"""What the service counts, for Prometheus."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

PATHS = ("/search", "/examples", "/about", "/evaluations", "/health", "/metrics")
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        timed = own | {"buckets": SECONDS}
        self.requests = Counter("kinspan_requests", "Requests by path and status.", ["path", "status"], **own)
        self.seconds = Histogram("kinspan_search_seconds", "From a question's arrival to its answer.", **timed)
        self.stages = Histogram("kinspan_stage_seconds", "Of each stage of a search.", ["stage"], **timed)
        self.together = Histogram(
            "kinspan_questions_together", "Questions answered together.", buckets=(1, 2, 4, 8, 16), **own
        )
        self.waiting = Gauge("kinspan_questions_waiting", "Questions that wait or are being answered.", **own)
        self.ready = Gauge("kinspan_ready", "1 where questions are answered, 0 while loading.", **own)
        ProcessCollector(registry=self.registry)

    def count(self, path: str, status: int) -> None:
        known = next((name for name in PATHS if path == name or path.startswith(f"{name}/")), "other")
        self.requests.labels(known, str(status)).inc()

    def observe(self, seconds: float, timings: dict[str, float], together: int) -> None:
        """seconds of a whole search, milliseconds of its stages, and how many questions were answered with it."""
        self.seconds.observe(seconds)
        self.together.observe(together)
        for stage, milliseconds in timings.items():
            self.stages.labels(stage).observe(milliseconds / 1000)

    def write(self, waiting: int, is_ready: bool) -> bytes:
        self.waiting.set(waiting)
        self.ready.set(is_ready)
        return generate_latest(self.registry)
