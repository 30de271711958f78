"""Questions and candidates as token ids, tokenised once, and any of their pairs as a packed batch."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import PreTrainedTokenizerBase

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.progress import show_progress
from data_pipeline.sampling.packing import MIN_TEXT_TOKENS, PackedRow, copy_runs, cut_longest_first, lay_out
from data_pipeline.tokenizers import PairTemplate, fingerprint_tokenizer, read_template
from finetune.data.answers import AnswerSet, resolve_pairs

log = logging.getLogger(__name__)

CHUNK = 50_000  # texts that are tokenised at once
CACHED_SETS = 8  # maximum number of sets of texts whose token ids are cached for the next stage or seed
_cache: dict[str, "TokenizedTexts"] = {}


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts without special tokens: text k is ``ids[starts[k] : starts[k] + lengths[k]]``, equal ones stored once."""

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


def tokenise(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> TokenizedTexts:
    """Returns the token ids of texts, not truncated."""
    tokens = tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True)["input_ids"] if texts else []
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    ids = np.fromiter(chain.from_iterable(tokens), np.int32, int(lengths.sum()))
    return TokenizedTexts(ids, np.cumsum(lengths) - lengths, lengths)


def tokenise_once(tokenizer: PreTrainedTokenizerBase, texts: pa.LargeStringArray, title: str) -> TokenizedTexts:
    """Returns the token ids of texts, not truncated; those of the last sets of texts are cached."""
    encoded = texts.dictionary_encode()  # InsuranceQA's 27,000 answers occur in millions of pairs
    added = sorted(tokenizer.get_added_vocab().items())
    digest = hashlib.sha256(f"{fingerprint_tokenizer(tokenizer)} {added}".encode())
    chunks = [encoded.dictionary.slice(first, CHUNK) for first in range(0, len(encoded.dictionary), CHUNK)]
    for chunk in chunks:
        digest.update(repr(chunk.to_pylist()).encode("utf-8", "surrogatepass"))
    digest.update(encoded.indices.to_numpy().tobytes())
    if (key := digest.hexdigest()) not in _cache:
        bar = show_progress(f"tokenising {title}", "chunks", chunks, quiet=len(chunks) < 2, leave=False)
        parts = [tokenise(tokenizer, []), *(tokenise(tokenizer, chunk.to_pylist()) for chunk in bar)]
        lengths, which = np.concatenate([part.lengths for part in parts]), encoded.indices.to_numpy()
        starts = np.cumsum(lengths) - lengths
        while len(_cache) >= CACHED_SETS:
            del _cache[next(iter(_cache))]
        _cache[key] = TokenizedTexts(np.concatenate([part.ids for part in parts]), starts[which], lengths[which])
    return _cache[key]


@dataclass(frozen=True)
class EncodedPairs:
    """The tokenised pairs of an AnswerSet: those of its rows, and any question with any candidate by pair number.

    lengths: ``[N]`` number of tokens of each row's pair after truncation, special tokens included
    """

    questions: TokenizedTexts
    answers: TokenizedTexts
    question_of: np.ndarray
    template: PairTemplate
    max_length: int
    lengths: np.ndarray

    def pack(self, pairs: np.ndarray, device: torch.device) -> dict[str, Any]:
        """Returns pairs, given rows or pair numbers, as the inputs of pretrain.modeling.encoder.encode_packed."""
        question_rows, answers = resolve_pairs(pairs, self.question_of)
        lengths = self._cut(question_rows, answers)
        row = lay_out(self.template, lengths)
        sides = (self.questions, question_rows), (self.answers, answers)
        for (side, which), start, length in zip(sides, row.text_starts, lengths, strict=True):
            copy_runs(row.ids, start, side.ids, side.starts[which], length)
        return move_row(row, device)

    def measure(self, pairs: np.ndarray) -> np.ndarray:
        """Returns the number of tokens of each pair after truncation, given rows or pair numbers."""
        a, b = self._cut(*resolve_pairs(pairs, self.question_of))
        return a + b + self.template.num_special

    def _cut(self, question_rows: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        full = self.questions.lengths[question_rows], self.answers.lengths[answers]
        return cut_longest_first(full, self.max_length - self.template.num_special)

    def find_cut(self) -> np.ndarray:
        """Returns which rows' pairs are truncated, ``[N]`` bool."""
        full = self.questions.lengths[self.question_of] + self.answers.lengths + self.template.num_special
        return full > self.lengths


@dataclass(frozen=True)
class EncodedTexts:
    """Tokenised texts.

    texts:   token ids, not truncated and without special tokens
    lengths: ``[n]`` number of tokens of each text after truncation, special tokens included
    """

    texts: TokenizedTexts
    template: PairTemplate
    lengths: np.ndarray

    def pack(self, numbers: np.ndarray, device: torch.device) -> dict[str, Any]:
        """Returns these texts, one after another, as the inputs of pretrain.modeling.encoder.encode_packed."""
        lengths = self.lengths[numbers] - self.template.num_special
        row = lay_out(self.template, (lengths,))
        copy_runs(row.ids, row.text_starts[0], self.texts.ids, self.texts.starts[numbers], lengths)
        return move_row(row, device)


def move_row(row: PackedRow, device: torch.device) -> dict[str, Any]:
    """Returns a packed row as the inputs of pretrain.modeling.encoder.encode_packed."""
    arrays = {"input_ids": row.ids, "token_type_ids": row.types, "position_ids": row.positions, "starts": row.starts}
    tensors = {name: torch.from_numpy(a).to(device, non_blocking=True) for name, a in arrays.items()}
    return {**tensors, "max_length": int(np.diff(row.starts).max())}


def group_by_length(lengths: np.ndarray, batch_tokens: int, rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yields batches of examples of similar length; padded to the longest, a batch has at most ``batch_tokens``."""
    rows = rows[np.argsort(-lengths[rows], kind="stable")]
    first = 0
    while first < len(rows):
        size = max(1, batch_tokens // int(lengths[rows[first]]))
        yield rows[first : first + size]
        first += size


def log_cut(data: AnswerSet, cut: np.ndarray, max_length: int) -> None:
    """Logs how many pairs are truncated or have a truncated text, by the mask ``cut``, ``[N]`` bool."""
    if cut.any():
        counts = int(cut.sum()), len(cut), int(data.labels[cut].sum()), max_length
        log.info("%s %s: %d of %d pairs, %d of them right, are truncated to %s tokens", data.name, data.split, *counts)


def encode_pairs(data: AnswerSet, tokenizer: PreTrainedTokenizerBase, max_length: int) -> EncodedPairs:
    """Encodes all pairs.

    Their ids equal ``tokenizer([question], [candidate], truncation="longest_first", max_length=max_length,
    split_special_tokens=True)``: a text that says ``[SEP]`` injects none. An empty candidate keeps both its
    separators, as in CrossEncoder.
    """
    template = read_template(tokenizer)
    if max_length < template.num_special + MIN_TEXT_TOKENS:
        raise KinspanError(f"--max_length {max_length} is too short for two texts")
    name = f"{data.name} {data.split}"
    questions = tokenise_once(tokenizer, pa.array(data.questions, pa.large_string()), f"{name}: questions")
    answers = tokenise_once(tokenizer, data.answers, f"{name}: candidates")
    question_of = data.question_of
    a, b = cut_longest_first((questions.lengths[question_of], answers.lengths), max_length - template.num_special)
    return EncodedPairs(questions, answers, question_of, template, max_length, a + b + template.num_special)
