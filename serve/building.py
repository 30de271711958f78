"""Builds an index and changes it: answers are encoded once, and an interrupted change leaves the index as it was."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from data_pipeline.core.default_model import name_installed, resolve_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically
from data_pipeline.core.progress import show_progress
from finetune.ranking.embedder import Embedder, fingerprint_bi_encoder, is_hub_fingerprint

from .answers import Answer
from .folder import (
    MANIFEST,
    BiEncoderFacts,
    IndexSettings,
    Manifest,
    list_files,
    lock_index,
    read_manifest,
    write_manifest,
)
from .index import (
    GRAPH,
    MATRIX,
    TEXTS,
    WORDS,
    Index,
    find_ids,
    iterate_answers,
    make_graph,
    map_matrix,
    map_texts,
    write_graph,
    write_texts,
    write_words,
)

logger = logging.getLogger(__name__)

STEP = 512  # answers that are encoded before progress is saved
PROGRESS = "progress.json"


def find_model(manifest: Manifest, folder: Path, model: str | None = None) -> str:
    """Returns the folder or hub name of an index's bi-encoder. ``model``: --model, for a folder that has moved"""
    location = model or resolve_model(manifest.model["place"])
    built = f"{folder} was built with {manifest.model['name']}"
    if not model and not is_hub_fingerprint(manifest.model["fingerprint"]) and not Path(location).is_dir():
        raise KinspanError(f"--model: {built}, which is not in {location}")
    if fingerprint_bi_encoder(location) != manifest.model["fingerprint"]:
        raise KinspanError(f"--model {name_installed(location)}: {built}")
    return location


def build_index(
    folder: Path, embedder: Embedder, answers: Sequence[Answer], precision: str = "fp32", approximate: bool = False
) -> Manifest:
    """Encodes the answers into a new index; the same call resumes an interrupted one."""
    model = BiEncoderFacts(
        name=embedder.name,
        place=name_installed(embedder.place),
        fingerprint=fingerprint_bi_encoder(embedder.place),
        dimension=embedder.embed_queries(["a"]).shape[1],
        similarity=embedder.similarity,
    )
    settings = IndexSettings(max_length=embedder.max_length, precision=precision, approximate=approximate)
    wanted = Manifest(model, settings, _hash_answers(answers))
    if approximate:
        make_graph(1)  # raises before the encoding if usearch is not installed
    with lock_index(folder):
        if not (folder / MANIFEST).is_file():
            return _write(folder, wanted, None, [], answers, embedder)
        manifest = read_manifest(folder)
        find_model(manifest, folder, embedder.place)  # raises if the bi-encoder is another
        if manifest.source != wanted.source:
            raise KinspanError(f"--output_dir {folder} holds an index of other answers: give --add, or another folder")
        if manifest.settings != settings:
            raise KinspanError(f"--output_dir {folder} was built with other settings: {manifest.settings}")
        logger.info("%s is complete: nothing to do", folder)
        return manifest


def add_answers(folder: Path, embedder: Embedder, answers: Sequence[Answer]) -> Manifest:
    """Adds answers to an index, where they replace those with the same ids. Only new or changed answers are encoded."""
    with lock_index(folder):
        index = Index(folder)
        find_model(index.manifest, folder, embedder.place)  # raises if the bi-encoder is another
        if embedder.max_length != (max_length := index.manifest.settings["max_length"]):
            raise KinspanError(f"--max_length {embedder.max_length}: {folder} was built with {max_length}")
        rows = find_ids(index.texts, (answer.id for answer in answers))
        current = dict(zip(rows, iterate_answers(index.texts, rows), strict=True))
        unchanged = set(current.values())
        new = [answer for answer in answers if answer not in unchanged]
        ids = {answer.id for answer in new}
        replaced = [row for row, answer in current.items() if answer.id in ids]
        counts = len(new) - len(replaced), len(replaced), len(current) - len(replaced)
        logger.info("answers: %d new, %d replaced, %d unchanged", *counts)
        kept = np.setdiff1d(np.arange(len(index)), replaced).tolist()
        return _write(folder, index.manifest, index, kept, new, embedder) if new else index.manifest


