from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import constants

from data_pipeline.core import hub
from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer


@pytest.fixture
def requests(monkeypatch):
    """The addresses that the hub's library was asked for, in order; none can be reached."""
    asked = []

    def head(url, timeout):
        assert 0 < timeout <= 30
        asked.append(url)
        raise OSError("no address")

    monkeypatch.setattr(huggingface_hub, "get_session", lambda: Mock(head=head))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub._go_offline_if_unreachable.cache_clear()
    yield asked
    hub._go_offline_if_unreachable.cache_clear()


def test_a_hub_that_cannot_be_reached_is_asked_once(requests):
    hub.expect_hub("roberta-base")
    hub.expect_hub("bert-base-uncased")
    assert constants.HF_HUB_OFFLINE
    assert requests == [constants.ENDPOINT]


@pytest.mark.timeout(20)
@pytest.mark.usefixtures("requests")
def test_offline_a_name_that_is_not_there_is_one_line_at_once():
    with pytest.raises(KinspanError, match="kinspan-no-such/tokenizer"):
        load_tokenizer("kinspan-no-such/tokenizer")
