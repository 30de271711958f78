"""Every setting of a pre-training run, with the checks that need nothing but the settings."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from data_pipeline.errors import KinspanError
from data_pipeline.executors import check_workers
from pretrain.runtime.settings import setting


@dataclass
class PretrainConfig:
    """Settings of ``launch/pretrain.py``; a flag each, or a line each of a ``--config`` file."""

    objective: str = setting(
        "ssp",
        "Sentence-level objective: ssp (do two spans come from the same paragraph?), sp (does a span come from this "
        "paragraph?), psd (do two paragraphs come from the same document?), nsp, sop, ict; a mixture with "
        "whole-number weights such as ssp:2+sp:1+psd:1; all (ssp+sp+psd); or your own as my_module:my_objective.",
    )
    corpus: str | None = setting(
        None, "Folder written by launch/prepare.py. Without it: the documentation that comes with Python."
    )
    model: str | None = setting(
        None,
        "Weights folder, hub name (roberta-base), or a folder with only config and tokenizer: then training "
        "starts from scratch. Without it: all-MiniLM-L6-v2, which is installed with this package.",
    )
    output_dir: str = setting("runs/ssp", "Where the run goes. The same command again resumes what is there.")
    deepspeed_config: str = setting("ds_configs/zero2.json", "DeepSpeed JSON: ds_configs/zero0 ... zero3, offload.")
    sampling: Literal["matched", "paper"] = setting(
        "matched", "Lengths of negatives: as the positive's, or drawn freely (they then give the label away)."
    )

    global_batch_size: int = setting(64, "Pairs in one update, over all ranks.")
    micro_batch_size: int = setting(32, "Most pairs in one forward pass of one rank; accumulation follows from it.")
    max_length: int | None = setting(
        None, "Tokens of a pair; default: the objective's own (ssp: 128), the shortest of a mixture."
    )
    max_steps: int | None = setting(None, "Updates in all. Default 1000 if neither epochs nor tokens are given.")
    max_epochs: float | None = setting(None, "Instead of max_steps: times that every anchor paragraph is used.")
    max_tokens: int | None = setting(
        None, "Instead of max_steps: tokens in all; made into steps by the mean length of the first pairs."
    )

    learning_rate: float = setting(1e-4, "Peak of the triangular schedule.")
    warmup_steps: int | None = setting(
        None, "Updates until the peak; the rate then falls linearly to zero. Default: a tenth of all."
    )
    weight_decay: float = setting(0.01, "AdamW's, not on biases and LayerNorm.")
    max_grad_norm: float = setting(1.0, "Gradients are clipped to this global norm.")
    token_loss: Literal["auto", "mlm", "rtd"] = setting(
        "auto",
        "Masked language modelling, or ELECTRA's replaced-token detection (a generator is trained along); auto: rtd "
        "for ELECTRA models, else mlm.",
    )
    generator: str = setting(
        "1/3",
        "For rtd: the generator's weights folder or hub name, or its size as a factor of --model's, such as 1/3 or "
        "0.25: it then starts fresh.",
    )
    embedding_sharing: Literal["none", "tied", "disentangled"] = setting(
        "tied",
        "For rtd: generator and discriminator have embeddings of their own, the same ones, or the discriminator's "
        "word table is the generator's, untouched by its loss, plus a learned difference.",
    )
    mlm_weight: float = setting(1.0, "Weight of the masked-LM loss.")
    rtd_weight: float = setting(50.0, "Weight of the replaced-token loss.")
    pair_weight: float = setting(1.0, "Weight of the sentence-level loss; 0: the token loss alone.")
    mlm_probability: float = setting(0.15, "Share of tokens chosen for the token loss.")
    whole_word_masking: bool = setting(False, "Choose whole words for the token loss, not tokens.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto",
        "auto: bf16 where the GPU or processor has it, else fp32. bf16 and fp16 need ZeRO 1 or higher."
        " fp16 needs a GPU.",
    )
    seed: int = setting(1, "Of everything: order, spans, masks, dropout, fresh weights.")

    eval_steps: int = setting(100, "Validate on held-out documents every so many updates, and at the end.")
    eval_pairs: int = setting(1000, "Held-out pairs, the same every time.")
    probe: str | None = setting(
        None,
        "Data set of answer sentence selection, such as wikiqa=FOLDER (see launch/finetune.py): now and then a copy of "
        "the model is fine-tuned on a little of it, and ranks the candidates of its dev set.",
    )
    probe_steps: int = setting(1000, "Probe every so many updates, and at the start and at the end.")
    probe_pairs: int = setting(1000, "Most pairs that a probe fine-tunes on, the same every time.")
    log_steps: int = setting(10, "Log every so many updates.")
    save_steps: int = setting(100, "Checkpoint every so many updates, and at the end.")
    keep_checkpoints: int = setting(2, "Newest checkpoints kept.")
    keep_every: int = setting(0, "Also keep, for good, the checkpoints of steps that are a multiple of it; 0: none.")
    async_checkpoints: bool | None = setting(
        None,
        "true: train on while a checkpoint is written, from a copy in host memory; false: wait for it, which costs "
        "less where the cores that would write are those that train. Default: true on GPUs.",
    )
    release_every: int = setting(0, "Also write a release (see launch/release.py) every so many updates; 0: never.")
    max_hours: float | None = setting(
        None,
        "Stop with a checkpoint and status 75 after so many hours, as at a signal: for the limit of a batch queue.",
    )
    stall_minutes: float = setting(
        10.0,
        "End all ranks, with their stacks and the name of the one that stalls, when none came further for so long.",
    )
    max_skipped_steps: int = setting(
        20, "End the run after so many updates in a row that were skipped because a loss or gradient was not finite."
    )
    on_spike: Literal["warn", "rewind", "ignore"] = setting(
        "warn",
        "When the loss of a line of the log leaps up: say so, or go back to the checkpoint before and leave out the "
        "batches of that line.",
    )
    deterministic: bool = setting(
        False, "Only algorithms that give the same bits every time; on a GPU slower, on a CPU they all do."
    )
    num_workers: int = setting(1, "Threads a rank that make batches ahead. The batches do not depend on it.")
    peak_tflops: float | None = setting(
        None, "Peak TFLOP/s of one device, for model FLOP utilisation; known GPUs are looked up."
    )
    dry_run: bool = setting(False, "Print what these settings would do (tokens, memory, time), and stop.")
    tokens_per_second: float | None = setting(None, "For --dry_run: the speed of all ranks that hours are told by.")
    local_rank: int = setting(-1, "Set by the deepspeed launcher.")


# What may change between runs of one output folder; everything else makes it another run.
FREE_TO_CHANGE = (
    "output_dir",
    "deepspeed_config",
    "corpus",
    "model",
    "generator",
    "eval_steps",
    "eval_pairs",
    "probe",
    "probe_steps",
    "probe_pairs",
    "log_steps",
    "save_steps",
    "keep_checkpoints",
    "keep_every",
    "async_checkpoints",
    "max_hours",
    "stall_minutes",
    "max_skipped_steps",
    "on_spike",
    "deterministic",
    "release_every",
    "num_workers",
    "peak_tflops",
    "dry_run",
    "tokens_per_second",
    "local_rank",
)


def check(config: PretrainConfig) -> None:
    """Refuse settings that cannot be meant, naming the flag."""
    for name, value in asdict(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise KinspanError(f"--{name} {value}: must be a finite number")
    if not config.pair_weight and not config.mlm_weight and (config.token_loss == "mlm" or not config.rtd_weight):
        raise KinspanError("--pair_weight 0 with token losses of weight 0 trains nothing: give one of them a weight")
    positive = "global_batch_size micro_batch_size eval_steps log_steps save_steps keep_checkpoints "
    positive += "max_steps max_epochs max_tokens max_length peak_tflops tokens_per_second probe_steps probe_pairs "
    positive += "max_hours stall_minutes max_skipped_steps"
    for name in positive.split():
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise KinspanError(f"--{name} {value}: must be above 0")
    for name in (
        "warmup_steps",
        "weight_decay",
        "mlm_weight",
        "rtd_weight",
        "pair_weight",
        "eval_pairs",
        "release_every",
        "keep_every",
        "learning_rate",
        "max_grad_norm",
    ):
        value = getattr(config, name)
        if value is not None and not value >= 0:
            raise KinspanError(f"--{name} {value}: must not be below 0")
    check_workers(config.num_workers)
    if not 0 <= config.seed < 2**63:
        raise KinspanError(f"--seed {config.seed}: must be from 0 to 2^63 - 1")
    if not 0 < config.mlm_probability < 1:
        raise KinspanError(f"--mlm_probability {config.mlm_probability}: must lie between 0 and 1")
    if config.micro_batch_size > config.global_batch_size:
        raise KinspanError(
            f"--micro_batch_size {config.micro_batch_size} is larger than --global_batch_size "
            f"{config.global_batch_size}: lower the first or raise the second"
        )
    if config.on_spike == "rewind" and config.save_steps * config.keep_checkpoints < config.log_steps:
        raise KinspanError(
            f"--on_spike rewind: --save_steps {config.save_steps} and --keep_checkpoints {config.keep_checkpoints} "
            f"leave no checkpoint from before a line of the log (--log_steps {config.log_steps}): keep more of them"
        )
    lengths = [n for n in ("max_steps", "max_epochs", "max_tokens") if getattr(config, n) is not None]
    if len(lengths) > 1:
        raise KinspanError(f"--{' and --'.join(lengths)} say the same thing: give one of them")


def identity(config: PretrainConfig, **facts: Any) -> dict[str, Any]:
    """What makes a run this run: two that agree on it give the same numbers on the same world size.

    ``facts`` are what the paths stand for: fingerprints of corpus and model, the DeepSpeed settings.
    """
    own = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in FREE_TO_CHANGE}
    return {**own, **facts}


def as_dict(config: PretrainConfig) -> dict[str, Any]:
    values = asdict(config)
    for name in ("local_rank", "dry_run", "tokens_per_second"):  # they say nothing of the run
        values.pop(name)
    return values
