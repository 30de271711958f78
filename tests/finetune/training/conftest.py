"""A run of the small model on the small sets."""

import pytest

from finetune.training.config import FinetuneConfig
from finetune.training.setup import join_ranks
from finetune.training.stages import TrainingStage
from finetune.training.train import train_ranker

FAST = {"batch_size": 8, "micro_batch_size": 3, "learning_rate": 3e-3, "max_length": 32, "precision": "fp32"}
FAST |= {"log_steps": 2}


@pytest.fixture
def job(tmp_path, model, sets, answer_set):
    """``job(name="run", **settings)``: runs it in ``tmp_path/name``; its summary and folder."""

    def run(name="run", seed=1, start=model, data=sets, **settings):
        config = FinetuneConfig("files=x", **{"model": str(start), "epochs": 3, **FAST, **settings})
        splits = [answer_set(data, split) for split in ("train", "dev", "test")]
        made = TrainingStage(
            what="fine-tuning",
            config=config,
            model=str(start),
            train=splits[0],
            devs={"dev": splits[1]},
            test=splits[2] if config.test_every_validation else None,
            identity={"start": str(start), "learning_rate": config.learning_rate},
        )
        return train_ranker(made, seed, tmp_path / name, join_ranks(config)), tmp_path / name

    return run
