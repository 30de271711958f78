"""How fast training goes."""

import time

from .batches import Feeder
from .step import StepResult


class Clock:
    """Time and work of the training steps since the last line of the log; validation and saving do not count."""

    def __init__(self) -> None:
        self.seconds = self.flops = 0.0
        self.tokens = self.padding = self.slots = 0
        self.waited = 0.0

    def start(self) -> None:
        self.began = time.perf_counter()

    def stop(self, result: StepResult, flops: float, padding: list[tuple[int, int]]) -> None:
        self.seconds += time.perf_counter() - self.began
        self.flops += flops
        self.tokens += result.tokens
        self.padding += sum(p for p, _ in padding)
        self.slots += sum(s for _, s in padding)

    def read(self, feeder: Feeder, peak: float | None) -> dict[str, float]:
        """tokens_per_second of all ranks; mfu_percent of this rank's device; then starts afresh."""
        values = {
            "tokens_per_second": self.tokens / self.seconds,
            "padding_percent": 100 * self.padding / max(self.slots, 1),
            "data_wait_percent": 100 * (feeder.waited - self.waited) / self.seconds,
        }
        if peak:
            values["mfu_percent"] = 100 * self.flops / self.seconds / (peak * 1e12)
        waited = feeder.waited
        self.__init__()  # type: ignore[misc]
        self.waited = waited
        return values
