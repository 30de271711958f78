"""Where sentences, and their n-grams of words, occur in a corpus: the corpus is streamed past hashes of them."""

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from data_pipeline.corpus import Corpus, Shard
from data_pipeline.executors import local
from data_pipeline.prepare.encode import normalise
from data_pipeline.tokenizers import backend_for_corpus, load_tokenizer

NGRAM = 8  # words
ANCHOR = 16  # bytes by which an occurrence of a sentence is noticed, before it is compared whole
PARAGRAPHS = 2048  # searched at a time: a few megabytes

_WORD_OR_END = re.compile(r"[^\W_]+|\n")
_BRACKETS = re.compile(r"-[LR][RCS]B-")  # as the Penn Treebank writes ( ) { } [ ]
_END = 1  # the end of a paragraph among the numbers of words; words of the corpus alone have 0

# Odd multipliers of 64 bits make hashes of windows, modulo 2^64, from those of their halves or words.
_MULTIPLIERS = np.random.default_rng(13).integers(2**62, 2**63, ANCHOR, dtype=np.uint64) | np.uint64(1)

Hits = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Occurrences:
    """What occurs of N sentences, that have M n-grams. A document is its number in the corpus, -1 stands for none.

    judged:         ``[N]`` bool, those of NGRAM words or more
    document:       ``[N]`` the first document that has the sentence
    ngram_row:      ``[M]`` ascending, the sentence that has the n-gram; those not judged have none
    ngram_document: ``[M]`` the first document that has the n-gram
    """

    judged: np.ndarray
    document: np.ndarray
    ngram_row: np.ndarray
    ngram_document: np.ndarray


def find_occurrences(texts: Sequence[str], corpus: Corpus, num_workers: int = 1, quiet: bool = False) -> Occurrences:
    """Looks for ``texts`` in all of ``corpus``, held-out documents too, in ``num_workers`` processes.

    Memory goes by the texts. They go through the corpus's tokenizer first, which may drop accents or characters: what
    it loses is lost on both sides. Raises KinspanError where a shard is missing or damaged.
    """
    tokenizer = backend_for_corpus(load_tokenizer(str(corpus.folder / "tokenizer")))
    sentences = _as_in_corpus(texts, tokenizer)
    judged = np.array([len(words) >= NGRAM and len("".join(words)) >= ANCHOR for words in sentences], dtype=bool)
    needles, string_of, gram_of, row_of = _needles(sentences, judged)
    strings, grams = np.full(len(needles.strings), -1), np.full(len(needles.grams), -1)
    total = sum(s.paragraphs for s in corpus.manifest.shards)
    with tqdm(total=total, desc="searching", unit=" paragraphs", mininterval=1.0, disable=quiet or None) as bar:
        for size, *found in local(_Searcher, (tokenizer, str(corpus.folder), needles), _pieces(corpus), num_workers):
            for first, (numbers, documents) in zip((strings, grams), found, strict=True):
                new = first[numbers] < 0
                first[numbers[new]] = documents[new]
            bar.update(size)
    document = np.full(len(texts), -1)
    document[judged] = strings[string_of]
    return Occurrences(judged, document, row_of, grams[gram_of])


def _as_in_corpus(texts: Sequence[str], tokenizer_json: str) -> list[list[str]]:
    """``[N]``: the words of each text, as they would stand in the corpus."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True
    texts = [normalise(_BRACKETS.sub(" ", text).replace(" n't", "n't")) for text in texts]
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [_words(text) for text in tokenizer.decode_batch([e.ids for e in encoded], skip_special_tokens=False)]


def _words(text: str) -> list[str]:
    """Runs of letters and digits in lower case; a line end, which ends a paragraph, is a word of its own."""
    return _WORD_OR_END.findall(unicodedata.normalize("NFKC", text).lower())


class _Known:
    """Hashes to look for among many: a table of their first bits passes over most of the others."""

    def __init__(self, hashes: np.ndarray) -> None:
        self.sorted = np.unique(hashes)
        bits = max(16, len(self.sorted).bit_length() + 4)
        self.shift = np.uint64(64 - bits)
        self.table = np.zeros(2**bits, dtype=bool)
        self.table[self.sorted >> self.shift] = True

    def __len__(self) -> int:
        return len(self.sorted)

    def find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where ``hashes`` holds known ones, and which: two arrays alike in length."""
        at = np.flatnonzero(self.table[hashes >> self.shift])
        which = np.searchsorted(self.sorted, hashes[at])
        same = self.sorted[np.minimum(which, len(self.sorted) - 1)] == hashes[at]
        return at[same], which[same]


@dataclass(frozen=True)
class _Needles:
    """What to look for.

    strings: distinct sentences without white space, in UTF-8
    anchors: hashes of their first bytes
    anchored: of each anchor, the numbers of the strings that begin with it
    numbers: of each word that they have, a random number of 64 bits
    grams:   hashes of their n-grams
    """

    strings: list[bytes]
    anchors: _Known
    anchored: list[list[int]]
    numbers: dict[str, int]
    grams: _Known


