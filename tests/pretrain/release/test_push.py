"""Pushing to the hub, against a server on this machine that speaks its interface."""

import hashlib
import json
import random
import time

import pytest
from huggingface_hub import ModelCard, constants

from data_pipeline.core.errors import KinspanError
from pretrain.release.metadata import CardOverrides, make_metadata, make_results
from pretrain.release.push import check_repository, describe_push, push
from tests.fake_hub import SIGNATURE, TOKEN, run_hub

NAME = "me/ranker"


class Impatient:
    """The module ``time``, whose sleeps take no time: the library waits between its attempts."""

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
    """What looks like a release."""
    block = make_metadata(CardOverrides("apache-2.0", languages=("en",)), "tiny", ["kinspan"]).to_yaml()
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


def test_the_repository_is_private_and_holds_the_release_and_a_tag(hub, tmp_path, capsys):
    folder = write_folder(tmp_path / "release", **{"onnx/model.onnx": b"o" * 9000})
    push(folder, NAME)
    assert hub.repositories[NAME].private
    assert hub.files(NAME) == read_folder(folder)
    assert hub.files(NAME, "step-00000240") == read_folder(folder)
    assert len(hub.repositories[NAME].commits) == 2, "the first one, and all of the release in another"
    assert len(hub.uploads()) == 2, "the weights and the graph, as large files"
    assert "tagged step-00000240" in capsys.readouterr().out


def test_the_same_again_sends_nothing(hub, tmp_path):
    folder = write_folder(tmp_path / "release")
    push(folder, NAME)
    before = len(hub.uploads())
    push(folder, NAME)
    assert len(hub.uploads()) == before
    assert len(hub.repositories[NAME].commits) == 2


def test_every_checkpoint_has_a_revision_and_what_a_later_one_lacks_goes(hub, tmp_path):
    first = write_folder(tmp_path / "first", **{"onnx/model.onnx": b"o" * 9000})
    second = write_folder(tmp_path / "second", step=480, weights=b"v" * 50_000)
    for folder in (first, second):
        push(folder, NAME)
    assert hub.files(NAME) == hub.files(NAME, "step-00000480") == read_folder(second)
    assert hub.files(NAME, "step-00000240") == read_folder(first)
    push(write_folder(tmp_path / "mended", weights=b"m" * 50_000), NAME)
    assert hub.files(NAME, "step-00000240") == read_folder(tmp_path / "mended"), "the tag has moved"


@pytest.mark.parametrize("trouble", ["drop", 500, 503])
@pytest.mark.parametrize("place", ["POST /api/models/me/ranker/preupload", "PUT", "POST /large", "POST /api/models"])
def test_a_failure_in_the_middle_is_one_line_and_the_same_again_completes_it(hub, tmp_path, place, trouble):
    folder = write_folder(tmp_path / "release", **{"onnx/model.onnx": b"o" * 9000})
    place = f"{place}/me/ranker/commit" if place == "POST /api/models" else place
    hub.fail = lambda request: trouble if request.startswith(place) else None
    with pytest.raises(KinspanError, match=r"the same command again goes on from there") as raised:
        push(folder, NAME)
    assert "\n" not in str(raised.value)
    assert SIGNATURE not in str(raised.value)
    assert hub.files(NAME) == {}, "nothing of a release is seen before all of it is"
    assert not hub.repositories[NAME].tags
    hub.fail = lambda request: None
    push(folder, NAME)
    assert hub.files(NAME, "step-00000240") == read_folder(folder)


def test_what_has_arrived_is_not_sent_twice(hub, tmp_path):
    folder = write_folder(tmp_path / "release", **{"onnx/model.onnx": b"o" * 9000})
    hub.fail = lambda request: "drop" if "/commit/" in request else None
    with pytest.raises(KinspanError):
        push(folder, NAME)
    sent = hub.uploads()
    hub.fail = lambda request: None
    push(folder, NAME)
    assert hub.uploads() == sent


def test_a_hub_that_fails_once_is_asked_again(hub, tmp_path):
    failures = iter([500, 503])
    hub.fail = lambda request: next(failures, None) if request.startswith("PUT") else None
    push(write_folder(tmp_path / "release"), NAME)
    assert hub.files(NAME) == read_folder(tmp_path / "release")


def test_a_tag_that_failed_is_set_by_the_same_command_again(hub, tmp_path):
    folder = write_folder(tmp_path / "release")
    hub.fail = lambda request: 500 if "/tag/" in request else None
    with pytest.raises(KinspanError):
        push(folder, NAME)
    hub.fail = lambda request: None
    push(folder, NAME)
    assert hub.files(NAME, "step-00000240") == read_folder(folder)
    assert len(hub.repositories[NAME].commits) == 2


