"""What a run of ``prepare`` did, as a table."""

from collections.abc import Mapping

from data_pipeline.corpus import SPLITS, Manifest
from data_pipeline.errors import KinspanError
from data_pipeline.sampling.order import MIN_DOCUMENTS
from data_pipeline.sampling.pairs import Objective

from .pipeline import Prepared
from .readers import format_skipped


def format_counts(result: Prepared) -> str:
    """What was read, kept and dropped, and why; and how many anchors each objective finds."""
    counts = result.tally.counts
    rows = [
        ("documents read", counts["documents read"]),
        ("  kept", counts["documents kept"]),
        ("    of these held out for validation", counts["documents held out for validation"]),
        ("  dropped: no paragraph is long enough", counts["documents without a long enough paragraph"]),
        ("  dropped: too short", counts["documents too short"]),
        ("records rejected (see rejected.jsonl)", counts["records rejected"]),
        ("paragraphs read", counts["paragraphs read"]),
        ("  kept", counts["paragraphs kept"]),
        ("  dropped: too short", counts["paragraphs too short"]),
        ("  dropped: in a dropped document", counts["paragraphs of dropped documents"]),
        ("sentences kept", counts["sentences kept"]),
        ("tokens kept", counts["tokens kept"]),
    ]
    training, validation = (_count_usable(result.manifest, split, "anchors") for split in SPLITS)
    for name, number in training.items():
        rows.append((f"anchors for {name}, training", number))
        rows.append((f"anchors for {name}, validation", validation[name]))
    lines = [f"{name:<40} {number:>14,}" for name, number in rows]
    if result.skipped:
        lines.insert(0, f"skipped, of no known format or missing: {format_skipped(result.skipped)}")
    return "\n".join(lines)


def find_lacks(manifest: Manifest, objectives: Mapping[str, Objective]) -> list[str]:
    """Say which objectives a corpus cannot train, or cannot validate, and what is missing."""
    lines = []
    for split, use in zip(SPLITS, ("train", "validate"), strict=True):
        alike: dict[tuple[int, str], list[str]] = {}  # objectives by what they lack
        for name, number in _count_usable(manifest, split, "documents").items():
            if number < MIN_DOCUMENTS:
                alike.setdefault((number, objectives[name].needs), []).append(name)
        lines += [
            f"{', '.join(names)} cannot {use} on this corpus: {MIN_DOCUMENTS} documents or more must be usable, and of "
            f"those {'held out' if split == 'validation' else 'not held out'} {number} are (needed is {needs})"
            for (number, needs), names in alike.items()
        ]
    return lines


def check_trainable(manifest: Manifest, folder: str) -> None:
    """Raise KinspanError where no objective can train on the corpus."""
    if all(number < MIN_DOCUMENTS for number in _count_usable(manifest, "train", "documents").values()):
        raise KinspanError(
            f"the corpus in {folder} can train no objective: each needs {MIN_DOCUMENTS} documents or more that are not "
            "held out, because negatives come from other documents; prepare more documents, or keep shorter ones "
            "(--min_paragraph_chars, --min_document_chars)"
        )


def _count_usable(manifest: Manifest, split: str, what: str) -> dict[str, int]:
    """Count the usable anchors, or the documents that have one, of each objective."""
    shards = manifest.shards
    return {name: sum(s.usable[name][split][what] for s in shards) for name in shards[0].usable}
