"""Scores of candidates. Pairs of like length go through the model together, packed, so that no padding is computed."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.progress import show_progress
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from pretrain.engine.device import is_out_of_memory
from pretrain.modeling import attention
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.scorer import PackedPairs, Scorer, check_fits, load_scorer
from pretrain.modeling.scorer import score_padded as score_padded

from .bi_encoder import is_bi_encoder, load_similarity
from .encode import EncodedPairs, encode_pairs, find_cut, say_cut
from .fusion import Scoring, SeeCut, is_fusion, load_fusion, name_parts
from .ranker import Ranker, find_max_length, find_trained_length, load_own_tokenizer

BATCH_TOKENS = {"cuda": 65536, "cpu": 2048}  # per forward pass; more than a processor's cache holds are slower
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}


class EncodedExamples(Protocol):
    """Examples as token ids, by number: pairs (encode.EncodedPairs) or texts (siamese.EncodedTexts)."""

    @property
    def lengths(self) -> np.ndarray:
        """``[n]`` tokens of each."""

    def pack(self, numbers: np.ndarray, device: torch.device) -> dict[str, Any]:
        """The inputs of a forward pass over these."""


def score_pairs(
    ranker: Any,
    pairs: EncodedPairs,
    device: torch.device,
    batch_tokens: int | None = None,
    what: str = "scoring",
    precision: str = "fp32",
    alone: bool = False,
    mark: Callable[[str], None] = lambda place: None,
) -> np.ndarray:
    """``ranker``'s score of every pair, ``[N]`` float64. Arguments and errors are those of ``run_batches``.

    batch_tokens: most tokens of a forward pass
    """
    batches = list(pairs.by_length(batch_tokens or BATCH_TOKENS[device.type]))
    scores = torch.zeros(len(pairs.lengths), dtype=torch.float64, device=device)
    run_batches(ranker, pairs, batches, scores, what=what, precision=precision, alone=alone, mark=mark)
    return scores.cpu().numpy()


@torch.inference_mode()
def run_batches(
    ranker: Any,
    encoded: EncodedExamples,
    batches: list[np.ndarray],
    out: torch.Tensor,
    *,
    what: str,
    precision: str = "fp32",
    alone: bool = False,
    mark: Callable[[str], None] = lambda place: None,
) -> None:
    """Writes what ``ranker`` makes of every example into ``out``, a row of zeros for each.

    With several ranks each of them passes its share, in as many forward passes as the others, because ZeRO 3 needs
    that; all ranks get all of it.

    encoded:   pairs, or texts
    batches:   numbers of examples, each in one batch
    what:      what the progress bar says
    precision: "fp32" leaves the weights' own; "bf16" is autocast over fp32 weights, which is faster and rounds
    alone:     this process passes everything, while the other ranks wait
    mark:      told before each forward pass, for the watchdog

    Raises KinspanError where memory is short.
    """
    device = out.device
    shared = dist.is_initialized() and not alone
    rank, size = (dist.get_rank(), dist.get_world_size()) if shared else (0, 1)
    half = PRECISIONS[precision]
    rounds = range(0, len(batches), size)
    bar = show_progress(what, "passes", rounds, quiet=rank > 0 or len(rounds) <= 20, leave=False)
    with torch.autocast(device.type, half) if half else nullcontext():  # around all passes: it rounds weights once
        for first in bar:
            rows = batches[min(first + rank, len(batches) - 1)]
            mark(f"{what}, pass {first // size + 1} of {len(rounds)}")
            try:
                found = ranker(**encoded.pack(rows, device))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                longest = encoded.lengths[rows].max()
                raise KinspanError(
                    f"out of memory with {len(rows)} examples of up to {longest} tokens: lower --max_length"
                ) from error
            if first + rank < len(batches):
                out[torch.from_numpy(rows).to(device)] = found.to(out.dtype)
    if size > 1:
        dist.all_reduce(out)


def score_answers(
    name_or_dir: str,
    data: AnswerSet,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    precision: str = "fp32",
    say: Callable[[str], None] = lambda note: None,
) -> np.ndarray:
    """Scores ``[N]`` of the candidates by any model that ranks, see ``load_scoring``.

    say: told what ``load_scoring`` tells, and how many pairs are cut

    Raises KinspanError where there is no such model, or a score is not finite.
    """

    def say_own_cut(data: AnswerSet, cut: np.ndarray, max_length: int) -> None:
        for line in say_cut(data, cut, max_length):
            say(line)

    scores = load_scoring(name_or_dir, max_length, batch_tokens, precision, say, say_own_cut)[0](data)
    check_finite(scores, name_or_dir, data)
    return scores


def check_finite(scores: np.ndarray, name_or_dir: str, data: AnswerSet) -> None:
    """Raises KinspanError where a score ``[N]`` of these candidates is not finite."""
    if not np.isfinite(scores).all():
        row = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise KinspanError(f"{name_or_dir}: its score of candidate {data.answer_ids[row]} is not finite")


def load_scoring(
    name_or_dir: str,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    precision: str = "fp32",
    say: Callable[[str], None] = lambda note: None,
    see: SeeCut = lambda data, cut, length: None,
) -> tuple[Scoring, int]:
    """What scores the candidates of any AnswerSet, ``[N]``, by a model that is loaded once; and the most tokens that it
    reads at a time.

    name_or_dir: a sequence classifier of one or two labels (a release, a fine-tuned model, a CrossEncoder), BERT or
        ALBERT with its head of pre-training; a bi-encoder of sentence-transformers or an encoder without a head,
        which score by the similarity of their embeddings; or a learned fusion of such models and BM25
    max_length: most tokens of a pair, or of a text for a bi-encoder; None: the model's own, or of a fusion's part the
        number that its weight was learned at
    precision:  "bf16" is taken only where the model's pairs can be packed; else it is fp32
    say:        told where the scores are not those of a head that reads both texts, and where ``max_length`` or
                ``precision`` is not what it reads or is scored in
    see:        told which pairs are cut, whenever some are scored

    Raises KinspanError where there is no such model.
    """
    if is_fusion(name_or_dir):
        say(f"{shorten_name(name_or_dir)} is a fusion: {name_parts(Path(name_or_dir))}")

        def load(part: str, fitted_at: int | None, see_part: SeeCut) -> tuple[Scoring, int]:
            return load_scoring(part, max_length or fitted_at, batch_tokens, precision, say, see_part)

        return load_fusion(Path(name_or_dir), load, see)
    if is_bi_encoder(name_or_dir):
        if precision != "fp32":
            say(f"{shorten_name(name_or_dir)} is scored in fp32: {precision} is for cross-encoders")
        return load_similarity(name_or_dir, max_length, say, see)
    return load_classifier(name_or_dir, max_length, batch_tokens, precision, say, see)


def load_classifier(
    name_or_dir: str,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    precision: str = "fp32",
    say: Callable[[str], None] = lambda note: None,
    see: SeeCut = lambda data, cut, length: None,
) -> tuple[Scoring, int]:
    """``load_scoring`` of a sequence classifier."""
    scorer = load_scorer(name_or_dir)
    scorer = Scorer(scorer.name, scorer.model, load_own_tokenizer(name_or_dir), scorer.head, scorer.score)
    own = find_trained_length(name_or_dir) or find_max_length(scorer.tokenizer, scorer.model)
    length = max_length or own
    check_fits(scorer.name, scorer.model, scorer.tokenizer, length)
    if length != own:
        say(f"{scorer.name}: pairs are cut at --max_length {length}, where the model's own is {own}")
    tokens = batch_tokens or BATCH_TOKENS[scorer.model.device.type]

    def encode(data: AnswerSet) -> EncodedPairs:
        pairs = encode_pairs(data, scorer.tokenizer, length)
        see(data, find_cut(pairs), length)
        return pairs

    if not can_pack(scorer.model):
        if precision != "fp32":
            say(f"{scorer.name} is scored in fp32: {precision} is for classifiers of known families, with one score")
        size = max(1, tokens // length)
        return lambda data: score_padded(scorer, unpack(encode(data)), size), length
    scorer.model.set_attn_implementation(attention.NAME)
    ranker = Ranker(scorer.model).eval()

    def score(data: AnswerSet) -> np.ndarray:
        pairs = encode(data)
        name = f"scoring {data.name} {data.split} with {scorer.name}"
        return score_pairs(ranker, pairs, scorer.model.device, tokens, name, precision)

    return score, length


def can_pack(model: Any) -> bool:
    """Whether pairs of this model can be packed: it is of one of FAMILIES, and has one logit, taken from the first
    token."""
    config = model.config
    family = FAMILIES.get(config.model_type)
    return (
        family is not None
        and type(model).__name__ == family.classifier
        and config.num_labels == 1
        and getattr(config, "classifier_pooling", "cls") == "cls"
    )


def unpack(pairs: EncodedPairs) -> PackedPairs:
    """All pairs as pretrain.modeling.scorer.score_padded takes them."""
    inputs = pairs.pack(np.arange(len(pairs.lengths)), torch.device("cpu"))
    ids, types, starts = (inputs[name].numpy() for name in ("input_ids", "token_type_ids", "starts"))
    return PackedPairs(ids, types, starts)
