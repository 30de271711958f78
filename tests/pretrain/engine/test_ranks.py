"""Ranks of a few processes that import torch alone."""

from pathlib import Path

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.engine import ranks

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("local_rank", "order"), [(0, ["make", "gather", "gather"]), (3, ["gather", "make", "gather"])]
)
def test_the_first_rank_of_a_machine_loads_before_the_others(local_rank, order, monkeypatch):
    done = []
    monkeypatch.setattr(ranks, "gather", lambda value: done.append("gather") or [value, None])
    assert ranks.make_first_on_each_machine(local_rank, lambda: done.append("make") or 5) == 5
    assert done == order


def test_what_one_rank_cannot_load_is_refused_by_all(monkeypatch):
    monkeypatch.setattr(ranks, "gather", lambda value: [value, "no model at x"])
    with pytest.raises(KinspanError, match="no model at x"):
        ranks.make_first_on_each_machine(0, lambda: 5)
