"""Releases a run, a checkpoint or a fine-tuned ranker as a folder that other libraries load."""

from dataclasses import dataclass
from pathlib import Path

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import REQUIRED, setting

DESCRIPTION = """Writes a release: safetensors, config, tokenizer, training curves and a model card.

AutoModelForSequenceClassification, AutoTokenizer and sentence-transformers' CrossEncoder load the folder without
kinspan; AutoModelForMaskedLM with variant="token_head". After replaced-token detection ElectraForPreTraining loads it
so, and the generator is in generator/. --push_to_hub tags the upload with its checkpoint, such as step-00000240."""

EPILOG = """examples:
  kinspan release --run_dir runs/docs --output_dir releases/docs
  kinspan release --run_dir runs/docs --output_dir releases/docs --licence apache-2.0 --push_to_hub OWNER/NAME"""


@dataclass
class ReleaseConfig:
    run_dir: str = setting(REQUIRED)
    """The --output_dir of kinspan pretrain or a checkpoint in it; or the --output_dir of kinspan finetune or a seed's
    folder in it. Of several seeds, the one with the best dev MAP is released."""
    output_dir: str = setting(REQUIRED)
    """Folder for the release; an older release there is replaced."""
    licence: str = setting("")
    """The model card's licence, by its name on the hub, such as apache-2.0. Without it: unknown."""
    base_model: str = setting("")
    """The base model's name on the hub, if it was given as a folder."""
    datasets: list[str] = setting([])
    """Names on the hub of the data sets that the model was trained on."""
    language: list[str] = setting([])
    """ISO 639 codes of the texts' languages, such as en."""
    push_to_hub: str | None = setting(None)
    """Repository OWNER/NAME on the hub to upload the release to. A new one is created as private."""
    public: bool = setting(False, needs="push_to_hub")
    """With --push_to_hub: create a public repository, or allow an upload to one that is public already."""


def main() -> str:
    config = parse(ReleaseConfig, DESCRIPTION, EPILOG)
    from pretrain.release.card import CardOverrides
    from pretrain.release.release import push, release

    source, output, repository = Path(config.run_dir), Path(config.output_dir), config.push_to_hub
    lists = tuple(config.datasets), tuple(config.language)
    overrides = CardOverrides(config.licence, config.base_model, *lists, repository or "")
    if repository is not None and repository.count("/") != 1:
        raise KinspanError(f"--push_to_hub {repository}: give OWNER/NAME")
    ranker = None
    if (source / "best").is_dir() or not any((source / name).is_file() for name in ("run.json", "weights.safetensors")):
        from finetune.training.experiment import log_better_baselines  # needs kinspan[rank]
        from finetune.training.release import find_ranker, read_experiment, release_ranker

        ranker = find_ranker(source)
    if ranker:
        log_better_baselines(read_experiment(ranker))
        release_ranker(ranker, output, overrides)
    else:
        release(source, output, overrides)
    if repository:
        push(output, repository, config.public)
    return f"released {ranker or source} to {output}"
