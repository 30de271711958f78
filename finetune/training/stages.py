"""The data of an experiment, and the stages of its runs: what each trains on, for how long, and what identifies it."""

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject
from data_pipeline.core.settings import get_identity_settings
from finetune.data.answers import NEGATIVE_GRADES, AnswerSet
from finetune.data.dataset import MissingSplit
from finetune.data.filters import check_overlaps
from finetune.data.registry import load_filtered, parse_columns
from finetune.ranking.ranker import find_max_length
from pretrain.engine.schedule import Schedule, make_schedule
from pretrain.release.folder import fingerprint_model

from .config import CONTRASTIVE, CORPUS, FinetuneConfig
from .groups import Groups, draw_examples, draw_negatives, draw_pairs, flip_labels

log = logging.getLogger(__name__)

DEV, BEST = "dev", "best"
SCORES, LAST = "scores", "last"  # see ``TrainingStage.keeps``


@dataclass(frozen=True)
class Data:
    """The filtered splits of an experiment.

    train, dev, test: splits of the target; test is None if the data set has none
    transfer:         the training split of the transfer set, for TANDA
    transfer_devs:    the dev splits that a transfer is validated on, by name; the target's is one of them
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


def load_data(config: FinetuneConfig) -> Data:
    """Reads and filters the data sets that the settings name."""
    specs = (config.data, config.train_data, config.transfer, *config.transfer_targets)
    user_sets = [spec for spec in specs if spec and spec.startswith(("files=", "hub="))]

    def read(spec: str, split: str, mode: str) -> AnswerSet:
        columns = parse_columns(config.columns) if spec in user_sets or not user_sets else None
        # --negative_labels selects what is trained on; dev and test keep all their candidates.
        negatives = tuple(config.negative_labels) if split == "train" else NEGATIVE_GRADES
        return load_filtered(spec, split, mode, columns, negatives)

    train = read(config.train_data or config.data, "train", config.train_filter)
    dev, test, transfer = read(config.data, "dev", config.eval_filter), None, None
    try:
        test = read(config.data, "test", config.eval_filter)
    except MissingSplit as error:
        if config.test_every_validation:
            raise KinspanError(f"--test_every_validation: {error}") from error
        log.warning("%s: figures are of dev, which chooses the best rankers, and so are too high", error)
    devs = {}
    if config.transfer:
        transfer = replace(read(config.transfer, "train", config.train_filter), name=name_transfer(config))
        for name, spec in _name_targets(config).items():
            devs[name] = dev if spec == config.data else read(spec, "dev", config.eval_filter)
    is_contrastive = config.loss == CONTRASTIVE
    finds_negatives = is_contrastive or config.negatives_from == CORPUS  # among other questions' candidates
    has_negatives = finds_negatives and train.labels.any()
    for data in (None if has_negatives else train, None if is_contrastive else transfer):
        if data is not None and not 0 < data.labels.sum() < data.num_pairs:
            raise KinspanError(f"{data.name} train: all candidates have one label: there is nothing to learn")
    check_overlaps([split for split in (transfer, train, dev, test) if split is not None])
    return Data(train, dev, test, transfer, devs)


def _name_targets(config: FinetuneConfig) -> dict[str, str]:
    """Returns the targets of a transfer by name. Raises KinspanError if ``--data`` is not one of them."""
    specs = config.transfer_targets or [config.data]
    named = {name_set(spec): spec for spec in specs}
    if config.data not in specs or len(named) < len(specs):
        raise KinspanError(f"--transfer_targets {' '.join(specs)}: --data must be one of them, and each name differ")
    return named


def name_set(spec: str) -> str:
    """Returns the name of a data set: ``wikiqa`` of ``wikiqa=FOLDER``."""
    return spec.partition("=")[0]


def name_transfer(config: FinetuneConfig) -> str:
    """Returns the name of the ``--transfer`` set, with its folder's if the target has the same name."""
    kind, _, place = str(config.transfer).partition("=")
    return f"{kind}={Path(place).name}" if kind == name_set(config.data) else kind


@dataclass(frozen=True, kw_only=True)
class TrainingStage:
    """The data and settings of a run.

    what:     "fine-tuning", "transfer" or "adaptation", for the screen
    config:   settings, with the rates, lengths and negatives of this stage
    model:    the folder or hub name of the model that it starts from
    devs:     dev splits by their names in the log: "dev", or for a transfer "dev-NAME" of each target. A best ranker is
              kept for each, see ``name_best``
    test:     measured at each validation, if given
    keeps:    what the run leaves in its folder: the BEST ranker on each dev set; or the dev SCORES of each validation,
              see ``name_scores``; or the LAST ranker, as if it were the best
    identity: facts that identify the run, but for its precision: an output folder that holds another run is refused
    """

    what: str
    config: FinetuneConfig
    model: str
    train: AnswerSet
    devs: Mapping[str, AnswerSet]
    test: AnswerSet | None = None
    keeps: str = BEST
    identity: JsonObject

    @cached_property
    def max_length(self) -> int:
        """Returns the maximum number of tokens of a pair, or of a text for a bi-encoder."""
        return self.config.max_length or find_max_length(self.model)


