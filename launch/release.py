"""A run or checkpoint -> a folder that transformers and sentence-transformers load as it is."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from launch._cli import parse, run

DESCRIPTION = """Writes a release: safetensors, config, tokenizer and model card.

AutoModelForSequenceClassification, AutoModelForMaskedLM, AutoTokenizer and sentence-transformers' CrossEncoder
load the folder with no code of this project. After replaced-token detection ElectraForPreTraining loads it too, and the
masked-LM model, the generator, is in its folder generator/."""

EPILOG = """example:
  python launch/release.py --run runs/ssp --output releases/ssp"""


@dataclass
class ReleaseConfig:
    """Flags of this entry."""

    run: str = field(metadata={"help": "Output folder of launch/pretrain.py, or one checkpoint in it."})
    output: str = field(metadata={"help": "Folder to write; an older release there is replaced."})


def main() -> None:
    config = parse(ReleaseConfig, DESCRIPTION, EPILOG)
    from pretrain.release.release import release

    print(f"released {release(Path(config.run), Path(config.output))}")


if __name__ == "__main__":
    run(main)