def test_a_dry_run_asks_the_hub_nothing_and_names_every_file(hub, tmp_path):
    folder = write_folder(tmp_path / "release", **{"onnx/model.onnx": b"o" * 9000})
    said = describe_push(folder, NAME, public=False)
    assert not hub.requests
    assert all(name in said for name in read_folder(folder))
    assert "private" in said
    assert "tag step-00000240" in said
    assert f"{hub.address}/{NAME}" in said


@pytest.mark.parametrize(
    ("token", "repository", "says"),
    [
        ("hf_wrong", NAME, "the hub refuses the token"),
        ("", NAME, "there is no token"),
        (TOKEN, "others/ranker", "the token may not write there .*rights to create"),
    ],
)
def test_a_wrong_token_is_one_line(hub, tmp_path, monkeypatch, token, repository, says):
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(KinspanError, match=says) as raised:
        push(write_folder(tmp_path / "release"), repository)
    assert "\n" not in str(raised.value)
    assert not hub.repositories


def test_no_network_is_one_line(hub, tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "release")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(KinspanError, match=r"sending to http://127.0.0.1:9 failed \(.*\): the same command again"):
        push(folder, NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(KinspanError, match=r"HF_HUB_OFFLINE is set"):
        push(folder, NAME)


def test_a_card_that_the_hub_refuses_leaves_no_repository(hub, tmp_path):
    folder = write_folder(tmp_path / "release")
    card = (folder / "README.md").read_text().replace("apache-2.0", "apache")
    (folder / "README.md").write_text(card)
    with pytest.raises(KinspanError, match=r'the hub refuses it: "license" must be one of a list'):
        push(folder, NAME)
    assert not hub.repositories


def test_large_files_go_by_xet_where_it_is_installed(hub, tmp_path, monkeypatch):
    pytest.importorskip("hf_xet", reason="huggingface_hub brings it on most machines")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    hub.xet = tmp_path / "store"
    weights = random.Random(1).randbytes(300_000)
    folder = write_folder(tmp_path / "release", weights=weights)
    hub.fail = lambda request: "drop" if "/commit/" in request else None
    with pytest.raises(KinspanError, match="the same command again goes on from there"):
        push(folder, NAME)
    stored = measure(hub.xet)
    assert stored >= len(weights)
    hub.fail = lambda request: None
    push(folder, NAME)
    assert hub.files(NAME)["model.safetensors"] == hashlib.sha256(weights).hexdigest().encode()
    assert measure(hub.xet) < stored + 10_000, "what had arrived was not kept twice"
    assert not hub.uploads()


def measure(folder):
    """Bytes of the blocks of content in Xet's store."""
    return sum(path.stat().st_size for path in (folder / "xet/xorbs/xorbs").rglob("*") if path.is_file())


def test_a_public_repository_is_written_to_only_where_that_is_meant(hub, tmp_path):
    folder = write_folder(tmp_path / "release")
    push(folder, NAME, public=True)
    assert not hub.repositories[NAME].private
    (folder / "config.json").write_text('{"new": 1}')
    with pytest.raises(KinspanError, match="this repository is public"):
        push(folder, NAME)
    assert hub.files(NAME)["config.json"] == b"{}"
    push(folder, NAME, public=True)
    assert hub.files(NAME)["config.json"] == b'{"new": 1}'


def test_a_repository_of_something_else_is_left_alone(hub, tmp_path):
    push(write_folder(tmp_path / "release"), NAME)
    hub.repositories[NAME].commits.append({"thesis.tex": b""})
    with pytest.raises(KinspanError, match="holds something that is no release"):
        push(tmp_path / "release", NAME)
    assert hub.files(NAME) == {"thesis.tex": b""}


@pytest.mark.parametrize("name", ["ranker", "a/b/c", "me/", "me/ran ker", "me/-x", "/x"])
def test_a_name_that_the_hub_does_not_take_is_refused(name):
    with pytest.raises(KinspanError, match="--push_to_hub"):
        check_repository(name)


def test_results_are_read_back_as_they_were_written():
    results = make_results({"map": 0.71234567, "mrr": float("nan")}, {"map": "MAP", "mrr": "MRR"}, "wikiqa test")
    block = make_metadata(
        CardOverrides("mit", results=tuple(results)), "tiny", ["kinspan"], datasets=["microsoft/wiki_qa"]
    )
    card = ModelCard(f"---\n{block.to_yaml()}\n---\n")
    assert [(r.metric_type, r.metric_value) for r in card.data.eval_results] == [("map", 0.7123)]
    assert card.data.datasets == ["microsoft/wiki_qa"]
    assert card.data.metrics == ["map"]
