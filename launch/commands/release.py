"""Releases a run, a checkpoint or a fine-tuned ranker as a folder that other libraries load."""

from dataclasses import dataclass
from pathlib import Path

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, REQUIRED, setting

DESCRIPTION = """Writes a release: safetensors, config, tokenizer, training curves and a model card.

AutoModelForSequenceClassification, AutoModelForMaskedLM, AutoTokenizer and sentence-transformers' CrossEncoder
load the folder with no code of this project. After replaced-token detection ElectraForPreTraining loads it too, and the
generator is in generator/. --push_to_hub tags each checkpoint, as step-00000240."""

EPILOG = """examples:
  kinspan release --run_dir runs/ssp --output_dir releases/ssp
  kinspan release --run_dir runs/ssp --output_dir releases/ssp --average 3
  kinspan release --run_dir runs/ssp --output_dir releases/ssp --licence apache-2.0 --push_to_hub OWNER/NAME"""


@dataclass
class ReleaseConfig:
    run_dir: str = setting(REQUIRED)
    """The --output_dir of kinspan pretrain or a checkpoint in it; or that of kinspan finetune, for the seed with the
    best dev MAP, or a seed's folder in it."""
    output_dir: str = setting(REQUIRED)
    """Folder for the release; an older release there is replaced."""
    average: int = setting(1, ABOVE_0)
    """Average the weights of this many checkpoints: the released one and those before it."""
    licence: str = setting("")
    """The card's licence, by the hub's name: apache-2.0, ... Without it: unknown."""
    base_model: str = setting("")
    """The hub's name of the base model, if it was a folder."""
    datasets: list[str] = setting([])
    """The hub's names of the data sets that it was trained on."""
    language: list[str] = setting([])
    """ISO 639 codes of the texts' languages: en, ..."""
    push_to_hub: str | None = setting(None)
    """OWNER/NAME on the hub, where the release is sent. A repository that does not exist is made, private."""
    public: bool = setting(False, needs="push_to_hub")
    """With --push_to_hub: a new repository is public, or one that is public is meant."""


def main() -> str:
    config = parse(ReleaseConfig, DESCRIPTION, EPILOG)
    from finetune.training.release import find_ranker, release_ranker
    from pretrain.release.card import CardOverrides
    from pretrain.release.release import push, release

    source, output, repository = Path(config.run_dir), Path(config.output_dir), config.push_to_hub
    names = tuple(config.datasets), tuple(config.language), repository or ""
    stated = CardOverrides(config.licence, config.base_model, *names)
    if repository is not None and repository.count("/") != 1:
        raise KinspanError(f"--push_to_hub {repository}: give OWNER/NAME")
    ranker = find_ranker(source)
    if ranker and config.average > 1:
        raise KinspanError(f"--average {config.average}: {ranker} is fine-tuned, and has one checkpoint, its best")
    if ranker:
        release_ranker(ranker, output, stated)
    else:
        release(source, output, config.average, stated)
    if repository:
        push(output, repository, config.public)
    return f"released {output}, which is {ranker or source}"
