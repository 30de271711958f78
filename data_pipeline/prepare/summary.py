"""Formats the counts of a run of ``prepare``, for the screen and for ``summary.txt``."""

from collections.abc import Iterator, Mapping

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import SPLITS, Manifest
from data_pipeline.sampling.order import MIN_DOCUMENTS
from data_pipeline.sampling.pairs import Objective

from .cleaning import Tally
from .read import ReadTally
from .write import UNKNOWN_TOKENS

UNITS = ("files", "records", "documents", "paragraphs", "sentences", "tokens")  # of the counts, in the table's order
MANY_UNKNOWN = 0.01  # share of tokens that is worth a note; English has a few in ten thousand, from rare characters
SHOWN_LOSSES = 5  # number of files


def format_counts(tally: Tally, read_tally: ReadTally, manifest: Manifest) -> str:
    """Formats a table of the counts and of each objective's usable anchors."""
    return "\n".join(f"{label:<60} {count:>14,}" for label, count in _count_rows(tally, read_tally, manifest))


def _count_rows(tally: Tally, read_tally: ReadTally, manifest: Manifest) -> Iterator[tuple[str, int]]:
    yield "bytes read", read_tally.bytes
    yield "  rejected", read_tally.rejected_bytes
    yield "records rejected", read_tally.rejected
    for unit in UNITS:
        names = [name for name, count in tally.counts.items() if name.startswith(unit) and count]
        for name in sorted(names, key=lambda name: (not name.endswith(" read"), not name.endswith(" kept"), name)):
            yield name, tally.counts[name]
    for split in SPLITS:
        for name, count in count_usable(manifest, split, "anchors").items():
            yield f"{split} anchors of {name}", count


def format_summary(tally: Tally, read_tally: ReadTally, manifest: Manifest) -> str:
    """Lists the counts, the files with the largest losses, and examples of dropped text."""
    lines = [format_counts(tally, read_tally, manifest)]
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
    share = tally.counts[UNKNOWN_TOKENS] / max(tally.counts["tokens kept"], 1)
    if share >= MANY_UNKNOWN:
        notes.append(f"{share:.1%} of the tokens are unknown to the tokenizer: choose a model of this language")
    return [note.encode("utf-8", "backslashreplace").decode() for note in notes]


def list_unusable(manifest: Manifest, objectives: Mapping[str, Objective]) -> list[str]:
    """Lists the objectives that the corpus cannot train or validate, with the reason."""
    return [
        f"{name} cannot {verb}: {count} of the needed {MIN_DOCUMENTS} documents have {objectives[name].needs}"
        for split, verb in zip(SPLITS, ("train", "validate"), strict=True)
        for name, count in count_usable(manifest, split, "documents").items()
        if count < MIN_DOCUMENTS
    ]


def check_trainable(manifest: Manifest, label: str) -> None:
    """Raises KinspanError if no objective can train on the corpus; ``label`` begins the message."""
    if all(count < MIN_DOCUMENTS for count in count_usable(manifest, "train", "documents").values()):
        raise KinspanError(f"{label}: each objective needs {MIN_DOCUMENTS} documents (--min_document_chars keeps more)")


def count_usable(manifest: Manifest, split: str, unit: str) -> dict[str, int]:
    """Counts the usable anchors, or the documents that have one, of each objective."""
    shards = manifest.shards
    return {name: sum(s.usable[name][split][unit] for s in shards) for name in shards[0].usable}
