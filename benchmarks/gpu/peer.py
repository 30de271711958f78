"""The Trainer of ``transformers`` beside the product: RoBERTa-base, the same pairs, the settings that suit it best.

Those of benchmarks.peers.trainer, with ``bf16=True`` over fp32 weights, rows in random order or grouped by length, and
worker processes that pad them."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, Trainer, TrainerCallback

from benchmarks.peers.case import SEED, split_rows
from benchmarks.peers.plain import PlainPairs
from benchmarks.peers.trainer import make_trainer
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_pair_template
from objectives import parse_mixture
from objectives.mlm import MaskedLM

from .materials import KIT_MODELS, Bench, Row
from .ours import ON_GPU, synchronize
from .speed import LENGTHS, PAIRS, SECONDS

MODEL = "roberta-base"
WINDOW = 4  # updates
SETTINGS = (  # objective, pairs of a micro-batch, sampling
    ("ssp", 128, "random"),
    ("ssp", 256, "random"),
    ("ssp", 512, "random"),
    ("ssp", 256, "group_by_length"),
    ("sp", 256, "random"),
    ("sp", 256, "group_by_length"),
)


def make_rows(bench: Bench, objective: str, length: int, count: int) -> list[dict[str, Any]]:
    """The first pairs of the product's stream, masked, one by one."""
    tokenizer = load_tokenizer(bench.model(MODEL))
    mixture = parse_mixture(objective).read_from(Corpus(bench.corpus(KIT_MODELS[MODEL].corpus), verify=False))
    masking = MaskedLM(tokenizer.mask_token_id, len(tokenizer))
    template = read_pair_template(tokenizer)
    stream = PairStream(mixture, template=template, seed=SEED, max_length=length, masking=masking)
    return [row | {"length": len(row["input_ids"])} for row in split_rows(stream.batch(0, count))]


class Windows(TrainerCallback):
    """Times windows of updates, and ends the training once there are enough."""

    def __init__(self, model: PlainPairs, updates: int, seconds: float) -> None:
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


def prepare_trainer(
    bench: Bench,
    rows: list[dict[str, Any]],
    pairs: int,
    micro: int,
    sampling: str,
    callback: Callable[[PlainPairs], TrainerCallback],
) -> Trainer:
    """The Trainer over RoBERTa-base, which goes on until ``callback``, made for its model, ends it."""
    torch.manual_seed(SEED)
    config = AutoConfig.from_pretrained(bench.model(MODEL))
    # A checkpoint in fp16 would be loaded as such, so that the type is named.
    model = PlainPairs(AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32))
    return make_trainer(
        model,
        rows,
        callback(model),
        bench.scratch / "trainer",
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=pairs // micro,
        max_steps=10**6,
        bf16=ON_GPU,
        train_sampling_strategy=sampling,
        dataloader_num_workers=8 if ON_GPU else 0,
        dataloader_persistent_workers=ON_GPU,
    )


def measure_trainer(bench: Bench) -> Iterator[Row]:
    """Its real tokens per second over micro-batch sizes and both ways of sampling."""
    settings = [(o, 4, s) for o, _, s in (SETTINGS[0], SETTINGS[3])] if bench.quick else SETTINGS
    pairs, window = (4, 1) if bench.quick else (PAIRS, WINDOW)
    made: dict[str, list[dict[str, Any]]] = {}
    for objective, micro, sampling in settings:
        length = 32 if bench.quick else LENGTHS[objective]
        if objective not in made:
            made[objective] = make_rows(bench, objective, length, 64 if bench.quick else 65536)

        def watch(model: PlainPairs) -> Windows:
            return Windows(model, window, 0.0 if bench.quick else SECONDS)

        what = f"{objective.upper()} at {length}, micro-batches of {micro} pairs, {sampling}"
        try:
            trainer = prepare_trainer(bench, made[objective], pairs, micro, sampling, watch)
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
