"""Makes the folders of this one with the library ``adapters`` 1.3.0, which cannot be installed beside this project.

``python make.py``, where that library, transformers 4.57 and torch are installed. The base is not kept: its numbers are
a function of their names and places, and the same in whatever version of transformers.
"""

import json
import zlib
from importlib import import_module
from pathlib import Path

import torch
from transformers import AutoConfig

HERE = Path(__file__).resolve().parent
CONFIG = {
    "vocab_size": 24,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}
IDS = [[2, 5, 7, 3, 9, 11, 4, 3], [2, 21, 8, 8, 3, 13, 3, 1]]
TYPES = [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]]


def draw(name: str, shape: torch.Size) -> torch.Tensor:
    """Numbers of a parameter that depend on its name and shape alone; those of a normalisation are around 1."""
    places = torch.arange(shape.numel(), dtype=torch.float64)
    waves = torch.sin(places * 12.9898 + zlib.crc32(name.encode()) % 1000)
    return (0.3 * waves + ("LayerNorm.weight" in name)).reshape(shape).float()


def fill_encoder(encoder: torch.nn.Module) -> None:
    """Gives every parameter of a plain encoder the numbers of its name."""
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "adapters" not in name:
                parameter.copy_(draw(name, parameter.shape))


def main() -> None:
    library = import_module("adapters")  # not one that this project asks for

    model = library.AutoAdapterModel.from_config(AutoConfig.for_model("bert", **CONFIG))
    model.add_adapter("beer", config=library.SeqBnConfig(reduction_factor=4))
    model.add_classification_head("beer", num_labels=2)
    model.active_adapters = "beer"
    fill_encoder(model.bert)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".adapters.beer." in name or name.startswith("heads.beer."):
                torch.nn.init.normal_(parameter, std=0.3)
    model.eval()
    inputs = {"input_ids": torch.tensor(IDS), "token_type_ids": torch.tensor(TYPES)}
    with torch.no_grad():
        hidden = model.bert(**inputs)[0]
        logits = model(**inputs).logits
        model.set_active_adapters(None)
        plain = model.bert(**inputs)[0]
    model.save_adapter(str(HERE / "beer"), "beer", with_head=True)
    expected = {"hidden": hidden.tolist(), "plain": plain.tolist(), "logits": logits.tolist()}
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
