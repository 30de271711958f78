"""Trains a plain ELECTRA loop: generator and discriminator of ``transformers`` with tied embeddings, on padded pairs.

The generator gives logits at every position, as its class does; replacements are drawn at the masked ones. bf16 is
autocast, as the Trainer does it.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from .case import CLIP, IGNORED, RATE, SEED, Case, open_stream, pad_rows, split_rows, write_model
from .turns import Turn

RTD_WEIGHT = 50.0


class PlainElectra(nn.Module):
    """The two models, and a linear pair head on the discriminator's first token."""

    def __init__(self, config: Any, generator_config: Any) -> None:
        super().__init__()
        from transformers import ElectraForMaskedLM, ElectraForPreTraining

        self.generator = ElectraForMaskedLM(generator_config)
        self.discriminator = ElectraForPreTraining(config)
        self.generator.electra.embeddings = self.discriminator.electra.embeddings
        self.generator.generator_lm_head.weight = self.discriminator.electra.embeddings.word_embeddings.weight
        self.pair_head = nn.Linear(config.hidden_size, 1)

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, pair_labels: torch.Tensor, **inputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the means of the three losses: MLM, RTD and pair."""
        out = self.generator(input_ids=input_ids, labels=labels, **inputs)
        masked = labels != IGNORED
        with torch.no_grad():
            drawn = torch.multinomial(out.logits[masked].float().softmax(-1), 1)[:, 0]
        original = torch.where(masked, labels, input_ids)
        ids = original.masked_scatter(masked, drawn)
        hidden = self.discriminator.electra(input_ids=ids, **inputs).last_hidden_state
        tokens = self.discriminator.discriminator_predictions(hidden).float()
        real = inputs["attention_mask"].bool()
        rtd = nn.functional.binary_cross_entropy_with_logits(tokens[real], (ids != original)[real].float())
        pair = self.pair_head(hidden[:, 0])[:, 0].float()
        return out.loss, rtd, nn.functional.binary_cross_entropy_with_logits(pair, pair_labels)


def load_plain_electra(case: Case) -> PlainElectra:
    from transformers import AutoConfig

    from pretrain.modeling.electra import parse_size_factor, scale_config

    torch.manual_seed(SEED)
    with TemporaryDirectory() as folder:
        config = AutoConfig.from_pretrained(write_model(case, Path(folder)))
    factor = parse_size_factor("1/3" if "base" in case.model else "1/2")
    assert factor
    return PlainElectra(config, scale_config(config, factor)).train()


def train(case: Case, turn: Turn) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_plain_electra(case).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    stream = open_stream(case)
    pad_id = model.discriminator.config.pad_token_id
    for step in range(case.rounds + 1):
        batch = stream.batch(step * case.pairs, case.pairs)
        inputs = pad_rows(split_rows(batch), pad_id)
        turn.begin()
        inputs = {name: value.to(device) for name, value in inputs.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=case.precision == "bf16"):
            mlm, rtd, pair = model(**inputs)
        (mlm + RTD_WEIGHT * rtd + pair).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses = {"mlm": mlm, "rtd": rtd, "pair": pair}
        turn.end(batch.num_tokens, {name: float(value.detach()) for name, value in losses.items()})
