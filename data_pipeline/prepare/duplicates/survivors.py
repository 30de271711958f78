"""Which documents are long enough without the paragraphs that repeat earlier ones.

A document that is too short without them is dropped, and then it holds no copy either: a later one is the first. So
documents are decided in the order of the input, each by what those that stay before it hold. Nearly all are decided by
ranges of hashes: a document that is long enough without every paragraph that stands anywhere before it stays, and only
of the others, which are at risk, and of the texts that stand first in one of them, is the order looked at.
"""

from pathlib import Path

import numpy as np

from data_pipeline.prepare.tasks import Progress

from .exact import KEPT, TOO_SHORT, Inputs, read_copies, save_whole

# A document at risk: its number among all, the characters that are surely left of it, and those that it must have.
AT_RISK = np.dtype([("document", "<i8"), ("left", "<i8"), ("least", "<i8")])
# A text in a document at risk that is before all copies in safe ones; ``left`` has those that are the first of all.
CONTESTED = np.dtype([("document", "<i8"), ("hash", "<u8"), ("chars", "<i8"), ("is_first", "?")])


def find_at_risk(inputs: Inputs, fate_file: Path, removed: Path) -> np.ndarray:
    """Find the documents at risk: ``[N]`` AT_RISK, in the order of the input.

    removed: the folder of what ``find_paragraphs`` finds where all documents hold copies
    """
    dedup_status, starts = np.load(fate_file, mmap_mode="r"), inputs.starts
    lost = np.zeros(len(dedup_status), dtype=np.uint32)
    for path in sorted(removed.glob("paragraphs-*.npy")):
        gone = np.load(path)
        np.add.at(lost, starts[gone["task"]] + gone["number"], gone["chars"])
    found = [np.empty(0, AT_RISK)]
    for task in range(len(inputs.keys)):
        documents, mine = inputs.load(task, "documents"), slice(starts[task], starts[task + 1])
        left = documents["chars"].astype(np.int64) - lost[mine]
        least = np.maximum(1, documents["least"].astype(np.int64))
        short = np.flatnonzero((dedup_status[mine] == KEPT) & (lost[mine] > 0) & (left < least))
        risky = np.empty(len(short), dtype=AT_RISK)
        risky["document"], risky["left"], risky["least"] = short + starts[task], left[short], least[short]
        found.append(risky)
    return np.concatenate(found)


def find_contested(
    inputs: Inputs,
    dedup_status: Path,
    at_risk: Path,
    output: Path,
    num_ranges: int,
    boilerplate: int,
    number: int,
    progress: Progress,
) -> None:
    """Find the texts of one range of hashes that several documents at risk may keep: ``contested-00000.npy``."""
    copies = read_copies(inputs, dedup_status, number, num_ranges, boilerplate)
    place = np.arange(len(copies.group))
    is_first = np.append(True, np.diff(copies.group) != 0)[: len(place)]
    is_risky = np.isin(copies.document, np.load(at_risk)["document"])
    # where each text is first in a safe one
    safe = np.full(int(copies.group[-1]) + 1 if len(place) else 0, len(place))
    np.minimum.at(safe, copies.group[~is_risky], place[~is_risky])
    new_document = is_first | np.append(True, np.diff(copies.document) != 0)[: len(place)]
    mine = is_risky & new_document & ~copies.in_many & (place < safe[copies.group])
    several = np.bincount(copies.group[mine], minlength=len(safe)) > 1
    mine &= several[copies.group]
    out = np.empty(int(mine.sum()), dtype=CONTESTED)
    out["document"], out["is_first"] = copies.document[mine], is_first[mine]
    out["hash"], out["chars"] = copies.found["hash"][mine], copies.found["chars"][mine]
    save_whole(output / f"contested-{number:05d}.npy", out)


def decide_survivors(fate_file: Path, at_risk: np.ndarray, contested: Path, output: Path) -> None:
    """Decide which documents at risk stay, by the files of ``find_contested``, and write what becomes of all:
    ``[documents]`` uint8."""
    dedup_status, paths = np.load(fate_file), sorted(contested.glob("contested-*.npy"))
    entries = np.concatenate([np.empty(0, CONTESTED), *map(np.load, paths)])
    dedup_status[at_risk["document"]] = TOO_SHORT
    dedup_status[find_survivors(at_risk, entries)] = KEPT
    save_whole(output, dedup_status)


def find_survivors(at_risk: np.ndarray, entries: np.ndarray) -> list[int]:
    """Find the documents at risk, ``[N]`` AT_RISK, that stay; ``entries`` is ``[M]`` CONTESTED."""
    row = np.searchsorted(at_risk["document"], entries["document"])
    gain = np.bincount(row, entries["chars"] * ~entries["is_first"], minlength=len(at_risk))
    hopeful = at_risk["left"] + gain >= at_risk["least"]
    entries, row = entries[hopeful[row]], row[hopeful[row]]
    order = np.argsort(row, kind="stable")
    entries, row = entries[order], row[order]
    begins = np.flatnonzero(np.append(True, row[1:] != row[:-1])[: len(row)])
    taken: set[int] = set()
    survivors = []
    for mine, number in zip(np.split(entries, begins[1:]), row[begins].tolist(), strict=False):
        hashes = mine["hash"].tolist()
        free = ~mine["is_first"] & np.array([text not in taken for text in hashes], dtype=bool)
        if at_risk["left"][number] + mine["chars"][free].sum() >= at_risk["least"][number]:
            taken.update(hashes)
            survivors.append(int(at_risk["document"][number]))
    return survivors
