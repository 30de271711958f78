"""The Trainer of ``transformers`` with its best settings: SDPA, fused AdamW, ``bf16=True`` for bf16.

Each batch is padded to its longest pair. ``train`` takes the pairs in the order of the stream, which is random;
``train_by_length`` in that of the Trainer's own sampler, which sorts fifty batches of pairs by length.
"""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from .case import CLIP, RATE, SEED, Case, open_stream, pad_rows, split_rows
from .plain import PlainPairs, load_plain, read_losses
from .turns import Turn

MEGA_BATCH = 50  # batches that the sampler sorts together: its default for large data sets


def train(case: Case, turn: Turn) -> None:
    rows = split_rows(open_stream(case).batch(0, case.pairs * (case.rounds + 1)))
    _train(case, turn, rows)


def train_by_length(case: Case, turn: Turn) -> None:
    rows = split_rows(open_stream(case).batch(0, case.pairs * MEGA_BATCH))
    _train(case, turn, [rows[k] for k in choose_by_length([len(r["input_ids"]) for r in rows], case)])


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


def _train(case: Case, turn: Turn, rows: list[dict[str, Any]]) -> None:
    from transformers import TrainerCallback

    model = load_plain(case)
    tokens = [sum(len(row["input_ids"]) for row in rows[k : k + case.pairs]) for k in range(0, len(rows), case.pairs)]

    class TakeTurns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turn.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            turn.end(tokens[state.global_step - 1], read_losses(model))

    options = {"per_device_train_batch_size": case.pairs, "bf16": case.precision == "bf16"}
    with TemporaryDirectory() as folder:
        make_trainer(model, rows, TakeTurns(), Path(folder), max_steps=len(tokens), **options).train()
