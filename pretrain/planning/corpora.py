"""Opens a run's corpora, checks that their tokenizers agree, and combines them with objectives into a mixture."""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_pipeline import tokenizers
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import find_cache, hold_lock
from data_pipeline.corpus import Corpus
from data_pipeline.manifest import read_manifest
from data_pipeline.remote.cache import CacheSettings
from data_pipeline.sampling.anchors import get_usable_counts, open_block
from data_pipeline.sampling.mixture import Mixture, MixturePart
from data_pipeline.sampling.order import MIN_DOCUMENTS, TooFewDocuments
from data_pipeline.sampling.random_bits import draw_random_bits
from data_pipeline.sources import Source, is_url, list_paths, name_corpora, parse_sources
from objectives import OBJECTIVES, parse_mixture
from objectives.contrastive import as_contrastive
from objectives.negatives import MAX_WALKED
from pretrain.config import DataSettings, PretrainConfig
from pretrain.engine.deepspeed_config import read_deepspeed_config

from .forums import choose_forums

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SOURCES_NAMED = 20  # the largest sources are named in run.json and on model cards
MAX_TURNS = 1 << 16  # bounds the length of the pattern by which a mixture orders its parts
MAX_PARTS = 1000  # the log has figures for each


def list_sources(config: DataSettings) -> tuple[Source, ...]:
    """Returns the corpora of ``--corpus`` that ``--forums`` and ``--min_questions`` leave."""
    return choose_forums(parse_sources(config.corpus), config.forums, config.min_questions, config.cache)


def expect_inputs(config: PretrainConfig) -> None:
    """Raises KinspanError for a missing corpus or DeepSpeed file, or an unknown objective, before torch is imported."""
    read_deepspeed_config(config.deepspeed_config)
    sources = list_sources(config)
    build_mixture(config, sources)
    for path in list_paths(sources):
        if not is_url(path):
            read_manifest(Path(path), path)


def build_mixture(config: Any, sources: Sequence[Source]) -> Mixture:
    """Returns the mixture of a PretrainConfig, or of another config with its settings."""
    mixture = mix(sources, config.objective, config.sampling)
    if config.pair_loss == "contrastive":
        mixture = as_contrastive(mixture, config.own_negatives or 0)
    return replace(mixture, batch=config.global_batch_size) if config.corpus_schedule else mixture


