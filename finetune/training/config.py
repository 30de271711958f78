"""Every setting of fine-tuning, with the checks that need nothing but the settings."""

from dataclasses import dataclass
from typing import Literal

from data_pipeline.core.settings import (
    ABOVE_0,
    AT_LEAST_2,
    FROM_0_TO_BELOW_1,
    NOT_BELOW_0,
    REQUIRED,
    SEEDS_FROM_1,
    check_settings,
    refuse_first,
    setting,
)
from finetune.evaluation.metrics import MAP, METRICS, RETRIEVAL_METRICS
from pretrain.engine.schedule import GuardSettings, OptimizerSettings

SPEC = "wikiqa=FOLDER, trecqa=FOLDER, ... (see kinspan evaluate --help), files=FOLDER or hub=OWNER/NAME"
CORPUS = "corpus"
NEGATIVES = ("negatives_ratio", "negatives_per_question")  # flags that exclude each other
CONTRASTIVE = "contrastive"
DEFAULT_DEEPSPEED_CONFIG = "ds_configs/zero1.json"
TEMPERATURE = 0.05  # as in pre-training; sentence-transformers' scale of 20


@dataclass
class DataSettings:
    """Chooses the data to train and measure on, and where training starts."""

    GROUP = "data and model"

    data: str = setting(REQUIRED, help=f"The target's data set: {SPEC}.", may_change=True)
    train_data: str | None = setting(None, may_change=True)
    """Take the training split from this data set instead of --data, whose dev and test sets are still used: mined
    negatives (kinspan data mine), or another community's questions."""
    columns: str | None = setting(None)
    """For files= and hub=: names of the columns, as question=query,answer=passage,label=relevant."""
    train_filter: Literal["raw", "no-all-negative", "clean"] = setting("no-all-negative")
    """Which training questions are used: all (raw), those with an answer (no-all-negative), or those that have both
    answers and non-answers (clean)."""
    eval_filter: Literal["raw", "no-all-negative", "clean"] = setting("clean")
    """Which dev and test questions are used, as for --train_filter."""
    negative_labels: list[int] = setting([1, 2, 3])
    """For ASNQ: the labels that are taken as negatives; 4 is the answer."""
    label_noise: float = setting(0.0, FROM_0_TO_BELOW_1)
    """Share of the target's training labels to flip (TANDA, table 5)."""
    max_length: int | None = setting(None, ABOVE_0)
    """Maximum number of tokens of a pair, whose longer text is cut first; for --loss contrastive, of each text.
    Default: the length of --model, at which it also ranks. A lower one is faster if texts are long."""
    model: str | None = setting(None, may_change=True, is_model=True)
    """Where fine-tuning starts: a release, another weights folder, or a hub name. Without it: all-MiniLM-L6-v2, which
    is installed with this package."""
    fresh_head: bool = setting(False)
    """Draw everything above the encoder anew, the pooler too, even if the checkpoint has a head."""


@dataclass
class ObjectiveSettings:
    """Chooses the loss and its candidates."""

    GROUP = "objective"

    loss: Literal["pointwise", "contrastive"] = setting("pointwise")
    """pointwise trains a cross-encoder: cross-entropy of each pair. contrastive trains a bi-encoder: cross-entropy of
    each right answer among all answers of the batch."""
    own_negatives: int | None = setting(None, NOT_BELOW_0, needs="loss contrastive")
    """For contrastive: add this many wrong candidates of each question to the answers of the batch, new ones in every
    epoch; a question that has fewer gets other questions' candidates too. Default: none."""
    temperature: float | None = setting(None, ABOVE_0, needs="loss contrastive")
    """For contrastive: the divisor of cosines. Default: 0.05; 1 is the plain cosine."""
    negatives_ratio: float | None = setting(None, ABOVE_0, needs="loss pointwise")
    """For pointwise: train on this many negatives per right answer, drawn anew in every epoch from the negatives of all
    questions, including those without a right answer."""
    negatives_per_question: int | None = setting(None, ABOVE_0, needs="loss pointwise")
    """For pointwise: train on all right answers and on this many negatives of each question, new ones in every epoch
    (Rücklé et al., 2020: 10, or 1 if there are many questions). They depend only on the seed, the epoch and the
    question."""
    negatives_from: Literal["candidates", "corpus"] | None = setting(None, needs="negatives_per_question")
    """With --negatives_per_question: draw from the question's own candidates (candidates), which are hard if a search
    found them; or from all candidates of the training set that are not right (corpus), which are easy and need no pool.
    Default: candidates."""
    transfer: str | None = setting(None, may_change=True)
    """TANDA: a data set to fine-tune on first, before --data. That is done once for all seeds; both steps stop early by
    the dev MAP of --data."""
    transfer_targets: list[str] = setting([], may_change=True, used_with="transfer")
    """TANDA: all data sets that this transfer is for, --data among them. It stops when the dev MAP of none improves,
    and keeps the best ranker for each. Without it: --data alone."""
    transfer_negatives: float | None = setting(None, ABOVE_0, used_with="transfer")
    """--negatives_ratio of the transfer step."""


