"""Loads tokenizers as a corpus needs them: they encode sentence by sentence and find no special tokens in text.

A corpus stores the ids that a sentence has inside running text, so that the ids of a span are those of its sentences,
one after another. Two settings make that true: byte-level BPE gets a leading space (``add_prefix_space``), and the
tokenizer adds no special tokens and neither truncates nor pads.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import pre_tokenizers
from tokenizers.decoders import ByteLevel
from tokenizers.models import Unigram

from data_pipeline.core.default_model import name_installed
from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.hub import expect_hub

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MANY_UNKNOWN = 0.01  # share of tokens that is worth a note; English has a few in ten thousand, from rare characters
MIN_ENTRIES = 100
LOWEST = -1e4  # a score that no cut of a text into pieces chooses
MIN_MARKED = 0.01  # share of a vocabulary's tokens that have its mark of word boundaries
# Scripts without spaces: Thai to Burmese, Khmer, kana, Chinese characters
UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
BYTE_80 = "\u0122"  # what byte-level BPE writes for the lowest byte that continues a character
TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model")  # every tokenizer has at least one of these


def load_tokenizer(name_or_dir: str) -> "PreTrainedTokenizerBase":
    """Loads a fast ``transformers`` tokenizer by its hub name or folder, set to give the ids that a corpus holds."""
    tokenizer = load_tokenizer_as_it_is(name_or_dir)
    if "ByteLevel" in json.dumps(_extract_parts(tokenizer)["pre_tokenizer"]):
        tokenizer = load_tokenizer_as_it_is(name_or_dir, add_prefix_space=True)
        if isinstance(split := tokenizer.backend_tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
            split.add_prefix_space = True  # not all classes do as they are told
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def load_tokenizer_as_it_is(name_or_dir: str, **options: bool) -> "PreTrainedTokenizerBase":
    """Loads a fast ``transformers`` tokenizer by its hub name or folder, with its own truncation and padding.

    options: passed to ``from_pretrained``
    """
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    expect_hub(name_or_dir)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_dir, trust_remote_code=False, **options)
    except Exception as error:  # the hub, a missing file, broken JSON: to the user they are the same
        _check_files(name_or_dir)
        raise KinspanError(f"no tokenizer at {name_or_dir}: {quote_error(error)}") from error
    if not tokenizer.is_fast:
        raise KinspanError(f"tokenizer {name_or_dir} has no fast implementation; give one with a tokenizer.json")
    check_vocabulary(tokenizer, name_or_dir)
    if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None:
        raise KinspanError(f"tokenizer {name_or_dir} has no first and separator tokens: give that of an encoder")
    if not all(map(len, read_template(tokenizer).special[:2])):
        raise KinspanError(f"tokenizer {name_or_dir} puts no special tokens before and between two texts")
    _keep_special_tokens_out(tokenizer)
    return tokenizer


def _keep_special_tokens_out(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Lowers the scores of special tokens in a Unigram vocabulary, so that text which spells one is cut otherwise."""
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    names, backend = " ".join(tokenizer.all_special_tokens), tokenizer.backend_tokenizer
    spelled = tokenizer(names, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    if isinstance(backend.model, Unigram) and not special.isdisjoint(spelled):
        model = json.loads(backend.to_str())["model"]
        vocab = [(piece, LOWEST if index in special else score) for index, (piece, score) in enumerate(model["vocab"])]
        backend.model = Unigram(vocab, model["unk_id"], model["byte_fallback"])


def check_vocabulary(tokenizer: "PreTrainedTokenizerBase", name_or_dir: str) -> None:
    """Refuses a tokenizer of special tokens only, such as ``transformers`` makes for a folder without a tokenizer."""
    if len(tokenizer) <= MIN_ENTRIES:
        _check_files(name_or_dir)
        raise KinspanError(f"tokenizer {name_or_dir} has {len(tokenizer)} entries: give that of an encoder")


def _check_files(name_or_dir: str) -> None:
    folder = Path(name_or_dir)
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise KinspanError(f"{name_or_dir} has no tokenizer.json: copy the model's tokenizer into that folder")


def _extract_parts(tokenizer: "PreTrainedTokenizerBase") -> dict:
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    model = {k: v for k, v in spec["model"].items() if k in ("type", "vocab", "merges", "unk_token")}
    added = [[t["id"], t["content"]] for t in spec["added_tokens"] if not t["special"]]
    return {k: spec[k] for k in ("normalizer", "pre_tokenizer")} | {"model": model, "added_tokens": added}


def fingerprint_tokenizer(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Returns a SHA-256 of all that decides a corpus's ids: equal for BERT and ELECTRA, not for cased and uncased."""
    return hashlib.sha256(json.dumps(_extract_parts(tokenizer), sort_keys=True).encode()).hexdigest()


def shorten_name(name_or_dir: str) -> str:
    """Shortens a name for display: a hub name stays, ``path/to/wikiqa/seed-1/best`` becomes ``wikiqa/seed-1``."""
    name_or_dir = name_installed(name_or_dir)
    path = Path(name_or_dir)
    if not path.is_dir():
        return name_or_dir
    path = path.resolve()
    if path.name in ("model", "tokenizer", "best"):
        path = path.parent
    return f"{path.parent.name}/{path.name}" if path.name.startswith("seed-") else path.name


def note_unknown(unknown: int, tokens: int) -> list[str]:
    """Returns a note if many of a number of tokens are unknown to their tokenizer."""
    share = unknown / max(tokens, 1)
    note = f"{share:.1%} of the tokens are unknown to the tokenizer: choose a model of this language"
    return [note] if share >= MANY_UNKNOWN else []


@dataclass(frozen=True)
class PairTemplate:
    """Joins texts to one example: special tokens, a text, special tokens, a text, special tokens.

    It is read off the tokenizer itself, so that every family joins in its own way (``[CLS] A [SEP] B [SEP]``,
    ``<s> A </s></s> B </s>``).

    special: the special tokens before the first text, and those after each text: one array more than texts
    types:   the token type of each text and of the special tokens after it; those before the first text have its type
    """

    special: tuple[np.ndarray, ...]
    types: tuple[int, ...]

    @property
    def num_texts(self) -> int:
        return len(self.types)

    @property
    def num_special(self) -> int:
        return sum(map(len, self.special))


def read_template(tokenizer: "PreTrainedTokenizerBase", alone: bool = False) -> PairTemplate:
    """Returns how ``tokenizer`` joins two texts, or encodes one alone, for ids stored without special tokens."""
    texts = ("a",) if alone else ("a", "b")
    encoded = tokenizer(*texts, return_token_type_ids=True)
    ids, special, types, end = encoded["input_ids"], [], [], 0
    for text in texts:
        word = tokenizer(text, add_special_tokens=False)["input_ids"]
        start = next(first for first in range(end, len(ids)) if ids[first : first + len(word)] == word)
        special.append(ids[end:start])
        types.append(encoded["token_type_ids"][start])
        end = start + len(word)
    return PairTemplate(tuple(np.array(part, dtype=np.int32) for part in (*special, ids[end:])), tuple(types))


def find_continuations(tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """Returns which tokens continue a word, for whole-word masking: bools, ``[vocab]``.

    WordPiece marks the tokens that continue a word, with "##"; byte-level BPE and SentencePiece mark those that begin
    one, with a sign for the space. In scripts without spaces a token that begins with a character begins a word.
    Raises KinspanError if the vocabulary has neither mark.
    """
    tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    decode = ByteLevel().decode  # if a token ends inside a character, the first that begins so stands for it
    by_bytes = "\u0120", lambda token: decode([token + 3 * BYTE_80])
    for mark, read in (("##", lambda token: token.removeprefix("##")), by_bytes, ("\u2581", str)):
        marked = np.array([token.startswith(mark) for token in tokens])
        if marked.mean() > MIN_MARKED:
            unspaced = np.array([_is_unspaced(read(token)) for token in tokens])
            return (marked if mark == "##" else ~marked) & ~unspaced
    raise KinspanError("--whole_word_masking: this tokenizer's vocabulary does not say where words begin")


def _is_unspaced(text: str) -> bool:
    """Returns whether a text begins with a letter of a script without spaces; a mark belongs to the letter before."""
    return UNSPACED.match(text) is not None and not unicodedata.category(text[0]).startswith("M")


def check_joins(encode: Callable[[str], list[int]], sentences: list[str], name: str) -> None:
    """Raises KinspanError if ids change when sentences of the corpus are joined by a space; ``encode`` returns ids.

    That depends on the normaliser and the pre-tokeniser, and not on the tokenizer's name.
    """
    for first, second in pairwise(sentences):
        if encode(f"{first} {second}") != encode(first) + encode(second):
            pair = f"{first[-30:]!r} + {second[:30]!r}"
            raise KinspanError(f"--tokenizer {name}: joined sentences get other ids than each alone, such as {pair}")
