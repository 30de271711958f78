"""Finds where sentences and their n-grams of words occur in a corpus, by hashes, while the corpus streams by."""

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from data_pipeline.corpus import Corpus, Shard
from data_pipeline.executors import map_chunks
from data_pipeline.prepare.encode import normalise
from data_pipeline.remote.cache import CacheSettings
from data_pipeline.tokenizers import load_tokenizer, serialize_backend

NGRAM = 8  # words
PREFIX = 16  # bytes by which an occurrence of a sentence is noticed before the sentence is compared whole
PIECE_PARAGRAPHS = 2048  # paragraphs that are searched at a time: a few megabytes

_WORD_OR_END = re.compile(r"[^\W_]+|\n")
_BRACKETS = re.compile(r"-[LR][RCS]B-")  # the Penn Treebank's ( ) { } [ ]
_END = 1  # among the numbers of words, the end of a paragraph; 0 is any word that no sentence has

# The hash of a window is the sum of its parts' hashes, each times an odd number of 64 bits, modulo 2^64.
_MULTIPLIERS = np.random.default_rng(13).integers(2**62, 2**63, PREFIX, dtype=np.uint64) | np.uint64(1)

Hits = tuple[np.ndarray, np.ndarray]  # numbers of what occurs, and the first document of each


@dataclass(frozen=True)
class Occurrences:
    """Which of N sentences, and of their M n-grams, occur. Documents are numbers in the corpus; -1 stands for none.

    judged:         ``[N]`` bool, whether the sentence has NGRAM words or more
    document:       ``[N]`` the first document that has the sentence
    ngram_row:      ``[M]`` ascending, the sentence that the n-gram is from; a sentence that is not judged has none
    ngram_document: ``[M]`` the first document that has the n-gram
    """

    judged: np.ndarray
    document: np.ndarray
    ngram_row: np.ndarray
    ngram_document: np.ndarray


def find_occurrences(texts: Sequence[str], corpus: Corpus, num_workers: int = 1, quiet: bool = False) -> Occurrences:
    """Looks for ``texts`` in all of ``corpus``, held-out documents too, in ``num_workers`` processes.

    Memory grows with the texts, not with the corpus. The texts first go through the corpus's tokenizer, which may drop
    accents or characters, so that both sides have lost the same. Raises KinspanError where a shard is missing or
    damaged.
    """
    tokenizer = serialize_backend(load_tokenizer(corpus.tokenizer_folder))
    sentences = _split_as_corpus(texts, tokenizer)
    judged = np.array([len(words) >= NGRAM and len("".join(words)) >= PREFIX for words in sentences], dtype=bool)
    needles, string_of, gram_of, row_of = _make_needles(sentences, judged)
    strings, grams = np.full(len(needles.strings), -1), np.full(len(needles.grams), -1)
    total = sum(s.paragraphs for s in corpus.manifest.shards)
    with tqdm(total=total, desc="searching", unit=" paragraphs", mininterval=1.0, disable=quiet or None) as bar:
        for size, *found in map_chunks(
            _Searcher, (tokenizer, corpus.place, corpus.cache, needles), _cut_pieces(corpus), num_workers
        ):
            for first, (numbers, documents) in zip((strings, grams), found, strict=True):
                new = first[numbers] < 0
                first[numbers[new]] = documents[new]
            bar.update(size)
    document = np.full(len(texts), -1)
    document[judged] = strings[string_of]
    return Occurrences(judged, document, row_of, grams[gram_of])


def _split_as_corpus(texts: Sequence[str], tokenizer_json: str) -> list[list[str]]:
    """Returns the words of each text, ``[N]``, as they would stand in the corpus."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True
    texts = [normalise(_BRACKETS.sub(" ", text).replace(" n't", "n't")) for text in texts]
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [_split_words(text) for text in tokenizer.decode_batch([e.ids for e in encoded], skip_special_tokens=False)]


def _split_words(text: str) -> list[str]:
    """Returns runs of letters and digits in lower case; a line end, which ends a paragraph, is a word of its own."""
    return _WORD_OR_END.findall(unicodedata.normalize("NFKC", text).lower())


class _Known:
    """Hashes to look for among many others, most of which a table of first bits rules out."""

    def __init__(self, hashes: np.ndarray) -> None:
        self.sorted = np.unique(hashes)
        bits = max(16, len(self.sorted).bit_length() + 4)
        self.shift = np.uint64(64 - bits)
        self.table = np.zeros(2**bits, dtype=bool)
        self.table[self.sorted >> self.shift] = True

    def __len__(self) -> int:
        return len(self.sorted)

    def find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the places where ``hashes`` holds known ones, and the number of the known one at each place."""
        at = np.flatnonzero(self.table[hashes >> self.shift])
        which = np.searchsorted(self.sorted, hashes[at])
        same = self.sorted[np.minimum(which, len(self.sorted) - 1)] == hashes[at]
        return at[same], which[same]


@dataclass(frozen=True)
class _Needles:
    """What to look for.

    strings:   distinct sentences without white space, in UTF-8
    prefixes:  hashes of their first bytes
    beginning: for each prefix, the numbers of the strings that begin with it
    numbers:   for each of their words, a random number of 64 bits
    grams:     hashes of their n-grams
    """

    strings: list[bytes]
    prefixes: _Known
    beginning: list[list[int]]
    numbers: dict[str, int]
    grams: _Known


