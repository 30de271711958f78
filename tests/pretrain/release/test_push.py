"""Pushing to a hub in this process, which keeps every revision."""

import json

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.release.card import CardOverrides, make_metadata
from pretrain.release.release import push

NAME = "me/ranker"


def write_folder(folder, step=240, weights=b"w", **more):
    """Writes what looks like a release."""
    block = make_metadata(CardOverrides("apache-2.0", languages=("en",)), ["kinspan"]).to_yaml()
    files = {
        "README.md": f"---\n{block}\n---\n# tiny\n".encode(),
        "kinspan.json": json.dumps({"revision": f"step-{step:08d}"}).encode(),
        "model.safetensors": weights,
        "config.json": b"{}",
        **more,
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read_folder(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_every_checkpoint_is_a_revision_and_what_a_later_one_lacks_goes(hub, tmp_path):
    first = write_folder(tmp_path / "first", **{"onnx/model.onnx": b"o"})
    push(first, NAME)
    assert hub.repositories[NAME].private
    assert hub.files(NAME) == read_folder(first)
    second = write_folder(tmp_path / "second", step=480, weights=b"v")
    push(second, NAME)
    push(second, NAME)
    assert hub.files(NAME) == hub.files(NAME, "step-00000480") == read_folder(second)
    assert hub.files(NAME, "step-00000240") == read_folder(first)
    push(write_folder(tmp_path / "mended", weights=b"m"), NAME)
    assert hub.files(NAME, "step-00000240") == read_folder(tmp_path / "mended"), "the tag has moved"


@pytest.mark.parametrize("method", ["repo_info", "upload_folder", "create_tag"])
def test_the_same_again_completes_what_a_failure_cut_short(hub, tmp_path, method):
    folder = write_folder(tmp_path / "release")
    broken = ConnectionError("https://store/large/1?signature=let-me-write does not answer")
    hub.fail = lambda called: broken if called == method else None
    with pytest.raises(KinspanError, match=f"--push_to_hub {NAME}") as raised:
        push(folder, NAME)
    assert "let-me-write" not in str(raised.value), "a signed address is as good as a token"
    hub.fail = lambda called: None
    push(folder, NAME)
    assert hub.files(NAME, "step-00000240") == read_folder(folder)


def test_a_card_that_the_hub_refuses_leaves_no_repository(hub, tmp_path):
    card = write_folder(tmp_path / "release") / "README.md"
    card.write_text(card.read_text().replace("apache-2.0", "apache"))
    with pytest.raises(KinspanError, match=f"--push_to_hub {NAME}"):
        push(tmp_path / "release", NAME)
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
