"""An adapter of AdapterHub as one of ours, and ours in its format."""

import sys
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from launch._cli import parse, run
from pretrain.runtime.settings import REQUIRED, setting

DESCRIPTION = """Converts an adapter between the format of AdapterHub and that of this project.

A folder with adapter_config.json, as the library adapters (adapter-transformers) writes it and AdapterHub publishes it,
becomes an adapter that fuses, stacks and ranks here; its base, which it names and does not hold, is --model. A folder
with adapter.json becomes one that the library loads. Read are bottlenecks of Pfeiffer in every layer (the library's
seq_bn, with relu, of any width), in the old and the new names of tensors; other architectures are refused by name. A
head of two layers with tanh and one or two labels becomes the pair head; without one the adapter is for --adapters of
launch/pretrain.py, and ranks nothing by itself."""

EPILOG = """examples:
  python launch/convert_adapter.py --adapter downloaded/sts-b --model bert-base-uncased --output_dir adapters/sts-b
  python launch/convert_adapter.py --adapter runs/adapters/beer/release --output_dir for-adapterhub/beer"""


@dataclass
class ConvertConfig:
    """Flags of this entry."""

    adapter: str = setting(REQUIRED, "Folder of the adapter.")
    output_dir: str = setting(REQUIRED, "Folder for the result; an older release there is replaced.")
    model: str | None = setting(None, "Of an adapter of AdapterHub: its base, a hub name or a folder.")


def main() -> None:
    config = parse(ConvertConfig, DESCRIPTION, EPILOG)
    from pretrain.release.converted import convert_adapter  # torch takes seconds to import

    for line in convert_adapter(Path(config.adapter), config.model, Path(config.output_dir)):
        print(line)


if __name__ == "__main__":
    run(main)
