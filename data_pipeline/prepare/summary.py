"""What a run of ``prepare`` did, as a table."""

from .pipeline import Prepared


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
    for name, splits in _count_anchors(result).items():
        rows.append((f"anchors for {name}, training", splits["train"]))
        rows.append((f"anchors for {name}, validation", splits["validation"]))
    return "\n".join(f"{name:<40} {number:>14,}" for name, number in rows)


def _count_anchors(result: Prepared) -> dict[str, dict[str, int]]:
    shards = result.manifest.shards
    return {
        name: {split: sum(s.usable[name][split]["anchors"] for s in shards) for split in ("train", "validation")}
        for name in shards[0].usable
    }
