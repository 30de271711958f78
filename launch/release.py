"""Turns a run or a checkpoint into a folder that transformers and sentence-transformers load as it is."""

import sys
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from launch._cli import parse, run
from pretrain.runtime.settings import REQUIRED, setting

DESCRIPTION = """Writes a release: safetensors, config, tokenizer and model card.

AutoModelForSequenceClassification, AutoModelForMaskedLM, AutoTokenizer and sentence-transformers' CrossEncoder
load the folder with no code of this project. After replaced-token detection ElectraForPreTraining loads it too, and the
masked-LM model, the generator, is in its folder generator/."""

EPILOG = """examples:
  python launch/release.py --run_dir runs/ssp --output_dir releases/ssp"""


@dataclass
class ReleaseConfig:
    """Flags of this entry."""

    run_dir: str = setting(REQUIRED, "The --output_dir of launch/pretrain.py, or one checkpoint in it.", old_name="run")
    output_dir: str = setting(
        REQUIRED, "Folder for the release; an older release there is replaced.", old_name="output"
    )


def main() -> None:
    config = parse(ReleaseConfig, DESCRIPTION, EPILOG)
    from pretrain.release.release import release

    print(f"released {release(Path(config.run_dir), Path(config.output_dir))}")


if __name__ == "__main__":
    run(main)
