"""Models that embed questions and candidates apart: those of sentence-transformers, and plain encoders."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.hub import expect_hub
from data_pipeline.tokenizers import check_vocabulary
from finetune.data.answers import AnswerSet
from pretrain.modeling.adapters.folder import is_adapter

from .fusion import is_fusion
from .ranker import silence_transformers

log = logging.getLogger(__name__)

BATCH = 64  # texts of a forward pass
MODULES = "modules.json"  # what sentence-transformers keeps beside the weights
QUERY, ANSWER = ("query",), ("document", "passage", "corpus")  # how models name the prompts of the two


def is_bi_encoder(name_or_dir: str) -> bool:
    """Returns whether it is a model of sentence embeddings, in a folder or on the hub.

    That is one with ``modules.json`` that is no sequence classifier, or an encoder without any head, as the class in
    its config says: GPT2LMHeadModel and its like have one. A config that names no class tells nothing. Raises
    KinspanError where there is no model.
    """
    if is_adapter(name_or_dir) or is_fusion(name_or_dir):
        return False
    expect_hub(name_or_dir)
    architectures = _read_architectures(name_or_dir)
    if any(name.endswith("ForSequenceClassification") for name in architectures):
        return False  # a CrossEncoder may have modules too
    headless = [name.endswith("Model") and "Head" not in name for name in architectures]
    return has_modules(name_or_dir) or (bool(headless) and all(headless))


def _read_architectures(name_or_dir: str) -> list[str]:
    """Returns the classes that its config names; none where its weights lie in a folder of their own."""
    from transformers import AutoConfig

    silence_transformers()
    folder = Path(name_or_dir)
    if folder.is_dir() and not (folder / "config.json").is_file():
        if (folder / MODULES).is_file():
            return []
        raise KinspanError(f"no model at {name_or_dir}: this folder has no config.json")
    try:
        config = AutoConfig.from_pretrained(name_or_dir, trust_remote_code=False)
    except Exception as error:
        if has_modules(name_or_dir):
            return []
        raise KinspanError(f"no model at {name_or_dir}: {quote_error(error)}") from error
    return list(config.architectures or [])


def has_modules(name_or_dir: str) -> bool:
    """Returns whether it has the ``modules.json`` of sentence-transformers."""
    from transformers.utils import cached_file

    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    try:
        return cached_file(name_or_dir, MODULES, **quiet) is not None
    except (OSError, ValueError):  # there is no such model, or it is not for everyone: loading it says which
        return False


def load_bi_encoder(name_or_dir: str) -> Any:
    """Returns a ``SentenceTransformer`` in fp32; of an encoder without a head it takes the mean over the tokens.

    Raises KinspanError where the model cannot be loaded, or has no tokenizer.
    """
    from sentence_transformers import SentenceTransformer

    silence_transformers()
    try:
        model = SentenceTransformer(name_or_dir, trust_remote_code=False, model_kwargs={"dtype": torch.float32})
    except Exception as error:
        raise KinspanError(f"{name_or_dir} cannot be loaded: {quote_error(error)}") from error
    if isinstance(model.tokenizer, PreTrainedTokenizerBase):
        check_vocabulary(model.tokenizer, name_or_dir)
    return model


def find_prompt(model: Any, names: tuple[str, ...]) -> str:
    """Returns the prompt of this kind of text, as ``encode_query`` and ``encode_document`` choose it."""
    known = next((name for name in names if name in model.prompts), model.default_prompt_name)
    return model.prompts.get(known) or "" if known else ""


def check_room(model: Any, max_length: int | None) -> None:
    """Raises KinspanError where ``max_length`` leaves no room for a token of a text: nothing would be cut."""
    if max_length is None or not isinstance(model.tokenizer, PreTrainedTokenizerBase):
        return
    least = model.tokenizer.num_special_tokens_to_add() + 1
    if max_length < least:
        raise KinspanError(f"--max_length {max_length} is too short for a text: use at least {least}")


def limit_length(model: Any, name: str, max_length: int | None) -> None:
    """Makes the model cut texts at ``max_length`` tokens; None, or more than its own number, leaves that."""
    check_room(model, max_length)
    default = model.max_seq_length
    if max_length and default and max_length > default:
        log.warning("%s: texts are cut at its own %s tokens, and not at --max_length %s", name, default, max_length)
    elif max_length and max_length != default:
        model.max_seq_length = max_length
        log.info("%s: texts are cut at --max_length %s, where the model's own is %s", name, max_length, default)


def find_cut_texts(model: Any, data: AnswerSet) -> np.ndarray:
    """Returns whether each pair has a text that is cut, ``[N]``; none where the tokenizer does not tell."""
    length = model.max_seq_length
    if not length or not isinstance(model.tokenizer, PreTrainedTokenizerBase):
        return np.zeros(data.num_pairs, dtype=bool)

    def is_cut(texts: list[str], names: tuple[str, ...]) -> np.ndarray:
        texts = [find_prompt(model, names) + text for text in texts]
        ids = model.tokenizer(texts, truncation=True, max_length=length + 1, return_attention_mask=False)["input_ids"]
        return np.array([len(tokens) > length for tokens in ids], dtype=bool)

    distinct = data.answers.dictionary_encode()
    cut = is_cut(list(data.questions), QUERY)[data.question_of]
    return cut | is_cut(distinct.dictionary.to_pylist(), ANSWER)[distinct.indices.to_numpy()]


def score_by_similarity(model: Any, data: AnswerSet) -> np.ndarray:
    """Returns the similarity of each candidate's embedding to its question's, ``[N]``.

    Prompts and similarity are the model's own. Each distinct text is encoded once, since pools share theirs.
    """
    many = data.num_pairs > 20 * BATCH
    options: dict[str, Any] = {"show_progress_bar": many, "batch_size": BATCH, "convert_to_tensor": True}
    distinct = data.answers.dictionary_encode()
    queries = model.encode_query(list(data.questions), **options)
    answers = model.encode_document(distinct.dictionary.to_pylist(), **options)
    which = torch.from_numpy(distinct.indices.to_numpy().astype(np.int64)).to(answers.device)
    scores = [
        model.similarity_pairwise(
            queries[question : question + 1].expand(rows.stop - rows.start, -1), answers[which[rows]]
        )
        for question, rows in enumerate(data.question_slices())
    ]
    return torch.cat(scores).double().cpu().numpy()
