"""Finds the documents that contain a text of a test set.

A document contains a text of 8 words or more if at least 70% of the text's word 8-grams occur in it. It contains a
shorter one if a paragraph, an answer, all of a post or its id is just that, but for case, accents and punctuation.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path

import numpy as np

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.matching import count_chars, fold_words, split_words, undo_treebank

from .readers.compression import COMPRESSED_SUFFIXES, open_decompressed

FORMATS = (".txt", ".tsv", ".jsonl")
MORE_CHARS = 50  # of punctuation that a paragraph may have beside a short text
NGRAM = 8  # words
MIN_LETTERS = 16  # of a text that is looked for by its n-grams
THRESHOLD = 0.7  # the share of its n-grams that makes a text known (Chowdhery et al., 2022, "PaLM", section 8)
_END = 1  # the word id of a paragraph's end; 0 is that of any word that is in no text

# The hash of a window is the sum of its words' ids, each times an odd 64-bit number, modulo 2^64.
_MULTIPLIERS = np.random.default_rng(13).integers(2**62, 2**63, NGRAM, dtype=np.uint64) | np.uint64(1)


class Benchmark:
    """Looks for N texts in documents, by hashes of their M n-grams of words. Its memory is independent of documents."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.sentences = sorted(set(sentences))
        split = [split_words(undo_treebank(sentence)) for sentence in self.sentences]
        is_long = np.array([len(w) >= NGRAM and count_chars("".join(w)) >= MIN_LETTERS for w in split], bool)  # [N]
        short = [self.sentences[row] for row in np.flatnonzero(~is_long)]
        self._short = {words: sentence for sentence in short if (words := fold_words(sentence))}
        self._max_chars = max(map(len, short), default=-MORE_CHARS) + MORE_CHARS
        kept = [split[row] for row in np.flatnonzero(is_long)]
        vocabulary = sorted({word for text in kept for word in text})
        drawn = np.random.default_rng(8).integers(2, 2**63, len(vocabulary))
        self._word_ids = dict(zip(vocabulary, drawn.tolist(), strict=True)) | {"\n": _END}
        hashes = [_hash_words(self._get_word_ids(text)) for text in kept]
        row_of = np.repeat(np.flatnonzero(is_long), [len(h) for h in hashes])  # [M]
        flat = np.concatenate([np.empty(0, dtype=np.uint64), *hashes])
        self._grams, gram_of = np.unique(flat, return_inverse=True)  # hashes, ascending; the index of each of the M
        bits = max(16, len(self._grams).bit_length() + 4)
        self._shift = np.uint64(64 - bits)
        self._table = np.zeros(2**bits, dtype=bool)  # by the first bits of a hash, which rule out most others quickly
        self._table[self._grams >> self._shift] = True
        self.num_grams = np.bincount(row_of, minlength=len(self.sentences))  # [N], n-grams per sentence
        order = np.argsort(gram_of, kind="stable")
        self._rows = row_of[order]  # sentences by n-gram: _rows[_starts[k] : _starts[k + 1]] have n-gram k
        self._starts = np.searchsorted(gram_of[order], np.arange(len(self._grams) + 1))

    def _get_word_ids(self, words: list[str]) -> np.ndarray:
        return np.fromiter(map(self._word_ids.get, words, repeat(0)), dtype=np.uint64, count=len(words))

    def find(self, documents: Sequence[Sequence[str]]) -> dict[int, str]:
        """Returns, by document index, a text that the document contains. A document is a list of paragraphs."""
        paragraphs = [paragraph for document in documents for paragraph in document]
        document_of = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
        words = split_words("\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs))
        word_ids = self._get_word_ids(words)
        positions, grams = self._find_hashes(_hash_words(word_ids))
        in_paragraph = np.searchsorted(np.flatnonzero(word_ids == _END), positions)
        row_of = self._find_by_grams(document_of[in_paragraph], grams)
        found = {document: self.sentences[row] for document, row in row_of.items()}
        for document, paragraph in zip(document_of.tolist(), paragraphs, strict=True):
            if len(paragraph) <= self._max_chars and (short := self._short.get(fold_words(paragraph))):
                found.setdefault(document, short)
        return dict(sorted(found.items()))

    def _find_hashes(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions of ``hashes`` that are in ``_grams``, and the index there of each."""
        positions = np.flatnonzero(self._table[hashes >> self._shift])
        indices = np.searchsorted(self._grams, hashes[positions])
        found = self._grams[np.minimum(indices, len(self._grams) - 1)] == hashes[positions]
        return positions[found], indices[found]

    def _find_by_grams(self, documents: np.ndarray, grams: np.ndarray) -> dict[int, int]:
        """Returns, by document index, the index of a sentence of which the document has enough n-grams."""
        if not len(grams):
            return {}
        documents, grams = np.unique(np.stack([documents, grams]), axis=1)
        lengths = self._starts[grams + 1] - self._starts[grams]
        # The index ranges _starts[gram] .. _starts[gram + 1] of all grams, one after another.
        entries = np.repeat(self._starts[grams] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        candidates = np.stack([np.repeat(documents, lengths), self._rows[entries]])
        pairs, num_found = np.unique(candidates, axis=1, return_counts=True)
        return dict(pairs.T[num_found >= THRESHOLD * self.num_grams[pairs[1]]].tolist())

    def fingerprint(self) -> str:
        """Returns a hash of the texts."""
        return hashlib.sha256("\n".join(self.sentences).encode("utf-8", "replace")).hexdigest()


def _hash_words(word_ids: np.ndarray) -> np.ndarray:
    """Returns a hash of each window of NGRAM words."""
    windows = max(0, len(word_ids) - NGRAM + 1)
    hashes = np.zeros(windows, dtype=np.uint64)
    for k in range(NGRAM):
        hashes += word_ids[k : k + windows] * _MULTIPLIERS[k]
    return hashes


def read_benchmark(name: str) -> list[str]:
    """Reads the sentences of a file: its lines (.txt), its cells (.tsv), or all texts of its JSON objects (.jsonl).

    Only texts of 8 words or more are returned: others may be ids and labels. Raises KinspanError if the file cannot be
    read, or has none.
    """
    path = Path(name)
    suffix = (Path(path.stem) if path.suffix in COMPRESSED_SUFFIXES else path).suffix
    if suffix not in FORMATS:
        raise KinspanError(f"--decontaminate {name}: must be {', '.join(FORMATS)}, or a data set as in wikiqa=FOLDER")
    sentences: list[str] = []
    try:
        with open_decompressed(path) as file:
            for text in (content.decode("utf-8-sig").strip() for content in file):
                cells = text.split("\t" if suffix == ".tsv" else "\n")
                sentences += _list_texts(json.loads(text) if suffix == ".jsonl" and text else cells)
    except (OSError, ValueError, RecursionError, EOFError) as error:
        raise KinspanError(f"--decontaminate {name} cannot be read: {quote_error(error)}") from error
    if not (long := [sentence for sentence in sentences if len(split_words(undo_treebank(sentence))) >= NGRAM]):
        raise KinspanError(f"--decontaminate {name}: it has no sentence of 8 words or more")
    return long


def _list_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(inner)
