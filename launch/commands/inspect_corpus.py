"""Shows a corpus: its counts, documents at random, or those that hold a text."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from data_pipeline import browse
from data_pipeline.core.command_line import parse
from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, SEEDS, setting
from data_pipeline.corpus import SPLITS, Corpus, Shard
from data_pipeline.tokenizers import load_tokenizer
from pretrain.planning.corpora import default_corpus

DESCRIPTION = """Shows the counts of a corpus; with --sample or --search some of its documents.

Texts are decoded from token ids, which lack the capitals if the tokenizer is uncased. summary.txt in the corpus folder
has examples of what was dropped."""

EPILOG = """examples:
  kinspan show corpus --corpus corpora/docs
  kinspan show corpus --corpus corpora/docs --sample 3 --seed 7
  kinspan show corpus --corpus corpora/docs --search 'steam engine' --count 5"""

SHOWN_SOURCES = 20


@dataclass
class InspectCorpusConfig:
    POSITIONAL = "corpus"

    corpus: str | None = setting(None)
    """Corpus folder; the flag's name may be omitted. Without it: the documentation of Python and of the pinned
    packages."""
    sample: int | None = setting(None, ABOVE_0)
    """Show this many random documents."""
    search: str | None = setting(None)
    """Show the documents with this text in a paragraph, ignoring case. It reads the whole corpus."""
    count: int = setting(10, ABOVE_0, needs="search")
    """Maximum number of documents that --search shows."""
    seed: int = setting(1, SEEDS, needs="sample")
    """Seed of the random draw of --sample."""


def main() -> Iterator[str]:
    config = parse(InspectCorpusConfig, DESCRIPTION, EPILOG)
    if config.sample is not None and config.search is not None:
        raise KinspanError("--sample and --search: give one of them")
    corpus = Corpus(config.corpus or default_corpus(load_tokenizer(default_model())))
    if config.sample is None and config.search is None:
        yield _format_counts(corpus)
        return
    decoder = browse.load_decoder(corpus.folder)
    rows: Iterable[tuple[Shard, int]]
    if config.sample is not None:
        rows = browse.sample_documents(corpus, config.sample, config.seed)
    else:
        rows = list(islice(browse.search_documents(corpus, str(config.search), decoder), config.count))
        if not rows:
            raise KinspanError(f"--search {config.search}: no document of {corpus.folder} has this text")
    for shard, row in rows:
        yield _format_document(browse.show_document(shard, row, decoder))


def _count(corpus: Corpus) -> dict[str, object]:
    manifest = corpus.manifest
    counts = {"tokenizer": manifest.tokenizer["name"], "fingerprint": manifest.fingerprint, **manifest.totals}
    for split in SPLITS:
        shards = [shard for shard in manifest.shards if shard.split == split]
        counts |= {f"{split} shards": len(shards), f"{split} documents": sum(s.documents for s in shards)}
        for name in manifest.shards[0].usable:
            anchors = sum(shard.usable[name][split]["anchors"] for shard in manifest.shards)
            counts[f"anchors for {name}, {split}"] = anchors
    return {**counts, **manifest.rules}


def _format_counts(corpus: Corpus) -> str:
    counts = _count(corpus).items()
    lines = [f"{name:<34} {f'{value:,}' if isinstance(value, int) else value}" for name, value in counts]
    sources = sorted(corpus.manifest.sources, key=lambda source: -source["documents"])
    lines += ["", f"{len(sources)} source(s), documents of the largest:"]
    return "\n".join(lines + [f"  {source['documents']:>12,}  {source['name']}" for source in sources[:SHOWN_SOURCES]])


def _format_document(document: browse.ShownDocument) -> str:
    place = f"{document.id}, from {document.source}, {document.tokens:,} tokens, {SPLITS[document.held_out]}"
    answers = [
        f"[{'accepted answer' if number == document.accepted else 'answer'}] {answer}"
        for number, answer in enumerate(document.answers)
    ]
    head = f"{'-' * 80}\n{document.title or '(no title)'}\n{place}"
    return "\n\n".join([head, *document.paragraphs, *answers]) + "\n"
