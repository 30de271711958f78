"""Which adapters a fusion relies on, layer by layer and target by target: Rücklé et al., 2020, appendix A.3."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_pipeline.files import read_object, write_atomically
from finetune.data.answers import AnswerSet
from finetune.ranking.encode import encode_pairs
from finetune.ranking.ranker import load_own_tokenizer, load_ranker
from finetune.training.fingerprints import fingerprint_model
from pretrain.modeling.adapters.bottleneck import Fusion, list_norms
from pretrain.modeling.adapters.folder import is_adapter, read_spec

from .matrix import Target, name_cell

SAMPLE = 500  # pairs of each target
SEED = 0
BATCH_TOKENS = 2048


@dataclass(frozen=True)
class FusionWeights:
    """What a fusion weighs.

    adapters: ``[A]`` names
    weights:  target's name -> ``[L, A]``: of each layer the mean over tokens; a layer's add up to 1
    """

    adapters: list[str]
    weights: dict[str, np.ndarray]


def name_adapters(name_or_dir: str) -> list[str]:
    """The adapters that a model weighs; none where it is no fusion."""
    if not is_adapter(name_or_dir):
        return []
    parts, _ = read_spec(Path(name_or_dir))
    return [one.name for one in parts[-1].of]


def weigh_sources(
    sources: Mapping[str, str], targets: list[Target], folder: Path, max_length: int, say: Callable[[str], None]
) -> dict[str, FusionWeights]:
    """The weights of each source that is a fusion, on each target, from files of ``folder`` or measured now."""
    found = {}
    for name, model in sources.items():
        if adapters := name_adapters(model):
            weights = {target.name: _weigh(folder, name, model, target, max_length, say) for target in targets}
            found[name] = FusionWeights(adapters, weights)
    return found


def _weigh(
    folder: Path, name: str, model: str, target: Target, max_length: int, say: Callable[[str], None]
) -> np.ndarray:
    path = folder / f"{name_cell(name, target.name)}.weights.json"
    known = {"model": fingerprint_model(model), "data": target.fingerprint, "max_length": max_length}
    found = read_object(path, "delete it to have it measured again") if path.exists() else {}
    if any(found.get(key) != value for key, value in known.items()):
        say(f"{name} on {target.name}: which adapters it takes")
        found = {"source": name, "target": target.name, **known}
        found |= {"weights": weigh_adapters(model, target.data, max_length).tolist()}
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found, indent=1) + "\n")
    return np.array(found["weights"])


@torch.inference_mode()
def weigh_adapters(folder: str, data: AnswerSet, max_length: int) -> np.ndarray:
    """``[L, A]``: the mean weight of each adapter in each layer, over the tokens of SAMPLE pairs of ``data``."""
    ranker = load_ranker(folder)[0].eval()
    pairs = encode_pairs(data, load_own_tokenizer(folder), max_length)
    encoder: Any = ranker.classifier.base_model
    norms: list[Any] = list_norms(encoder)
    fusions = [norm.parts[-1] for norm in norms]
    sums = [torch.zeros(0)] * len(fusions)
    tokens = 0  # of the pass; those behind them fill the row up
    for number, fusion in enumerate(fusions):

        def add(module: Fusion, inputs: tuple[torch.Tensor], _: torch.Tensor, number: int = number) -> None:
            shares = module.weigh(inputs[0]).reshape(-1, len(module.of))[:tokens].double().sum(0)
            sums[number] = sums[number] + shares if len(sums[number]) else shares

        fusion.register_forward_hook(add)
    drawn = np.random.default_rng(SEED).permutation(data.num_pairs)[:SAMPLE]
    total = 0
    for rows in pairs.by_length(BATCH_TOKENS, np.sort(drawn)):
        inputs = pairs.pack(rows, torch.device("cpu"))
        tokens = len(inputs["input_ids"])
        total += tokens
        ranker(**inputs)
    return torch.stack(sums).numpy() / total