def _needles(sentences: list[list[str]], judged: np.ndarray) -> tuple[_Needles, np.ndarray, np.ndarray, np.ndarray]:
    """What to look for, the string of each judged row, and the n-grams of all judged rows with their rows."""
    kept = [words for words, keep in zip(sentences, judged, strict=True) if keep]
    joined = ["".join(words).encode() for words in kept]
    strings = sorted(set(joined))
    place = {string: k for k, string in enumerate(strings)}
    of_string = np.array([_hash_bytes(np.frombuffer(s[:ANCHOR], dtype=np.uint8))[0] for s in strings], dtype=np.uint64)
    anchors = _Known(of_string)
    anchored: list[list[int]] = [[] for _ in range(len(anchors))]
    for k, anchor in enumerate(np.searchsorted(anchors.sorted, of_string)):
        anchored[anchor].append(k)
    vocabulary = sorted({word for words in kept for word in words})
    drawn = np.random.default_rng(8).integers(2, 2**63, len(vocabulary))
    numbers = dict(zip(vocabulary, drawn.tolist(), strict=True)) | {"\n": _END}
    hashes = [_hash_words(_numbers(words, numbers)) for words in kept]
    rows = np.repeat(np.flatnonzero(judged), [len(h) for h in hashes])
    flat = np.concatenate([np.empty(0, dtype=np.uint64), *hashes])
    grams = _Known(flat)
    needles = _Needles(strings, anchors, anchored, numbers, grams)
    return needles, np.array([place[s] for s in joined], dtype=np.int64), np.searchsorted(grams.sorted, flat), rows


def _numbers(words: list[str], numbers: dict[str, int]) -> np.ndarray:
    return np.fromiter(map(numbers.get, words, repeat(0)), dtype=np.uint64, count=len(words))


def _hash_words(numbers: np.ndarray) -> np.ndarray:
    """Of each window of NGRAM words, a hash of their numbers."""
    windows = max(0, len(numbers) - NGRAM + 1)
    hashes = np.zeros(windows, dtype=np.uint64)
    for k in range(NGRAM):
        hashes += numbers[k : k + windows] * _MULTIPLIERS[k]
    return hashes


def _hash_bytes(text: np.ndarray) -> np.ndarray:
    """Of each window of ANCHOR bytes, a hash: of one of w bytes are made those of 2w."""
    hashes, width = text.astype(np.uint64), 1
    while width < ANCHOR:
        hashes = hashes[:-width] * _MULTIPLIERS[width] + hashes[width:]
        width *= 2
    return hashes


@dataclass(frozen=True)
class _Piece:
    """Paragraphs of a shard to search; ``documents`` are in the shards before it."""

    shard: int
    start: int
    end: int
    documents: int


def _pieces(corpus: Corpus) -> Iterator[_Piece]:
    documents = 0
    for number, info in enumerate(corpus.manifest.shards):
        corpus.shard(number)  # its hash is checked here, once, and not by the workers
        for start in range(0, info.paragraphs, PARAGRAPHS):
            yield _Piece(number, start, min(start + PARAGRAPHS, info.paragraphs), documents)
        documents += info.documents


class _Searcher:
    """Searches pieces; lives in a worker."""

    def __init__(self, tokenizer_json: str, folder: str, needles: _Needles) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread a worker
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.corpus = Corpus(folder, verify=False)
        self.needles = needles

    def __call__(self, piece: _Piece) -> tuple[int, Hits, Hits]:
        """How many paragraphs, and of the strings and the n-grams that occur the numbers and the first documents."""
        shard = self.corpus.shard(piece.shard)
        words = _words("\n".join(self._texts(shard, piece)))
        in_paragraphs = np.arange(piece.start, piece.end)
        documents = np.searchsorted(shard.document_starts, in_paragraphs, side="right") - 1 + piece.documents
        return piece.end - piece.start, self._strings(words, documents), self._grams(words, documents)

    def _texts(self, shard: Shard, piece: _Piece) -> list[str]:
        sentences = shard.paragraph_starts[piece.start : piece.end + 1]
        starts = shard.sentence_starts[sentences]
        tokens = shard.tokens[starts[0] : starts[-1]].tolist()
        starts = (starts - starts[0]).tolist()
        return self.tokenizer.decode_batch([tokens[a:b] for a, b in pairwise(starts)], skip_special_tokens=False)

    def _strings(self, words: list[str], documents: np.ndarray) -> Hits:
        text = "".join(words).encode()
        letters = np.frombuffer(text, dtype=np.uint8)
        at, which = self.needles.anchors.find(_hash_bytes(letters))
        found = [
            (number, place)
            for place, anchor in zip(at.tolist(), which.tolist(), strict=True)
            for number in self.needles.anchored[anchor]
            if text.startswith(self.needles.strings[number], place)
        ]
        numbers, places = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return _first(numbers, documents[np.searchsorted(np.flatnonzero(letters == ord("\n")), places)])

    def _grams(self, words: list[str], documents: np.ndarray) -> Hits:
        numbers = _numbers(words, self.needles.numbers)
        at, which = self.needles.grams.find(_hash_words(numbers))
        return _first(which, documents[np.searchsorted(np.flatnonzero(numbers == _END), at)])


def _first(numbers: np.ndarray, documents: np.ndarray) -> Hits:
    """Each number once, with the document that it comes first with."""
    distinct, first = np.unique(numbers, return_index=True)
    return distinct, documents[first]
