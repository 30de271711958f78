"""Settings of fine-tuning that do not go together."""

import pytest

from finetune.training.config import FinetuneConfig, find_unused_flags


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"transfer_epochs": 3}, {"transfer": "asnq=ASNQ"}),
        ({"transfer_dir": "shared"}, {"transfer": "asnq=ASNQ"}),
        ({"search_batch_sizes": [8]}, {"search_folds": 5}),
        ({"list_size": 4}, {"loss": "listwise"}),
        ({"decay_share": 0.5}, {"lr_schedule": "wsd"}),
        ({"negative_labels": [3]}, {"transfer": "asnq=ASNQ"}),
    ],
)
def test_a_flag_that_does_nothing_is_named(given, why):
    """Unless the flag that it belongs to is there too."""
    (name,) = given
    assert [line.endswith(f": --{name}") for line in find_unused_flags(FinetuneConfig(data="", **given))] == [True]
    assert not find_unused_flags(FinetuneConfig(data="", **given, **why))
    assert not find_unused_flags(FinetuneConfig(data=""))


def test_a_flag_that_another_one_replaces_is_named():
    assert find_unused_flags(FinetuneConfig(data="", search_folds=5, batch_size=8)) == [
        "ignored, as --search_folds chooses it: --batch_size"
    ]
    assert find_unused_flags(FinetuneConfig(data="", warmup_steps=5, warmup_share=0.2)) == [
        "ignored, as --warmup_steps is given: --warmup_share"
    ]
