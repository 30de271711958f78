"""Shows a corpus: what it holds, a document by its id, documents at random, or those that hold a text."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice

from tokenizers import Tokenizer

from data_pipeline import browse
from data_pipeline.core.command_line import parse
from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, SEEDS, setting
from data_pipeline.corpus import SPLITS, Corpus, Shard
from data_pipeline.tokenizers import load_tokenizer
from pretrain.planning.defaults import default_corpus

DESCRIPTION = """Shows what a corpus holds. Without --id, --sample or --search: its counts.

Texts are what the tokenizer gives back: an uncased one, for example, has lost the capitals. summary.txt in the folder
of the corpus has what was dropped, with examples."""

EPILOG = """examples:
  kinspan show corpus --corpus corpora/docs
  kinspan show corpus --corpus corpora/docs --sample 3 --seed 7
  kinspan show corpus --corpus corpora/docs --search 'steam engine' --count 5
  kinspan show corpus --corpus corpora/docs --id 12345 --json"""

SHOWN_SOURCES = 20


@dataclass
class InspectCorpusConfig:
    """Flags of this entry."""

    POSITIONAL = "corpus"

    corpus: str | None = setting(None)
    """Corpus folder; the name of the flag may be left out. Without it: the documentation of Python and of the pinned
    packages."""
    id: str | None = setting(None)
    """Show the document of this id."""
    sample: int | None = setting(None, ABOVE_0)
    """Show so many documents, drawn at random."""
    search: str | None = setting(None)
    """Show the documents that have this text in a paragraph, in small or capital letters. It reads the corpus."""
    count: int = setting(10, ABOVE_0, needs="search")
    """Most documents that --search shows."""
    seed: int = setting(1, SEEDS, needs="sample")
    """Of --sample."""
    json: bool = setting(False)
    """Print one JSON object per line."""


def _find(config: InspectCorpusConfig, corpus: Corpus, decoder: Tokenizer) -> Iterator[tuple[Shard, int]]:
    """Yields the documents that the flags ask for, each as its shard and its row there."""
    if config.id is not None:
        yield browse.find_document(corpus, config.id)
    elif config.sample is not None:
        yield from browse.sample_documents(corpus, config.sample, config.seed)
    elif config.search is not None:
        found = list(islice(browse.search_documents(corpus, config.search, decoder), config.count))
        if not found:
            raise KinspanError(f"--search {config.search}: no document of {corpus.folder} has this text")
        yield from found


def _summarize(corpus: Corpus) -> dict:
    manifest = corpus.manifest
    shards = {split: sum(s.split == split for s in manifest.shards) for split in SPLITS}
    documents = {split: sum(s.documents for s in manifest.shards if s.split == split) for split in SPLITS}
    usable = {
        f"anchors for {name}, {split}": sum(s.usable[name][split]["anchors"] for s in manifest.shards)
        for name in manifest.shards[0].usable
        for split in SPLITS
    }
    return {
        "tokenizer": manifest.tokenizer["name"],
        "fingerprint": manifest.fingerprint,
        **manifest.totals,
        **{f"{split} shards": number for split, number in shards.items()},
        **{f"{split} documents": number for split, number in documents.items()},
        **usable,
        **manifest.rules,
    }


def _format_counts(corpus: Corpus) -> str:
    lines = [
        f"{name:<34} {f'{value:,}' if isinstance(value, int) else value}" for name, value in _summarize(corpus).items()
    ]
    sources = sorted(corpus.manifest.sources, key=lambda source: -source["documents"])
    lines += ["", f"{len(sources)} source(s), documents of each:"]
    lines += [f"  {source['documents']:>12,}  {source['name']}" for source in sources[:SHOWN_SOURCES]]
    return "\n".join([*lines, *(["  ..."] if len(sources) > SHOWN_SOURCES else [])])


def _format_document(document: browse.ShownDocument) -> str:
    split = SPLITS[document.held_out]
    head = document.title or "(no title)"
    head += f"\n{document.id}, from {document.source}, {document.tokens:,} tokens, {split}"
    answers = [
        f"[{'accepted answer' if number == document.accepted else 'answer'}] {answer}"
        for number, answer in enumerate(document.answers)
    ]
    return "\n\n".join([head, *document.paragraphs, *answers]) + "\n"


def main() -> Iterator[str]:
    config = parse(InspectCorpusConfig, DESCRIPTION, EPILOG)
    asked = [name for name in ("id", "sample", "search") if getattr(config, name) is not None]
    if len(asked) > 1:
        raise KinspanError(f"--{asked[0]} and --{asked[1]}: give one of them")
    corpus = Corpus(config.corpus or default_corpus(load_tokenizer(default_model())))
    if not asked:
        yield json.dumps(_summarize(corpus)) if config.json else _format_counts(corpus)
        return
    decoder = browse.load_decoder(corpus.folder)
    for number, (shard, row) in enumerate(_find(config, corpus, decoder)):
        document = browse.show_document(shard, row, decoder)
        if config.json:
            yield json.dumps(asdict(document), ensure_ascii=False)
        else:
            yield ("-" * 80 + "\n") * (number > 0) + _format_document(document)
