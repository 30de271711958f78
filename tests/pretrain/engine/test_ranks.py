"""Ranks of a few processes that import torch alone."""

import subprocess
import sys
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


FREED = """
import psutil, torch
from pretrain.engine.device import return_freed_memory

process = psutil.Process()
torch.ones(7_000_000)  # from now on glibc keeps blocks that are smaller
before = process.memory_info().rss
blocks = [torch.ones(size) for size in range(400_000, 500_000, 1000)][::10]
assert process.memory_info().rss - before > 100e6
return_freed_memory()
assert process.memory_info().rss - before < 40e6
"""


def test_freed_tensors_go_back_to_the_system():
    """Those that stay lie between them: glibc alone keeps the room of the others.

    The process is a new one, because in an old one there is room already.
    """
    subprocess.run([sys.executable, "-c", FREED], cwd=ROOT, check=True, timeout=300)
