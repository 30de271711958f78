"""Building an index, and changing it: answers are encoded once, and a change that is cut short leaves no trace."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically
from data_pipeline.core.progress import show_progress
from finetune.ranking.embedder import Embedder, fingerprint_bi_encoder, is_of_hub
from pretrain.modeling.default_model import name_installed, resolve_model

from .answers import Answer, Say
from .folder import (
    MANIFEST,
    VECTORS,
    WORDS,
    IndexPart,
    Manifest,
    check_part,
    expect_first_build,
    finish_part,
    lock_index,
    read_manifest,
    read_removed,
    start_part,
    write_manifest,
    write_removed,
)
from .nearest import GRAPH, MATRIX, map_matrix, write_graph
from .texts import TEXTS, find_ids, iterate_answers, map_parts, write_texts
from .words import write_words

STEP = 512  # answers that are encoded between two notes of how far it has come
PROGRESS = "progress.json"
ABSORBED = 2  # a part that has at most so many times the rows of a new one behind it becomes part of it


def describe_model(embedder: Embedder) -> dict[str, Any]:
    """What an index keeps of its bi-encoder."""
    return {
        "name": embedder.name,
        "place": name_installed(embedder.place),
        "fingerprint": fingerprint_bi_encoder(embedder.place),
        "dimension": int(embedder.embed_queries(["a"]).shape[1]),
        "similarity": embedder.similarity,
    }


def check_model(manifest: Manifest, model: str, folder: Path) -> None:
    """Raises KinspanError where a model is not the one that the index was built with."""
    if (fingerprint := fingerprint_bi_encoder(model)) != manifest.model["fingerprint"]:
        raise KinspanError(
            f"--model {name_installed(model)} ({fingerprint}) is not the bi-encoder of {folder}, which was built with "
            f"{manifest.model['name']} ({manifest.model['fingerprint']}): name that one, or build an index of its own"
        )


def find_model(manifest: Manifest, folder: Path) -> str:
    """Where the bi-encoder of an index is. Raises KinspanError where it was a folder that is no more there."""
    place = resolve_model(manifest.model["place"])
    if not is_of_hub(manifest.model["fingerprint"]) and not Path(place).is_dir():
        raise KinspanError(
            f"{folder}: its bi-encoder {manifest.model['name']} is not in {place}: say where it is, with --model"
        )
    return place


def build_index(
    folder: Path,
    embedder: Embedder,
    answers: Sequence[Answer],
    precision: str = "fp32",
    approximate: bool = False,
    say: Say = lambda note: None,
) -> Manifest:
    """Encodes the answers into a new index; the same call continues one that was cut short.

    precision: of the encoder, "fp32" or "bf16"; the vectors are kept in float16

    Raises KinspanError where the folder holds something else, or cannot be written.
    """
    settings = {"max_length": embedder.max_length, "precision": precision, "approximate": approximate}
    manifest = Manifest(describe_model(embedder), settings, _hash_answers(answers))
    with lock_index(folder):
        if (folder / MANIFEST).is_file():
            return _expect_same(folder, read_manifest(folder), manifest, say)
        expect_first_build(folder)
        part = _encode(folder, embedder, answers, manifest, say)
        manifest = replace(manifest, generation=1, parts=(part,))
        manifest = replace(manifest, words=_write_words(folder, manifest, np.zeros(0, dtype=np.int64)))
        write_manifest(folder, manifest)
    return manifest


def _expect_same(folder: Path, there: Manifest, wanted: Manifest, say: Say) -> Manifest:
    if there.source != wanted.source:
        raise KinspanError(
            f"--output_dir {folder} holds an index of other answers: add to it with --add, or choose another folder"
        )
    check_model(there, resolve_model(wanted.model["place"]), folder)
    for name, value in wanted.settings.items():
        if there.settings[name] != value:
            raise KinspanError(
                f"--output_dir {folder} holds an index with --{name} {there.settings[name]}, not {value}: choose "
                "another folder"
            )
    changed = there.generation > wanted.generation + 1
    say(f"{folder} is complete{', and was changed since: it is left as it is' if changed else ': nothing to do'}")
    return there


def add_answers(folder: Path, embedder: Embedder, answers: Sequence[Answer], say: Say = lambda note: None) -> Manifest:
    """Adds answers to an index. One whose id is there replaces the older one; one that is there as it is, is left.

    Only what is new is encoded. Words are counted anew, since the weight of each depends on all answers.

    Raises KinspanError where there is no index, or the bi-encoder is not its own.
    """
    with lock_index(folder):
        manifest = read_manifest(folder)
        check_model(manifest, embedder.place, folder)
        if embedder.max_length != (own := manifest.settings["max_length"]):
            raise KinspanError(f"--max_length {embedder.max_length}: {folder} was built with {own}")
        texts, removed = _map_texts(folder, manifest), read_removed(folder, manifest)
        rows = _find_rows(texts, (answer.id for answer in answers), removed)
        older = dict(zip(rows, iterate_answers(texts, rows), strict=True))
        same = set(older.values())
        new = [answer for answer in answers if answer not in same]
        ids = {answer.id for answer in new}
        replaced = [row for row, answer in older.items() if answer.id in ids]
        if same - {older[row] for row in replaced}:
            say(f"{len(older) - len(replaced):,} answers are there as they are: left")
        if not new:
            return manifest
        if replaced:
            say(f"{len(replaced):,} answers replace those with their ids")
        removed = np.union1d(removed, np.array(replaced, dtype=np.int64))
        manifest = replace(manifest, generation=manifest.generation + 1)
        part = _encode(folder, embedder, new, manifest, say)
        manifest, removed = _absorb(folder, manifest, part, removed)
        manifest = replace(manifest, removed=write_removed(folder, manifest.generation, removed))
        manifest = replace(manifest, words=_write_words(folder, manifest, removed))
        write_manifest(folder, manifest)
    return manifest


def remove_answers(folder: Path, ids: Sequence[str]) -> Manifest:
    """Removes answers by their ids. What they weigh in the counts of words stays until the next addition.

    Raises KinspanError, and removes none, where an id is not there, or no answer would be left.
    """
    with lock_index(folder):
        manifest = read_manifest(folder)
        rows = find_removable(folder, ids)
        removed = np.union1d(read_removed(folder, manifest), np.array(rows, dtype=np.int64))
        if len(removed) == manifest.rows:
            raise KinspanError(f"--remove: no answer would be left in {folder}; remove the folder instead")
        manifest = replace(manifest, generation=manifest.generation + 1)
        manifest = replace(manifest, removed=write_removed(folder, manifest.generation, removed))
        write_manifest(folder, manifest)
    return manifest


def find_removable(folder: Path, ids: Sequence[str]) -> list[int]:
    """The rows of these answers. Raises KinspanError where one is not there."""
    manifest = read_manifest(folder)
    texts = _map_texts(folder, manifest)
    rows = _find_rows(texts, ids, read_removed(folder, manifest))
    if len(rows) < len(set(ids)):
        there = {answer.id for answer in iterate_answers(texts, rows)}
        missing = next(name for name in ids if name not in there)
        raise KinspanError(f"--remove {missing}: no answer of {folder} has this id; none was removed")
    return rows


def _hash_answers(answers: Iterable[Answer]) -> str:
    """A hash of all fields. It is that of earlier versions, which had a title as the question if there was none."""
    digest = hashlib.sha256()
    for answer in answers:
        fields = [answer.id, answer.text, answer.question or answer.title, answer.url]
        digest.update(json.dumps([*fields, answer.title] if answer.question and answer.title else fields).encode())
    return digest.hexdigest()[:16]


def _encode(folder: Path, embedder: Embedder, answers: Sequence[Answer], manifest: Manifest, say: Say) -> IndexPart:
    """A part of these answers. Its folder's name has their hash and the change's number, so that it is found again."""
    made_of = json.dumps(
        [manifest.model["fingerprint"], manifest.settings, manifest.generation, _hash_answers(answers)]
    )
    path = folder / f"{VECTORS}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
    size = (len(answers), manifest.model["dimension"])
    done, cut = _read_progress(path, size)
    if not done:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        write_texts(path / TEXTS, answers)
    matrix = np.lib.format.open_memmap(path / MATRIX, "r+" if done else "w+", np.float16, size)
    with (path / MATRIX).open("r+b") as file:  # a full disk is an error here, and a signal that kills in the mapping
        os.posix_fallocate(file.fileno(), 0, (path / MATRIX).stat().st_size)
    say(f"encoding {len(answers) - done:,} answers")
    with show_progress("encoding", "answers", total=len(answers), initial=done) as bar:
        for first in range(done, len(answers), STEP):
            texts = [answer.text for answer in answers[first : first + STEP]]
            cut += embedder.count_cut(texts)
            vectors = embedder.embed_answers(texts, manifest.settings["precision"], bar.update)
            matrix[first : first + len(texts)] = _to_half(embedder, vectors)
            matrix.flush()
            write_atomically(path / PROGRESS, json.dumps({"rows": first + len(texts), "cut": cut}))
    if cut:
        say(
            f"{cut:,} of {len(answers):,} answers are longer than {embedder.max_length} tokens: the bi-encoder "
            "reads their beginnings alone. BM25 reads them in full (kinspan search --first_stage fusion uses both); or "
            "split them into passages before you index them"
        )
    return _finish(path, manifest, len(answers))


def _to_half(embedder: Embedder, vectors: np.ndarray) -> np.ndarray:
    if np.abs(vectors).max() > np.finfo(np.float16).max:
        raise KinspanError(f"--model {embedder.place}: its vectors are too large for float16")
    return vectors.astype(np.float16)


def _read_progress(path: Path, size: tuple[int, int]) -> tuple[int, int]:
    """How many answers have their vectors there, and how many of these are cut; 0 where it cannot be gone on with."""
    try:
        progress = json.loads((path / PROGRESS).read_text())
        rows, cut = progress["rows"], progress["cut"]
        whole = map_matrix(path / MATRIX).shape == size and len(map_parts([path])) == size[0]
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0
    return (rows, cut) if whole and isinstance(rows, int) and 0 <= rows <= size[0] else (0, 0)


def _finish(path: Path, manifest: Manifest, rows: int) -> IndexPart:
    """Makes a part of a folder that has its answers and vectors."""
    names = [TEXTS, MATRIX]
    if manifest.settings["approximate"]:
        names.append(GRAPH)
        with show_progress("linking", "vectors", total=rows) as bar:
            write_graph(path / GRAPH, map_matrix(path / MATRIX), bar.update)
    return finish_part(path, rows, names)


def _absorb(folder: Path, manifest: Manifest, new: IndexPart, removed: np.ndarray) -> tuple[Manifest, np.ndarray]:
    """The manifest with a new part, and the removed rows by their new numbers.

    The last parts become part of the new one where they are not much larger: n additions leave about log n parts.
    """
    starts = list(accumulate((part.rows for part in manifest.parts), initial=0))
    first, rows = len(manifest.parts), new.rows
    while first and manifest.parts[first - 1].rows <= ABSORBED * rows:
        first -= 1
        rows += manifest.parts[first].rows
    if first == len(manifest.parts):
        return replace(manifest, parts=(*manifest.parts, new)), removed
    joined = (*manifest.parts[first:], new)
    places = [folder / part.name for part in joined]
    kept = np.setdiff1d(np.arange(sum(part.rows for part in joined)), removed - starts[first])
    path = start_part(folder, VECTORS, manifest.generation)
    write_texts(path / TEXTS, iterate_answers(map_parts(places), kept.tolist()))
    np.save(path / MATRIX, np.concatenate([map_matrix(place / MATRIX) for place in places])[kept])
    part = _finish(path, manifest, len(kept))
    return replace(manifest, parts=(*manifest.parts[:first], part)), removed[removed < starts[first]]


def _write_words(folder: Path, manifest: Manifest, removed: np.ndarray) -> IndexPart:
    texts = _map_texts(folder, manifest).column("text").to_pylist()
    rows = np.setdiff1d(np.arange(manifest.rows), removed)
    path = start_part(folder, WORDS, manifest.generation)
    write_words(path, [texts[row] for row in rows], rows)
    return finish_part(path, len(rows))


def _map_texts(folder: Path, manifest: Manifest) -> pa.Table:
    """All answers of an index, whose files were found whole."""
    return map_parts(check_part(folder, part) for part in manifest.parts)


def _find_rows(texts: pa.Table, ids: Iterable[str], removed: np.ndarray) -> list[int]:
    """The rows of answers that have one of these ids and were not removed, in ascending order."""
    return np.setdiff1d(find_ids(texts, ids), removed).astype(np.int64).tolist()
