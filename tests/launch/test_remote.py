"""The commands that open a corpus open a remote one, too."""

import json
import sys

import pytest

from launch.commands import inspect_pairs
from launch.kinspan import show


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    def run(module, *arguments):
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments), "--cache_dir", str(tmp_path / "cache")])
        show(module.main())
        return capsys.readouterr().out

    return run


def test_inspect_pairs(call, tiny_corpus):
    flags = ("--start", 7, "--count", 12, "--json")
    assert call(inspect_pairs, "--corpus", f"file://{tiny_corpus}", *flags) == call(
        inspect_pairs, "--corpus", tiny_corpus, *flags
    )
    mixed = call(inspect_pairs, "--corpus", f"{tiny_corpus}=1,ssp", f"file://{tiny_corpus}=1,nsp", *flags)
    pairs = [json.loads(line) for line in mixed.splitlines()]
    assert {(pair["corpus"], pair["objective"]) for pair in pairs} == {("corpus", "ssp"), ("corpus-2", "nsp")}


def test_a_round_robin_is_validated_as_any_mixture(call, tiny_corpus, make_corpus, helpers):
    """And without the corpora of which nothing is held out."""
    none = make_corpus(helpers.synthetic_documents(30, seed="none"), validation_share=0.0)
    flags = ("--split", "validation", "--count", 30, "--json")
    corpora = ("--corpus", f"{tiny_corpus}=1,ssp", f"{tiny_corpus}=1,nsp", none)
    mixed, in_turn = (call(inspect_pairs, *corpora, *flags, *more) for more in ([], ["--corpus_schedule=round_robin"]))
    assert mixed == in_turn
    assert {json.loads(line)["objective"] for line in mixed.splitlines()} == {"ssp", "nsp"}
