"""Texts as token ids: small sets in memory, large ones in a file that all ranks, stages and seeds map into memory.

A large set is tokenised once. The first process to ask for it writes the file, in the user's cache, while others wait.
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import hash_file, read_object, sync
from data_pipeline.core.progress import show_progress
from data_pipeline.tokenizers import fingerprint_tokenizer
from data_pipeline.verification import find_cache, verify_once

CHUNK = 50_000  # texts that are tokenised at once
LARGE = 200_000  # from so many texts on, they are tokenised once for all; TREC-QA's 53,000 take seconds
ARRAYS, HASHES = ("ids", "starts", "lengths"), "hashes.json"


@dataclass(frozen=True)
class TokenizedTexts:
    """n texts without special tokens: text k is ``ids[starts[k] : starts[k] + lengths[k]]``; equal texts stand once."""

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


def tokenise_texts(tokenizer: Any, texts: pa.LargeStringArray, what: str) -> TokenizedTexts:
    """Returns the ids of the texts, mapped from a file where there are many.

    The file depends on the texts and the tokenizer alone: it holds whole texts, so that ``max_length`` may differ.
    Where it cannot be written, the ids stay in memory.

    what: the texts, for the progress bar
    """
    if len(texts) < LARGE:
        return _tokenise(tokenizer, texts, what)
    try:
        folder = find_cache() / _choose_name(tokenizer, texts)
    except RuntimeError:
        tqdm.write(f"no home directory: each process tokenises {what} for itself; XDG_CACHE_HOME may name a folder")
        return _tokenise(tokenizer, texts, what)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return _map(folder, len(texts)) or _tokenise_into(folder, tokenizer, texts, what)
    except OSError as error:
        tqdm.write(f"{folder} cannot be written ({error.strerror}): each process tokenises {what} for itself")
        return _tokenise(tokenizer, texts, what)


def _choose_name(tokenizer: Any, texts: pa.LargeStringArray) -> str:
    """Names the file by all that the ids depend on."""
    added = json.dumps(tokenizer.get_added_vocab(), sort_keys=True)
    digest = hashlib.sha256(f"{fingerprint_tokenizer(tokenizer)} {added}".encode())
    encoded = texts.dictionary_encode()  # hashing InsuranceQA's pairs takes ten times as long
    for first in range(0, len(encoded.dictionary), CHUNK):
        digest.update(json.dumps(encoded.dictionary.slice(first, CHUNK).to_pylist()).encode())
    digest.update(encoded.indices.to_numpy().tobytes())
    return f"token-ids-{digest.hexdigest()[:16]}"


def _map(folder: Path, count: int) -> TokenizedTexts | None:
    """Maps the files of so many texts into memory; None where they are not there, or damaged."""
    paths = {name: folder / f"{name}.npy" for name in ARRAYS}
    try:
        hashes = read_object(folder / HASHES, "")
        for name, path in paths.items():
            verify_once(path, hashes[name], partial(_check_hash, path, hashes[name]))
        ids, starts, lengths = (np.asarray(np.load(path, mmap_mode="r")) for path in paths.values())
    except (OSError, ValueError, EOFError, KeyError, KinspanError):
        return None
    if not len(starts) == len(lengths) == count or (starts + lengths).max(initial=0) > len(ids):
        return None
    return TokenizedTexts(ids, starts, lengths)


def _check_hash(path: Path, expected: str) -> None:
    """Raises ValueError for a file with another hash."""
    if hash_file(path) != expected:
        raise ValueError(f"{path} is damaged")


def _tokenise_into(folder: Path, tokenizer: Any, texts: pa.LargeStringArray, what: str) -> TokenizedTexts:
    """Writes the files, chunk by chunk, and maps them. They are whole or absent: the folder is renamed last.

    Its name until then is this machine's and process's own, since a lock may not hold across machines.
    """
    own = f"{folder.name}.{socket.gethostname()}-"
    for left in folder.parent.glob(f"{own}*.tmp"):  # of killed processes: those of this machine wait for the lock
        shutil.rmtree(left, ignore_errors=True)
    unfinished = folder.with_name(f"{own}{os.getpid()}.tmp")
    unfinished.mkdir()
    try:
        with (unfinished / "ids").open("wb") as file:
            sizes, which = _tokenise_chunks(tokenizer, texts, what, lambda ids: file.write(ids.tobytes()))
        _write_arrays(unfinished, sizes, which)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.replace(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    found = _map(folder, len(texts))
    assert found is not None
    return found


def _write_arrays(folder: Path, sizes: np.ndarray, which: np.ndarray) -> None:
    starts = np.cumsum(sizes) - sizes
    np.save(folder / "starts.npy", starts[which])
    np.save(folder / "lengths.npy", sizes[which])
    ids = np.memmap(folder / "ids", dtype=np.int32, mode="r") if sizes.sum() else np.zeros(0, dtype=np.int32)
    np.save(folder / "ids.npy", ids)
    (folder / "ids").unlink()
    hashes = {name: hash_file(folder / f"{name}.npy") for name in ARRAYS}
    (folder / HASHES).write_text(json.dumps(hashes))
    for path in (*folder.iterdir(), folder):
        sync(path)


def _tokenise(tokenizer: Any, texts: pa.LargeStringArray, what: str) -> TokenizedTexts:
    parts = [np.zeros(0, dtype=np.int32)]
    sizes, which = _tokenise_chunks(tokenizer, texts, what, parts.append)
    starts = np.cumsum(sizes) - sizes
    return TokenizedTexts(np.concatenate(parts), starts[which], sizes[which])


def _tokenise_chunks(
    tokenizer: Any, texts: pa.LargeStringArray, what: str, keep: Callable[[np.ndarray], Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Gives ``keep`` the ids of the distinct texts in turn; returns their lengths, and which of them each text is."""
    encoded = texts.dictionary_encode()  # InsuranceQA's 27,000 answers stand in millions of pairs
    lengths = [np.zeros(0, dtype=np.int64)]
    for chunk in _iterate_chunks(encoded.dictionary, what):
        ids = tokenizer(chunk, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        lengths.append(np.fromiter(map(len, ids), np.int64, len(chunk)))
        keep(np.fromiter((token for text in ids for token in text), np.int32, int(lengths[-1].sum())))
    return np.concatenate(lengths), encoded.indices.to_numpy()


def _iterate_chunks(texts: pa.LargeStringArray, what: str) -> Iterator[list[str]]:
    quick = len(texts) <= CHUNK
    with show_progress(f"tokenising {what}", "texts", total=len(texts), quiet=quick, leave=False) as bar:
        for first in range(0, len(texts), CHUNK):
            yield texts.slice(first, CHUNK).to_pylist()
            bar.update(min(CHUNK, len(texts) - first))
