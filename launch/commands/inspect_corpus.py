"""Shows a corpus: its counts, or documents at random."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_pipeline import browse
from data_pipeline.core.command_line import parse
from data_pipeline.core.default_model import default_model
from data_pipeline.core.settings import ABOVE_0, SEEDS, setting
from data_pipeline.corpus import Corpus
from data_pipeline.prepare.summary import format_corpus
from data_pipeline.tokenizers import load_tokenizer
from pretrain.planning.corpora import default_corpus

DESCRIPTION = """Shows what a corpus holds, and what was dropped and why; with --sample some of its documents.

Texts are decoded from token ids, which lack the capitals if the tokenizer is uncased. summary.txt in the corpus folder
has examples of what was dropped."""

EPILOG = """examples:
  kinspan show corpus --corpus corpora/docs
  kinspan show corpus --corpus corpora/docs --sample 3 --seed 7"""


@dataclass
class InspectCorpusConfig:
    POSITIONAL = "corpus"

    corpus: str | None = setting(None)
    """Corpus folder; the flag's name may be omitted. Without it: the documentation of Python and of the pinned
    packages."""
    sample: int | None = setting(None, ABOVE_0)
    """Show this many random documents."""
    seed: int = setting(1, SEEDS, needs="sample")
    """Seed of the random draw of --sample."""


def main() -> Iterator[str]:
    config = parse(InspectCorpusConfig, DESCRIPTION, EPILOG)
    corpus = Corpus(config.corpus or default_corpus(load_tokenizer(default_model())))
    if config.sample is None:
        yield format_corpus(corpus.manifest)
        return
    decoder = browse.load_decoder(Path(corpus.tokenizer_folder))
    for shard, row in browse.sample_documents(corpus, config.sample, config.seed):
        yield browse.format_document(shard, row, decoder)
