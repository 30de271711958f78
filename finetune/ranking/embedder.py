"""Embeds single texts by a model of sentence-transformers, packed if its encoder allows that.

The vectors equal those of ``SentenceTransformer`` within 1e-5. Packing computes no padding, and bf16 on a CPU works as
in training.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerBase
from transformers.utils import cached_file
from transformers.utils.hub import extract_commit_hash

from data_pipeline.core.default_model import name_installed
from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.tokenizers import read_text_template, shorten_name
from finetune.data.answers import AnswerSet
from pretrain.modeling import attention
from pretrain.modeling.families import FAMILIES

from .encode import group_by_length, tokenise
from .kinds import ABSENT, ANSWER, BESIDE, MODULES, QUERY, can_embed, find_prompt, load_bi_encoder
from .score import BATCH_TOKENS, run_batches
from .siamese import EncodedTexts, SiameseRanker

MAX_CHARS = 50  # per token: texts are truncated to max_length times this before they are tokenised
COSINE, DOT = "cosine", "dot"
DEFAULT_LENGTH = 512  # tokens, for a model that states no maximum
# Files that determine a model's vectors, unlike its card, its training settings and what lies beside it in a fusion
FINGERPRINTED_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model")
IGNORED = {"data_config.json", "kinspan.json", "ranker.json", "train_script.json", *BESIDE}


class Embedder:
    """Embeds texts by a bi-encoder that is loaded once.

    name:       short name for messages
    place:      the folder or hub name that it was loaded from
    max_length: maximum number of tokens of a text, special tokens included
    similarity: "cosine", for which all vectors have length 1, or "dot"
    packed:     the encoder over packed texts; None if sentence-transformers must pad them

    Raises KinspanError if there is no such model, it is not a bi-encoder, or its similarity is another one.
    """

    def __init__(self, name_or_dir: str, max_length: int | None = None) -> None:
        if not can_embed(name_or_dir):
            raise KinspanError(f"--model {name_or_dir} is not a bi-encoder, which embeds each text alone")
        self.name, self.place = shorten_name(name_installed(name_or_dir)), name_or_dir
        self.model = load_bi_encoder(name_or_dir, max_length).eval()
        self.similarity = str(self.model.similarity_fn_name or COSINE)
        if self.similarity not in (COSINE, DOT):
            raise KinspanError(f"--model {name_or_dir}: compares by {self.similarity}, where cosine or dot is needed")
        length = self.model.max_seq_length
        self.max_length = self.model.max_seq_length = int(length) if length else DEFAULT_LENGTH
        names = _name_modules(self.model)
        self.normalised = self.similarity == COSINE or "Normalize" in names
        self.packed: SiameseRanker | None = None
        if pooling := _find_pooling(self.model):
            encoder = self.model[0].auto_model
            encoder.set_attn_implementation(attention.NAME)
            self.packed = SiameseRanker(encoder, pooling, self.normalised).eval()
            self.template = read_text_template(self.model.tokenizer)

    def embed_queries(self, texts: Sequence[str], precision: str = "fp32") -> np.ndarray:
        """Returns ``[n, dimension]`` float32 of questions, with the model's prompt for them."""
        return self._embed(texts, QUERY, precision)

    def embed_answers(self, texts: Sequence[str], precision: str = "fp32") -> np.ndarray:
        """Returns ``[n, dimension]`` float32 of answers, with the model's prompt for them.

        precision: "bf16" is faster, but rounds
        """
        return self._embed(texts, ANSWER, precision)

    def score(self, data: AnswerSet) -> tuple[np.ndarray, np.ndarray]:
        """Returns the similarity of each candidate to its question, and which pairs are truncated, ``[N]`` each.

        Each distinct text is embedded once, since questions may share candidates.
        """
        distinct = data.answers.dictionary_encode()
        texts, which = distinct.dictionary.to_pylist(), distinct.indices.to_numpy()
        queries, answers = self.embed_queries(data.questions), self.embed_answers(texts)
        scores = [answers[which[rows]] @ query for query, rows in zip(queries, data.question_slices(), strict=True)]
        cut = self.find_cut(data.questions, QUERY)[data.question_of] | self.find_cut(texts)[which]
        return np.concatenate(scores).astype(np.float64), cut

    def find_cut(self, texts: Sequence[str], prompts: tuple[str, ...] = ANSWER) -> np.ndarray:
        """Returns which texts have more than ``max_length`` tokens, and so are truncated, ``[n]`` bool.

        prompts: the kind of the texts, ``ANSWER`` or ``QUERY``
        """
        if not texts or not isinstance(self.model.tokenizer, PreTrainedTokenizerBase):
            return np.zeros(len(texts), dtype=bool)
        options = {"truncation": True, "max_length": self.max_length + 1, "split_special_tokens": True}
        ids = self.model.tokenizer(self._prepare(texts, prompts), return_attention_mask=False, **options)["input_ids"]
        return np.array([len(tokens) > self.max_length for tokens in ids])

    def _prepare(self, texts: Sequence[str], prompts: tuple[str, ...]) -> list[str]:
        """Adds the prompt, cuts texts to MAX_CHARS per token, and replaces characters that UTF-8 cannot encode."""
        prompt, max_chars = find_prompt(self.model, prompts), MAX_CHARS * self.max_length
        return [(prompt + text).encode("utf-8", "replace").decode()[:max_chars].strip() for text in texts]

    @torch.inference_mode()
    def _embed(self, texts: Sequence[str], prompts: tuple[str, ...], precision: str) -> np.ndarray:
        """Returns ``[n, dimension]`` float32. Raises KinspanError if memory is short, or a vector is not finite."""
        prepared = self._prepare(texts, prompts)
        if self.packed:
            vectors = self._embed_packed(self.packed, prepared, precision)
        else:
            options = {"show_progress_bar": False, "convert_to_tensor": True}
            vectors = self.model.encode(prepared, prompt="", normalize_embeddings=self.normalised, **options)
        array = vectors.float().cpu().numpy()
        if not np.isfinite(array).all():
            row = np.flatnonzero(~np.isfinite(array).all(axis=1))[0]
            raise KinspanError(f"--model {self.place}: its vector of {texts[row][:60]!r} is not finite")
        return array

    def _embed_packed(self, ranker: SiameseRanker, texts: list[str], precision: str) -> torch.Tensor:
        tokens, special = tokenise(self.model.tokenizer, texts), self.template.num_special
        lengths = np.minimum(tokens.lengths + special, self.max_length)
        device = self.model.device
        vectors = torch.zeros(len(texts), ranker.config.hidden_size, device=device)
        batches = list(group_by_length(lengths, BATCH_TOKENS[device.type], np.arange(len(texts))))
        encoded = EncodedTexts(tokens, self.template, lengths)
        run_batches(ranker, encoded, batches, vectors, what=f"embedding with {self.name}", precision=precision)
        return vectors


