"""What an experiment is made of: the data it reads, and the stages that follow from its settings."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_pipeline.errors import KinspanError
from finetune.data.answers import AnswerSet, filtered
from finetune.data.registry import NEGATIVE_GRADES, load_split, parse_columns
from finetune.data.statistics import count_lines

from .config import FinetuneConfig, identity
from .groups import with_noise
from .plan import Stage


@dataclass(frozen=True)
class Data:
    """The filtered splits of the target, and the training split of the transfer set."""

    train: AnswerSet
    dev: AnswerSet
    test: AnswerSet
    transfer: AnswerSet | None
    notes: list[str]


def load_data(config: FinetuneConfig) -> Data:
    """Reads and filters what the settings name. Raises KinspanError."""
    named = [spec for spec in (config.data, config.transfer) if spec and spec.startswith(("files=", "hub="))]
    notes: list[str] = []

    def read(spec: str, split: str, mode: str) -> AnswerSet:
        columns = parse_columns(config.columns) if spec in named or not named else None
        # Labels of negatives select what is trained on; dev and test keep all their candidates.
        negatives = tuple(config.negative_labels) if split == "train" else NEGATIVE_GRADES
        data, said = load_split(spec, split, columns, negatives)
        data = filtered(data, mode)
        notes.extend([*said, *count_lines(data.name, split, mode, data)])
        return data

    train = read(config.data, "train", config.train_filter)
    dev, test = (read(config.data, split, config.eval_filter) for split in ("dev", "test"))
    transfer = read(config.transfer, "train", config.train_filter) if config.transfer else None
    for data in (train, transfer):
        if data is not None and not 0 < data.labels.sum() < data.num_pairs:
            raise KinspanError(f"{data.name} train: all candidates have one label: there is nothing to learn")
    return Data(train, dev, test, transfer, notes)


def fingerprint(data: AnswerSet) -> str:
    """Names a split by its content."""
    digest = hashlib.sha256("\0".join(data.questions).encode())
    for array in (data.starts, data.labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    for chunk in range(0, data.num_pairs, 100_000):
        digest.update("\0".join(data.answers.slice(chunk, 100_000).to_pylist()).encode())
    return digest.hexdigest()[:16]


def model_fingerprint(name_or_dir: str) -> str:
    """Names a starting point: a folder by its weights and config, a hub name by itself."""
    folder = Path(name_or_dir)
    if not folder.is_dir():
        return name_or_dir
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), folder / "config.json"]):
        if path.is_file():
            digest.update(path.name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def transfer_stage(config: FinetuneConfig, data: Data) -> Stage:
    """TANDA's first step: the general set, stopped by the target's dev MAP (Garg et al., 2020, section 5.2)."""
    assert data.transfer is not None
    target_alone = ("learning_rate", "epochs", "max_steps", "eval_steps", "negatives_per_positive", "label_noise")
    same = identity(config, transfer=fingerprint(data.transfer), dev=fingerprint(data.dev))
    same["model"] = model_fingerprint(str(config.model))
    return Stage(
        what="transfer",
        model=str(config.model),
        train=data.transfer,
        dev=data.dev,
        test=data.test if config.test_every_validation else None,
        learning_rate=config.transfer_learning_rate,
        epochs=config.transfer_epochs,
        max_steps=config.transfer_steps,
        eval_steps=config.transfer_eval_steps,
        negatives_per_positive=config.transfer_negatives,
        identity={k: v for k, v in same.items() if k not in target_alone},
        batch_size=config.transfer_batch_size,
    )


def target_stage(config: FinetuneConfig, data: Data, seed: int, start: str, what: str) -> Stage:
    train = data.train
    if config.label_noise:
        train = replace(train, labels=with_noise(train.labels, config.label_noise, seed))
    facts = {"train": fingerprint(train), "dev": fingerprint(data.dev), "start": model_fingerprint(start)}
    return Stage(
        what=what,
        model=start,
        train=train,
        dev=data.dev,
        test=data.test if config.test_every_validation else None,
        learning_rate=config.learning_rate,
        epochs=config.epochs,
        max_steps=config.max_steps,
        eval_steps=config.eval_steps,
        negatives_per_positive=config.negatives_per_positive,
        identity=identity(config, **facts),
    )
