import os
import signal

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.executors import map_chunks


def double(chunk):
    return [2 * k for k in chunk]


def die_at_the_third(chunk):
    if chunk == [3]:
        os.kill(os.getpid(), signal.SIGKILL)
    return chunk


@pytest.mark.timeout(60)
def test_results_come_in_order_and_chunks_are_read_only_a_few_ahead():
    read = 0

    def chunks():
        nonlocal read
        for k in range(1000):
            read += 1
            yield [k, k + 1]

    results = map_chunks(double, chunks(), 2)
    assert [next(results) for _ in range(40)] == [[2 * k, 2 * k + 2] for k in range(40)]
    assert read < 50
    results.close()


@pytest.mark.timeout(60)
def test_a_killed_worker_is_an_error():
    with pytest.raises(KinspanError, match="--num_workers"):
        list(map_chunks(die_at_the_third, [[k] for k in range(30)], 2))