def remove_answers(folder: Path, ids: Sequence[str]) -> Manifest:
    """Removes answers by their ids. Raises KinspanError for an unknown id, or if no answer would be left."""
    with lock_index(folder):
        index = Index(folder)
        kept = np.setdiff1d(np.arange(len(index)), find_removable(index, ids)).tolist()
        if not kept:
            raise KinspanError(f"--remove: no answer would be left in {folder}")
        return _write(folder, index.manifest, index, kept, [], None)


def find_removable(index: Index, ids: Sequence[str]) -> list[int]:
    """Returns the rows of these answers. Raises KinspanError for an unknown id."""
    rows = find_ids(index.texts, ids)
    if missing := set(ids) - {answer.id for answer in iterate_answers(index.texts, rows)}:
        raise KinspanError(f"--remove {min(missing)}: no answer of {index.folder} has this id")
    return rows


def _hash_answers(answers: Iterable[Answer]) -> str:
    digest = hashlib.sha256()
    for answer in answers:
        digest.update(json.dumps(answer).encode())
    return digest.hexdigest()[:16]


def _write(
    folder: Path,
    manifest: Manifest,
    index: Index | None,
    kept: list[int],
    new: Sequence[Answer],
    embedder: Embedder | None,
) -> Manifest:
    """Writes the kept rows of ``index`` and the new answers to a data folder, and the manifest.

    The folder's name is a hash of its inputs and of the previous name, so that an interrupted build can be resumed.
    """
    inputs = [manifest.model["fingerprint"], manifest.settings, manifest.data, kept, _hash_answers(new)]
    name = f"data-{hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]}"
    data, rows = folder / name, len(kept) + len(new)
    size = (rows, manifest.model["dimension"])
    num_encoded, num_cut = _read_progress(data, size)
    if not num_encoded:
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        write_texts(data / TEXTS, chain(iterate_answers(index.texts, kept) if index else (), new))
    matrix = np.lib.format.open_memmap(data / MATRIX, "r+" if num_encoded else "w+", np.float16, size)
    with (data / MATRIX).open("r+b") as file:  # on a full disk this raises; writing to the mapping would be a SIGBUS
        os.posix_fallocate(file.fileno(), 0, (data / MATRIX).stat().st_size)
    if index:
        matrix[: len(kept)] = index.matrix[kept]
    if embedder:
        _encode(data, embedder, new, matrix, manifest.settings["precision"], num_encoded, num_cut)
    matrix.flush()
    if manifest.settings["approximate"]:
        with show_progress("linking", "vectors", total=rows) as bar:
            write_graph(data / GRAPH, map_matrix(data / MATRIX), bar.update)
    shutil.rmtree(data / WORDS, ignore_errors=True)
    write_words(data / WORDS, map_texts(data / TEXTS).column("text").to_pylist())
    manifest = replace(manifest, data=name, rows=rows, files=list_files(data, PROGRESS))
    write_manifest(folder, manifest)
    return manifest


def _encode(
    data: Path, embedder: Embedder, answers: Sequence[Answer], matrix: np.memmap, precision: str, start: int, cut: int
) -> None:
    """Encodes ``answers[start:]`` into the last rows of ``matrix``. ``cut``: number truncated before ``start``"""
    with show_progress("encoding", "answers", total=len(answers), initial=start) as bar:
        for first in range(start, len(answers), STEP):
            texts = [answer.text for answer in answers[first : first + STEP]]
            cut += int(embedder.find_cut(texts).sum())
            vectors = embedder.embed_answers(texts, precision)
            if np.abs(vectors).max() > np.finfo(np.float16).max:
                raise KinspanError(f"--model {embedder.place}: its vectors are too large for float16")
            row = len(matrix) - len(answers) + first
            matrix[row : row + len(texts)] = vectors
            bar.update(len(texts))
            matrix.flush()
            write_atomically(data / PROGRESS, json.dumps({"rows": first + len(texts), "cut": cut}))
    if cut:
        logger.warning("%d of %d answers are truncated to %d tokens", cut, len(answers), embedder.max_length)


def _read_progress(data: Path, size: tuple[int, int]) -> tuple[int, int]:
    """Returns the number of answers encoded so far, and of those truncated; zeros if the build cannot be resumed."""
    try:
        progress = json.loads((data / PROGRESS).read_text())
        fits = map_matrix(data / MATRIX).shape == size and len(map_texts(data / TEXTS)) == size[0]
        return (progress["rows"], progress["cut"]) if fits else (0, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0
