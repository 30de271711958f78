"""What a stage measures of itself."""

import multiprocessing

import numpy as np

from data_pipeline.prepare.engine.stage import measure_peak


def test_peak_is_of_the_process_and_not_of_the_one_that_started_it() -> None:
    before = measure_peak()
    held = np.ones(2**26)
    assert measure_peak() >= before + held.nbytes // 2
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(measure_peak) < held.nbytes
