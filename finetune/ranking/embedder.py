"""Embeds single texts by a model of sentence-transformers, packed if its encoder allows that.

The vectors equal those of ``SentenceTransformer`` within 1e-5. Packing computes no padding, and bf16 on a CPU works as
in training.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerBase

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import note_unknown, read_template, shorten_name
from finetune.data.answers import AnswerSet
from pretrain.modeling import attention
from pretrain.modeling.families import FAMILIES
from pretrain.release.folder import fingerprint_model

from .encode import EncodedTexts, tokenise
from .kinds import ANSWER, BESIDE, DEFAULT_LENGTH, QUERY, UNLIMITED, can_embed, find_prompt, load_bi_encoder
from .score import run_batches
from .siamese import SiameseRanker

MAX_CHARS = 50  # per token: texts are truncated to max_length times this before they are tokenised
COSINE, DOT = "cosine", "dot"


class Embedder:
    """Embeds texts by a bi-encoder that is loaded once.

    name:       short name for messages
    place:      the folder or hub name that it was loaded from
    max_length: maximum number of tokens of a text, special tokens included
    similarity: "cosine", for which all vectors have length 1, or "dot"
    packed:     the encoder over packed texts; None if sentence-transformers must pad them
    """

    def __init__(self, name_or_dir: str, max_length: int | None = None) -> None:
        if not can_embed(name_or_dir):
            raise KinspanError(f"--model {name_or_dir} is not a bi-encoder, which embeds each text alone")
        self.name, self.place = shorten_name(name_or_dir), name_or_dir
        self.model = load_bi_encoder(name_or_dir, max_length).eval()
        self.similarity = str(self.model.similarity_fn_name or COSINE)
        if self.similarity not in (COSINE, DOT):
            raise KinspanError(f"--model {name_or_dir}: compares by {self.similarity}, where cosine or dot is needed")
        self.max_length = int(min(self.model.max_seq_length or DEFAULT_LENGTH, UNLIMITED))
        self.normalised = self.similarity == COSINE or "Normalize" in _name_modules(self.model)
        self.packed: SiameseRanker | None = None
        if pooling := _find_pooling(self.model):
            encoder = self.model[0].auto_model
            encoder.set_attn_implementation(attention.NAME)
            self.packed = SiameseRanker(encoder, pooling, self.normalised).eval()
            self.template = read_template(self.model.tokenizer, alone=True)

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Returns ``[n, dimension]`` float32 of questions, with the model's prompt for them."""
        return self._embed(texts, QUERY, "fp32")

    def embed_answers(self, texts: Sequence[str], precision: str = "fp32") -> np.ndarray:
        """Returns ``[n, dimension]`` float32 of answers, with the model's prompt; bf16 is faster, but rounds."""
        return self._embed(texts, ANSWER, precision)

    def score(self, data: AnswerSet, precision: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the similarity of each candidate to its question, and which pairs are truncated, ``[N]`` each.

        Each distinct text is embedded once, since questions may share candidates.
        """
        distinct = data.answers.dictionary_encode()
        texts, which = distinct.dictionary.to_pylist(), distinct.indices.to_numpy()
        queries, answers = self.embed_queries(data.questions), self.embed_answers(texts, precision)
        scores = [answers[which[rows]] @ query for query, rows in zip(queries, data.question_slices(), strict=True)]
        cut = self.find_cut(data.questions, QUERY)[data.question_of] | self.find_cut(texts)[which]
        return np.concatenate(scores).astype(np.float64), cut

    def note_unknown(self, texts: Sequence[str]) -> list[str]:
        """Returns a note if many tokens of these texts are unknown to the tokenizer."""
        tokenizer = self.model.tokenizer
        if not texts or not isinstance(tokenizer, PreTrainedTokenizerBase):
            return []
        ids = list(chain(*tokenizer(self._clean(texts), truncation=True, max_length=self.max_length)["input_ids"]))
        return note_unknown(ids.count(tokenizer.unk_token_id), len(ids))

    def find_cut(self, texts: Sequence[str], prompts: tuple[str, ...] = ANSWER) -> np.ndarray:
        """Returns which texts, of kind ``ANSWER`` or ``QUERY``, are cut to ``max_length`` tokens, ``[n]`` bool."""
        if not texts or not isinstance(self.model.tokenizer, PreTrainedTokenizerBase):
            return np.zeros(len(texts), dtype=bool)
        options = {"truncation": True, "max_length": self.max_length + 1, "split_special_tokens": True}
        prompted = [find_prompt(self.model, prompts) + text for text in self._clean(texts)]
        ids = self.model.tokenizer(prompted, return_attention_mask=False, **options)["input_ids"]
        return np.array([len(tokens) > self.max_length for tokens in ids])

    def _clean(self, texts: Sequence[str]) -> list[str]:
        """Cuts texts to MAX_CHARS per token, and replaces characters that UTF-8 cannot encode."""
        return [text[: MAX_CHARS * self.max_length].encode("utf-8", "replace").decode() for text in texts]

    @torch.inference_mode()
    def _embed(self, texts: Sequence[str], prompts: tuple[str, ...], precision: str) -> np.ndarray:
        """Returns ``[n, dimension]`` float32. Raises KinspanError if memory is short, or a vector is not finite."""
        cleaned = self._clean(texts)
        if self.packed:
            prompt = find_prompt(self.model, prompts)
            tokens = tokenise(self.model.tokenizer, [prompt + text for text in cleaned])
            lengths = np.minimum(tokens.lengths + self.template.num_special, self.max_length)
            encoded = EncodedTexts(tokens, self.template, lengths)
            vectors = torch.zeros(len(texts), self.packed.config.hidden_size, device=self.model.device)
            run_batches(self.packed, encoded, np.arange(len(texts)), vectors, f"embedding with {self.name}", precision)
        else:
            encode = self.model.encode_query if prompts == QUERY else self.model.encode_document
            options = {"show_progress_bar": False, "convert_to_tensor": True}
            vectors = encode(cleaned, normalize_embeddings=self.normalised, **options)
        array = vectors.float().cpu().numpy()
        if not np.isfinite(array).all():
            row = np.flatnonzero(~np.isfinite(array).all(axis=1))[0]
            raise KinspanError(f"--model {self.place}: its vector of {texts[row][:60]!r} is not finite")
        return array


def _find_pooling(model: SentenceTransformer) -> str | None:
    """Returns "mean" or "cls" for a model whose texts can be packed, else None."""
    if _name_modules(model) not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        return None
    transformer, pooling, config = model[0], model[1], model[0].auto_model.config
    special = (getattr(transformer, name, None) for name in ("query_length", "document_length", "query_expansion"))
    is_plain = model.truncate_dim is None and not transformer.processing_kwargs and not any(special)
    is_packable = is_plain and config.model_type in FAMILIES and model.tokenizer.is_fast
    if not is_packable or pooling.pooling_mode not in ("mean", "cls"):
        return None
    return str(pooling.pooling_mode) if pooling.include_prompt else None


def _name_modules(model: SentenceTransformer) -> list[str]:
    return [type(module).__name__ for module in model]


def fingerprint_bi_encoder(name_or_dir: str) -> str:
    """Returns the fingerprint of a bi-encoder, which in a fusion's folder is its root."""
    return fingerprint_model(name_or_dir, BESIDE)
