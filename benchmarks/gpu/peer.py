"""The Trainer of ``transformers`` beside the product: RoBERTa-base, the same pairs, the settings that suit it best.

Fused AdamW, ``bf16=True`` over fp32 weights, scaled-dot-product attention, rows padded to the longest of their batch,
in random order or grouped by length; tokens are masked by ``DataCollatorForLanguageModeling`` in worker processes. The
model is ``AutoModelForMaskedLM`` as it comes, with logits at every position, and a linear pair head on first tokens."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from data_pipeline.corpus import Corpus
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_pair_template
from objectives import parse_mixture

from .materials import KIT_MODELS, Bench, Row
from .ours import ON_GPU, synchronize
from .speed import LENGTHS, PAIRS, SECONDS

WINDOW = 4  # updates
SETTINGS = (  # objective, pairs of a micro-batch, sampling
    ("ssp", 128, "random"),
    ("ssp", 256, "random"),
    ("ssp", 512, "random"),
    ("ssp", 256, "group_by_length"),
    ("sp", 256, "random"),
    ("sp", 256, "group_by_length"),
)


class PlainModel(nn.Module):
    """The masked-LM model and a pair head. ``real_tokens`` adds up, on the device, the tokens that are no padding."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        config = AutoConfig.from_pretrained(folder)
        # A checkpoint in fp16 would be loaded as such, so that the type is named.
        self.masked_lm = AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
        self.pair_head = nn.Linear(config.hidden_size, 1)
        self.register_buffer("real_tokens", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor, pair_labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The loss of a padded batch: the mean over masked tokens and that over pairs, added."""
        self.real_tokens += attention_mask.sum()
        out = self.masked_lm(input_ids, attention_mask, labels=labels, output_hidden_states=True)
        pair = self.pair_head(out.hidden_states[-1][:, 0])[:, 0]
        return {"loss": out.loss + F.binary_cross_entropy_with_logits(pair.float(), pair_labels)}


def make_pairs(bench: Bench, name: str, objective: str, length: int, count: int) -> list[dict[str, Any]]:
    """The first pairs of the product's stream as rows of ids, with their label and length."""
    tokenizer = load_tokenizer(bench.model(name))
    corpus = Corpus(bench.corpus(KIT_MODELS[name].corpus), verify=False)
    mixture = parse_mixture(objective).read_from(corpus)
    stream = PairStream(mixture, template=read_pair_template(tokenizer), seed=1, max_length=length, masking=None)
    batch = stream.batch(0, count)
    starts = batch.starts.tolist()
    ids, labels = batch.input_ids.tolist(), batch.labels.tolist()
    spans = zip(starts, starts[1:], labels, strict=False)
    return [{"input_ids": ids[a:b], "length": b - a, "pair_labels": float(label)} for a, b, label in spans]


class Windows(TrainerCallback):
    """Times windows of updates, and ends the training once there are enough."""

    def __init__(self, model: PlainModel, updates: int, seconds: float) -> None:
        self.model, self.updates, self.seconds = model, updates, seconds
        self.marks: list[tuple[float, int]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.updates == 0:
            tokens = int(self.model.real_tokens)  # waits for the device
            self.marks.append((time.perf_counter(), tokens))
            if len(self.marks) > 4 and self.marks[-1][0] - self.marks[1][0] > self.seconds:
                control.should_training_stop = True

    def read(self) -> float:
        """Real tokens per second: the median over the windows after the first."""
        windows = pairwise(self.marks[1:])
        return statistics.median((after[1] - before[1]) / (after[0] - before[0]) for before, after in windows)


def make_trainer(
    bench: Bench, rows: list[dict[str, Any]], pairs: int, micro: int, sampling: str, callback: Callable[..., Any]
) -> Trainer:
    """The Trainer over RoBERTa-base. ``callback``: makes its callback from the model"""
    torch.manual_seed(1)
    folder = bench.model("roberta-base")
    model, tokenizer = PlainModel(folder), load_tokenizer(folder)
    masks = DataCollatorForLanguageModeling(tokenizer)

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        labels = torch.tensor([row["pair_labels"] for row in rows])
        padded = masks([{"input_ids": row["input_ids"], "attention_mask": [1] * row["length"]} for row in rows])
        return {**padded, "pair_labels": labels}

    arguments = TrainingArguments(
        output_dir=str(bench.scratch / "trainer"),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=pairs // micro,
        max_steps=10**6,
        learning_rate=1e-4,
        optim="adamw_torch_fused",
        bf16=ON_GPU,
        use_cpu=not ON_GPU,
        train_sampling_strategy=sampling,
        dataloader_num_workers=8 if ON_GPU else 0,
        dataloader_persistent_workers=ON_GPU,
        remove_unused_columns=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    return Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=[callback(model)])


def measure_trainer(bench: Bench) -> Iterator[Row]:
    """Its real tokens per second over micro-batch sizes and both ways of sampling."""
    settings = [(o, 4, s) for o, _, s in (SETTINGS[0], SETTINGS[3])] if bench.quick else SETTINGS
    pairs, window = (4, 1) if bench.quick else (PAIRS, WINDOW)
    made: dict[str, list[dict[str, Any]]] = {}
    for objective, micro, sampling in settings:
        length = 32 if bench.quick else LENGTHS[objective]
        if objective not in made:
            made[objective] = make_pairs(bench, "roberta-base", objective, length, 64 if bench.quick else 65536)

        def watch(model: PlainModel) -> Windows:
            return Windows(model, window, 0.0 if bench.quick else SECONDS)

        what = f"{objective.upper()} at {length}, micro-batches of {micro} pairs, {sampling}"
        try:
            trainer = make_trainer(bench, made[objective], pairs, micro, sampling, watch)
            trainer.train()
            windows = next(c for c in trainer.callback_handler.callbacks if isinstance(c, Windows))
            yield Row(what, {"tokens/s": windows.read()})
            del trainer, windows
        except torch.OutOfMemoryError as error:
            yield Row(what, {"error": str(error).splitlines()[0]})
        free()


def free() -> None:
    """Gives back what the last Trainer held on the device."""
    gc.collect()
    synchronize()
    if ON_GPU:
        torch.cuda.empty_cache()
