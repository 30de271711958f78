"""Cases of a parametrised test, some of which wait for ``make test-slow``."""

from collections.abc import Iterable
from typing import Any

import pytest


def mark_slow(cases: Iterable[Any], fast: Iterable[Any]) -> list[Any]:
    """All cases, those that are not among ``fast`` marked as slow. A tuple is a case of several values."""
    kept = list(fast)
    return [
        case if case in kept else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
