import huggingface_hub
import pytest
from huggingface_hub import constants

from data_pipeline.core import hub
from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer


@pytest.fixture
def requests(monkeypatch):
    """The addresses that the hub's library was asked for, in order; ``fail`` says with what."""

    class Session:
        def __init__(self):
            self.asked, self.fail = [], None

        def head(self, url, timeout):
            assert 0 < timeout <= 30
            self.asked.append(url)
            if self.fail:
                raise self.fail

    session = Session()
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: session)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub._go_offline_if_unreachable.cache_clear()
    yield session
    hub._go_offline_if_unreachable.cache_clear()


def test_a_hub_that_cannot_be_reached_is_asked_once(requests):
    requests.fail = OSError("no address")
    hub.expect_hub("roberta-base")
    hub.expect_hub("bert-base-uncased")
    assert constants.HF_HUB_OFFLINE
    assert requests.asked == [constants.ENDPOINT]


@pytest.mark.timeout(20)
def test_offline_a_name_that_is_not_there_is_one_line_at_once(requests):
    requests.fail = OSError("no address")
    with pytest.raises(KinspanError, match="kinspan-no-such/tokenizer"):
        load_tokenizer("kinspan-no-such/tokenizer")


def test_a_path_without_a_model_says_what_is_there(requests, tmp_path):
    with pytest.raises(KinspanError, match="absent"):
        hub.expect_hub(str(tmp_path / "absent"))
    best = tmp_path / "tuned/seed-1/best"
    best.mkdir(parents=True)
    (best / "config.json").touch()
    for folder in (tmp_path / "tuned", tmp_path / "tuned/seed-1"):
        with pytest.raises(KinspanError, match=str(best)):
            hub.expect_hub(str(folder))
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    with pytest.raises(KinspanError, match="kinspan release --run_dir"):
        hub.expect_hub(str(tmp_path / "run"))
    assert requests.asked == []
