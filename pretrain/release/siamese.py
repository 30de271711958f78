"""The release of a bi-encoder: a folder that sentence-transformers loads, with a card."""

import inspect
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import EvalResult
from safetensors.torch import save_file
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from .card import describe_run, format_training, name_objectives, shorten_objective
from .metadata import HERE, Stated, make_results
from .usage import CANDIDATES, QUESTION

MODULES = (  # of sentence-transformers, by the names that all its versions know
    ("", "sentence_transformers.models.Transformer"),
    ("1_Pooling", "sentence_transformers.models.Pooling"),
    ("2_Normalize", "sentence_transformers.models.Normalize"),
)
OF_CLASSIFIERS = ("id2label", "label2id", "problem_type")  # in the config of a run's model; a bi-encoder has no labels

_CARD = """---
{metadata}
---

# {title}

{base} {how} as a bi-encoder with the texts of **{objective}**: each text becomes a vector of {size} numbers, the mean
of its tokens at length 1, and texts that belong together have a high cosine. Made to find answers and documents for
questions, and to be fine-tuned for that.

## Use

{usage}

`AutoModel` (`{architecture}`) gives the hidden states of which the vector is the mean, over all tokens but padding:
special tokens count.
{rest}"""
_USAGE = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{where}")
queries = model.encode(["{question}"])
texts = model.encode(["{first}", "{second}"])
print(model.similarity(queries, texts))
```"""


def fill_siamese_folder(
    folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor], max_length: int
) -> None:
    """Writes encoder, config and what sentence-transformers needs to a folder that has the tokenizer already.

    config:  of the model in training
    weights: by the names in SiameseModel; those of the masked-LM head are left out
    """
    architecture = str(MODEL_MAPPING_NAMES[config["model_type"]])
    public = {k: v for k, v in config.items() if not k.startswith("_") and k not in OF_CLASSIFIERS}
    _write(folder / "config.json", {**public, "architectures": [architecture], "dtype": "float32"})
    own = {name.removeprefix("encoder."): x for name, x in weights.items() if name.startswith("encoder.")}
    save_file(own, str(folder / "model.safetensors"), {"format": "pt"})
    options: dict[str, Any] = {"max_seq_length": max_length, "do_lower_case": False}
    if "add_pooling_layer" in inspect.signature(getattr(transformers, architecture)).parameters:
        options["model_args"] = {"add_pooling_layer": False}  # a layer above the first token, which nothing has trained
    _write(folder / "sentence_bert_config.json", options)
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind} for number, (path, kind) in enumerate(MODULES)
    ]
    _write(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()  # Normalize has no settings, and the hub no empty folders
    size = config["hidden_size"]
    _write(folder / "1_Pooling/config.json", {"word_embedding_dimension": size, "pooling_mode_mean_tokens": True})
    _write(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})


def format_siamese_card(facts: dict[str, Any], config: dict[str, Any], stated: Stated, with_curve: bool) -> str:
    """The model card; arguments as of card.format_card, with the model's config."""
    objectives = [shorten_objective(o["name"]) for o in facts["objectives"]]
    title = f"{facts['model']['name']}-{'-'.join(objectives)}-siamese"
    return _CARD.format(
        metadata=describe_run(
            facts,
            stated,
            title,
            ["sentence-transformers", "bi-encoder", *objectives, "kinspan"],
            _list_results(facts),
            task="sentence-similarity",
        ),
        title=title,
        base=facts["model"]["name"],
        how="trained from scratch" if facts.get("from_scratch") else "after continued pre-training",
        objective=name_objectives(facts),
        size=config["hidden_size"],
        usage=format_siamese_usage(stated),
        architecture=MODEL_MAPPING_NAMES[config["model_type"]],
        rest=format_training(facts, config["model_type"], stated, with_curve),
    )


def format_siamese_usage(stated: Stated) -> str:
    """The code that compares a question with two texts, by sentence-transformers."""
    first, second = CANDIDATES
    return _USAGE.format(where=stated.repository or HERE, question=QUESTION, first=first, second=second)


def _list_results(facts: dict[str, Any]) -> list[EvalResult]:
    """The last validation for the model index; nothing of an average, which validation never saw."""
    if facts.get("averaged_steps"):
        return []
    name = f"held-out texts of the pre-training documents ({name_objectives(facts)})"
    figures = {"mrr": "pair_mrr", "recall_at_1": "pair_r1"}
    return [
        result
        for last in facts["last_validation"]
        for result in make_results(
            {metric: last[figure] for metric, figure in figures.items() if figure in last},
            {"mrr": "MRR", "recall_at_1": "R@1"},
            name,
            split="validation",
            task="information-retrieval",
        )
    ]


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
