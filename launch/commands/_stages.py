"""Runs pre-training with a release at its end: a stage of a study, or one of many adapters."""

import json
import logging
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object, write_atomically
from data_pipeline.core.settings import get_identity_settings, make_config
from data_pipeline.tokenizers import load_tokenizer
from pretrain.config import PretrainConfig
from pretrain.engine.ranks import barrier
from pretrain.modeling.electra import parse_size_factor
from pretrain.planning.checks import check
from pretrain.planning.corpora import list_sources, open_corpora
from pretrain.release.folder import FACTS, fingerprint_model
from pretrain.release.release import release

log = logging.getLogger(__name__)
RELEASE = "release"  # within the stage's folder, where finetune.study expects it
FINISHED = "stage.json"  # the settings of a released stage, and fingerprints of its inputs
NOT_OF_A_STAGE = {"output_dir", "dry_run", "tokens_per_second", "network_gb_per_s", "local_rank"}


def prepare_pretraining(settings: dict[str, Any], folder: Path) -> Callable[[], None]:
    """Checks the settings of a stage, parsed from YAML, and returns a function that runs it in ``folder``."""
    allowed = {field.name for field in fields(PretrainConfig)} - NOT_OF_A_STAGE
    for name in settings:
        if name not in allowed:
            raise KinspanError(f"{name!r} is not a setting of kinspan pretrain that a stage can have")
    config = make_config(PretrainConfig, {**settings, "output_dir": str(folder)})
    check(config)
    return partial(run_pretraining, config)


def run_pretraining(config: PretrainConfig) -> None:
    """Pre-trains and releases, or resumes, unless that was finished with the same settings and inputs."""
    from pretrain.run import pretrain  # DeepSpeed takes seconds to import

    folder, finished = Path(config.output_dir), Path(config.output_dir) / FINISHED
    wanted = {"settings": get_identity_settings(config), "made_of": _fingerprint_inputs(config)}
    is_released = finished.exists() and (folder / RELEASE / FACTS).is_file()
    if is_released and read_object(finished, "delete it to run it again") == wanted:
        log.info("finished already: %s", folder / RELEASE)
        return
    if pretrain(config):  # returns the summary on rank 0 only
        release(folder, folder / RELEASE)
        write_atomically(finished, json.dumps(wanted, indent=1) + "\n")
    barrier()


def _fingerprint_inputs(config: PretrainConfig) -> dict[str, list[str]]:
    """Returns fingerprints of the corpora and models that a stage reads."""
    model = config.model or default_model()
    sources = list_sources(config)
    corpora = open_corpora(sources, config.cache, lambda: load_tokenizer(model), verify=False)
    has_size = parse_size_factor(config.generator) is not None
    models = [fingerprint_model(name) for name in (model, *config.adapters, *([] if has_size else [config.generator]))]
    return {
        "corpora": [corpus.manifest.fingerprint for corpus in corpora],
        "parts": [f"{source.weight} {source.objective}" for source in sources],
        "models": [*models, *([config.generator] if has_size else [])],
    }