def _find_pooling(model: SentenceTransformer) -> str | None:
    """Returns "mean" or "cls" for a model whose texts can be packed, else None."""
    if _name_modules(model) not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        return None
    pooling, config = model[1], model[0].auto_model.config
    is_packable = config.model_type in FAMILIES and model.tokenizer.is_fast and model.truncate_dim is None
    if not is_packable or pooling.pooling_mode not in ("mean", "cls"):
        return None
    return str(pooling.pooling_mode) if pooling.include_prompt else None


def _name_modules(model: SentenceTransformer) -> list[str]:
    return [type(module).__name__ for module in model]


def fingerprint_bi_encoder(name_or_dir: str) -> str:
    """Returns a hash of the files that determine the vectors: weights, tokenizer, pooling.

    For a hub model it is the name and commit. Raises KinspanError if there is no such model.
    """
    folder = Path(name_or_dir)
    if not folder.is_dir():
        return f"{name_or_dir}@{_find_commit(name_or_dir)}"
    digest = hashlib.sha256()
    for path in sorted(Path(root) / name for root, _, names in os.walk(folder, followlinks=True) for name in names):
        place = path.relative_to(folder)
        if path.suffix in FINGERPRINTED_SUFFIXES and IGNORED.isdisjoint(place.parts):
            digest.update(str(place).encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def is_hub_fingerprint(fingerprint: str) -> bool:
    """Returns whether a fingerprint of ``fingerprint_bi_encoder`` is that of a hub model."""
    return "@" in fingerprint


def _find_commit(name: str) -> str:
    for file in (MODULES, "config.json"):
        try:
            commit = extract_commit_hash(cached_file(name, file, **ABSENT), None)
        except (OSError, ValueError) as error:
            raise KinspanError(f"no model at {name}: {quote_error(error)}") from error
        if commit:
            return commit
    raise KinspanError(f"no model at {name}: neither a folder nor a name on the hub that answers")
