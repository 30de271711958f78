"""Formats the counts of a corpus, for the screen and for ``summary.txt``."""

from collections.abc import Mapping

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import SPLITS, Manifest
from data_pipeline.sampling.order import MIN_DOCUMENTS
from data_pipeline.sampling.pairs import Objective
from data_pipeline.tokenizers import note_unknown

from .cleaning import Tally
from .read import ReadTally
from .write import UNKNOWN_TOKENS

UNITS = ("files", "records", "documents", "code blocks", "paragraphs", "sentences", "tokens")  # of counts, in order
SHOWN_LOSSES = SHOWN_SOURCES = 5  # number of files
SHOWN_COUNTS = 12  # of what was read and dropped


def order_counts(tally: Tally, read_tally: ReadTally) -> dict[str, int]:
    """Returns the counts of a run that are not 0, in the order of their units: what was read, kept and dropped."""
    counts = {"bytes read": read_tally.bytes, "bytes rejected": read_tally.rejected_bytes}
    counts["records rejected"] = read_tally.rejected
    for unit in UNITS:
        names = [name for name in tally.counts if name.startswith(unit)]
        for name in sorted(names, key=lambda name: (not name.endswith(" read"), not name.endswith(" kept"), name)):
            counts[name] = tally.counts[name]
    return {name: count for name, count in counts.items() if count}


def format_corpus(manifest: Manifest) -> str:
    """Formats what a corpus holds, its largest sources, and what was dropped and why."""
    held_out = sum(shard.documents for shard in manifest.shards if shard.split == "validation")
    rows = [("documents", manifest.totals["documents"]), ("  held out for validation", held_out)]
    rows += [(unit, manifest.totals[unit]) for unit in ("paragraphs", "sentences", "tokens")]
    lines = [f"tokenizer    {manifest.tokenizer['name']}", f"fingerprint  {manifest.fingerprint}"]
    lines += [f"languages    {' '.join(languages)}"] if (languages := manifest.rules.get("languages")) else []
    sources = sorted(manifest.sources, key=lambda source: -source["documents"])
    rows += [(f"documents of {source['name']}", source["documents"]) for source in sources[:SHOWN_SOURCES]]
    kept = (" kept", "for validation")
    dropped = [(name, count) for name, count in manifest.counts.items() if not name.endswith(kept)]
    rows += sorted(dropped, key=lambda item: (not item[0].endswith(" read"), -item[1]))[:SHOWN_COUNTS]
    return "\n".join([*lines, *(_format_count(name, count) for name, count in rows)])


def _format_count(name: str, count: int) -> str:
    return f"{name:<60} {count:>14,}"


def format_summary(tally: Tally, read_tally: ReadTally) -> str:
    """Lists the counts, the files with the largest losses, and examples of dropped text."""
    lines = [_format_count(name, count) for name, count in order_counts(tally, read_tally).items()]
    losses = sorted(read_tally.losses.items(), key=lambda item: -item[1][0])[:SHOWN_LOSSES]
    lines += [f"rejected: {size:,} bytes of {file}: {reason}" for file, (size, reason) in losses]
    for name, texts in sorted(tally.samples.items()):
        lines += ["", f"{name}, for example:", *(f"    {text}" for text in texts)]
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode() + "\n"  # file names may have any bytes


def list_notes(tally: Tally, read_tally: ReadTally) -> list[str]:
    """Lists notes on a new corpus: rejected records, cut texts, unknown tokens."""
    notes = []
    if read_tally.rejected:
        name, (_, reason) = max(read_tally.losses.items(), key=lambda item: item[1][0])
        notes.append(f"rejected {read_tally.rejected:,} records (see rejected.jsonl); most bytes in {name}: {reason}")
    if cut := tally.counts["documents cut off a longer text"]:
        notes.append(f"texts above 64 MB were cut into {cut:,} documents of about 1 MB")
    notes += note_unknown(tally.counts[UNKNOWN_TOKENS], tally.counts["tokens kept"])
    return [note.encode("utf-8", "backslashreplace").decode() for note in notes]


def list_unusable(manifest: Manifest, objectives: Mapping[str, Objective]) -> list[str]:
    """Lists the objectives that the corpus cannot train or validate, with the reason."""
    return [
        f"{name} cannot {verb}: {count} of the needed {MIN_DOCUMENTS} documents have {objectives[name].needs}"
        for split, verb in zip(SPLITS, ("train", "validate"), strict=True)
        for name, count in _count_documents(manifest, split).items()
        if count < MIN_DOCUMENTS
    ]


def check_trainable(manifest: Manifest, label: str) -> None:
    """Raises KinspanError if no objective can train on the corpus; ``label`` begins the message."""
    if all(count < MIN_DOCUMENTS for count in _count_documents(manifest, "train").values()):
        raise KinspanError(f"{label}: each objective needs {MIN_DOCUMENTS} documents")


def _count_documents(manifest: Manifest, split: str) -> dict[str, int]:
    """Counts the documents that have a usable anchor, by objective."""
    shards = manifest.shards
    return {name: sum(s.usable[name][split]["documents"] for s in shards) for name in shards[0].usable}
