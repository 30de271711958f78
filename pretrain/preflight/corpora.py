"""Whether every host sees the same corpora, and their shards as the manifest describes them."""

import hashlib
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import cache_settings
from data_pipeline.corpus import Corpus
from data_pipeline.manifest import ShardInfo
from data_pipeline.remote.address import is_remote, show_address
from data_pipeline.sources import list_paths
from pretrain.config import PretrainConfig
from pretrain.planning.corpora import list_sources

from .report import Finding, compare

# Bytes of each corpus that every host hashes: seconds on a disk, and little enough for many hosts at one server. A
# shard that is not in the sample is hashed by the run itself, at its first use.
HASHED = 512e6


def look_at_corpora(config: PretrainConfig) -> dict[str, dict[str, Any]]:
    """What this host sees of each corpus that --corpus names: its fingerprint, and what is wrong with it."""
    return {show_address(path): _look_at_corpus(path, config) for path in list_paths(list_sources(config))}


def _look_at_corpus(path: str, config: PretrainConfig) -> dict[str, Any]:
    try:
        corpus = Corpus(path, cache=cache_settings(config))
    except (KinspanError, OSError) as error:
        return {"fingerprint": "", "wrong": [_describe(path, error)]}
    shards, wrong = corpus.manifest.shards, []
    corpus.unverified = choose_sample(shards)
    for number in range(0 if is_remote(path) else len(shards)):  # a shard that is fetched is always hashed
        try:
            corpus.shard(number)
        except (KinspanError, OSError) as error:  # an OSError of somebody else's file, or of a disk that fails
            wrong.append(_describe(f"{path}/{shards[number].file}", error))
    return {"fingerprint": corpus.manifest.fingerprint, "wrong": wrong}


def _describe(path: str, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{show_address(path)} cannot be read ({error.strerror}): let everyone read it, or copy it again"
    return str(error)


def choose_sample(shards: list[ShardInfo]) -> set[int]:
    """The shards that are hashed, the same on every host: all of a small corpus, of a large one some, at least one."""
    sample: set[int] = set()
    total = 0
    for number in sorted(range(len(shards)), key=lambda n: hashlib.sha256(shards[n].file.encode()).digest()):
        total += shards[number].bytes
        if sample and total > HASHED:
            break
        sample.add(number)
    return sample


def check_corpora(seen: dict[str, dict[str, dict[str, Any]]]) -> list[Finding]:
    """Whether all hosts see the same. ``seen``: what each host saw"""
    found = []
    for path in next(iter(seen.values())):
        views = {host: corpora[path] for host, corpora in seen.items() if path in corpora}
        prints = {host: view["fingerprint"][:12] for host, view in views.items() if view["fingerprint"]}
        what = f"the content of {path} by its manifest"
        found += compare("corpus", what, prints, "copy the same corpus to all hosts") if prints else []
        for host, view in views.items():
            if view["wrong"]:
                more = f" (and {len(view['wrong']) - 1} more)" if len(view["wrong"]) > 1 else ""
                found.append(Finding("corpus", [host], view["wrong"][0] + more))
    return found
