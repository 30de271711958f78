"""``report.html`` beside the manifest: what a corpus was made of, what was dropped, and documents to read."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.browse import ShownDocument, load_decoder, show_document
from data_pipeline.core.files import write_atomically
from data_pipeline.core.pages import TEMPLATES, render_template
from data_pipeline.corpus import Manifest, map_shard

from .cleaning import Tally
from .rejection import list_rejected
from .summary import count_rows
from .write import LENGTHS

DOCUMENTS = 6  # to read
SHOWN_PARAGRAPHS = 4  # of each
SHOWN_SOURCES = 50
SHOWN_REJECTED = 10
MAX_BARS = 40
SHOWN_SHARE = 0.99  # of the lengths: a histogram that showed a long tail would have no room for the rest
NO_RULES = (
    *("documents read", "paragraphs read", "characters read", "bytes read"),
    *(
        "documents that share their id",
        "bytes rejected",
        "documents cut off a longer text",
        "paragraphs of dropped documents",
    ),
)
KEPT_SUFFIXES = (" kept", " held out for validation")
LANGUAGE = "documents in another language: "
DUPLICATE_NAMES = {
    "documents that repeat another": "documents have the very text of an earlier one",
    "documents much like another": "documents are much like an earlier one",
    "paragraphs that repeat another": "paragraphs repeat an earlier one",
    "paragraphs in many documents": "paragraphs stand in many documents and were removed from all",
}


def write_report(folder: Path, manifest: Manifest, tally: Tally) -> None:
    """Write ``folder/report.html``; ``folder`` has the shards, the tokenizer and rejected.jsonl."""
    sources = sorted(manifest.sources, key=lambda source: (-source["documents"], source["name"]))
    title = f"A corpus of {manifest.totals['documents']:,} documents, {manifest.totals['tokens']:,} tokens"
    page = render_template(
        TEMPLATES,
        "corpus.html",
        title=title,
        notes=[f"Tokenizer: {manifest.tokenizer['name']}", f"Fingerprint: {manifest.fingerprint}"],
        counts=count_rows(tally, manifest),
        sources=[(s["name"], s["documents"], s["licence"]) for s in sources[:SHOWN_SOURCES]],
        more_sources=max(0, len(sources) - SHOWN_SOURCES),
        plots=[_plot_lengths(name, np.array(tally.lengths[name])) for name in LENGTHS],
        languages=[(k.removeprefix(LANGUAGE), n) for k, n in tally.counts.most_common() if k.startswith(LANGUAGE)],
        rules=list(_list_rules(tally)),
        duplicates=_describe_duplicates(tally, manifest.rules["duplicates"]),
        rejected=[
            (entry["file"], entry["line"], entry["reason"])
            for entry in islice(list_rejected(folder / "rejected.jsonl"), SHOWN_REJECTED)
        ],
        documents=list(_pick_documents(folder, manifest)),
        shown_paragraphs=SHOWN_PARAGRAPHS,
        settings={name: value for name, value in manifest.rules.items() if value not in ("", [])},
    )
    write_atomically(folder / "report.html", page)


def _plot_lengths(title: str, counts: np.ndarray) -> dict[str, Any]:
    from data_pipeline.core.plots import (
        plot_bars,  # matplotlib takes half a second, and each worker imports this module
    )

    total = max(1, int(counts.sum()))
    most = int(np.searchsorted(np.cumsum(counts), SHOWN_SHARE * total)) + 1
    step = -(-most // MAX_BARS)
    edges = np.arange(1, most + step, step)
    values = np.add.reduceat(counts, edges[edges < len(counts)]).tolist()
    median = int(np.searchsorted(np.cumsum(counts), total / 2))
    mean = f"{(counts * np.arange(len(counts))).sum() / total:.1f}"
    return {"title": title, "svg": plot_bars(values, 1, step, title), "median": median, "mean": mean}


def _list_rules(tally: Tally) -> Iterator[dict[str, Any]]:
    """List what each rule dropped or changed, the most frequent first; all languages are one rule."""
    counts: Counter[str] = Counter()
    for name, count in tally.counts.items():
        if name not in NO_RULES and not name.endswith(KEPT_SUFFIXES):
            counts[LANGUAGE.removesuffix(": ") if name.startswith(LANGUAGE) else name] += count
    for name, count in counts.most_common():
        if count:
            yield {"name": name, "count": count, "samples": tally.samples.get(name, [])}


def _describe_duplicates(tally: Tally, setting: str) -> str:
    if setting == "keep":
        return "They were kept (--duplicates keep)."
    counted = [f"{tally.counts[name]:,} {text}" for name, text in DUPLICATE_NAMES.items() if tally.counts[name]]
    said = "; ".join(counted) + "." if counted else "There were none."
    return said if setting == "near" else f"{said} Near-duplicates were not looked for (--duplicates near)."


def _pick_documents(folder: Path, manifest: Manifest) -> Iterator[ShownDocument]:
    """Pick documents from shards all over the corpus: in each, they stand in random order."""
    decoder, count = load_decoder(folder), len(manifest.shards)
    for number in range(DOCUMENTS):
        place, row = number * count // DOCUMENTS, number
        if row < manifest.shards[place].documents:
            yield show_document(map_shard(folder / manifest.shards[place].file), row, decoder)
