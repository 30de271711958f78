"""Sends a release to the hub: one commit, all of it or nothing, and a tag that names the checkpoint."""

import re
from collections.abc import Callable
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard, constants, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars, validate_repo_id

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import read_object

from .folder import CARD, FACTS

BRANCH = "main"
GIT_ATTRIBUTES = ".gitattributes"  # the hub's own: it says which files are large


def check_repository(name: str) -> None:
    """Raises KinspanError where ``name`` is not OWNER/NAME as the hub takes it."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise KinspanError(f"--push_to_hub {name!r}: {quote_error(error)}") from error
    if "/" not in name:
        raise KinspanError(f"--push_to_hub {name} names no owner: give OWNER/NAME, of a user or an organisation")


def list_files(folder: Path) -> dict[str, Path]:
    """The files of a release by their names in the repository."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def name_revision(folder: Path) -> str:
    """The tag of a release's checkpoint, such as step-00000240."""
    return str(read_object(folder / FACTS, "release it again")["revision"])


def describe_push(folder: Path, repository: str, public: bool) -> str:
    """What ``push`` would send, as lines of text; nothing is asked of the hub."""
    files = list_files(folder)
    sizes = {name: path.stat().st_size for name, path in files.items()}
    sizes[f"{len(files)} files"] = sum(sizes.values())
    width = max(map(len, sizes))
    visible = "public" if public else "private"
    return "\n".join(
        [
            f"nothing was sent; without --dry_run, this would go to {constants.ENDPOINT}/{repository} "
            f"({visible} where it is new), to the branch {BRANCH} and the tag {name_revision(folder)}:",
            *(f"  {name:<{width}}  {size / 1e6:10,.3f} MB" for name, size in sizes.items()),
        ]
    )


def push(folder: Path, repository: str, public: bool = False, tell: Callable[[str], None] = print) -> str:
    """Makes the repository hold this release and nothing else, and returns the address of the commit.

    It becomes the newest commit of the branch main, and gets a tag of its own, see ``name_revision``; a tag of this
    name is moved. Large files go first, and the commit that names them last, so that an interrupted push leaves the
    repository as it was; the same call again sends what is not there yet.

    public: of a repository that does not exist yet; one that is public already is written to only if this is meant

    Raises KinspanError where the hub cannot be reached, refuses, or fails.
    """
    disable_progress_bars()
    api = HfApi()
    if not get_token():
        raise KinspanError("--push_to_hub: there is no token: `hf auth login` stores one, or HF_TOKEN holds it")
    tag = name_revision(folder)
    try:
        ModelCard.load(folder / CARD).validate()
        _open_repository(api, repository, public)
        operations: list[Any] = [CommitOperationAdd(name, str(path)) for name, path in list_files(folder).items()]
        operations += _find_stale(api, repository, folder)
        # upload_folder may split a release over several commits
        commit = api.create_commit(repository, operations, commit_message=f"Release {tag}", revision=BRANCH)
        tags = {known.name: known.target_commit for known in api.list_repo_refs(repository).tags}
        if tag in tags and tags[tag] != commit.oid:
            api.delete_tag(repository, tag=tag)
        if tags.get(tag) != commit.oid:
            api.create_tag(repository, tag=tag, revision=commit.oid)
    except OfflineModeIsEnabled as error:
        raise KinspanError(f"--push_to_hub {repository}: HF_HUB_OFFLINE is set; nothing was sent") from error
    except (HTTPError, OSError, RuntimeError, ValueError) as error:  # what the library lets through of its own
        raise KinspanError(f"--push_to_hub {repository}: {_explain(error)}") from error
    tell(f"pushed {commit.commit_url}, tagged {tag}")
    return str(commit.commit_url)


def _open_repository(api: HfApi, repository: str, public: bool) -> None:
    try:
        there = api.repo_info(repository)
    except RepositoryNotFoundError:  # or it is another's, which creating it then tells
        api.create_repo(repository, private=not public, exist_ok=True)
        return
    if not there.private and not public:
        raise KinspanError(
            f"--push_to_hub {repository}: this repository is public, and so would be the release: give --public if "
            "that is meant, or make it private on its page"
        )


def _find_stale(api: HfApi, repository: str, folder: Path) -> list[CommitOperationDelete]:
    """What of an older release is not in this one. Raises KinspanError where the repository holds no release."""
    remote = set(api.list_repo_files(repository, revision=BRANCH)) - {GIT_ATTRIBUTES}
    if remote - {CARD} and FACTS not in remote:
        raise KinspanError(
            f"--push_to_hub {repository}: this repository holds something that is no release: choose another name"
        )
    return [CommitOperationDelete(name) for name in sorted(remote - list_files(folder).keys())]


def _explain(error: BaseException) -> str:
    """The error as one line that says whose fault it is, and what to do."""
    chain = [error]
    while chain[-1].__cause__:
        chain.append(chain[-1].__cause__)
    refused = next((one for one in chain if isinstance(one, HfHubHTTPError)), None)
    status = refused.response.status_code if refused else None
    said = " ".join((refused.server_message if refused and refused.server_message else "").split())
    # What stands behind the "?" of an address of a large file is as good as a token for it
    said = said or re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\")]*", r"\1", quote_error(refused or chain[-1]))
    if status == 401:
        return "the hub refuses the token: `hf auth login` stores another, or HF_TOKEN holds it"
    if status == 403:
        return f"the token may not write there ({said}): give one that may write for this owner"
    broken = isinstance(error, JSONDecodeError)  # a page of a proxy, say, where the hub's answer should be
    if (status and status < 500) or (isinstance(error, ValueError) and not broken):
        return f"the hub refuses it: {said}"
    again = "the same command again goes on from there, and the repository is as it was until all has arrived"
    return (
        f"the hub failed ({said}): {again}" if status else f"sending to {constants.ENDPOINT} failed ({said}): {again}"
    )
