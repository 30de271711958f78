"""A bi-encoder in training: one encoder that embeds each text by itself, and its masked-LM head."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PreTrainedModel

from pretrain.modeling.encoder import Inputs, encode_packed, prepare_encoder
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.losses import MLM, MLM_SUMS, PAIR, compute_mlm_loss, name_sums
from pretrain.modeling.pair_model import Load, load_or_build

from .losses import CONTRASTIVE_SUMS

TEMPERATURE = 0.05  # sentence-transformers' default, a scale of 20


class SiameseModel(nn.Module):
    """An encoder whose texts are compared by the cosine of their mean hidden states; its pair loss is in cached.py."""

    losses = (MLM, PAIR)
    token_heads = ()

    def __init__(
        self, masked_lm: PreTrainedModel, objectives: tuple[str, ...] = ("ssp",), temperature: float = TEMPERATURE
    ) -> None:
        super().__init__()
        self.objectives, self.temperature = objectives, temperature
        self.config = masked_lm.config
        self.family = FAMILIES[self.config.model_type]
        self.encoder = masked_lm.base_model
        self.mlm_head = self.family.mlm_head_of(masked_lm)
        self.encoders, self.masked_heads = (self.encoder,), (self.mlm_head,)
        self.pair_sum_names = name_sums((), objectives, CONTRASTIVE_SUMS)
        self.sum_names = MLM_SUMS + self.pair_sum_names
        prepare_encoder(self, self.encoder)

    def embed(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Returns hidden states ``[T, hidden]``, and normalised embeddings ``[n, m, hidden]`` of n pairs of m texts."""
        hidden = encode_packed(self.encoder, inputs)
        mean = pool_mean(hidden, inputs["starts"])
        return hidden, F.normalize(mean, dim=-1).view(len(inputs["labels"]), -1, hidden.shape[-1])

    def forward(self, *, scales: Mapping[str, Tensor | float] | None, **inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Returns a packed micro-batch's weighted masked-LM loss, its sums ``[len(sum_names)]`` and its embeddings.

        The sums of the pair loss are 0, as they need the global batch. scales: None if only embeddings are needed
        """
        hidden, embeddings = self.embed(inputs)
        sums = torch.zeros(len(self.sum_names), dtype=torch.float64, device=hidden.device)
        if scales is None:
            return sums[0], sums, embeddings
        loss, mlm_sums = compute_mlm_loss(self.mlm_head(hidden[inputs["masked_positions"]]), inputs["masked_labels"])
        sums[: len(mlm_sums)] = mlm_sums
        return loss * scales["mlm"], sums, embeddings


def pool_mean(hidden: Tensor, starts: Tensor) -> Tensor:
    """Returns the mean of each sequence's hidden states ``[T, hidden]``, special tokens included, in fp32."""
    lengths = starts.diff()
    indices = torch.arange(len(lengths), device=hidden.device)
    sequence = torch.repeat_interleave(indices, lengths, output_size=len(hidden))
    total = hidden.new_zeros(len(lengths), hidden.shape[1], dtype=torch.float32)
    return total.index_add(0, sequence, hidden.float()) / lengths[:, None]


def load_siamese_model(
    name_or_dir: str,
    seed: int,
    objectives: tuple[str, ...] = ("ssp",),
    temperature: float = TEMPERATURE,
    load: Load = load_or_build,
) -> tuple[SiameseModel, list[str]]:
    """Loads the bi-encoder to train, in fp32, and returns it with notes on its new parts; see ``load_model``."""
    torch.manual_seed(seed)  # for fresh weights
    model, notes = load(AutoModelForMaskedLM, name_or_dir, "masked-LM")
    return SiameseModel(model, objectives, temperature).train(), notes
