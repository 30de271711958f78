"""What run.json says of a run: what makes it this run, and what its release will say of it. It holds no local path."""

from pathlib import Path
from typing import Any

from data_pipeline import tokenizers
from data_pipeline.core.default_model import find_hub_name
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.mixture import Mixture
from data_pipeline.sampling.stream import PairStream
from objectives import hash_own_sources
from pretrain.engine.engine import zero_stage
from pretrain.engine.run_folder import leave_out_buckets
from pretrain.modeling.adapters.model import AdapterModel
from pretrain.modeling.electra import parse_size_factor
from pretrain.modeling.pair_model import holds_no_weights
from pretrain.planning.corpora import describe_corpora

from .config import PretrainConfig, as_dict, identity


def collect_facts(
    config: PretrainConfig,
    model_fingerprint: str,
    model_name: str,
    deepspeed_settings: dict[str, Any],
    precision: str,
    mixture: Mixture,
    max_length: int,
    total: int,
) -> dict[str, Any]:
    """Returns what makes this run this run, and its settings."""
    name = find_hub_name(config.model) or model_name
    paths = ["corpus", "model", "output_dir", "deepspeed_config", "cache_dir", "adapters"]
    paths += ["generator"] if parse_size_factor(config.generator) is None else []
    settings = {k: v for k, v in as_dict(config).items() if k not in paths}
    known = {
        "model": {
            "name": Path(name).name,
            "fingerprint": model_fingerprint,
            "hub_name": find_hub_name(config.model),
        },
        "zero_stage": zero_stage(deepspeed_settings),
        "precision": precision,
        "max_length": max_length,
        "total_steps": total,
    }
    same = identity(
        config,
        model_weights=model_fingerprint,
        deepspeed=leave_out_buckets(deepspeed_settings),
        precision_used=precision,
        own_objectives=hash_own_sources(mixture),
    )
    del same["precision"]  # what it comes to counts: a run of "auto" goes on as "bf16", where that is what it trains in
    return {"identity": same, "settings": settings, **known}


def describe_for_release(
    config: PretrainConfig,
    model_name: str,
    model: Any,
    token_loss: str,
    mixture: Mixture,
    corpora: list[Corpus],
    validation: PairStream | None,
) -> dict[str, Any]:
    """Returns facts for a release and its card, beside the settings."""
    return {
        "corpus": describe_corpora(mixture, corpora),
        "token_loss": token_loss,
        "base": model.base if isinstance(model, AdapterModel) else None,
        "from_scratch": holds_no_weights(model_name),
        "validation_documents": _count_documents(validation, config.eval_pairs) if validation else None,
        "parts": list(mixture.names),
        "objectives": _describe_objectives(mixture),
        "generator": tokenizers.shorten_name(config.generator) if token_loss == "rtd" else None,
        "eval_pairs": min(config.eval_pairs, validation.epoch_pairs) if validation else 0,
    }


def _count_documents(validation: PairStream, num_pairs: int) -> int:
    held_out: dict[int, int] = {}  # of each corpus, over its objectives
    for number, order in validation.orders.items():
        part = validation.mixture.parts[number]
        held_out[part.source] = max(held_out.get(part.source, 0), sum(order.documents))
    return min(sum(held_out.values()), num_pairs)


def _describe_objectives(mixture: Mixture) -> list[dict[str, Any]]:
    """Returns each objective's facts for a model card, over all corpora."""
    total = sum(mixture.weights)
    return [
        {
            "name": objective.name,
            "share": sum(part.weight for part in mixture.parts if part.objective == objective) / total,
            "asks": objective.asks,
            "negatives": objective.negatives,
            "source": objective.source,
            "pairs_per_anchor": objective.pairs_per_anchor,
        }
        for objective in dict.fromkeys(mixture.objectives)
    ]