@dataclass
class OptimisationSettings(OptimizerSettings):
    """Sets the length, the rate and the pairs of an update."""

    GROUP = "optimisation"

    epochs: int = setting(40)
    """Maximum number of epochs; early stopping, see --patience, may end a run before. 0, which needs --transfer:
    use the transferred model as it is."""
    max_steps: int | None = setting(None, ABOVE_0)
    """Maximum number of updates, if the epochs would take more."""
    learning_rate: float = setting(1e-5, ABOVE_0)
    """Peak learning rate, see --lr_schedule."""
    warmup_share: float = setting(0.1, FROM_0_TO_BELOW_1)
    """Share of all updates until the peak."""
    warmup_steps: int | None = setting(None, NOT_BELOW_0)
    """Updates until the peak, instead of --warmup_share."""
    seeds: int = setting(5, ABOVE_0, may_change=True)
    """Number of runs, with the seeds 1, 2, ...; a seed decides order, dropout, new weights and flipped labels."""
    seed: list[int] = setting([], SEEDS_FROM_1, may_change=True)
    """Run these seeds, instead of 1 to --seeds, to spread them over GPUs or machines. Run again with all of them to
    collect the finished seeds into one table."""
    deepspeed_config: str | None = setting(None)
    """DeepSpeed's JSON file, such as ds_configs/zero2.json. Default: ds_configs/zero1.json."""
    transfer_learning_rate: float = setting(2e-5, ABOVE_0, used_with="transfer")
    """TANDA: peak learning rate of the transfer step."""
    transfer_epochs: int = setting(9, ABOVE_0, used_with="transfer")
    """TANDA: maximum number of epochs of the transfer step."""
    transfer_steps: int | None = setting(None, ABOVE_0, used_with="transfer")
    """TANDA: maximum number of updates of the transfer step."""
    search_folds: int | None = setting(None, AT_LEAST_2)
    """Before training, choose batch size and learning rate by cross-validation over this many folds of the training
    questions."""
    search_batch_sizes: list[int] = setting([16, 32, 64], ABOVE_0, used_with="search_folds")
    """Batch sizes that --search_folds tries; the default is that of Di Liello et al., 2022, appendix B."""
    search_learning_rates: list[float] = setting([2e-6, 5e-5, 1e-5, 2e-5], ABOVE_0, used_with="search_folds")
    """Learning rates that --search_folds tries; the default is that of the same appendix (where 5e-5 may be
    a misprint of 5e-6)."""
    batch_size: int = setting(32, ABOVE_0)
    """Pairs in one update, over all ranks; for --loss contrastive, questions with a right answer, each of which is
    compared with all answers of the batch: larger batches are harder."""
    micro_batch_size: int = setting(16, ABOVE_0, may_change=True)
    """Maximum number of pairs in one forward pass of one rank; gradient accumulation follows from it. A run may resume
    with another value: the gradient differs only by rounding and, on a GPU, by dropout's random numbers, which depend
    on the micro-batches there."""
    transfer_batch_size: int | None = setting(None, ABOVE_0, used_with="transfer")
    """--batch_size of the transfer step. Without it: the same."""


