"""Embeddings of single texts by a model of sentence-transformers, packed where its encoder can be.

The vectors are those of ``SentenceTransformer``: a test holds them within 1e-5. Packed, no padding is computed, and a
processor in bf16 works as in training.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_pipeline.core.default_model import name_installed
from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.tokenizers import shorten_name
from pretrain.engine.device import is_out_of_memory
from pretrain.modeling import attention
from pretrain.modeling.encoder import encode_packed, prepare_encoder
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.siamese.model import pool_mean

from .bi_encoder import ANSWER, MODULES, QUERY, check_room, find_prompt, is_bi_encoder, load_bi_encoder
from .score import BATCH_TOKENS, PRECISIONS

MAX_CHARS = 50  # of a token: a text is cut to this many times the most tokens before it is tokenised
COMPARED_BY_COSINE, COMPARED_BY_PRODUCT = "cosine", "dot"
# What decides a model's vectors; a card, or how it was trained, does not
FINGERPRINTED_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model")
IGNORED_FILES = {"data_config.json", "kinspan.json", "train_script.json"}


class Embedder:
    """Embeds texts by a bi-encoder that is loaded once.

    name:       how people call it
    place:      the folder or the name on the hub that it was loaded from
    max_length: most tokens of a text, special tokens included
    similarity: "cosine", for which all vectors have length 1, or "dot"
    packed:     whether texts are packed, or left to sentence-transformers

    Raises KinspanError where there is no such model, it is no bi-encoder, or it is compared in another way.
    """

    def __init__(self, name_or_dir: str, max_length: int | None = None) -> None:
        if not is_bi_encoder(name_or_dir):
            raise KinspanError(
                f"--model {name_or_dir} is no bi-encoder, which embeds each text alone: give a folder of "
                "sentence-transformers, or an encoder without a head"
            )
        self.name, self.place = shorten_name(name_installed(name_or_dir)), name_or_dir
        self.model = load_bi_encoder(name_or_dir).eval()
        default = self.model.max_seq_length or max_length or 512
        check_room(self.model, max_length)
        if max_length is not None and max_length > default:
            raise KinspanError(f"--max_length {max_length}: {self.name} takes {default} tokens at most")
        self.max_length = self.model.max_seq_length = max_length or default
        self.similarity = str(self.model.similarity_fn_name or COMPARED_BY_COSINE)
        if self.similarity not in (COMPARED_BY_COSINE, COMPARED_BY_PRODUCT):
            raise KinspanError(f"--model {name_or_dir}: compares by {self.similarity}, where cosine or dot is needed")
        self.pooling = _find_pooling(self.model)
        self.of_length_1 = self.similarity == COMPARED_BY_COSINE or "Normalize" in _name_modules(self.model)
        if self.packed:
            self.encoder = self.model[0].auto_model
            self.encoder.set_attn_implementation(attention.NAME)
            prepare_encoder(self.encoder, self.encoder)

    @property
    def packed(self) -> bool:
        return self.pooling is not None

    @property
    def device(self) -> torch.device:
        return self.model.device

    def embed_queries(self, texts: Sequence[str], precision: str = "fp32") -> np.ndarray:
        """Returns ``[n, dimension]`` float32 of questions, with the model's own prompt for them."""
        return self._embed(texts, QUERY, precision)

    def embed_answers(
        self, texts: Sequence[str], precision: str = "fp32", advance: Callable[[int], Any] = lambda count: None
    ) -> np.ndarray:
        """Returns ``[n, dimension]`` float32 of answers, with the model's own prompt for them.

        precision: "bf16" is faster, and rounds
        advance:   is called after each forward pass with the number of its texts, for a progress bar
        """
        return self._embed(texts, ANSWER, precision, advance)

    def count_cut(self, texts: Sequence[str], prompts: tuple[str, ...] = ANSWER) -> int:
        """Returns how many texts have more than ``max_length`` tokens, the rest of which is not read.

        prompts: the kind of the texts, ``ANSWER`` or ``QUERY``
        """
        prompt = find_prompt(self.model, prompts)
        texts = [_make_readable(prompt + text, self.max_length) for text in texts]
        options = {"truncation": True, "max_length": self.max_length + 1, "split_special_tokens": True}
        ids = self.model.tokenizer(texts, return_attention_mask=False, **options)["input_ids"] if texts else []
        return sum(len(tokens) > self.max_length for tokens in ids)

    @torch.inference_mode()
    def _embed(
        self,
        texts: Sequence[str],
        prompts: tuple[str, ...],
        precision: str,
        advance: Callable[[int], Any] = lambda count: None,
    ) -> np.ndarray:
        """Raises KinspanError where memory is short, or a vector is not finite."""
        prompt = find_prompt(self.model, prompts)
        whole = [_make_readable(prompt + text, self.max_length) for text in texts]
        half = PRECISIONS[precision]
        try:
            with torch.autocast(self.device.type, half) if half else nullcontext():
                vectors = self._embed_packed(whole, advance) if self.packed else self._embed_padded(whole, advance)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise KinspanError(f"out of memory with texts of {self.max_length} tokens: lower --max_length") from error
        if self.of_length_1:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        array = vectors.cpu().numpy()
        if not np.isfinite(array).all():
            raise KinspanError(f"--model {self.place}: its vector of {texts[_first_odd(array)][:60]!r} is not finite")
        return array

    def _embed_padded(self, texts: list[str], advance: Callable[[int], Any]) -> torch.Tensor:
        options: dict[str, Any] = {"show_progress_bar": False, "batch_size": 32, "convert_to_tensor": True}
        vectors = self.model.encode(texts, prompt="", **options).float()
        advance(len(texts))
        return vectors

    def _embed_packed(self, texts: list[str], advance: Callable[[int], Any]) -> torch.Tensor:
        options = {"truncation": True, "max_length": self.max_length, "split_special_tokens": True}
        ids = self.model.tokenizer([text.strip() for text in texts], return_attention_mask=False, **options)
        every = [np.asarray(tokens, dtype=np.int64) for tokens in ids["input_ids"]]
        lengths = np.array([len(tokens) for tokens in every])
        out = torch.zeros(len(texts), self.encoder.config.hidden_size, device=self.device)
        order = np.argsort(-lengths, kind="stable")
        first = 0
        while first < len(order):
            rows = order[first : first + max(1, BATCH_TOKENS[self.device.type] // int(lengths[order[first]]))]
            out[torch.from_numpy(rows).to(self.device)] = self._pool([every[row] for row in rows])
            first += len(rows)
            advance(len(rows))
        return out

    def _pool(self, texts: list[np.ndarray]) -> torch.Tensor:
        """Returns ``[n, hidden]`` float32 of texts as ids: the mean over all tokens, or the first token's."""
        lengths = np.array([len(tokens) for tokens in texts])
        starts = np.append(0, np.cumsum(lengths)).astype(np.int32)
        ids = np.concatenate(texts)
        arrays = {
            "input_ids": ids,
            "token_type_ids": np.zeros_like(ids),
            "position_ids": np.arange(len(ids), dtype=np.int32) - np.repeat(starts[:-1], lengths),
            "starts": starts,
        }
        inputs = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        rounding = {} if len(texts) > 1 else {"round_to": 1}  # rounding up would multiply the work of a single question
        hidden = encode_packed(self.encoder, {**inputs, "max_length": int(lengths.max())}, **rounding).float()
        if self.pooling == "cls":
            return hidden[inputs["starts"][:-1].long()]
        return pool_mean(hidden, inputs["starts"])


def _make_readable(text: str, max_length: int) -> str:
    """Cuts a text to what ``max_length`` tokens can hold, and replaces what UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode()[: MAX_CHARS * max_length]


def _find_pooling(model: Any) -> str | None:
    """Returns "mean" or "cls" of a model whose texts can be packed, and None of any other."""
    if _name_modules(model) not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        return None
    pooling, config = model[1], model[0].auto_model.config
    known = config.model_type in FAMILIES and model.tokenizer.is_fast and model.truncate_dim is None
    if not known or pooling.pooling_mode not in ("mean", "cls"):
        return None
    return str(pooling.pooling_mode) if pooling.include_prompt else None


def _name_modules(model: Any) -> list[str]:
    return [type(module).__name__ for module in model]


def _first_odd(vectors: np.ndarray) -> int:
    return int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])


def fingerprint_bi_encoder(name_or_dir: str) -> str:
    """Returns a hash of all files that decide its vectors: weights, tokenizer, pooling.

    One of the hub is named by its commit. Raises KinspanError where it is neither a folder nor on the hub or in its
    cache.
    """
    folder = Path(name_or_dir)
    if not folder.is_dir():
        return f"{name_or_dir}@{_find_commit(name_or_dir)}"
    digest = hashlib.sha256()
    for path in sorted(Path(at) / name for at, _, names in os.walk(folder, followlinks=True) for name in names):
        if path.suffix in FINGERPRINTED_SUFFIXES and path.name not in IGNORED_FILES:
            digest.update(str(path.relative_to(folder)).encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def is_of_hub(fingerprint: str) -> bool:
    """Returns whether ``fingerprint_bi_encoder`` named a model of the hub so."""
    return "@" in fingerprint


def _find_commit(name: str) -> str:
    from transformers.utils import cached_file
    from transformers.utils.hub import extract_commit_hash

    absent = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    for file in (MODULES, "config.json"):
        try:
            commit = extract_commit_hash(cached_file(name, file, **absent), None)
        except (OSError, ValueError) as error:
            raise KinspanError(f"no model at {name}: {quote_error(error)}") from error
        if commit:
            return commit
    raise KinspanError(f"no model at {name}: neither a folder nor a name on the hub that answers")
