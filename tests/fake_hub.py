"""A hub in this process, for what is sent to the real one: repositories, commits, tags, and the rules of cards."""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.errors import RepositoryNotFoundError

LICENCES = ("apache-2.0", "mit", "cc-by-sa-4.0", "cc-by-4.0", "unknown", "other")  # some of the hub's list
# Of a card's metadata, by ModelCardData's documentation
FIELDS: dict[str, tuple[type, ...]] = dict.fromkeys(("license", "library_name", "pipeline_tag"), (str,))
FIELDS |= dict.fromkeys(("base_model", "datasets", "language"), (str, list)) | {"tags": (list,)}
NAME = re.compile(r"[A-Za-z0-9_.-]{1,96}(/[A-Za-z0-9_.-]{1,96})?")


def find_faults(content: str) -> list[str]:
    """Lists what the hub would refuse of a card, by the rules that its library documents."""
    block = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
    if not block:
        return ["there is no block of metadata"]
    data = yaml.safe_load(block.group(1))
    wrong = [name for name, kinds in FIELDS.items() if not isinstance(data.get(name), (*kinds, NoneType))]
    faults = [f'"{name}" is not of the right type' for name in wrong]
    if data.get("license", "unknown") not in LICENCES:
        faults.append('"license" must be one of a list')
    named = [name for key in ("base_model", "datasets") for name in _as_list(data.get(key))]
    faults += [f"{name!r} is no repository" for name in named if not NAME.fullmatch(str(name))]
    faults += [f"{c!r} is no language" for c in _as_list(data.get("language")) if not re.fullmatch("[a-z]{2,3}", c)]
    return faults


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


@dataclass
class Repository:
    """commits: each one's files, by its number; ``main`` is the last. ``tags``: name -> number"""

    private: bool
    commits: list[dict[str, bytes]] = field(default_factory=lambda: [{".gitattributes": b""}])
    tags: dict[str, int] = field(default_factory=dict)


class FakeHub:
    """Does what HfApi does as far as releases need it, and raises what ``fail`` returns for a method's name."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.fail: Callable[[str], Exception | None] = lambda method: None

    def _open(self, method: str, name: str) -> Repository:
        if (error := self.fail(method)) is not None:
            raise error
        if name not in self.repositories:
            raise RepositoryNotFoundError("no such repository", response=mock.MagicMock())
        return self.repositories[name]

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        """Returns the files of a revision, as a release wrote them."""
        repository = self.repositories[name]
        number = -1 if revision == "main" else repository.tags[revision]
        return {k: v for k, v in repository.commits[number].items() if k != ".gitattributes"}

    def repo_info(self, name: str) -> Repository:
        return self._open("repo_info", name)

    def create_repo(self, name: str, private: bool, exist_ok: bool) -> None:
        self.repositories[name] = Repository(private)

    def list_repo_files(self, name: str) -> list[str]:
        return list(self._open("list_repo_files", name).commits[-1])

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str, delete_patterns: str) -> Any:
        commits = self._open("upload_folder", repo_id).commits
        files = {p.relative_to(folder_path).as_posix(): p.read_bytes() for p in folder_path.rglob("*") if p.is_file()}
        commits.append({".gitattributes": b""} | files)
        return SimpleNamespace(oid=name_commit(len(commits) - 1), commit_url=f"https://hub/{repo_id}")

    def list_repo_refs(self, name: str) -> Any:
        return SimpleNamespace(tags=[SimpleNamespace(name=tag) for tag in self._open("list_repo_refs", name).tags])

    def delete_tag(self, name: str, tag: str) -> None:
        del self._open("delete_tag", name).tags[tag]

    def create_tag(self, name: str, tag: str, revision: str) -> None:
        repository = self._open("create_tag", name)
        repository.tags[tag] = next(n for n in range(len(repository.commits)) if name_commit(n) == revision)


def name_commit(number: int) -> str:
    return hashlib.sha1(str(number).encode()).hexdigest()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """Releases are sent to it in place of the real one."""
    fake = FakeHub()

    def validate(card: ModelCard) -> None:
        if (error := fake.fail("validate")) or (faults := find_faults(card.content)):
            raise error or ValueError(", ".join(faults))

    with (
        mock.patch("pretrain.release.release.HfApi", return_value=fake),
        mock.patch.object(ModelCard, "validate", validate),
    ):
        yield fake
