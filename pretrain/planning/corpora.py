"""Mixes a run's corpora with objectives, opens them, compares tokenizers, and describes them."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline import tokenizers
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import CacheSettings, cache_settings
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.anchors import get_usable_counts, open_block
from data_pipeline.sampling.mixture import Mixture, MixturePart
from data_pipeline.sampling.order import MIN_DOCUMENTS, TooFewDocuments
from data_pipeline.sampling.random_bits import draw_random_bits
from data_pipeline.sources import Source, list_paths, name_corpora, parse_sources, show_address, show_weight
from objectives import parse_mixture
from objectives.contrastive import as_contrastive
from objectives.negatives import MAX_WALKED

from .defaults import default_corpus
from .forums import choose_forums

SOURCES_NAMED = 20  # of the corpora, the largest, in run.json and model cards
MAX_TURNS = 1 << 16  # of the pattern by which turns are dealt to the parts
MAX_PARTS = 1000  # each has figures of its own in the log


def list_sources(config: Any) -> tuple[Source, ...]:
    """Returns the corpora that a config with the settings of PretrainConfig reads."""
    return choose_forums(parse_sources(config.corpus), config.forums, config.min_questions, cache_settings(config))


def build_mixture(config: Any, sources: Sequence[Source]) -> Mixture:
    """Returns the mixture that a config with the settings of PretrainConfig asks for."""
    mixture = mix(sources, config.objective, config.sampling)
    if config.pair_loss == "contrastive":
        mixture = as_contrastive(mixture, config.own_negatives or 0)
    return replace(mixture, batch=config.global_batch_size) if config.corpus_schedule else mixture


def drop_untrainable(mixture: Mixture) -> tuple[Mixture, list[str]]:
    """Returns a round robin without objectives that a corpus cannot train, and a note of each.

    Where none of them gives anything, they stay, and opening a stream says what is missing.
    """
    if not mixture.batch:
        return mixture, []
    lacks = [_find_lack(part, "train") for part in mixture.parts]
    if all(lacks):
        return mixture, []
    notes = [f"no turn for {name}: {lack}" for name, lack in zip(mixture.names, lacks, strict=True) if lack]
    return replace(mixture, parts=tuple(compress(mixture.parts, [not lack for lack in lacks]))), notes


def _find_lack(part: MixturePart, split: str) -> str:
    """Returns why a part has no pairs of a split, "" if it has; in a small forum negatives are tried."""
    assert part.corpus is not None
    anchors, documents = get_usable_counts(part.corpus, part.objective, split)
    if sum(documents) < MIN_DOCUMENTS:
        return f"too few of its documents have {part.objective.needs}"
    if part.objective.view is None or sum(anchors) > MAX_WALKED:
        return ""
    shards = tuple(number for number, count in enumerate(anchors) if count)
    block = open_block(part.corpus, shards, split, part.objective)
    random_bits = draw_random_bits(0, "trial", 0, len(block.anchors), part.objective.num_draws)
    try:
        part.objective.sample(block, block.anchors.astype(np.int64), random_bits)
    except KinspanError:
        return "all of its documents go with one text, or are duplicates of one another: there are no negatives"
    return ""


def mix_validation(mixture: Mixture) -> tuple[Mixture, list[str]]:
    """Returns the mixture as it is validated, and a note of each part whose held-out documents give no pairs.

    Parts keep their numbers. Raises TooFewDocuments where no part can be validated.
    """
    lacks = [_find_lack(part, "validation") for part in mixture.parts]
    if all(lacks):
        raise TooFewDocuments(f"held out: {lacks[0]}")
    parts = [replace(part, weight=0) if lack else part for part, lack in zip(mixture.parts, lacks, strict=True)]
    unvalidated = [name for name, lack in zip(mixture.names, lacks, strict=True) if lack]
    notes = [f"no validation of {name}: what is held out of it gives no pairs" for name in unvalidated]
    return Mixture(tuple(parts)), notes


def mix(sources: Sequence[Source], objective: str, sampling: str = "matched") -> Mixture:
    """Returns the mixture of corpora and objectives; ``Mixture.read_from`` takes a corpus for each of ``list_paths``.

    Each corpus has its share of the pairs, and within it each of its objectives has its own. Of one corpus it is what
    ``objective`` names, as parse_mixture reads it.

    Raises KinspanError where there is no such objective, one stands twice with a corpus, or the weights are too fine.
    """
    sources = sources or (Source(""),)
    paths = list_paths(sources)
    names = name_corpora(paths)
    total = sum((source.weight for source in sources), Fraction(0))
    shares: list[Fraction] = []
    parts: list[MixturePart] = []
    for source in sources:
        own = parse_mixture(source.objective or objective, sampling)
        for part in own.parts:
            shares.append(source.weight / total * Fraction(part.weight, sum(own.weights)))
            parts.append(MixturePart(part.objective, source=paths.index(source.path)))
    _refuse_twice(parts, paths)
    weights = _find_weights(shares)
    return Mixture(
        tuple(
            MixturePart(part.objective, weight, source=part.source, name=_name_part(part, parts, names))
            for part, weight in zip(parts, weights, strict=True)
        )
    )


def _refuse_twice(parts: Sequence[MixturePart], paths: Sequence[str]) -> None:
    if len(parts) > MAX_PARTS:
        raise KinspanError(f"--corpus: {len(parts)} parts of corpora and objectives, at most {MAX_PARTS} can be mixed")
    seen = set()
    for part in parts:
        if (part.source, part.objective.name) in seen:
            raise KinspanError(f"--corpus {show_address(paths[part.source])}: {part.objective.name} stands twice")
        seen.add((part.source, part.objective.name))


def _find_weights(shares: Sequence[Fraction]) -> list[int]:
    common = math.lcm(*(share.denominator for share in shares))
    weights = [int(share * common) for share in shares]
    weights = [weight // math.gcd(*weights) for weight in weights]
    if sum(weights) > MAX_TURNS:
        raise KinspanError(f"--corpus and --objective: weights sum to {sum(weights):,}, at most {MAX_TURNS:,}")
    return weights


def _name_part(part: MixturePart, parts: Sequence[MixturePart], names: Sequence[str]) -> str:
    """Returns the corpus's name, with the objective if it has several; "" for a single corpus."""
    if len(names) == 1:
        return ""
    alone = sum(other.source == part.source for other in parts) == 1
    return names[part.source] if alone else f"{names[part.source]}/{part.objective.name}"