def _make_needles(
    sentences: list[list[str]], judged: np.ndarray
) -> tuple[_Needles, np.ndarray, np.ndarray, np.ndarray]:
    """Returns what to look for, the string of each judged row, and the n-grams of all judged rows with their rows."""
    kept = [words for words, keep in zip(sentences, judged, strict=True) if keep]
    joined = ["".join(words).encode() for words in kept]
    strings = sorted(set(joined))
    place = {string: k for k, string in enumerate(strings)}
    of_string = np.array([_hash_bytes(np.frombuffer(s[:PREFIX], dtype=np.uint8))[0] for s in strings], dtype=np.uint64)
    prefixes = _Known(of_string)
    beginning: list[list[int]] = [[] for _ in range(len(prefixes))]
    for k, prefix in enumerate(np.searchsorted(prefixes.sorted, of_string)):
        beginning[prefix].append(k)
    vocabulary = sorted({word for words in kept for word in words})
    drawn = np.random.default_rng(8).integers(2, 2**63, len(vocabulary))
    numbers = dict(zip(vocabulary, drawn.tolist(), strict=True)) | {"\n": _END}
    hashes = [_hash_words(_number_words(words, numbers)) for words in kept]
    rows = np.repeat(np.flatnonzero(judged), [len(h) for h in hashes])
    flat = np.concatenate([np.empty(0, dtype=np.uint64), *hashes])
    grams = _Known(flat)
    needles = _Needles(strings, prefixes, beginning, numbers, grams)
    return needles, np.array([place[s] for s in joined], dtype=np.int64), np.searchsorted(grams.sorted, flat), rows


def _number_words(words: list[str], numbers: dict[str, int]) -> np.ndarray:
    return np.fromiter(map(numbers.get, words, repeat(0)), dtype=np.uint64, count=len(words))


def _hash_words(numbers: np.ndarray) -> np.ndarray:
    """Returns a hash of the numbers of each window of NGRAM words."""
    windows = max(0, len(numbers) - NGRAM + 1)
    hashes = np.zeros(windows, dtype=np.uint64)
    for k in range(NGRAM):
        hashes += numbers[k : k + windows] * _MULTIPLIERS[k]
    return hashes


def _hash_bytes(text: np.ndarray) -> np.ndarray:
    """Returns a hash of each window of PREFIX bytes; hashes of w bytes are combined to hashes of 2w bytes."""
    hashes, width = text.astype(np.uint64), 1
    while width < PREFIX:
        hashes = hashes[:-width] * _MULTIPLIERS[width] + hashes[width:]
        width *= 2
    return hashes


@dataclass(frozen=True)
class _Piece:
    """Paragraphs of a shard to search; ``documents`` is how many documents the shards before it have."""

    shard: int
    start: int
    end: int
    documents: int


def _cut_pieces(corpus: Corpus) -> Iterator[_Piece]:
    documents = 0
    for number, info in enumerate(corpus.manifest.shards):
        corpus.shard(number)  # checks its hash here, once, so that the workers need not
        for start in range(0, info.paragraphs, PIECE_PARAGRAPHS):
            yield _Piece(number, start, min(start + PIECE_PARAGRAPHS, info.paragraphs), documents)
        documents += info.documents


class _Searcher:
    """Searches pieces of the corpus in a worker process."""

    def __init__(self, tokenizer_json: str, place: str | Path, cache: CacheSettings, needles: _Needles) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each worker has one thread
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.corpus = Corpus(place, verify=False, cache=cache)
        self.needles = needles

    def __call__(self, piece: _Piece) -> tuple[int, Hits, Hits]:
        """Returns how many paragraphs were searched, and which strings and n-grams occur in them."""
        shard = self.corpus.shard(piece.shard)
        words = _split_words("\n".join(self._decode(shard, piece)))
        in_paragraphs = np.arange(piece.start, piece.end)
        documents = np.searchsorted(shard.document_starts, in_paragraphs, side="right") - 1 + piece.documents
        return piece.end - piece.start, self._find_strings(words, documents), self._find_grams(words, documents)

    def _decode(self, shard: Shard, piece: _Piece) -> list[str]:
        sentences = shard.paragraph_starts[piece.start : piece.end + 1]
        starts = shard.sentence_starts[sentences]
        tokens = shard.tokens[starts[0] : starts[-1]].tolist()
        starts = (starts - starts[0]).tolist()
        return self.tokenizer.decode_batch([tokens[a:b] for a, b in pairwise(starts)], skip_special_tokens=False)

    def _find_strings(self, words: list[str], documents: np.ndarray) -> Hits:
        text = "".join(words).encode()
        letters = np.frombuffer(text, dtype=np.uint8)
        at, which = self.needles.prefixes.find(_hash_bytes(letters))
        found = [
            (number, place)
            for place, prefix in zip(at.tolist(), which.tolist(), strict=True)
            for number in self.needles.beginning[prefix]
            if text.startswith(self.needles.strings[number], place)
        ]
        numbers, places = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return _keep_first(numbers, documents[np.searchsorted(np.flatnonzero(letters == ord("\n")), places)])

    def _find_grams(self, words: list[str], documents: np.ndarray) -> Hits:
        numbers = _number_words(words, self.needles.numbers)
        at, which = self.needles.grams.find(_hash_words(numbers))
        return _keep_first(which, documents[np.searchsorted(np.flatnonzero(numbers == _END), at)])


def _keep_first(numbers: np.ndarray, documents: np.ndarray) -> Hits:
    """Returns each number once, with the document in which it comes first."""
    distinct, first = np.unique(numbers, return_index=True)
    return distinct, documents[first]
