"""Baselines that embed questions and candidates apart: models of sentence-transformers, and plain encoders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from data_pipeline.core.errors import KinspanError, quote_first_line
from data_pipeline.core.hub import expect_hub, explain_absence
from data_pipeline.core.progress import show_progress
from data_pipeline.tokenizers import check_vocabulary, shorten_name
from finetune.data.answers import AnswerSet
from pretrain.modeling.adapters.folder import is_adapter
from pretrain.modeling.default_model import name_installed

from .fusion import Scoring, SeeCut, is_fusion
from .ranker import silence_transformers

UNKNOWN_LENGTH = 512  # tokens of a text, where the model does not say
BATCH = 64  # texts of a forward pass
MODULES = "modules.json"  # what sentence-transformers keeps beside the weights
QUERY, ANSWER = ("query",), ("document", "passage", "corpus")  # how models name the prompts of the two


def is_bi_encoder(name_or_dir: str) -> bool:
    """Whether it is a model of sentence embeddings, in a folder or on the hub.

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
    """The classes that its config names; none where its weights lie in a folder of their own."""
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
        raise KinspanError(f"no model at {name_or_dir}: {explain_absence(name_or_dir, error)}") from error
    return list(config.architectures or [])


def has_modules(name_or_dir: str) -> bool:
    """Whether it has the ``modules.json`` of sentence-transformers."""
    from transformers.utils import cached_file

    try:
        found = cached_file(
            name_or_dir,
            MODULES,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except (OSError, ValueError):  # there is no such model, or it is not for everyone: loading it says which
        return False
    return found is not None


def load_bi_encoder(name_or_dir: str) -> Any:
    """A ``SentenceTransformer`` in fp32; of an encoder without a head, the mean over its tokens is the embedding.

    Raises KinspanError where the model cannot be loaded, or has no tokenizer.
    """
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerBase

    silence_transformers()
    try:
        model = SentenceTransformer(name_or_dir, trust_remote_code=False, model_kwargs={"dtype": torch.float32})
    except Exception as error:
        raise KinspanError(f"{name_or_dir} cannot be loaded: {quote_first_line(error)}") from error
    if isinstance(model.tokenizer, PreTrainedTokenizerBase):
        check_vocabulary(model.tokenizer, name_or_dir)
    return model


def find_prompt(model: Any, names: tuple[str, ...]) -> str:
    """The prompt of this kind of text, as ``encode_query`` and ``encode_document`` choose it."""
    known = next((name for name in names if name in model.prompts), model.default_prompt_name)
    return model.prompts.get(known) or "" if known else ""


def check_room(model: Any, max_length: int | None) -> None:
    """Raises KinspanError where ``max_length`` leaves no room for a token of a text: nothing would be cut."""
    if max_length is None or not isinstance(model.tokenizer, PreTrainedTokenizerBase):
        return
    least = model.tokenizer.num_special_tokens_to_add() + 1
    if max_length < least:
        raise KinspanError(f"--max_length {max_length} is too short for a text: use at least {least}")


def _find_cut(model: Any, data: AnswerSet) -> np.ndarray:
    """Whether each pair has a text that is cut, ``[N]``; none where the tokenizer does not tell."""
    length = model.max_seq_length
    if not length or not isinstance(model.tokenizer, PreTrainedTokenizerBase):
        return np.zeros(data.num_pairs, dtype=bool)

    def is_cut(texts: list[str], names: tuple[str, ...]) -> np.ndarray:
        texts = [find_prompt(model, names) + text for text in texts]
        ids = model.tokenizer(texts, truncation=True, max_length=length + 1, return_attention_mask=False)["input_ids"]
        return np.array([len(own) > length for own in ids], dtype=bool)

    distinct = data.answers.dictionary_encode()
    cut = is_cut(list(data.questions), QUERY)[data.question_of]
    return cut | is_cut(distinct.dictionary.to_pylist(), ANSWER)[distinct.indices.to_numpy()]


def score_by_similarity(name_or_dir: str, data: AnswerSet, max_length: int | None = None) -> np.ndarray:
    """Returns the similarity of each candidate's embedding to its question's, ``[N]``, see ``load_similarity``."""
    return load_similarity(name_or_dir, max_length)[0](data)


def load_similarity(
    name_or_dir: str,
    max_length: int | None = None,
    say: Callable[[str], None] = lambda note: None,
    see: SeeCut = lambda data, cut, length: None,
) -> tuple[Scoring, int]:
    """Returns what scores candidates by the similarity of their embeddings to their question's; and the most tokens of
    a text.

    Prompts and similarity are the model's own; where it has none, the similarity is the cosine. Each question, and
    each text that is a candidate, is encoded once, since pools share theirs. Raises KinspanError where the model cannot
    be loaded.

    max_length: most tokens of a text, where the model does not take fewer; None: the model's own
    say:        told what the score is, and where ``max_length`` is not the model's own
    see:        told which pairs have a text that is cut
    """
    model, name = load_bi_encoder(name_or_dir), shorten_name(name_installed(name_or_dir))
    check_room(model, max_length)
    own = model.max_seq_length
    if max_length and max_length < (own or max_length + 1):
        model.max_seq_length = max_length
        say(f"{name}: texts are cut at --max_length {max_length}, where the model's own is {own}")
    elif max_length and max_length != own:
        say(f"{name}: texts are cut at {own} tokens, its most, and not at --max_length {max_length}")
    pooling = "" if has_modules(name_or_dir) else ", the mean over its tokens, for want of a head"
    say(f"{name} is scored by the {model.similarity_fn_name} of embeddings{pooling}")
    length = model.max_seq_length or UNKNOWN_LENGTH

    def score(data: AnswerSet) -> np.ndarray:
        see(data, _find_cut(model, data), length)
        return _compare(model, data)

    return score, length


def _compare(model: Any, data: AnswerSet) -> np.ndarray:
    options: dict[str, Any] = {"show_progress_bar": False, "batch_size": BATCH, "convert_to_tensor": True}
    distinct = data.answers.dictionary_encode()
    texts = distinct.dictionary.to_pylist()
    total = data.num_questions + len(texts)
    with show_progress("embedding", "texts", total=total, leave=False) as bar:

        def count(*_: Any) -> None:
            bar.update(min(BATCH, total - bar.n))

        seen = model[0].register_forward_hook(count)
        asked = model.encode_query(list(data.questions), **options)
        told = model.encode_document(texts, **options)
        seen.remove()
    which = torch.from_numpy(distinct.indices.to_numpy().astype(np.int64)).to(told.device)
    scores = [
        model.similarity_pairwise(asked[question : question + 1].expand(rows.stop - rows.start, -1), told[which[rows]])
        for question, rows in enumerate(data.question_slices())
    ]
    return torch.cat(scores).double().cpu().numpy()
