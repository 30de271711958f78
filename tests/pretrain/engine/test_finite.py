"""Updates that are not finite; tests/pretrain/test_interrupted.py has them under DeepSpeed."""

import pytest
import torch

from pretrain.engine.device_update import nan_guard


@pytest.mark.parametrize(
    ("sums", "expected"), [([3.0, 0.0], 1.0), ([float("nan"), 1.0], None), ([1.0, float("inf")], None)]
)
def test_a_sum_that_is_not_finite_makes_the_factor_nan(sums, expected):
    factor = nan_guard(torch.tensor(sums))
    assert factor.isnan() if expected is None else factor == expected
