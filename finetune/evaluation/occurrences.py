"""Finds where sentences and their n-grams of words occur in a corpus, by hashes, while the corpus streams by."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from data_pipeline.core.executors import map_chunks
from data_pipeline.core.progress import show_progress
from data_pipeline.corpus import Corpus, Shard
from data_pipeline.matching import Needles, make_sentences, split_words, undo_treebank
from data_pipeline.prepare.encode import normalise
from data_pipeline.remote.cache import CacheSettings
from data_pipeline.tokenizers import load_tokenizer, serialize_backend

PIECE_PARAGRAPHS = 2048  # paragraphs that are searched at a time: a few megabytes

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
    wanted = make_sentences(_split_as_corpus(texts, tokenizer))
    needles = wanted.needles
    strings, grams = np.full(len(needles.strings), -1), np.full(len(needles.grams), -1)
    total = sum(s.paragraphs for s in corpus.manifest.shards)
    with show_progress("searching", "paragraphs", total=total, quiet=quiet) as bar:
        for size, *found in map_chunks(
            _Searcher, (tokenizer, corpus.place, corpus.cache, needles), _cut_pieces(corpus), num_workers
        ):
            for first, (numbers, documents) in zip((strings, grams), found, strict=True):
                new = first[numbers] < 0
                first[numbers[new]] = documents[new]
            bar.update(size)
    document = np.full(len(texts), -1)
    document[wanted.judged] = strings[wanted.string_of]
    return Occurrences(wanted.judged, document, wanted.row_of, grams[wanted.gram_of])


def _split_as_corpus(texts: Sequence[str], tokenizer_json: str) -> list[list[str]]:
    """Returns the words of each text, ``[N]``, as they would stand in the corpus."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True
    texts = [normalise(undo_treebank(text)) for text in texts]
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [split_words(text) for text in tokenizer.decode_batch([e.ids for e in encoded], skip_special_tokens=False)]


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

    def __init__(self, tokenizer_json: str, place: str | Path, cache: CacheSettings, needles: Needles) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each worker has one thread
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.corpus = Corpus(place, verify=False, cache=cache)
        self.needles = needles

    def __call__(self, piece: _Piece) -> tuple[int, Hits, Hits]:
        """Returns how many paragraphs were searched, and which strings and n-grams occur in them."""
        shard = self.corpus.shard(piece.shard)
        words = split_words("\n".join(self._decode(shard, piece)))
        in_paragraphs = np.arange(piece.start, piece.end)
        documents = np.searchsorted(shard.document_starts, in_paragraphs, side="right") - 1 + piece.documents
        hits = (self.needles.find_strings(words), self.needles.find_grams(words))
        strings, grams = (_keep_first(numbers, documents[paragraphs]) for numbers, paragraphs in hits)
        return piece.end - piece.start, strings, grams

    def _decode(self, shard: Shard, piece: _Piece) -> list[str]:
        sentences = shard.paragraph_starts[piece.start : piece.end + 1]
        starts = shard.sentence_starts[sentences]
        tokens = shard.tokens[starts[0] : starts[-1]].tolist()
        starts = (starts - starts[0]).tolist()
        return self.tokenizer.decode_batch([tokens[a:b] for a, b in pairwise(starts)], skip_special_tokens=False)


def _keep_first(numbers: np.ndarray, documents: np.ndarray) -> Hits:
    """Returns each number once, with the document in which it comes first."""
    distinct, first = np.unique(numbers, return_index=True)
    return distinct, documents[first]
