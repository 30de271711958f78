import socket

import pytest
from huggingface_hub import constants

from data_pipeline import hub


@pytest.fixture
def asked(monkeypatch):
    """The addresses that were asked for; none is known."""
    names = []

    def unknown(name, _):
        names.append(name)
        raise socket.gaierror("no address")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    hub._go_offline_without_address.cache_clear()
    yield names
    hub._go_offline_without_address.cache_clear()


def test_a_hub_without_an_address_is_asked_once(asked):
    hub.expect_hub("roberta-base")
    hub.expect_hub("bert-base-uncased")
    assert constants.HF_HUB_OFFLINE
    assert len(asked) == 1


def test_a_folder_or_a_proxy_asks_nothing(asked, tmp_path, monkeypatch):
    hub.expect_hub(str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    hub.expect_hub("roberta-base")
    assert not asked
    assert not constants.HF_HUB_OFFLINE
