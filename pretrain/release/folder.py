"""The folder of a release: it appears complete, replaces nothing but an older release, and is readable by everyone."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from transformers.utils import cached_file
from transformers.utils.hub import extract_commit_hash

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import hash_file
from data_pipeline.core.hub import ABSENT

FACTS = "kinspan.json"  # the facts of a release; a folder without it is not a release
CARD = "README.md"
FINGERPRINTED_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model")
IGNORED_FILES = {"data_config.json", FACTS, "ranker.json", "train_script.json"}  # say how a model was trained


@contextmanager
def replace_release(output: Path) -> Iterator[Path]:
    """Yields the path of a folder that the block creates and fills, and that then replaces ``output``."""
    output = output.resolve()  # a symbolic link stays, and its target is replaced
    partial, former = (output.with_name(f".{output.name}.{name}") for name in ("tmp", "former"))
    _tidy(output, partial, former)
    if output.exists() and not (output / FACTS).exists() and (not output.is_dir() or any(output.iterdir())):
        raise KinspanError(f"--output_dir {output} holds something that is not a release: choose another folder")
    try:
        with refuse_unwritable(output):
            yield partial
            _set_modes(partial)
            if output.exists():
                shutil.move(output, former)  # a container's layer refuses to rename it
            partial.rename(output)
    finally:
        _tidy(output, partial, former)


def _tidy(output: Path, partial: Path, former: Path) -> None:
    """Puts the former release back unless a new one has taken its place, and removes what is left."""
    if former.exists() and not output.exists():
        former.rename(output)
    for folder in (partial, former):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def refuse_unwritable(folder: Path) -> Iterator[None]:
    """Raises KinspanError if the block cannot write a model to ``folder``, as when the disk is full."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError | SafetensorError) and type(error) is not Exception:  # a tokenizer raises that
            raise
        raise KinspanError(f"{folder} cannot be written: {quote_error(error)}") from error


def copy_model(source: str | Path, target: Path, ignore: Callable[..., Iterable[str]] | None = None) -> None:
    """Copies a folder, which may be read-only, into a release. ``ignore``: as of shutil.copytree"""
    shutil.copytree(source, target, ignore=ignore)
    _set_modes(target)


def _set_modes(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):  # readable by everyone, whatever the umask
        path.chmod(0o755 if path.is_dir() else 0o644)


def fingerprint_model(name_or_dir: str, ignored: Collection[str] = ()) -> str:
    """Returns a hash of all files of a folder that determine a model's scores: weights, tokenizer, modules, configs.

    For a hub model it is the name and commit. Raises KinspanError if there is no such model.
    ignored: names of further files and folders that do not count
    """
    folder = Path(name_or_dir)
    if not folder.is_dir():
        return f"{name_or_dir}@{_find_commit(name_or_dir)}"
    digest = hashlib.sha256()
    for path in sorted(Path(root) / name for root, _, names in os.walk(folder, followlinks=True) for name in names):
        place = path.relative_to(folder)
        if path.suffix in FINGERPRINTED_SUFFIXES and IGNORED_FILES.union(ignored).isdisjoint(place.parts):
            digest.update(str(place).encode() + bytes.fromhex(hash_file(path)))
    return digest.hexdigest()[:16]


def _find_commit(name: str) -> str:
    for file in ("modules.json", "config.json"):
        try:
            commit = extract_commit_hash(cached_file(name, file, **ABSENT), None)
        except (OSError, ValueError) as error:
            raise KinspanError(f"no model at {name}: {quote_error(error)}") from error
        if commit:
            return commit
    raise KinspanError(f"no model at {name}: neither a folder nor a name on the hub that answers")


def write_max_length(folder: Path, max_length: int) -> None:
    """Sets what a release's tokenizer does: it truncates texts, and gives the types of B's tokens, as in training."""
    path, config = folder / "tokenizer_config.json", folder / "config.json"
    settings = {**json.loads(path.read_text(encoding="utf-8")), "model_max_length": max_length}
    if config.is_file() and json.loads(config.read_text(encoding="utf-8")).get("type_vocab_size", 0) > 1:
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]  # not all classes give types
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def set_ranking_length(folder: Path, max_length: int) -> None:
    """Sets the maximum length of a release in its tokenizer, its facts and its card's code."""
    facts, card = json.loads((folder / FACTS).read_text(encoding="utf-8")), folder / CARD
    write_max_length(folder, max_length)
    text = card.read_text(encoding="utf-8")
    card.write_text(text.replace(f"max_length={facts.get('max_length')}", f"max_length={max_length}"), encoding="utf-8")
    (folder / FACTS).write_text(json.dumps({**facts, "max_length": max_length}, indent=1) + "\n", encoding="utf-8")
