"""Sends a release to the hub."""

import logging
import re
from pathlib import Path

from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import HFValidationError, HTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import read_object

from .folder import CARD, FACTS

logger = logging.getLogger(__name__)

OF_HUB = {".gitattributes", CARD}  # files of a repository that holds nothing yet


def push(folder: Path, repository: str, public: bool = False) -> None:
    """Replaces what the repository holds by this release, and tags it with the release's revision.

    public: of a repository that does not exist yet; a public one is written to only if this is set

    Raises KinspanError if the hub refuses or cannot be reached.
    """
    api, tag = HfApi(), str(read_object(folder / FACTS, "release it again")["revision"])
    try:
        ModelCard.load(folder / CARD).validate()
        try:
            if not api.repo_info(repository).private and not public:
                raise KinspanError(f"--push_to_hub {repository}: it is public: give --public, or make it private")
        except RepositoryNotFoundError:
            api.create_repo(repository, private=not public, exist_ok=True)
        files = set(api.list_repo_files(repository))
        if FACTS not in files and files - OF_HUB:
            raise KinspanError(f"--push_to_hub {repository}: it holds something that is no release")
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=f"Release {tag}", delete_patterns="*"
        )
        if tag in (known.name for known in api.list_repo_refs(repository).tags):
            api.delete_tag(repository, tag=tag)
        api.create_tag(repository, tag=tag, revision=commit.oid)
    except (HTTPError, HFValidationError, OfflineModeIsEnabled, OSError, RuntimeError, ValueError) as error:
        # A signed address is as good as a token
        text = re.sub(r"(https?://[^\s?'\"]+)\?\S*", r"\1", quote_error(error))
        raise KinspanError(f"--push_to_hub {repository}: {text}") from error
    logger.info("pushed %s, tagged %s", commit.commit_url, tag)
