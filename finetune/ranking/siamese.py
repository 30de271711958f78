"""The bi-encoder that fine-tuning trains: each text is embedded alone, and candidates rank by their cosine.

Equal texts are stored once, as token ids, so that thousands of questions with one pool of answers cost little more
than the pool.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.packing import MIN_TEXT_TOKENS
from data_pipeline.tokenizers import read_template
from finetune.data.answers import AnswerSet
from pretrain.modeling.adapters.folder import is_adapter
from pretrain.modeling.encoder import encode_packed, prepare_encoder
from pretrain.modeling.pair_model import holds_no_weights
from pretrain.modeling.siamese.model import load_siamese_model, pool_mean
from pretrain.release.folder import write_max_length
from pretrain.release.siamese import fill_siamese_folder

from .encode import EncodedTexts, tokenise_once
from .kinds import ANSWER, QUERY, can_embed, find_prompt, load_bi_encoder, refuse_fusion
from .ranker import FRESH_SEED
from .score import PackedForward, run_batches

log = logging.getLogger(__name__)


class SiameseRanker(nn.Module):
    """An encoder whose texts are compared by their mean hidden states, or the first token's ("cls")."""

    def __init__(self, encoder: PreTrainedModel, pooling: str = "mean", normalised: bool = True) -> None:
        super().__init__()
        self.encoder, self.config = encoder, encoder.config
        self.pooling, self.normalised = pooling, normalised
        prepare_encoder(self, encoder)

    def forward(self, **inputs: Any) -> torch.Tensor:
        """Returns vectors ``[n, hidden]`` float32 of a packed batch, see EncodedTexts.pack; normalised: of length 1."""
        starts = inputs["starts"]
        # Rounding up would multiply the work for a single question
        rounding = {"round_to": 1} if len(starts) == 2 and not self.training else {}
        hidden = encode_packed(self.encoder, inputs, **rounding)
        vectors = hidden[starts[:-1].long()].float() if self.pooling == "cls" else pool_mean(hidden, starts)
        return F.normalize(vectors, dim=-1) if self.normalised else vectors


def load_siamese_ranker(name_or_dir: str, seed: int) -> SiameseRanker:
    """Returns the encoder to fine-tune, in fp32, and logs which parts of the model are new or left out.

    name_or_dir: a bi-encoder, or anything that ``ranker.load_ranker`` takes but an adapter
    """
    if is_adapter(name_or_dir):
        raise KinspanError(f"--model {name_or_dir} is an adapter: --loss contrastive trains a whole encoder")
    refuse_fusion(name_or_dir)
    model, _ = load_siamese_model(name_or_dir, FRESH_SEED + seed)  # its masked-LM head is not used
    if holds_no_weights(name_or_dir):
        log.info("%s holds no weights: the model starts from scratch", name_or_dir)
    elif can_embed(name_or_dir) and (untrained := list_untrained_parts(load_bi_encoder(name_or_dir))):
        log.warning("%s is trained without %s", name_or_dir, ", ".join(untrained))
    return SiameseRanker(model.encoder)


def list_untrained_parts(model: SentenceTransformer) -> list[str]:
    """Returns the parts that training drops: prompts, a pooling other than the mean, and modules after it."""
    modules = {type(module).__name__: module for module in model}
    lost = [name for name in modules if name not in ("Transformer", "Pooling", "Normalize")]
    if "Pooling" in modules and modules["Pooling"].pooling_mode != "mean":
        lost.append(f"its pooling ({modules['Pooling'].pooling_mode})")
    return [*lost, "its prompts"] if find_prompt(model, QUERY) or find_prompt(model, ANSWER) else lost


@dataclass(frozen=True)
class EncodedAnswers(EncodedTexts):
    """The texts of an AnswerSet, by index: first its Q questions, then its D distinct candidates.

    questions: ``[Q]`` index of the first question with the same text
    answers:   ``[N]`` index of each row's candidate
    """

    questions: np.ndarray
    answers: np.ndarray

    def find_cut(self, question_of: np.ndarray) -> np.ndarray:
        """Returns which rows have a truncated text, ``[N]`` bool; ``question_of`` is the AnswerSet's."""
        cut = self.texts.lengths + self.template.num_special > self.lengths
        return cut[self.questions[question_of]] | cut[self.answers]


def encode_answers(data: AnswerSet, tokenizer: PreTrainedTokenizerBase, max_length: int) -> EncodedAnswers:
    """Tokenises all texts, as ``tokenizer(text, truncation=True, max_length=..., split_special_tokens=True)`` does."""
    template = read_template(tokenizer, alone=True)
    room = max_length - template.num_special
    if room < MIN_TEXT_TOKENS:
        raise KinspanError(f"--max_length {max_length} is too short for a text")
    questions = pa.array(data.questions, pa.large_string())
    answers = data.answers.dictionary_encode()
    distinct = pa.concat_arrays([questions, answers.dictionary.cast(pa.large_string())])
    texts = tokenise_once(tokenizer, distinct, f"{data.name} {data.split}")
    codes = questions.dictionary_encode().indices.to_numpy()
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    lengths = np.minimum(texts.lengths, room) + template.num_special
    numbers = len(questions) + answers.indices.to_numpy().astype(np.int64)
    return EncodedAnswers(texts, template, lengths, first[which], numbers)


def score_texts(
    ranker: PackedForward, data: AnswerSet, texts: EncodedAnswers, width: int, device: torch.device, what: str
) -> np.ndarray:
    """Returns the cosine of every row's candidate to its question, ``[N]`` float64, by vectors of this ``width``."""
    needed = np.unique(np.concatenate([texts.questions[data.question_of], texts.answers]))
    vectors = torch.zeros(len(texts.lengths), width, device=device)
    run_batches(ranker, texts, needed, vectors, what)
    answers = torch.from_numpy(texts.answers).to(device)
    queries = (vectors[int(number)] for number in texts.questions)
    cosines = [vectors[answers[rows]] @ query for rows, query in zip(data.question_slices(), queries, strict=True)]
    return torch.cat(cosines).double().cpu().numpy()


def save_siamese_ranker(
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    weights: dict[str, torch.Tensor],
    folder: Path,
) -> None:
    """Writes a folder that SentenceTransformer loads, with the same vectors; ``weights``: SiameseRanker's, by name."""
    folder.mkdir(parents=True)
    tokenizer.save_pretrained(folder)
    fill_siamese_folder(folder, config.to_dict(), weights, max_length)
    write_max_length(folder, max_length)
