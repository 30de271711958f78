"""Continues the pre-training of an encoder: started by the ``deepspeed`` launcher, or by ``python`` in one process."""

import logging
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent  # kept off the path, where launch/pretrain.py would hide pretrain/
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline.core.command_line import parse
from launch.kinspan import run
from pretrain.config import PretrainConfig
from pretrain.engine.run_folder import open_folder
from pretrain.planning.checks import check
from pretrain.planning.corpora import expect_inputs

log = logging.getLogger(__name__)

DESCRIPTION = """Continued pre-training of a text encoder with a sentence-level objective, together with
masked language modelling or ELECTRA's replaced-token detection.

With no --corpus and no --model it trains all-MiniLM-L6-v2 on the documentation of Python and of the pinned packages.
The same command again resumes from the newest complete checkpoint in --output_dir.

The first example takes 30 to 58 minutes on one core, with the corpus that `kinspan prepare --input docs/ --output_dir
corpora/docs` writes. --dry_run estimates the memory and hours of larger runs on GPUs."""

EPILOG = """examples:
  kinspan pretrain --corpus corpora/docs --output_dir runs/docs --max_length 64 --global_batch_size 32 \\
      --learning_rate 2.5e-4 --mlm_weight 0.05 --max_steps 1600
  kinspan pretrain --config launch/recipes/quickstart.yaml
  kinspan pretrain --config launch/recipes/roberta-base-ssp.yaml --dry_run
  kinspan pretrain --config runs/docs/config.yaml --output_dir runs/again --seed 2
  deepspeed launch/pretrain.py --objective ssp --corpus corpora/docs --model roberta-base --output_dir runs/docs"""


def main() -> str | None:
    config = parse(PretrainConfig, DESCRIPTION, EPILOG)
    check(config)
    if config.dry_run:
        from pretrain.planning.plan import format_plan, make_plan

        return format_plan(make_plan(config)) if os.environ.get("RANK", "0") == "0" else None
    expect_inputs(config)
    open_folder(config.output_dir)
    log.info("loading PyTorch and DeepSpeed")  # takes minutes from a network disk
    from pretrain.run import pretrain

    pretrain(config)
    return None


if __name__ == "__main__":
    run(main)
