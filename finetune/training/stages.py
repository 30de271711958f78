"""The data of an experiment, and the stages that follow from its settings."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from finetune.data.answers import NEGATIVE_GRADES, AnswerSet
from finetune.data.dataset import MissingSplit
from finetune.data.filters import check_overlaps
from finetune.data.registry import load_filtered, parse_columns
from pretrain.engine.engine import HIGH_RATE

from .config import CONTRASTIVE, CORPUS, FinetuneConfig, identity
from .fingerprints import fingerprint_answers, fingerprint_model
from .groups import flip_labels
from .plan import DEV, TrainingStage

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Data:
    """The filtered splits of an experiment.

    train, dev, test: of the target; test is None where the data set has none
    transfer:         the training split of the transfer set, for TANDA
    transfer_devs:    by name, the dev splits that a transfer is validated on, that of the target among them
    """

    train: AnswerSet
    dev: AnswerSet
    test: AnswerSet | None
    transfer: AnswerSet | None
    transfer_devs: dict[str, AnswerSet]

    @property
    def measured(self) -> list[AnswerSet]:
        """Returns the splits that the best rankers are measured on; results report the last."""
        return [self.dev] if self.test is None else [self.dev, self.test]


def load_data(config: FinetuneConfig, with_test: bool = True) -> Data:
    """Reads and filters the data sets that the settings name, and logs their oddities.

    Raises KinspanError where a file is not as it must be, where all training candidates have one label, and where one
    split is a part of another.
    """
    specs = (config.data, config.train_data, config.transfer, *config.transfer_targets)
    named = [spec for spec in specs if spec and spec.startswith(("files=", "hub="))]

    def read(spec: str, split: str, mode: str, name: str = "") -> AnswerSet:
        columns = parse_columns(config.columns) if spec in named or not named else None
        # --negative_labels selects what is trained on; dev and test keep all their candidates.
        negatives = tuple(config.negative_labels) if split == "train" else NEGATIVE_GRADES
        data = load_filtered(spec, split, mode, columns, negatives)
        return replace(data, name=name) if name else data

    train = read(config.train_data or config.data, "train", config.train_filter)
    dev, test = read(config.data, "dev", config.eval_filter), None
    try:
        test = read(config.data, "test", config.eval_filter) if with_test else None
    except MissingSplit as error:
        if config.test_every_validation:
            raise KinspanError(f"--test_every_validation: {error}") from error
        log.warning("%s: figures are of dev, which chooses the best rankers, and so are too high", error)
    transfer = read(config.transfer, "train", config.train_filter, name_transfer(config)) if config.transfer else None
    targets = _name_targets(config) if transfer is not None else {}
    devs = {
        name: dev if spec == config.data else read(spec, "dev", config.eval_filter) for name, spec in targets.items()
    }
    compares = config.loss == CONTRASTIVE  # and finds negatives in the batch
    has_negatives = (compares or config.negatives_from == CORPUS) and train.labels.any()  # those of other questions
    for data in (None if has_negatives else train, None if compares else transfer):
        if data is not None and not 0 < data.labels.sum() < data.num_pairs:
            raise KinspanError(f"{data.name} train: all candidates have one label: there is nothing to learn")
    splits = [split for split in (transfer, train, dev, test) if split is not None]
    check_overlaps(splits, config.allow_identical_splits)
    return Data(train, dev, test, transfer, devs)


def _name_targets(config: FinetuneConfig) -> dict[str, str]:
    """Returns the targets of a transfer by name. Raises KinspanError where ``--data`` is not one of them."""
    specs = config.transfer_targets or [config.data]
    if config.data not in specs:
        raise KinspanError(f"--transfer_targets {' '.join(specs)}: --data {config.data} must be one of them")
    named = {name_set(spec): spec for spec in specs}
    if len(named) < len(specs):
        raise KinspanError(f"--transfer_targets {' '.join(specs)}: two have the same name, but each needs its own")
    return named


def name_set(spec: str) -> str:
    """Returns the name of a data set: ``wikiqa`` of ``wikiqa=FOLDER``."""
    return spec.partition("=")[0]


def name_transfer(config: FinetuneConfig) -> str:
    """Returns the name of the set of ``--transfer``, with its folder where the target is of its kind."""
    kind, _, place = str(config.transfer).partition("=")
    return f"{kind}={Path(place).name}" if kind == name_set(config.data) else kind


def log_high_rates(config: FinetuneConfig) -> None:
    """Warns of each learning rate that is too high for all weights of a pre-trained encoder."""
    rates = {"--learning_rate": config.learning_rate}
    if config.search_folds:
        rates = {"--search_learning_rates": max(config.search_learning_rates)}
    if config.transfer:
        rates["--transfer_learning_rate"] = config.transfer_learning_rate
    for flag, rate in rates.items():
        if rate >= HIGH_RATE:
            log.warning("%s %g is high for all weights of a pre-trained encoder: 1e-5 to 1e-4 are usual", flag, rate)


# Settings whose change invalidates a finished transfer run
TRANSFER_SETTINGS = (
    *("transfer_learning_rate", "transfer_epochs", "transfer_steps", "transfer_eval_steps", "transfer_negatives"),
    *("max_length", "loss", "list_size", "positive_weight", "warmup_share", "warmup_steps", "weight_decay"),
    *("max_grad_norm", "patience", "precision", "deepspeed_config", "fresh_head", "lr_schedule", "decay_share"),
)
CONTRASTIVE_SETTINGS = ("own_negatives", "temperature", "symmetric")


def make_transfer_stage(config: FinetuneConfig, data: Data) -> TrainingStage:
    """Returns TANDA's first step, which trains on the general set, once for all targets and seeds.

    Early stopping watches the dev MAP of the targets (Garg et al., 2020, section 5.2): it ends when none improves, and
    the best ranker for each is kept.
    """
    assert data.transfer is not None
    return TrainingStage(
        what="transfer",
        model=str(config.model),
        train=data.transfer,
        devs={f"{DEV}-{name}": dev for name, dev in data.transfer_devs.items()},
        learning_rate=config.transfer_learning_rate,
        epochs=config.transfer_epochs,
        max_steps=config.transfer_steps,
        eval_steps=config.transfer_eval_steps,
        negatives_ratio=config.transfer_negatives,
        identity={
            **{name: getattr(config, name) for name in TRANSFER_SETTINGS},
            **({name: getattr(config, name) for name in CONTRASTIVE_SETTINGS} if config.loss == CONTRASTIVE else {}),
            "batch_size": config.transfer_batch_size or config.batch_size,
            "transfer": fingerprint_answers(data.transfer),
            "dev": {name: fingerprint_answers(dev) for name, dev in sorted(data.transfer_devs.items())},
            "model": fingerprint_model(str(config.model)),
        },
        batch_size=config.transfer_batch_size,
    )


def make_target_stage(config: FinetuneConfig, data: Data, seed: int, start: str, what: str) -> TrainingStage:
    """Returns the step that trains on the target, with the labels that ``--label_noise`` flips for this seed.

    start: the model that it starts from
    what:  "fine-tuning" or "adaptation", for the screen
    """
    train = data.train
    if config.label_noise:
        train = replace(train, labels=flip_labels(train.labels, config.label_noise, seed))
    facts = {
        "train": fingerprint_answers(train),
        "dev": fingerprint_answers(data.dev),
        "start": fingerprint_model(start),
    }
    return TrainingStage(
        what=what,
        model=start,
        train=train,
        devs={DEV: data.dev},
        test=data.test if config.test_every_validation else None,
        learning_rate=config.learning_rate,
        epochs=config.epochs,
        max_steps=config.max_steps,
        eval_steps=config.eval_steps,
        negatives_ratio=config.negatives_ratio,
        negatives_per_question=config.negatives_per_question,
        negatives_from=config.negatives_from,
        identity=identity(config, **facts),
    )
