"""The ways to train that are compared: ours, and the Trainer of ``transformers``.

The Trainer trains the masked-LM model of ``transformers`` as it comes, with a pair head, and pads each batch to its
longest pair. It has its best settings: SDPA, fused AdamW, and ``bf16=True`` for bf16. It takes the pairs in the order
of the stream, which is random, or by length in that of its own sampler, which sorts fifty batches of pairs.
"""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from data_pipeline.sampling.pairs import KINDS

from .case import CLIP, RATE, SEED, Case, open_stream, pad_rows, split_rows, write_model
from .turns import Turn

MEGA_BATCH = 50  # batches that the sampler sorts together: its default for large data sets


def train_ours(case: Case, turn: Turn) -> None:
    from pretrain.batches import make_micro_batches
    from pretrain.config import PretrainConfig
    from pretrain.engine.deepspeed_config import read_deepspeed_config
    from pretrain.engine.engine import build_engine, complete_settings, start_distributed
    from pretrain.engine.layout import Layout
    from pretrain.modeling.pair_model import load_model
    from pretrain.step import start_count_reduction, train_step

    start_distributed()
    layout = Layout(case.pairs, case.pairs, 1)
    settings = PretrainConfig(learning_rate=RATE, max_grad_norm=CLIP)
    stage = "ds_configs/zero1.json" if case.precision == "bf16" else "ds_configs/zero0.json"
    deepspeed_settings = complete_settings(read_deepspeed_config(stage), settings.max_grad_norm, layout, case.precision)
    with TemporaryDirectory() as folder:
        model = load_model(write_model(case, Path(folder)), SEED, (case.objective,))[0]
    engine = build_engine(model, deepspeed_settings, settings.learning_rate, settings.weight_decay)
    engine.train()
    stream = open_stream(case)
    filler = stream.batch(0, 1)
    for step in range(case.rounds + 1):
        batches = make_micro_batches(stream, layout, 0, step)
        turn.begin()
        global_batch = start_count_reduction(batches, engine.module.losses)()
        result = train_step(
            engine, global_batch=global_batch, filler=filler, layout=layout, rank=0, seed=SEED, step=step
        )
        sums = dict(zip(engine.module.sum_names, result.sums.tolist(), strict=True))
        pairs = sum(sums[f"{case.objective}/{kind}_pairs"] for kind in KINDS)
        losses = {"mlm": sums["mlm_loss"] / sums["mlm_tokens"], "pair": sums[f"{case.objective}/pair_loss"] / pairs}
        turn.end(global_batch.counts["num_tokens"], losses)


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


def train_by_trainer(case: Case, turn: Turn) -> None:
    rows = split_rows(open_stream(case).batch(0, case.pairs * (case.rounds + 1)))
    _run_trainer(case, turn, rows)


def train_by_trainer_and_length(case: Case, turn: Turn) -> None:
    rows = split_rows(open_stream(case).batch(0, case.pairs * MEGA_BATCH))
    _run_trainer(case, turn, [rows[k] for k in choose_by_length([len(r["input_ids"]) for r in rows], case)])


def choose_by_length(lengths: list[int], case: Case) -> list[int]:
    """Returns the pairs of ``rounds + 1`` of the sampler's batches, evenly spread from the longest to the shortest.

    So few batches in its own order would all be long ones.
    """
    from transformers.trainer_pt_utils import get_length_grouped_indices

    order = get_length_grouped_indices(
        lengths, case.pairs, mega_batch_mult=MEGA_BATCH, generator=torch.Generator().manual_seed(SEED)
    )
    middles = [(2 * k + 1) * MEGA_BATCH // (2 * case.rounds) for k in range(case.rounds)]
    chosen = [MEGA_BATCH // 2, *middles]  # the first one warms up
    return [pair for number in chosen for pair in order[number * case.pairs : (number + 1) * case.pairs]]


def make_trainer(model: PlainPairs, rows: list[dict[str, Any]], callback: Any, folder: Path, **arguments: Any) -> Any:
    """Returns a Trainer over ``rows``, in their order unless ``arguments``, those of TrainingArguments, change it."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    settings: dict[str, Any] = {
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": CLIP,
        "optim": "adamw_torch_fused",
        "use_cpu": not torch.cuda.is_available(),
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": SEED,
    }
    collate = partial(pad_rows, pad_id=model.masked_lm.config.pad_token_id)
    options = TrainingArguments(output_dir=str(folder), **settings | arguments)
    trainer = Trainer(model, options, data_collator=collate, train_dataset=rows, callbacks=[callback])  # type: ignore[arg-type]
    trainer.remove_callback(PrinterCallback)
    return trainer


def _run_trainer(case: Case, turn: Turn, rows: list[dict[str, Any]]) -> None:
    from transformers import TrainerCallback

    model = load_plain(case)
    tokens = [sum(len(row["input_ids"]) for row in rows[k : k + case.pairs]) for k in range(0, len(rows), case.pairs)]

    class TakeTurns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turn.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            turn.end(tokens[state.global_step - 1], {name: float(value) for name, value in model.last.items()})

    options = {"per_device_train_batch_size": case.pairs, "bf16": case.precision == "bf16"}
    with TemporaryDirectory() as folder:
        make_trainer(model, rows, TakeTurns(), Path(folder), max_steps=len(tokens), **options).train()
