"""Every setting of fine-tuning, with the checks that need nothing but the settings."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from data_pipeline.errors import KinspanError
from finetune.data.filters import FILTERS
from pretrain.runtime.settings import setting

SPEC = "wikiqa=FOLDER, trecqa=FOLDER, jacana=FOLDER, asnq=FOLDER, insuranceqa=FOLDER, files=FOLDER or hub=OWNER/NAME"


@dataclass
class FinetuneConfig:
    """Settings of ``launch/finetune.py``; a flag each, or a line each of a ``--config`` file."""

    data: str = field(metadata={"help": f"The target's data set: {SPEC}."})
    model: str | None = setting(
        None, "A release, another weights folder, or a hub name. Without it: all-MiniLM-L6-v2, which is installed."
    )
    output_dir: str = setting("runs/as2", "Where the runs go, a folder a seed. The same command again resumes.")
    columns: str | None = setting(
        None, "For files= and hub=: names of the columns, as question=query,answer=passage,label=relevant."
    )
    train_filter: Literal["raw", "no-all-negative", "clean"] = setting(
        "no-all-negative", "Training questions: all, those with an answer, or those with answers and non-answers."
    )
    eval_filter: Literal["raw", "no-all-negative", "clean"] = setting("clean", "The same of dev and test questions.")

    transfer: str | None = setting(
        None, "TANDA: a data set to fine-tune on first, before --data; both stop by the dev MAP of --data."
    )
    transfer_learning_rate: float = setting(2e-5, "TANDA: peak learning rate of the transfer step.")
    transfer_epochs: int = setting(9, "TANDA: most epochs of the transfer step.")
    transfer_steps: int | None = setting(None, "TANDA: most updates of the transfer step.")
    transfer_eval_steps: int | None = setting(None, "As --eval_steps, of the transfer step.")
    transfer_batch_size: int | None = setting(None, "As --batch_size, of the transfer step. Default: that.")
    transfer_negatives: float | None = setting(None, "As --negatives_per_positive, of the transfer step.")
    negative_labels: list[int] = field(
        default_factory=lambda: [1, 2, 3], metadata={"help": "ASNQ: its labels that are negatives; 4 is positive."}
    )
    label_noise: float = setting(0.0, "Share of the target's training labels to flip (TANDA, table 5).")

    loss: Literal["pointwise", "pairwise", "listwise"] = setting(
        "pointwise",
        "pointwise: cross-entropy of each pair; pairwise: each answer above negatives of its question (RankNet); "
        "listwise: softmax over an answer and negatives of its question.",
    )
    list_size: int = setting(8, "For pairwise and listwise: an answer and at most so many less one negatives.")
    negatives_per_positive: float | None = setting(
        None, "For pointwise: negatives drawn anew in every epoch, so many an answer. Default: all."
    )
    positive_weight: float = setting(1.0, "For pointwise: weight of answers in the loss, against class imbalance.")

    learning_rate: float = setting(1e-5, "Peak of the triangular schedule.")
    batch_size: int = setting(32, "Pairs in one update, over all ranks.")
    micro_batch_size: int = setting(16, "Most pairs in one forward pass of one rank.")
    epochs: int = setting(40, "At most so many. 0, with --transfer: the transferred model as it is.")
    max_steps: int | None = setting(None, "At most so many updates, if that is less.")
    warmup_share: float = setting(0.1, "Share of all updates until the peak; the rate then falls linearly to zero.")
    warmup_steps: int | None = setting(None, "Updates until the peak, instead of --warmup_share.")
    patience: int = setting(5, "Stops when more validations in a row than this did not improve the dev MAP.")
    eval_steps: int | None = setting(None, "Validate every so many updates. Default: after every epoch.")
    test_every_validation: bool = setting(
        False, "Also measure the test set at each validation, for stability curves (TANDA, figure 4)."
    )
    weight_decay: float = setting(0.01, "AdamW's, not on biases and LayerNorm.")
    max_grad_norm: float = setting(1.0, "Gradients are clipped to this global norm.")
    max_length: int = setting(128, "Tokens of a pair, cut longest-first.")
    fresh_head: bool = setting(False, "Start the head fresh even where the checkpoint has one.")
    seeds: int = setting(5, "Runs, of the seeds 1, 2, ...: order, dropout, fresh weights, flipped labels.")

    search_folds: int | None = setting(
        None, "First choose batch size and learning rate by cross-validation over so many folds of the questions."
    )
    search_batch_sizes: list[int] = field(
        default_factory=lambda: [16, 32, 64], metadata={"help": "Di Liello et al., 2022, appendix B."}
    )
    search_learning_rates: list[float] = field(
        default_factory=lambda: [2e-6, 5e-5, 1e-5, 2e-5],
        metadata={"help": "As that appendix has them (its 5e-5 stands where 5e-6 would be in order)."},
    )

    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", "auto: bf16 where the GPU or processor has it, else fp32. Scores that are reported are fp32's."
    )
    deepspeed_config: str | None = setting(
        None,
        "DeepSpeed JSON such as ds_configs/zero2.json. Without it: torch alone in one process, and "
        "ds_configs/zero1.json under the launcher with several ranks.",
    )
    local_rank: int = setting(-1, "Set by the deepspeed launcher.")


# What may change between runs of one output folder.
FREE_TO_CHANGE = ("output_dir", "seeds", "local_rank", "data", "transfer", "model")


def check(config: FinetuneConfig) -> None:
    """Refuse settings that cannot be meant, naming the flag."""
    for name, value in asdict(config).items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                raise KinspanError(f"--{name} {number}: must be a finite number")
    positive = "batch_size micro_batch_size max_steps transfer_epochs transfer_steps eval_steps seeds max_length "
    positive += "transfer_eval_steps transfer_batch_size negatives_per_positive transfer_negatives positive_weight "
    positive += "search_batch_sizes search_learning_rates learning_rate transfer_learning_rate"
    for name in positive.split():
        value = getattr(config, name)
        for number in value if isinstance(value, list) else [value]:
            if number is not None and not number > 0:
                raise KinspanError(f"--{name} {number}: must be above 0")
    if config.epochs < (0 if config.transfer else 1):
        raise KinspanError(f"--epochs {config.epochs}: must be above 0 (0 is for --transfer: no second step)")
    for name in ("weight_decay", "max_grad_norm", "patience", "warmup_steps"):
        value = getattr(config, name)
        if value is not None and value < 0:
            raise KinspanError(f"--{name} {value}: must not be below 0")
    if not 0 <= config.label_noise < 1:
        raise KinspanError(f"--label_noise {config.label_noise}: must be from 0 to less than 1")
    if not 0 <= config.warmup_share < 1:
        raise KinspanError(f"--warmup_share {config.warmup_share}: must be from 0 to less than 1")
    if config.loss != "pointwise" and config.list_size < 2:
        raise KinspanError(f"--list_size {config.list_size}: an answer and a negative are 2")
    if config.loss != "pointwise" and (config.negatives_per_positive or config.positive_weight != 1):
        raise KinspanError(f"--negatives_per_positive and --positive_weight are not for --loss {config.loss}")
    if not config.negative_labels or not set(config.negative_labels) <= {1, 2, 3}:
        raise KinspanError(f"--negative_labels {config.negative_labels}: must be of 1, 2 and 3")
    if config.search_folds is not None and config.search_folds < 2:
        raise KinspanError(f"--search_folds {config.search_folds}: must be 2 or more")
    if config.search_folds is not None and config.transfer:
        raise KinspanError(
            "--search_folds searches for fine-tuning in one step, not for an adaptation after --transfer"
        )
    assert config.train_filter in FILTERS


def identity(config: FinetuneConfig, **facts: Any) -> dict[str, Any]:
    """What makes a run this run; ``facts`` are what the paths stand for: fingerprints of data and model."""
    own = {name: value for name, value in asdict(config).items() if name not in FREE_TO_CHANGE}
    return {**own, **facts}
