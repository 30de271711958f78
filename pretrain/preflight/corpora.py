"""Whether every host sees the same corpora, and their shards as the manifest describes them."""

import hashlib
from pathlib import Path
from typing import Any

from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.files import hash_file
from data_pipeline.manifest import ShardInfo
from data_pipeline.remote.address import is_remote, show_address
from data_pipeline.sources import list_paths
from pretrain.config import PretrainConfig
from pretrain.planning.corpora import list_sources
from pretrain.runtime.settings import cache_settings

from .facts import Facts
from .report import Finding, compare, list_hosts

# Bytes of each corpus that every host hashes: seconds on a disk, and little enough for many hosts at one server. A
# shard that is not in the sample is hashed by the run itself, at its first use.
HASHED = 512e6


def look_at_corpora(config: PretrainConfig) -> dict[str, dict[str, Any]]:
    """What this host sees of each corpus that --corpus names: its fingerprint, and what is wrong with its shards."""
    return {show_address(path): _look_at_corpus(path, config) for path in list_paths(list_sources(config))}


def _look_at_corpus(path: str, config: PretrainConfig) -> dict[str, Any]:
    try:
        corpus = Corpus(path, verify=False, cache=cache_settings(config))
    except KinspanError as error:
        return {"fingerprint": None, "wrong": [str(error)], "hashed": 0}
    except OSError as error:
        why = f"corpus {show_address(path)} cannot be read ({error.strerror}): let everyone read it, or copy it again"
        return {"fingerprint": None, "wrong": [why], "hashed": 0}
    shards = corpus.manifest.shards
    known: dict[str, Any] = {"fingerprint": corpus.manifest.fingerprint, "wrong": [], "hashed": 0}
    if is_remote(path):  # a shard that is fetched is always hashed
        return known
    sample = choose_sample(shards)
    wrong = {info.file: text for info in shards if (text := _find_wrong(corpus.folder, info, info in sample))}
    return {**known, "wrong": list(wrong.values()), "hashed": sum(info.file not in wrong for info in sample)}


def _find_wrong(folder: Path, info: ShardInfo, is_hashed: bool) -> str | None:
    """What is wrong with a shard; None where nothing is."""
    path = folder / info.file
    try:
        if not path.is_file():
            return f"{info.file} is missing"
        if path.stat().st_size != info.bytes:
            return f"{info.file} has not the {info.bytes:,} bytes that the manifest says"
        if is_hashed and hash_file(path) != info.sha256:
            return f"{info.file} has not the SHA-256 that the manifest says"
    except OSError as error:  # somebody else's file, or a disk that fails
        return f"{info.file} cannot be read ({error.strerror})"
    return None


def choose_sample(shards: list[ShardInfo]) -> list[ShardInfo]:
    """The shards that are hashed, the same on every host: all of a small corpus, of a large one some, at least one."""
    sample: list[ShardInfo] = []
    total = 0
    for info in sorted(shards, key=lambda info: hashlib.sha256(info.file.encode()).digest()):
        total += info.bytes
        if sample and total > HASHED:
            break
        sample.append(info)
    return sample


def check_corpora(facts: list[Facts], seen: list[dict[str, dict[str, Any]] | None]) -> list[Finding]:
    """Whether all hosts see the same. ``seen``: what the first rank of each host saw; None of the other ranks"""
    of_host = {one.host: corpora for one, corpora in zip(facts, seen, strict=True) if corpora is not None}
    found = []
    for path in next(iter(of_host.values())):
        views = {host: corpora[path] for host, corpora in of_host.items() if path in corpora}
        prints = {host: view["fingerprint"] for host, view in views.items() if view["fingerprint"]}
        found += compare(
            "corpus",
            f"the content of {path} by its manifest",
            prints,
            "copy the same corpus to all hosts",
            lambda value: f"{value[:12]}",
        )
        for host, view in views.items():
            if view["wrong"]:
                more = f" (and {len(view['wrong']) - 1} more)" if len(view["wrong"]) > 1 else ""
                text = f"{path}: {view['wrong'][0]}{more}: copy it there again, or mount what the others see"
                found.append(Finding("corpus", [host], text if view["fingerprint"] else view["wrong"][0]))
    return found


def describe_corpora(facts: list[Facts], seen: list[dict[str, dict[str, Any]] | None]) -> str:
    """What was looked at, for the table."""
    hosts = [one.host for one, corpora in zip(facts, seen, strict=True) if corpora is not None]
    corpora = next(corpora for corpora in seen if corpora is not None)
    if not corpora:
        return "the default one, which each host makes for itself"
    names = list_hosts([f"{path} ({view['hashed']} shards hashed)" for path, view in corpora.items()])
    return f"{names} on {len(hosts)} host{'s' if len(hosts) > 1 else ''}"
