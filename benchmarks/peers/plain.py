"""What the peers train: the masked-LM model of ``transformers`` as it comes, and a pair head."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from .case import SEED, Case, write_model


class PlainPairs(nn.Module):
    """Its own head's logits at every position, and a linear pair head on the first token's hidden state.

    ``last`` holds the means of the two losses of the last forward pass; ``real_tokens`` adds up, on the device, the
    tokens that are no padding.
    """

    def __init__(self, masked_lm: Any) -> None:
        super().__init__()
        self.masked_lm = masked_lm
        self.pair_head = nn.Linear(masked_lm.config.hidden_size, 1)
        self.last: dict[str, torch.Tensor] = {}
        self.register_buffer("real_tokens", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, pair_labels: torch.Tensor, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        self.real_tokens += inputs["attention_mask"].sum()
        out = self.masked_lm(**inputs, output_hidden_states=True)  # backward keeps the hidden states in any case
        pair = self.pair_head(out.hidden_states[-1][:, 0])[:, 0].float()
        pair_loss = nn.functional.binary_cross_entropy_with_logits(pair, pair_labels)
        self.last = {"mlm": out.loss.detach(), "pair": pair_loss.detach()}
        return {"loss": out.loss + pair_loss}


def load_plain(case: Case) -> PlainPairs:
    """The case's model in fp32: transformers 5 would load weights that are stored as fp16 as fp16."""
    from transformers import AutoConfig, AutoModelForMaskedLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(SEED)
    with TemporaryDirectory() as folder:
        name = write_model(case, Path(folder))
        if case.model == "minilm":
            return PlainPairs(AutoModelForMaskedLM.from_pretrained(name, dtype=torch.float32)).train()
        return PlainPairs(AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(name))).train()


def read_losses(model: PlainPairs) -> dict[str, float]:
    return {name: float(value) for name, value in model.last.items()}