def mix(sources: Sequence[Source], objective: str, sampling: str = "matched") -> Mixture:
    """Returns the mixture of the corpora's objectives; its ``read_from`` takes the corpora in ``list_paths``'s order.

    Each corpus has its share of the pairs, which its objectives divide by their weights.

    objective: of corpora that name none, in the syntax of parse_mixture
    """
    sources = sources or (Source(""),)
    paths = list_paths(sources)
    names = name_corpora(paths)
    total = sum((source.weight for source in sources), Fraction(0))
    shares: list[Fraction] = []
    parts: list[MixturePart] = []
    for source in sources:
        source_mixture = parse_mixture(source.objective or objective, sampling)
        for part in source_mixture.parts:
            shares.append(source.weight / total * Fraction(part.weight, sum(source_mixture.weights)))
            parts.append(MixturePart(part.objective, source=paths.index(source.path)))
    (source_index, name), count = Counter((part.source, part.objective.name) for part in parts).most_common(1)[0]
    if count > 1:
        raise KinspanError(f"--corpus {paths[source_index]}: {name} is named twice")
    if len(parts) > MAX_PARTS:
        raise KinspanError(f"--corpus: {len(parts)} parts of corpora and objectives, at most {MAX_PARTS} can be mixed")
    common = math.lcm(*(share.denominator for share in shares))
    divisor = math.gcd(*(int(share * common) for share in shares))
    weights = [int(share * common) // divisor for share in shares]
    if sum(weights) > MAX_TURNS:
        raise KinspanError(f"--corpus and --objective: weights sum to {sum(weights):,}, at most {MAX_TURNS:,}")
    num_objectives = Counter(part.source for part in parts)
    for index, (part, weight) in enumerate(zip(parts, weights, strict=True)):
        name = names[part.source] if len(paths) > 1 else ""
        if name and num_objectives[part.source] > 1:
            name += f"/{part.objective.name}"
        parts[index] = replace(part, weight=weight, name=name)
    return Mixture(tuple(parts))


def drop_untrainable(mixture: Mixture) -> tuple[Mixture, list[str]]:
    """Returns a round robin without the parts whose corpus gives no pairs, and a note on each of these.

    If no part gives pairs, all are kept, and opening a stream raises the error.
    """
    if not mixture.batch:
        return mixture, []
    reasons = [_explain_no_pairs(part, "train") for part in mixture.parts]
    if all(reasons):
        return mixture, []
    notes = [f"left out {name}: {reason}" for name, reason in zip(mixture.names, reasons, strict=True) if reason]
    return replace(mixture, parts=tuple(compress(mixture.parts, [not reason for reason in reasons]))), notes


def mix_validation(mixture: Mixture) -> tuple[Mixture, list[str]]:
    """Returns the mixture for validation, in which parts without held-out pairs have weight 0, and notes on these."""
    reasons = [_explain_no_pairs(part, "validation") for part in mixture.parts]
    if all(reasons):
        raise TooFewDocuments(f"held out: {reasons[0]}")
    parts = [replace(part, weight=0) if reason else part for part, reason in zip(mixture.parts, reasons, strict=True)]
    skipped = compress(mixture.names, reasons)
    return Mixture(tuple(parts)), [f"no validation of {name}: its held-out documents give no pairs" for name in skipped]


def _explain_no_pairs(part: MixturePart, split: str) -> str:
    """Returns why a part gives no pairs of a split, or ""; in a small forum it tries to sample negatives."""
    assert part.corpus is not None
    anchors, documents = get_usable_counts(part.corpus, part.objective, split)
    if sum(documents) < MIN_DOCUMENTS:
        return f"too few of its documents have {part.objective.needs}"
    if part.objective.view is None or sum(anchors) > MAX_WALKED:
        return ""
    shards = tuple(shard for shard, count in enumerate(anchors) if count)
    block = open_block(part.corpus, shards, split, part.objective)
    random_bits = draw_random_bits(0, "trial", 0, len(block.anchors), part.objective.num_draws)
    try:
        part.objective.sample(block, block.anchors.astype(np.int64), random_bits)
    except KinspanError:
        return "there are no negatives: all of its documents share a title or text, or are duplicates"
    return ""


def open_corpora(
    sources: Sequence[Source],
    cache: CacheSettings,
    load_tokenizer: "Callable[[], PreTrainedTokenizerBase]",
    verify: bool = True,
) -> list[Corpus]:
    """Returns the corpora, or the default one, built with ``load_tokenizer()``. All must share a tokenizer."""
    if not sources:
        return [Corpus(default_corpus(load_tokenizer()), verify)]
    corpora = [Corpus(path, verify, cache) for path in list_paths(sources)]
    fingerprint = corpora[0].manifest.tokenizer["fingerprint"]
    for corpus in corpora[1:]:
        if corpus.manifest.tokenizer["fingerprint"] != fingerprint:
            raise KinspanError(f"--corpus {corpus.name} and {corpora[0].name} were prepared with different tokenizers")
    return corpora


def open_corpora_for_tokenizer(
    tokenizer: "PreTrainedTokenizerBase", sources: Sequence[Source], cache: CacheSettings, verify: bool = True
) -> list[Corpus]:
    """Returns the corpora for a model with this tokenizer. Raises KinspanError if one was prepared with another."""
    corpora = open_corpora(sources, cache, lambda: tokenizer, verify)
    fingerprint, name = tokenizers.fingerprint_tokenizer(tokenizer), tokenizers.shorten_name(tokenizer.name_or_path)
    for corpus in corpora:
        if fingerprint != (expected := corpus.manifest.tokenizer)["fingerprint"]:
            raise KinspanError(f"corpus {corpus.name} was prepared with the tokenizer {expected['name']}, not {name}")
    return corpora


def default_corpus_folder(tokenizer: "PreTrainedTokenizerBase") -> Path:
    """Returns the default corpus's folder in the user's cache, named by its packages' versions and the tokenizer."""
    from data_pipeline.prepare.readers.python_docs import format_versions  # preparing needs an extra

    stamp = f"{format_versions()} {tokenizers.fingerprint_tokenizer(tokenizer)}"
    return find_cache() / f"python-docs-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"


def default_corpus(tokenizer: "PreTrainedTokenizerBase") -> Path:
    """Returns the folder of the default corpus, built at its first use, by one process at a time."""
    from data_pipeline.prepare.pipeline import prepare
    from data_pipeline.prepare.readers import PYTHON_DOCS

    folder = default_corpus_folder(tokenizer)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder.with_suffix(".lock")):
        if not (folder / "manifest.json").exists():
            name, num_workers = tokenizer.name_or_path, len(os.sched_getaffinity(0))
            prepare([PYTHON_DOCS], name, folder, OBJECTIVES, num_workers=num_workers)
    return folder


def identify_corpora(mixture: Mixture, sources: Sequence[Source]) -> str | list[dict[str, str | int]]:
    """Returns the identity of a run's corpora: one fingerprint, or each part's fingerprint, objective and weight."""
    corpora = [part.corpus for part in mixture.parts if part.corpus is not None]
    if len(sources) < 2 and not any(source.objective for source in sources):
        return corpora[0].manifest.fingerprint
    return [
        {"corpus": corpus.manifest.fingerprint, "objective": part.objective.name, "weight": part.weight}
        for corpus, part in zip(corpora, mixture.parts, strict=True)
    ]


def summarize_corpora(mixture: Mixture, corpora: Sequence[Corpus]) -> dict[str, Any]:
    """Returns the fingerprints, totals and largest sources of the corpora that a mixture reads."""
    manifests = {part.source: corpora[part.source].manifest for part in mixture.parts}
    sources = [source for manifest in manifests.values() for source in manifest.sources]
    largest = sorted(sources, key=lambda source: -source["documents"])[:SOURCES_NAMED]
    first = corpora[min(manifests)].manifest
    if len(manifests) == 1:
        return {"fingerprint": first.fingerprint, "totals": first.totals, "sources": largest}
    parts: list[dict[str, Any]] = []
    totals: Counter[str] = Counter()
    for index, manifest in sorted(manifests.items()):
        corpus_parts = [part for part in mixture.parts if part.source == index]
        share = sum(part.weight for part in corpus_parts) / sum(mixture.weights)
        name = corpus_parts[0].name.partition("/")[0]
        parts.append({"name": name, "share": share, "fingerprint": manifest.fingerprint, "totals": manifest.totals})
        totals.update(manifest.totals)
    joined = "\n".join(part["fingerprint"] for part in parts)
    fingerprint = hashlib.sha256(joined.encode()).hexdigest()
    return {"fingerprint": fingerprint, "totals": dict(totals), "sources": largest, "corpora": parts}
