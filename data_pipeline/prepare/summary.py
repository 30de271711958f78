"""What a run of ``prepare`` did, as a table."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import SPLITS, Manifest
from data_pipeline.sampling.order import MIN_DOCUMENTS
from data_pipeline.sampling.pairs import Objective

from .cleaning import Tally
from .readers import format_skipped
from .readers.reader import MAX_RECORD_BYTES
from .readers.text import PIECE_BYTES
from .rejection import format_bytes, list_rejected
from .write import SHARED_IDS, UNKNOWN_TOKENS

# What the tally counts, in its order and by its name there; and how it is shown.
SHOWN_COUNTS = {
    "documents read": "documents read",
    "documents kept": "  kept",
    "documents held out for validation": "    of these held out for validation",
    "documents that share their id": "    of these with an id that many share",
    "documents without a long enough paragraph": "  dropped: no paragraph is long enough",
    "documents too short": "  dropped: too short",
    "documents in another language": "  dropped: in another language",
    "documents with a sentence of --decontaminate": "  dropped: has a sentence of --decontaminate",
    "documents that repeat another": "  dropped: repeats another",
    "documents much like another": "  dropped: much like another",
    "documents too short without repeated paragraphs": "  dropped: too short without what repeats",
    "documents cut off a longer text": "documents cut off longer texts",
    "bytes read": "bytes of records read",
    "records rejected": "records rejected",
    "bytes rejected": "  their bytes",
    "records omitted": "records that are no documents",
    "paragraphs read": "paragraphs read",
    "paragraphs kept": "  kept",
    "paragraphs too short": "  dropped: too short",
    "paragraphs dropped": "  dropped",
    "paragraphs that repeat another": "  dropped: repeats another",
    "paragraphs in many documents": "  dropped: stands in many documents",
    "paragraphs of dropped documents": "  dropped: in a dropped document",
    "paragraphs changed": "  changed",
    "sentences kept": "sentences kept",
    "tokens kept": "tokens kept",
    UNKNOWN_TOKENS: "  unknown to the tokenizer",
}
MANY_UNKNOWN = 0.01  # of the tokens: English text has a few in ten thousand, of signs that are rare
ALWAYS_SHOWN = ("read", "kept", "too short", "validation", "rejected", "paragraphs of dropped documents")


def count_rows(tally: Tally, manifest: Manifest) -> list[tuple[str, int]]:
    """List what was read, kept and dropped, and why; and how many anchors each objective finds."""
    rows: list[tuple[str, int]] = []
    for name, shown in SHOWN_COUNTS.items():
        parts = {key: count for key, count in tally.counts.items() if key.startswith(f"{name}: ")}
        if tally.counts[name] or name.endswith(ALWAYS_SHOWN):
            rows.append((shown, tally.counts[name]))
        rows += [(f"{shown}: {key.removeprefix(f'{name}: ')}", count) for key, count in sorted(parts.items())]
    training, validation = (_count_usable(manifest, split, "anchors") for split in SPLITS)
    for name, number in training.items():
        rows.append((f"anchors for {name}, training", number))
        rows.append((f"anchors for {name}, validation", validation[name]))
    return rows


def format_counts(tally: Tally, manifest: Manifest, skipped: Counter[str]) -> str:
    """What ``count_rows`` lists, as lines, after the files that were skipped, by suffix."""
    lines = [f"{name:<50} {number:>14,}" for name, number in count_rows(tally, manifest)]
    if skipped:
        lines.insert(0, f"skipped, since they cannot be read: {format_skipped(skipped)}")
    return "\n".join(lines)


def describe_rejected(folder: str | Path, tally: Tally) -> str | None:
    """Say how many records were rejected, and why the first was; None where none was."""
    rejected = Path(folder) / "rejected.jsonl"
    first = next(list_rejected(rejected), None)
    if first is None:
        return None
    number = tally.counts["records rejected"]
    sizes = f"{format_bytes(tally.counts['bytes rejected'])} of {format_bytes(tally.counts['bytes read'])}"
    said = (
        f"{number:,} record{'s' * (number > 1)} rejected ({sizes}), the first in {first['file']}, record "
        f"{first['line']}: {first['reason']}; all are in {rejected}"
    )
    return said.encode("utf-8", "backslashreplace").decode()  # names of files may hold any bytes


def describe_dropped(tally: Tally) -> str | None:
    """Say how many documents and paragraphs were dropped; None where none was."""
    shares = [
        f"{dropped:,} of {read:,} {what}"
        for what in ("documents", "paragraphs")
        if (dropped := (read := tally.counts[f"{what} read"]) - tally.counts[f"{what} kept"])
    ]
    return f"dropped {' and '.join(shares)}" if shares else None


def describe_oddities(tally: Tally) -> list[str]:
    """Say that ids do not tell documents apart, that texts were cut, and that the tokenizer does not know the text."""
    said = []
    if cut := tally.counts["documents cut off a longer text"]:
        said.append(
            f"texts above {MAX_RECORD_BYTES >> 20} MB were cut into {cut:,} documents of about {PIECE_BYTES >> 20} MB, "
            "at blank lines where there are any: cut them yourself where a document is to be something else"
        )
    if (shared := tally.counts[SHARED_IDS]) and (ids := tally.samples.get(SHARED_IDS)):
        said.append(
            f"{shared:,} documents share their id with many others, such as {ids[0]!r}: which of them are held out is "
            "decided by a hash of id and text"
        )
    share = tally.counts[UNKNOWN_TOKENS] / max(tally.counts["tokens kept"], 1)
    if share >= MANY_UNKNOWN:
        said.append(
            f"{share:.1%} of the tokens are the tokenizer's sign for text that it does not know, which teaches a model "
            "nothing: choose a model of this language, and its tokenizer"
        )
    return said


def find_lacks(manifest: Manifest, objectives: Mapping[str, Objective]) -> list[str]:
    """Say which objectives a corpus cannot train, or cannot validate, and what is missing."""
    lines = []
    for split, use, which, more in zip(
        SPLITS,
        ("train", "validate"),
        ("not held out", "held out"),
        ("", "; a larger --validation_share holds out more"),
        strict=True,
    ):
        alike: dict[tuple[int, str], list[str]] = {}  # objectives by what they lack
        for name, number in _count_usable(manifest, split, "documents").items():
            if number < MIN_DOCUMENTS:
                alike.setdefault((number, objectives[name].needs), []).append(name)
        lines += [
            f"{', '.join(names)} cannot {use} on this corpus: of the documents {which}, {number} can be used, and "
            f"{MIN_DOCUMENTS} are needed (it takes {needs}){more}"
            for (number, needs), names in alike.items()
        ]
    return lines


def check_trainable(manifest: Manifest, what: str, has_flags: bool = True) -> None:
    """Raise KinspanError where no objective can train on the corpus.

    what:      what the message calls the corpus
    has_flags: whether the command has the flags that more documents can be kept by, which the message then advises
    """
    usable = _count_usable(manifest, "train", "documents")
    if all(number < MIN_DOCUMENTS for number in usable.values()):
        titles = "" if "title_body" in usable else ", or keep the titles of titled ones as texts (--title_texts)"
        ways = (
            ", or keep shorter ones (--min_paragraph_chars, --min_document_chars), or hold fewer out "
            f"(--validation_share){titles}"
        )
        raise KinspanError(
            f"{what} can train no objective: each needs {MIN_DOCUMENTS} documents or more that are not "
            f"held out, because negatives come from other documents; add documents{ways if has_flags else ''}"
        )


def _count_usable(manifest: Manifest, split: str, what: str) -> dict[str, int]:
    """Count the usable anchors, or the documents that have one, of each objective."""
    shards = manifest.shards
    return {name: sum(s.usable[name][split][what] for s in shards) for name in shards[0].usable}