def open_corpora(
    sources: Sequence[Source], cache: CacheSettings, tokenizer: Callable[[], Any], verify: bool = True
) -> list[Corpus]:
    """Returns the corpus of each of ``list_paths(sources)``, or the default one if none is named.

    tokenizer: gives the one for which the default corpus is built at its first use

    Raises KinspanError where a corpus cannot be opened, or their tokenizers differ.
    """
    if not sources:
        return [Corpus(default_corpus(tokenizer()), verify)]
    weights = {source.path: show_weight(source.weight) for source in sources}
    corpora = [_open_corpus(path, weights[path], cache, verify) for path in list_paths(sources)]
    first = corpora[0].manifest.tokenizer
    for corpus in corpora[1:]:
        if corpus.manifest.tokenizer["fingerprint"] != first["fingerprint"]:
            raise KinspanError(f"--corpus {corpus.name} and {corpora[0].name} were prepared with different tokenizers")
    return corpora


def _open_corpus(path: str, weight: str, cache: CacheSettings, verify: bool) -> Corpus:
    try:
        return Corpus(path, verify, cache)
    except KinspanError as error:
        if not (Path(f"{path}={weight}") / "manifest.json").is_file():
            raise
        raise KinspanError(
            f"--corpus {path}={weight}: {weight} is read as a weight; add one: {path}={weight}=1"
        ) from error


def open_corpora_for_tokenizer(
    tokenizer: Any, sources: Sequence[Source], cache: CacheSettings, verify: bool = True
) -> list[Corpus]:
    """Returns the corpora for a model with this tokenizer, see ``open_corpora``.

    Raises KinspanError where a corpus was prepared with another one.
    """
    corpora = open_corpora(sources, cache, lambda: tokenizer, verify)
    fingerprint, name = tokenizers.fingerprint_tokenizer(tokenizer), tokenizers.shorten_name(tokenizer.name_or_path)
    for corpus in corpora:
        corpus.check_tokenizer(fingerprint, name)
    return corpora


def identify_corpora(mixture: Mixture, sources: Sequence[Source]) -> Any:
    """Returns the identity of a run's corpora: one fingerprint, or each part's fingerprint, objective and weight."""
    corpora = [part.corpus for part in mixture.parts if part.corpus is not None]
    if len(sources) < 2 and not any(source.objective for source in sources):
        return corpora[0].manifest.fingerprint
    return [
        {"corpus": corpus.manifest.fingerprint, "objective": part.objective.name, "weight": part.weight}
        for corpus, part in zip(corpora, mixture.parts, strict=True)
    ]


def describe_corpora(mixture: Mixture, corpora: Sequence[Corpus]) -> dict[str, Any]:
    """Returns what run.json holds of the corpora that have a part: content, totals, the largest sources."""
    numbers = sorted({part.source for part in mixture.parts})
    manifests = [corpora[number].manifest for number in numbers]
    sources = [source for manifest in manifests for source in manifest.sources]
    known = {
        "fingerprint": manifests[0].fingerprint,
        "totals": manifests[0].totals,
        "sources": sorted(sources, key=lambda source: -source["documents"])[:SOURCES_NAMED],
    }
    if len(numbers) == 1:
        return known
    joined = "\n".join(manifest.fingerprint for manifest in manifests)
    names = {name for manifest in manifests for name in manifest.totals}
    return known | {
        "fingerprint": hashlib.sha256(joined.encode()).hexdigest(),
        "totals": {name: sum(m.totals.get(name, 0) for m in manifests) for name in sorted(names)},
        "corpora": [
            {
                "name": next(part.name for part in mixture.parts if part.source == number).partition("/")[0],
                "share": sum(part.weight for part in mixture.parts if part.source == number) / sum(mixture.weights),
                "fingerprint": manifest.fingerprint,
                "totals": manifest.totals,
            }
            for number, manifest in zip(numbers, manifests, strict=True)
        ],
    }