@dataclass
class ValidationSettings:
    """Sets when the model is measured and saved, where, and when the runs stop."""

    GROUP = "validation and checkpoints"

    eval_steps: int | None = setting(None, ABOVE_0)
    """Validate every this many updates. Without it: after every epoch."""
    transfer_eval_steps: int | None = setting(None, ABOVE_0, used_with="transfer")
    """--eval_steps of the transfer step."""
    patience: int = setting(5, NOT_BELOW_0)
    """Stop when more validations than this in a row have not improved the dev MAP."""
    test_every_validation: bool = setting(False)
    """Also measure the test set at each validation, for stability curves (TANDA, figure 4)."""
    transfer_dir: str | None = setting(None, may_change=True, used_with="transfer")
    """TANDA: folder of the transferred rankers, which the commands for several targets share. Without it:
    --output_dir."""
    output_dir: str = setting("runs/as2", may_change=True)
    """Folder that the runs write to, one folder per seed. The same command again resumes."""
    save_steps: int = setting(1000, ABOVE_0, may_change=True)
    """Checkpoint every this many updates, and at each validation: a killed run loses no more than that. An epoch
    of ASNQ has 640,000 updates of 32 pairs."""
    max_hours: float | None = setting(None, ABOVE_0, may_change=True)
    """Stop with a checkpoint and status 75 after this many hours, as at a signal: for the limit of a batch queue. They
    count from the start of the command, over all its seeds."""


@dataclass
class MonitoringSettings(GuardSettings):
    """Sets how often the loss is logged."""

    GROUP = "monitoring"

    log_steps: int = setting(50, ABOVE_0, may_change=True)
    """Log loss, learning rate, gradient norm and speed every this many updates."""


@dataclass
class FinetuneConfig(MonitoringSettings, ValidationSettings, OptimisationSettings, ObjectiveSettings, DataSettings):
    """Settings of ``kinspan finetune``. Those with ``may_change`` may change when a run is resumed; any other change
    makes it another run.
    """

    BASIC = (  # what --help shows
        *("data", "columns", "model", "output_dir", "loss", "epochs", "learning_rate", "batch_size", "max_length"),
        *("seeds", "eval_steps", "patience", "precision"),
    )


def check(config: FinetuneConfig) -> None:
    """Raises KinspanError, naming the flag, for settings that are out of range or do not go together."""
    check_settings(config)
    is_contrastive = config.loss == CONTRASTIVE
    drawn = [f"--{name}" for name in NEGATIVES if getattr(config, name) is not None]
    seeds, labels = " ".join(map(str, config.seed)), config.negative_labels
    is_lonely = is_contrastive and config.batch_size < 2 and not config.own_negatives
    refuse_first(
        [
            (config.epochs < (0 if config.transfer else 1), f"--epochs {config.epochs}: needs --transfer"),
            (len(set(config.seed)) < len(config.seed), f"--seed {seeds}: name each seed once"),
            (len(drawn) > 1, f"{' and '.join(drawn)} say the same thing: give one of them"),
            (not labels or set(labels) - {1, 2, 3}, f"--negative_labels {labels}: not of 1 to 3"),
            (config.search_folds and config.transfer, "--search_folds does not go with --transfer"),
            (config.search_folds and is_contrastive, "--search_folds does not go with --loss contrastive"),
            (is_contrastive and config.fresh_head, "--fresh_head: --loss contrastive has no head"),
            (is_lonely, "--batch_size 1: --loss contrastive has nothing to compare an answer with"),
        ]
    )


def choose_metrics(loss: str) -> tuple[str, ...]:
    """Returns the metrics that tables show, the tested one first; for a bi-encoder those of retrieval."""
    return RETRIEVAL_METRICS if loss == CONTRASTIVE else METRICS


def list_metrics(config: FinetuneConfig) -> tuple[str, ...]:
    """Returns the metrics that are computed: MAP, by which the best ranker is chosen, and those of tables."""
    return tuple(dict.fromkeys((MAP, *choose_metrics(config.loss))))


def list_seeds(config: FinetuneConfig) -> list[int]:
    """Returns the seeds to run: those of ``--seed``, or else 1 to ``--seeds``."""
    return config.seed or list(range(1, config.seeds + 1))
