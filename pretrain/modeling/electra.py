"""Replaced-token detection: ELECTRA's generator and discriminator as one trained module.

Clark et al., 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators", section 2,
with a pair loss on the discriminator as in Di Liello et al., 2022, appendix B. They are one module, since ZeRO-2 does
not work with two engines.
"""

import copy
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from data_pipeline.core.errors import KinspanError

from .encoder import Inputs, encode_packed, prepare_encoder
from .families import FAMILIES
from .losses import MLM, MLM_SUMS, PAIR, RTD, RTD_SUMS, compute_mlm_loss, compute_pair_loss, compute_rtd_loss, name_sums
from .pair_model import Load, holds_no_weights, load_or_build, start_at_base_rate

SAMPLING_BLOCK = 256  # entries of the vocabulary, see sample
EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings")


class ReplacedTokenModel(nn.Module):
    """A generator, and a discriminator with a token head and a pair head; see ``share_embeddings``.

    generator:  ElectraForMaskedLM
    classifier: ElectraForSequenceClassification, the discriminator's encoder included
    token_head: ElectraForPreTraining's ``discriminator_predictions``
    """

    losses = (MLM, RTD, PAIR)

    def __init__(
        self,
        generator: PreTrainedModel,
        classifier: PreTrainedModel,
        token_head: nn.Module,
        objectives: tuple[str, ...],
    ) -> None:
        super().__init__()
        self.generator = generator  # first, so that shared tensors are saved under its name
        self.classifier = classifier
        self.discriminator_predictions = token_head
        self.family = FAMILIES["electra"]
        self.objectives = objectives
        self.config = classifier.config  # of the discriminator, which is the model to release
        self.encoders = generator.base_model, classifier.base_model
        self.masked_heads = generator.generator_predictions, generator.generator_lm_head
        self.token_heads = (token_head,)
        self.sum_names = name_sums(MLM_SUMS + RTD_SUMS, objectives)
        for encoder in self.encoders:
            prepare_encoder(self, encoder)

    def generate(self, inputs: Inputs) -> Tensor:
        """Returns the generator's vocabulary logits at the masked positions, ``[M, vocab]``."""
        hidden = encode_packed(self.generator.base_model, inputs)[inputs["masked_positions"]]
        for head in self.masked_heads:
            hidden = head(hidden)
        return hidden

    def encode(self, inputs: Inputs) -> Tensor:
        """Returns the discriminator's hidden states of a packed row, ``[T, hidden]``."""
        return encode_packed(self.classifier.base_model, inputs)

    def score_pairs(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """Returns the logits ``[n]`` of the pairs that begin at ``starts`` ``[n + 1]``."""
        return self.family.pair_logits(self.classifier, hidden[starts[:-1].long()]).float()

    def detect_replaced(self, hidden: Tensor) -> Tensor:
        """Returns token logits ``[T]``, above 0 for a token that is predicted to be replaced."""
        return self.discriminator_predictions(hidden).float()

    def forward(self, *, scales: Mapping[str, Tensor | float], **inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the weighted loss of a packed micro-batch, its sums and its pair logits, as PairModel does.

        inputs: see PairModel; every masked position holds the mask token, and has a number in ``noise``
        """
        labels, positions = inputs["masked_labels"], inputs["masked_positions"]
        mlm = self.generate(inputs)
        mlm_loss, mlm_sums = compute_mlm_loss(mlm, labels)
        original = inputs["input_ids"].long().index_copy(0, positions, labels)
        ids = original.index_copy(0, positions, sample(mlm.detach(), inputs["noise"]))
        hidden = self.encode(inputs | {"input_ids": ids})
        pair = self.score_pairs(hidden, inputs["starts"])
        rtd_loss, rtd_sums = compute_rtd_loss(self.detect_replaced(hidden), ids != original)
        pair_loss, pair_sums = compute_pair_loss(
            pair, inputs["labels"], inputs["kinds"], inputs["part"], len(self.objectives)
        )
        loss = mlm_loss * scales["mlm"] + rtd_loss * scales["rtd"] + pair_loss * scales["pair"]
        return loss, torch.cat([mlm_sums, rtd_sums, pair_sums]), pair.detach()


@torch.no_grad()
def sample(logits: Tensor, noise: Tensor) -> Tensor:
    """Draws an id from each row's softmax ``[M]``, by its inverse distribution function at ``noise``.

    logits: ``[M, vocab]``;  noise: ``[M]`` float64, uniform in [0, 1)

    It finds the block of the vocabulary first, then the id in it. The float64 sums avoid ``cumsum``, whose order of
    addition varies on a GPU.
    """
    probability = F.softmax(logits, -1, dtype=torch.float32)
    probability = F.pad(probability, (0, -logits.shape[1] % SAMPLING_BLOCK)).unflatten(1, (-1, SAMPLING_BLOCK))
    mass = probability.sum(-1, dtype=torch.float64)
    block, before = _first_above(mass, noise * mass.sum(-1))
    rows = torch.arange(len(logits), device=logits.device)
    within, _ = _first_above(probability[rows, block].double(), noise * mass.sum(-1) - before)
    return block * SAMPLING_BLOCK + within


def _first_above(mass: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each row's first column whose cumulated mass exceeds ``target`` ``[M]``, and the mass before it.

    mass: ``[M, K]``; if rounding leaves no such column, the last column with any mass is returned
    """
    cumulated = mass @ torch.ones(mass.shape[1], mass.shape[1], dtype=mass.dtype, device=mass.device).triu()
    last = torch.where(mass > 0, torch.arange(mass.shape[1], device=mass.device), 0).amax(-1)
    first = torch.minimum((cumulated <= target[:, None]).sum(-1), last)
    chosen = first[:, None]
    return first, (cumulated.gather(1, chosen) - mass.gather(1, chosen))[:, 0]


class DisentangledEmbedding(nn.Module):
    """Embeds by the generator's word table, with its gradient stopped, plus a trained difference.

    He et al., 2021, "DeBERTaV3", section 3.3. It holds the generator's Parameter too, so that ZeRO-3 gathers it here.
    """

    def __init__(self, shared: nn.Parameter, initial: Tensor, padding_idx: int | None) -> None:
        super().__init__()
        self.shared = shared
        self.delta = nn.Parameter(initial - shared.detach())
        self.padding_idx = padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.shared.detach()) + F.embedding(ids, self.delta, self.padding_idx)


def share_embeddings(
    generator: PreTrainedModel,
    classifier: PreTrainedModel,
    how: str,
    generator_loaded: bool = False,
    classifier_loaded: bool = False,
) -> None:
    """Makes the two models share their embeddings, in place.

    how: "none"; "tied": all tables and their LayerNorm (Clark et al., section 3.2); "disentangled": the word table
        alone, see DisentangledEmbedding
    generator_loaded, classifier_loaded: whether the values come from a file. If only the generator's do, both start
        with these; otherwise with the discriminator's, but two loaded disentangled tables stay as they are
    """
    if how == "none":
        return
    small, large = generator.base_model.embeddings, classifier.base_model.embeddings
    for name in EMBEDDINGS if how == "tied" else EMBEDDINGS[:1]:
        shapes = [tuple(getattr(side, name).weight.shape) for side in (small, large)]
        if shapes[0] != shapes[1]:
            raise KinspanError(f"--embedding_sharing {how}: {name} of generator and discriminator have shapes {shapes}")
    source, target = (small, large) if generator_loaded and not classifier_loaded else (large, small)
    if how == "disentangled":
        if not (generator_loaded and classifier_loaded):
            with torch.no_grad():
                target.word_embeddings.weight.copy_(source.word_embeddings.weight)
        words = large.word_embeddings
        large.word_embeddings = DisentangledEmbedding(
            small.word_embeddings.weight, words.weight.detach(), words.padding_idx
        )
        return
    for name in EMBEDDINGS:
        getattr(target, name).weight = getattr(source, name).weight
    target.LayerNorm.weight, target.LayerNorm.bias = source.LayerNorm.weight, source.LayerNorm.bias
    generator.get_output_embeddings().weight = small.word_embeddings.weight


def load_replaced_token_model(
    name_or_dir: str,
    generator: str,
    sharing: str,
    seed: int,
    objectives: tuple[str, ...] = ("ssp",),
    positive_share: float = 0.2,
    load: Load = load_or_build,
) -> tuple[ReplacedTokenModel, list[str]]:
    """Loads discriminator and generator, in fp32, and returns them with notes on their new parts; see ``load_model``.

    name_or_dir: the discriminator
    generator:   a model; or a factor of the discriminator's size, such as ``1/3``, for a generator that starts fresh
    sharing:     how embeddings are shared, see share_embeddings
    """
    torch.manual_seed(seed)  # of fresh weights
    classifier, notes = load(AutoModelForSequenceClassification, name_or_dir, "pair")
    if notes:
        start_at_base_rate(classifier, positive_share)
    detector, more = load(AutoModelForPreTraining, name_or_dir, "token-detection")
    notes, config, factor = notes + more, classifier.config, parse_size_factor(generator)
    if factor is None:
        masked_lm, more = load(AutoModelForMaskedLM, generator, "generator's masked-LM", "--generator")
        if masked_lm.config.model_type != "electra":
            raise KinspanError(f"--generator {generator} is {masked_lm.config.model_type}: it must be an ELECTRA model")
        if masked_lm.config.vocab_size != config.vocab_size:
            raise KinspanError(f"--generator {generator}: its vocabulary differs from --model's")
    else:
        small = scale_config(config, factor)
        masked_lm, _ = load(AutoModelForMaskedLM, name_or_dir, "", config=small)
        layers, heads = small.num_hidden_layers, small.num_attention_heads
        more = [f"the generator starts fresh: {layers} layers of {small.hidden_size}, {heads} heads"]
    loaded = factor is None and not holds_no_weights(generator), not holds_no_weights(name_or_dir)
    if all(loaded) and sharing == "tied":
        more = [*more, "the generator's embeddings are replaced by the discriminator's, since they are tied"]
    share_embeddings(masked_lm, classifier, sharing, *loaded)
    model = ReplacedTokenModel(masked_lm, classifier, detector.discriminator_predictions, objectives).train()
    return model, list(dict.fromkeys(notes + more))


def parse_size_factor(text: str) -> float | None:
    """Returns ``1/3`` or ``0.25`` as a number; None if ``text`` is a name."""
    try:
        factor = float(Fraction(text))
    except ValueError:
        return None
    except (ZeroDivisionError, OverflowError):
        factor = 0.0
    if not 0 < factor <= 1:
        raise KinspanError(f"--generator {text}: a size must be above 0 and at most 1")
    return factor


def scale_config(config: PreTrainedConfig, factor: float) -> PreTrainedConfig:
    """Returns a generator's config: as deep as the discriminator, ``factor`` as wide, with heads of the same size."""
    out = copy.deepcopy(config)
    head_dim = config.hidden_size // config.num_attention_heads
    out.num_attention_heads = max(1, round(config.num_attention_heads * factor))
    out.hidden_size = out.num_attention_heads * head_dim
    out.intermediate_size = max(1, round(config.intermediate_size * factor))
    return out
