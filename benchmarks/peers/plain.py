"""Peers train the masked-LM model of ``transformers`` as it comes, and a pair head: here, in a DeepSpeed engine."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from .case import CLIP, RATE, SEED, Case, open_stream, pad_rows, split_rows, write_model
from .turns import Turn


class PlainPairs(nn.Module):
    """Logits at every position by its own head, and a linear pair head on the first token's hidden state.

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
    """Returns the case's model in fp32: transformers 5 would load weights that are stored as fp16 as fp16."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    torch.manual_seed(SEED)
    with TemporaryDirectory() as folder:
        name = write_model(case, Path(folder))
        if case.model == "minilm":
            return PlainPairs(AutoModelForMaskedLM.from_pretrained(name, dtype=torch.float32)).train()
        return PlainPairs(AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(name))).train()


def read_losses(model: PlainPairs) -> dict[str, float]:
    return {name: float(value) for name, value in model.last.items()}


def train_by_deepspeed(case: Case, turn: Turn) -> None:
    from pretrain.engine.engine import start_distributed

    start_distributed()
    import deepspeed

    model, bf16 = load_plain(case), case.precision == "bf16"
    settings = {
        "train_micro_batch_size_per_gpu": case.pairs,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": CLIP,
        "bf16": {"enabled": bf16},
        "zero_optimization": {"stage": 1 if bf16 else 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    engine.train()
    stream = open_stream(case)
    for step in range(case.rounds + 1):
        batch = stream.batch(step * case.pairs, case.pairs)
        inputs = pad_rows(split_rows(batch), model.masked_lm.config.pad_token_id)
        turn.begin()
        inputs = {name: value.to(engine.device) for name, value in inputs.items()}
        engine.backward(engine(**inputs)["loss"])
        engine.step()
        turn.end(batch.num_tokens, read_losses(model))
