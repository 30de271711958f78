"""Pushing to the hub, against a server on this machine that speaks its interface."""

import json
import time

import pytest
from huggingface_hub import constants

from data_pipeline.core.errors import KinspanError
from pretrain.release.card import CardOverrides, make_metadata
from pretrain.release.push import push
from tests.fake_hub import SIGNATURE, TOKEN, run_hub

NAME = "me/ranker"


class Impatient:
    """The module ``time`` with sleeps that take no time: the library waits between its attempts."""

    sleep = staticmethod(lambda seconds: None)

    def __getattr__(self, name):
        return getattr(time, name)


@pytest.fixture
def hub(monkeypatch):
    with run_hub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("huggingface_hub.utils._http.time", Impatient())
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield running


def write_folder(folder, step=240, weights=b"w" * 50_000, **others):
    """Writes what looks like a release."""
    block = make_metadata(CardOverrides("apache-2.0", languages=("en",)), ["kinspan"]).to_yaml()
    files = {
        "README.md": f"---\n{block}\n---\n# tiny\n".encode(),
        "kinspan.json": json.dumps({"revision": f"step-{step:08d}"}).encode(),
        "model.safetensors": weights,
        "config.json": b"{}",
        **others,
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read_folder(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_every_checkpoint_is_a_revision_and_what_a_later_one_lacks_goes(hub, tmp_path):
    first = write_folder(tmp_path / "first", **{"onnx/model.onnx": b"o" * 9000})
    push(first, NAME)
    assert hub.repositories[NAME].private
    assert hub.files(NAME) == read_folder(first)
    second = write_folder(tmp_path / "second", step=480, weights=b"v" * 50_000)
    push(second, NAME)
    push(second, NAME)
    assert hub.files(NAME) == hub.files(NAME, "step-00000480") == read_folder(second)
    assert hub.files(NAME, "step-00000240") == read_folder(first)
    push(write_folder(tmp_path / "mended", weights=b"m" * 50_000), NAME)
    assert hub.files(NAME, "step-00000240") == read_folder(tmp_path / "mended"), "the tag has moved"


@pytest.mark.parametrize("trouble", ["drop", 500])
@pytest.mark.parametrize("place", ["PUT", f"POST /api/models/{NAME}/commit", f"POST /api/models/{NAME}/tag"])
def test_the_same_again_completes_what_a_failure_cut_short(hub, tmp_path, place, trouble):
    folder = write_folder(tmp_path / "release")
    hub.fail = lambda request: trouble if request.startswith(place) else None
    with pytest.raises(KinspanError, match="--push_to_hub") as raised:
        push(folder, NAME)
    assert SIGNATURE not in str(raised.value)
    assert hub.files(NAME) in ({}, read_folder(folder)), "all of a release is seen, or nothing"
    hub.fail = lambda request: None
    push(folder, NAME)
    assert hub.files(NAME, "step-00000240") == read_folder(folder)


def refuse_token(hub, folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")


def cut_network(hub, folder, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def go_offline(hub, folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def state_a_wrong_licence(hub, folder, monkeypatch):
    card = folder / "README.md"
    card.write_text(card.read_text().replace("apache-2.0", "apache"))


@pytest.mark.parametrize("harm", [refuse_token, cut_network, go_offline, state_a_wrong_licence])
def test_what_the_hub_refuses_is_refused_and_leaves_no_repository(harm, hub, tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "release")
    harm(hub, folder, monkeypatch)
    with pytest.raises(KinspanError, match=f"--push_to_hub {NAME}"):
        push(folder, NAME)
    assert not hub.repositories


def test_a_public_repository_is_written_to_only_where_that_is_meant(hub, tmp_path):
    folder = write_folder(tmp_path / "release")
    push(folder, NAME, public=True)
    assert not hub.repositories[NAME].private
    (folder / "config.json").write_text('{"new": 1}')
    with pytest.raises(KinspanError, match="--public"):
        push(folder, NAME)
    assert hub.files(NAME)["config.json"] == b"{}"
    push(folder, NAME, public=True)
    assert hub.files(NAME)["config.json"] == b'{"new": 1}'


def test_a_repository_of_something_else_is_left_alone(hub, tmp_path):
    push(write_folder(tmp_path / "release"), NAME)
    hub.repositories[NAME].commits.append({"thesis.tex": b""})
    with pytest.raises(KinspanError, match="--push_to_hub"):
        push(tmp_path / "release", NAME)
    assert hub.files(NAME) == {"thesis.tex": b""}
