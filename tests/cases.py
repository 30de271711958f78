"""Cases of a parametrised test, some of which wait for ``make test-slow``, and the comparison of batches."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from data_pipeline.sampling.batch import Batch


def mark_slow(cases: Iterable[Any], fast: Iterable[Any]) -> list[Any]:
    """All cases, those that are not among ``fast`` marked as slow. A tuple is a case of several values."""
    kept = list(fast)
    return [
        case if case in kept else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]


def assert_equal(first: Batch, second: Batch) -> None:
    for name in Batch.__dataclass_fields__:
        a, b = getattr(first, name), getattr(second, name)
        assert a.dtype == b.dtype, name
        assert np.array_equal(a, b), name
