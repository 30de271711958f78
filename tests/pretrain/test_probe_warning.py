"""When a run is told that its ranking falls, and when not."""

import pytest

from pretrain.measure import find_fall


def lines(maps, losses, split="validation"):
    found = [{"split": split, "step": 10 * n, "loss": loss} for n, loss in enumerate(losses)]
    return found + [{"split": "probe", "step": 10 * n, "map": value} for n, value in enumerate(maps)]


def test_a_fall_while_the_loss_improves_is_named():
    text = find_fall(lines([0.668, 0.7, 0.646], [1.0, 0.9, 0.8]))
    assert text is not None
    assert all(part in text for part in ("0.668 at step 0", "0.646 at step 20", "from 1.000 to 0.800"))


@pytest.mark.parametrize(
    ("maps", "losses"),
    [
        ([0.646, 0.668], [1.0, 0.8]),  # it ranks better
        ([0.668, 0.660], [1.0, 0.8]),  # by so little it moves by chance
        ([0.668, 0.646], [0.8, 1.0]),  # the loss got worse too, which the log shows
        ([0.668], [1.0, 0.8]),  # one probe alone
        ([], [1.0, 0.8]),
        ([0.668, 0.646], []),
    ],
)
def test_nothing_is_said_otherwise(maps, losses):
    assert find_fall(lines(maps, losses)) is None


def test_without_held_out_pairs_it_goes_by_the_training_loss():
    assert find_fall(lines([0.668, 0.646], [1.0, 0.8], split="train")) is not None
