"""What the loops share: updates that were skipped are counted without waiting for each."""

from types import SimpleNamespace

import pytest
import torch

from data_pipeline.core.errors import KinspanError
from pretrain.config import PretrainConfig
from pretrain.run import Pretraining, PretrainProgress


def count(precision, flags, most_skips=20):
    """The progress after updates that were skipped or not, and the steps of their lines in the log."""
    logged = []
    run = SimpleNamespace(
        setup=SimpleNamespace(config=PretrainConfig(), layout=SimpleNamespace(size=10), facts={"precision": precision}),
        progress=PretrainProgress(),
        schedule=SimpleNamespace(peak=1e-4),
        skips=[(step, torch.tensor(flag)) for step, flag in enumerate(flags)],
        most_skips=most_skips,
        warn_skipped=lambda step: Pretraining.warn_skipped(run, step),
        metrics=SimpleNamespace(write=lambda step, split, values: logged.append(step)),
    )
    Pretraining.count_skips(run)
    return run.progress, logged


@pytest.mark.parametrize(("precision", "warned"), [("fp16", ["step 5"]), ("bf16", ["step 1", "step 4", "step 5"])])
def test_a_lone_overflow_of_fp16_is_logged_and_no_warning(precision, warned, caplog):
    progress, logged = count(precision, [False, True, False, False, True, True])
    assert [line.partition(":")[0] for line in caplog.messages] == warned
    assert logged == [2, 5, 6]
    assert (progress.skipped, progress.skipped_in_row) == (3, 2)


def test_a_lone_overflow_counts_for_the_guard_all_the_same():
    with pytest.raises(KinspanError, match="in 1 steps in a row"):
        count("fp16", [True], most_skips=1)
