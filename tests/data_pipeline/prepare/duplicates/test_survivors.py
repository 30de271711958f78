"""A document that is dropped holds no copy: as long as a kept document can hold a text, one does."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.prepare import spill
from data_pipeline.prepare.duplicates.exact import KEPT, TOO_SHORT, Inputs, find_paragraphs
from data_pipeline.prepare.duplicates.survivors import decide_survivors, find_at_risk, find_contested
from data_pipeline.prepare.spill import Buckets

LEAST, RANGES, BOILERPLATE = 20, 2, 4
TEXTS = 9  # text t has 3 + 2t characters


def count_chars(text):
    return 3 + 2 * text


def find_least(document):
    """A document that was too short from the start is none."""
    return min(LEAST, sum(map(count_chars, document)))


def decide_one_by_one(documents):
    """What the docstring of ``survivors`` says, document after document: what each keeps; None where it is dropped."""
    spread = [sum(text in document for document in documents) for text in range(TEXTS)]
    held, kept = set(), []
    for document in documents:
        mine = [t for t in dict.fromkeys(document) if spread[t] < BOILERPLATE and t not in held]
        is_short = sum(map(count_chars, mine)) < find_least(document)
        kept.append(None if is_short else mine)
        held.update([] if is_short else mine)
    return kept


def decide_by_ranges(documents, folder):
    """The same by the stages of ``prepare``, of two input tasks."""
    split = len(documents) // 2
    tasks = [documents[:split], documents[split:]]
    for key, mine in zip("ab", tasks, strict=True):
        described = np.zeros(len(mine), dtype=spill.DOCUMENT)
        described["chars"] = [sum(map(count_chars, document)) for document in mine]
        described["least"] = list(map(find_least, mine))
        places = [(t, n, p) for n, document in enumerate(mine) for p, t in enumerate(document)]
        paragraphs = np.zeros(len(places), dtype=spill.PARAGRAPH)
        for k, (text, number, place) in enumerate(sorted(places)):
            paragraphs[k] = (text << 60, number, place, count_chars(text))
        np.save(folder / f"{key}.documents.npy", described)
        np.save(folder / f"{key}.paragraphs.npy", paragraphs)
    inputs, dedup_status = Inputs(folder, ["a", "b"], [len(mine) for mine in tasks]), folder / "dedup_status.npy"
    np.save(dedup_status, np.zeros(len(documents), dtype=np.uint8))
    shared = folder / "shared.npy"
    np.save(shared, np.zeros(len(documents), dtype=bool))

    def run(work, count):
        for number in range(count):
            work(number, None)

    run(
        partial(find_paragraphs, inputs, dedup_status, shared, Buckets(1, 1), folder / "first", RANGES, BOILERPLATE),
        RANGES,
    )
    at_risk = find_at_risk(inputs, dedup_status, folder / "first")
    np.save(folder / "at_risk.npy", at_risk)
    run(partial(find_contested, inputs, dedup_status, folder / "at_risk.npy", folder, RANGES, BOILERPLATE), RANGES)
    decide_survivors(dedup_status, at_risk, folder, folder / "survivors.npy")
    last = inputs, folder / "survivors.npy", shared, Buckets(1, 1), folder / "last", RANGES, BOILERPLATE
    run(partial(find_paragraphs, *last), RANGES)
    left = [dict(enumerate(document)) for document in documents]
    for path in (folder / "last").glob("*.npy"):
        for removed in np.load(path):
            del left[int(inputs.starts[removed["task"]]) + int(removed["number"])][int(removed["paragraph"])]
    dedup_status = np.load(folder / "survivors.npy")
    assert set(dedup_status.tolist()) <= {KEPT, TOO_SHORT}
    return [None if dedup_status[n] == TOO_SHORT else list(texts.values()) for n, texts in enumerate(left)]


@given(st.lists(st.lists(st.integers(0, TEXTS - 1), min_size=1, max_size=5), min_size=1, max_size=14))
def test_ranges_decide_as_one_document_after_another(documents):
    with tempfile.TemporaryDirectory() as folder:
        assert decide_by_ranges(documents, Path(folder)) == decide_one_by_one(documents)


def test_the_lists_of_a_task_are_opened_five_times_for_a_range_at_most(tmp_path, monkeypatch):
    """The page on preparing reckons with it. One more is opened of each task, whatever the number of ranges."""
    opened, load = [], Inputs.load
    monkeypatch.setattr(Inputs, "load", lambda inputs, task, name: opened.append(task) or load(inputs, task, name))
    decide_by_ranges([[7, 6], [7, 4], [4, 6, 3]], tmp_path)
    assert {task: opened.count(task) <= 5 * RANGES + 1 for task in opened} == {0: True, 1: True}


def test_a_text_whose_first_document_is_dropped_stays_in_the_next(tmp_path):
    assert decide_by_ranges([[7, 6], [7, 4], [4, 6, 3]], tmp_path) == [[7, 6], None, [4, 3]]
