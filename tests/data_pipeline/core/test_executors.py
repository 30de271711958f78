import os
import signal

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.executors import map_chunks


class Adder:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, chunk: list[int]) -> list[int]:
        return [self.number + k for k in chunk]


class KilledAtTheThird:
    def __call__(self, chunk: int) -> int:
        if chunk == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return chunk


def test_results_come_in_the_order_of_the_chunks():
    chunks = [[k, k + 1] for k in range(40)]
    assert list(map_chunks(Adder, (10,), chunks, 2)) == [[k + 10, k + 11] for k in range(40)]


def test_chunks_are_read_only_a_few_ahead():
    read = 0

    def chunks():
        nonlocal read
        for k in range(1000):
            read += 1
            yield [k]

    results = map_chunks(Adder, (0,), chunks(), 1)
    next(results)
    assert read < 10
    results.close()


@pytest.mark.timeout(60)
def test_a_killed_worker_is_a_one_line_error():
    with pytest.raises(KinspanError, match="worker process died") as error:
        list(map_chunks(KilledAtTheThird, (), range(30), 2))
    assert "\n" not in str(error.value)
