"""Settings of fine-tuning that do not go together."""

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import list_unused
from finetune.training.config import FinetuneConfig, check


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"transfer_epochs": 3}, {"transfer": "asnq=ASNQ"}),
        ({"transfer_dir": "shared"}, {"transfer": "asnq=ASNQ"}),
        *[({"search_batch_sizes": [8]}, {"search_folds": 5}), ({"decay_share": 0.5}, {"lr_schedule": "wsd"})],
    ],
)
def test_a_flag_that_does_nothing_is_named(given, why):
    """Unless the flag that it belongs to is there too."""
    (name,) = given
    assert [line.endswith(f": --{name}") for line in list_unused(FinetuneConfig(data="", **given))] == [True]
    assert not list_unused(FinetuneConfig(data="", **given, **why))
    assert not list_unused(FinetuneConfig(data=""))


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        *[({"epochs": 0}, "--epochs"), ({"search_folds": 3, "transfer": "files=x"}, "--search_folds")],
        *[({"seed": [3, 3]}, "--seed"), ({"seed": [0]}, "--seed"), ({"temperature": 0.1}, "--temperature")],
        ({"loss": "contrastive", "fresh_head": True}, "--fresh_head"),
        ({"loss": "contrastive", "batch_size": 1}, "--batch_size"),
        ({"loss": "contrastive", "temperature": 0.0}, "--temperature"),
        ({"loss": "contrastive", "negatives_per_question": 2}, "--negatives_per_question"),
        ({"negatives_per_question": 2, "negatives_ratio": 2.0}, "--negatives_ratio"),
        ({"negatives_from": "corpus"}, "--negatives_from"),
        ({"negatives_per_question": 0}, "--negatives_per_question"),
    ],
)
def test_settings_that_do_not_go_together(settings, flag):
    with pytest.raises(KinspanError, match=flag):
        check(FinetuneConfig("files=x", **settings))
