"""Collects the content of run.json: the run's identity, and facts for its release; no local paths."""

from collections.abc import Sequence
from pathlib import Path

from data_pipeline import tokenizers
from data_pipeline.core.default_model import find_hub_name
from data_pipeline.core.files import JsonObject
from data_pipeline.core.settings import get_identity_settings
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.mixture import Mixture
from data_pipeline.sampling.stream import PairStream
from data_pipeline.sources import Source
from objectives import hash_own_sources
from pretrain.engine.deepspeed_config import zero_stage
from pretrain.engine.schedule import OPEN_ENDED, Schedule
from pretrain.modeling.adapters.model import AdapterModel
from pretrain.modeling.electra import parse_size_factor
from pretrain.modeling.pair_model import holds_no_weights
from pretrain.planning.corpora import identify_corpora, summarize_corpora

from .batches import TrainedModel
from .config import LENGTHS, PretrainConfig, as_dict


def collect_facts(
    config: PretrainConfig,
    model_name: str,
    model: TrainedModel,
    fingerprint: str,
    deepspeed_settings: JsonObject,
    precision: str,
    token_loss: str,
    sources: Sequence[Source],
    corpora: list[Corpus],
    train: PairStream,
    validation: PairStream | None,
    schedule: Schedule,
) -> JsonObject:
    """Returns the run's identity, settings, and facts for its release. ``fingerprint``: hash of the initial weights"""
    hub_name, mixture = find_hub_name(config.model), train.mixture
    short = tokenizers.shorten_name(hub_name or model_name)  # "." has no name
    paths = ["corpus", "model", "output_dir", "deepspeed_config", "cache_dir", "adapters"]
    paths += ["generator"] if parse_size_factor(config.generator) is None else []
    # What counts is precision_used: "auto" may resume as the "bf16" that it meant. An open-ended length may change
    not_identity = ("precision", *(LENGTHS if config.lr_schedule in OPEN_ENDED else ()))
    run_identity = {name: value for name, value in get_identity_settings(config).items() if name not in not_identity}
    run_identity |= {"model_weights": fingerprint, "deepspeed": deepspeed_settings, "precision_used": precision}
    run_identity["own_objectives"] = hash_own_sources(mixture)
    run_identity["corpus_content"] = identify_corpora(mixture, sources)
    return {
        "identity": run_identity,
        "changed": config.list_resumed(),
        "settings": {k: v for k, v in as_dict(config).items() if k not in paths},
        "model": {"name": Path(short).name, "fingerprint": fingerprint, "hub_name": hub_name},
        "zero_stage": zero_stage(deepspeed_settings),
        "precision": precision,
        "max_length": train.max_length,
        "total_steps": schedule.total,
        "warmup_steps": schedule.warmup,
        "corpus": summarize_corpora(mixture, corpora),
        "token_loss": token_loss,
        "base": model.base_fingerprint if isinstance(model, AdapterModel) else None,
        "from_scratch": holds_no_weights(model_name),
        "validation_documents": _count_documents(validation, config.eval_pairs) if validation else None,
        "parts": list(mixture.names),
        "objectives": _list_objectives(mixture),
        "generator": tokenizers.shorten_name(config.generator) if token_loss == "rtd" else None,
        "eval_pairs": min(config.eval_pairs, validation.epoch_pairs) if validation else 0,
    }


def _count_documents(validation: PairStream, num_pairs: int) -> int:
    """Returns how many held-out documents the anchors of the validated pairs can come from."""
    mixture, held_out = validation.mixture, dict[int, int]()  # by corpus: maximum over its objectives
    for index, order in validation.orders.items():
        part, (_, own) = mixture.parts[index], mixture.own_pairs(index, 0, min(num_pairs, validation.epoch_pairs))
        anchors = min(sum(order.documents), -(-own // part.objective.pairs_per_anchor))
        held_out[part.source] = max(held_out.get(part.source, 0), anchors)
    return sum(held_out.values())


def _list_objectives(mixture: Mixture) -> list[JsonObject]:
    """Returns the facts of each objective, over all corpora, for the model card."""
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
