"""Builds an index, and brings it up to date: texts are encoded once, and an interrupted change leaves it as it was."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_pipeline.core.default_model import name_installed, resolve_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically
from data_pipeline.core.progress import show_progress
from finetune.evaluation.bm25 import choose_language
from finetune.ranking.embedder import Embedder, fingerprint_bi_encoder

from .answers import Answer
from .folder import MANIFEST, BiEncoderFacts, IndexSettings, Manifest, list_files, lock_index, write_manifest
from .index import MATRIX, TEXTS, WORDS, Index, iterate_answers, map_texts, write_texts, write_words

logger = logging.getLogger(__name__)

SAMPLE = 100  # texts that are checked for tokens unknown to the model
STEP = 128  # answers that are encoded before progress is saved
PROGRESS = "progress.json"


def find_model(manifest: Manifest, folder: Path, model: str | None = None) -> str:
    """Returns the folder or hub name of an index's bi-encoder. ``model``: --model, for a folder that has moved"""
    location = model or resolve_model(manifest.model["place"])
    built = f"{folder} was built with {manifest.model['name']}"
    is_on_hub = "@" in manifest.model["fingerprint"]  # which ends with the commit
    if not model and not is_on_hub and not Path(location).is_dir():
        raise KinspanError(f"--model: {built}, which is not in {location}")
    if fingerprint_bi_encoder(location) != manifest.model["fingerprint"]:
        raise KinspanError(f"--model {name_installed(location)}: {built}")
    return location


def build_index(
    folder: Path, embedder: Embedder, answers: Sequence[Answer], precision: str = "fp32", language: str | None = None
) -> Manifest:
    """Makes an index hold these answers and no others; encodes new texts only. The same call resumes if interrupted."""
    model = BiEncoderFacts(
        name=embedder.name,
        place=name_installed(embedder.place),
        fingerprint=fingerprint_bi_encoder(embedder.place),
        dimension=embedder.embed_queries(["a"]).shape[1],
        similarity=embedder.similarity,
    )
    stems = choose_language(language, [answer.text for answer in answers])
    settings = IndexSettings(max_length=embedder.max_length, precision=precision, language=stems)
    wanted = Manifest(model, settings, _name_data(model, settings, answers), len(answers))
    for note in embedder.note_unknown([answer.text for answer in answers[:: len(answers) // SAMPLE + 1]]):
        logger.warning(note)
    with lock_index(folder):
        if not (folder / MANIFEST).is_file():
            return _write(folder, wanted, None, answers, embedder)
        index = Index(folder)
        find_model(index.manifest, folder, embedder.place)  # raises if the bi-encoder is another
        if {**index.manifest.settings, "language": stems} != settings:
            raise KinspanError(f"--output_dir {folder} was built with other settings: {index.manifest.settings}")
        if index.manifest.data == wanted.data:
            logger.info("%s holds these answers already: nothing to do", folder)
            return index.manifest
        before = {answer.id: answer for answer in iterate_answers(index.texts)}
        same = sum(before.get(answer.id) == answer for answer in answers)
        changed = sum(answer.id in before for answer in answers) - same
        counts = len(answers) - same - changed, changed, len(before) - same - changed, same
        logger.info("%s: %d answers added, %d changed, %d removed, %d unchanged", folder, *counts)
        return _write(folder, wanted, index, answers, embedder)


def _name_data(model: BiEncoderFacts, settings: IndexSettings, answers: Iterable[Answer]) -> str:
    """Returns the name of the data folder, by which an interrupted build is found again."""
    digest = hashlib.sha256(json.dumps([model["fingerprint"], settings]).encode())
    for answer in answers:
        digest.update(json.dumps(answer).encode())
    return f"data-{digest.hexdigest()[:16]}"


def _write(
    folder: Path, manifest: Manifest, index: Index | None, answers: Sequence[Answer], embedder: Embedder
) -> Manifest:
    """Writes the answers to a data folder, with vectors of ``index`` where it has their texts, and the manifest."""
    data, size = folder / manifest.data, (len(answers), manifest.model["dimension"])
    num_encoded, num_cut = _read_progress(data, size)
    if not num_encoded:
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        write_texts(data / TEXTS, answers)
    texts = map_texts(data / TEXTS).column("text")
    known = pc.index_in(texts, value_set=index.texts.column("text")) if index else pa.nulls(len(texts), pa.int32())
    new = pc.indices_nonzero(known.is_null()).to_numpy()
    matrix = np.lib.format.open_memmap(data / MATRIX, "r+" if num_encoded else "w+", np.float16, size)
    with (data / MATRIX).open("r+b") as file:  # on a full disk this raises; writing to the mapping would be a SIGBUS
        os.posix_fallocate(file.fileno(), 0, (data / MATRIX).stat().st_size)
    if index:
        matrix[np.setdiff1d(np.arange(len(answers)), new)] = index.matrix[known.drop_null().to_numpy()]
    with show_progress("encoding", "answers", total=len(new), initial=num_encoded) as bar:
        for first in range(num_encoded, len(new), STEP):
            rows = new[first : first + STEP]
            batch = [answers[row].text for row in rows]
            num_cut += int(embedder.find_cut(batch).sum())
            vectors = embedder.embed_answers(batch, manifest.settings["precision"])
            if np.abs(vectors).max() > np.finfo(np.float16).max:
                raise KinspanError(f"--model {embedder.place}: its vectors are too large for float16")
            matrix[rows] = vectors
            bar.update(len(batch))
            matrix.flush()
            write_atomically(data / PROGRESS, json.dumps({"rows": first + len(batch), "cut": num_cut}))
    if num_cut:
        logger.warning("%d of %d answers are truncated to %d tokens", num_cut, len(new), embedder.max_length)
    matrix.flush()
    shutil.rmtree(data / WORDS, ignore_errors=True)
    write_words(data / WORDS, texts.to_pylist(), manifest.settings["language"])
    manifest = replace(manifest, files=list_files(data, PROGRESS))
    write_manifest(folder, manifest)
    return manifest


def _read_progress(data: Path, size: tuple[int, int]) -> tuple[int, int]:
    """Returns the number of answers encoded so far, and of those truncated; zeros if the build cannot be resumed."""
    try:
        progress = json.loads((data / PROGRESS).read_text())
        fits = np.load(data / MATRIX, mmap_mode="r").shape == size and len(map_texts(data / TEXTS)) == size[0]
        return (progress["rows"], progress["cut"]) if fits else (0, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0