# Settings whose change invalidates a finished transfer run
TRANSFER_SETTINGS = (
    *("transfer_learning_rate", "transfer_epochs", "transfer_steps", "transfer_eval_steps", "transfer_negatives"),
    *("max_length", "loss", "warmup_share", "warmup_steps", "weight_decay"),
    *("max_grad_norm", "patience", "deepspeed_config", "fresh_head", "lr_schedule", "decay_share"),
)


def make_transfer_stage(config: FinetuneConfig, data: Data) -> TrainingStage:
    """Returns TANDA's first step, which trains on the general set, once for all targets and seeds.

    Early stopping watches the dev MAP of the targets (Garg et al., 2020, section 5.2): it ends when none improves, and
    the best ranker for each is kept.
    """
    assert data.transfer is not None
    settings = TRANSFER_SETTINGS + (("own_negatives", "temperature") if config.loss == CONTRASTIVE else ())
    batch_size = config.transfer_batch_size or config.batch_size
    transfer_config = replace(
        config,
        learning_rate=config.transfer_learning_rate,
        epochs=config.transfer_epochs,
        max_steps=config.transfer_steps,
        eval_steps=config.transfer_eval_steps,
        negatives_ratio=config.transfer_negatives,
        negatives_per_question=None,
        negatives_from=None,
        batch_size=batch_size,
    )
    return TrainingStage(
        what="transfer",
        config=transfer_config,
        model=str(config.model),
        train=data.transfer,
        devs={f"{DEV}-{name}": dev for name, dev in data.transfer_devs.items()},
        identity={
            **{name: getattr(config, name) for name in settings},
            "batch_size": batch_size,
            "transfer": fingerprint_answers(data.transfer),
            "dev": {name: fingerprint_answers(dev) for name, dev in sorted(data.transfer_devs.items())},
            "model": fingerprint_model(str(config.model)),
        },
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
        config=config,
        model=start,
        train=train,
        devs={DEV: data.dev},
        test=data.test if config.test_every_validation else None,
        identity={k: v for k, v in get_identity_settings(config).items() if k != "precision"} | facts,
    )


def name_best(dev: str) -> str:
    """Returns the folder of the ranker that is best on a dev set: ``best``, or ``best-NAME`` for ``dev-NAME``."""
    return BEST + dev.removeprefix(DEV)


def name_scores(step: int) -> str:
    """Returns the file of the dev scores ``[N]`` after an update, for a stage that keeps SCORES."""
    return f"scores-{step}.npy"


def plan_stage(stage: TrainingStage, seed: int) -> tuple[int, Schedule]:
    """Returns the updates in an epoch, and the schedule of all. Raises KinspanError if the warm-up is longer."""
    config = stage.config
    epoch_steps = math.ceil(len(draw_groups(stage, seed, 0)) / config.batch_size)
    total = min(config.epochs * epoch_steps, config.max_steps or config.epochs * epoch_steps)
    warmup = int(config.warmup_share * total) if config.warmup_steps is None else config.warmup_steps
    flag = f"--warmup_share {config.warmup_share:g}" if config.warmup_steps is None else None
    return epoch_steps, make_schedule(config, config.learning_rate, total, warmup, stage.what, flag)


def draw_groups(stage: TrainingStage, seed: int, epoch: int) -> Groups:
    """Returns the groups of an epoch, in their order: a function of (seed, epoch)."""
    config, train = stage.config, stage.train
    if config.loss == CONTRASTIVE:
        return draw_examples(train, seed, epoch, config.own_negatives or 0)
    if config.negatives_per_question is not None:
        return draw_negatives(train, seed, epoch, config.negatives_per_question, config.negatives_from == CORPUS)
    return draw_pairs(train, seed, epoch, config.negatives_ratio)


def fingerprint_answers(data: AnswerSet) -> str:
    """Returns a hash of a split's questions, candidates and labels, but not of ids and optional columns."""
    digest = hashlib.sha256("\0".join(data.questions).encode())
    for array in (data.starts, data.labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    for chunk in range(0, data.num_pairs, 100_000):
        digest.update("\0".join(data.answers.slice(chunk, 100_000).to_pylist()).encode())
    return digest.hexdigest()[:16]


def fingerprint_ids(data: AnswerSet) -> str:
    """Returns a hash of the ids of a split, which its TREC files hold and which break ties."""
    ids = [*data.question_ids, *data.answer_ids.to_pylist()]
    return hashlib.sha256("\0".join(ids).encode()).hexdigest()[:16]


def fingerprint_identity(identity: object) -> str:
    """Returns a hash of ``TrainingStage.identity``, fit for a folder's name."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:12]
