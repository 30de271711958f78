"""Drops repeated text, counts it, and finds planted near-duplicates."""

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.corpus import Corpus
from data_pipeline.prepare.duplicates import find_repeats
from tests.synthetic import short_tokenizer

NOISE = "This line of text stands at the foot of every page of the site, and says nothing of its subject at all."


@pytest.fixture
def documents(helpers):
    documents = helpers.synthetic_documents(12, seed="duplicates")
    return [{**d, "paragraphs": [p for p in d["paragraphs"] if len(p) >= 80]} for d in documents]


@pytest.fixture
def run(helpers, tmp_path):
    """``run(documents, more documents, **options)``, a file each: how many paragraphs each id has, and the result.

    All that was read is counted as kept or as dropped for one reason.
    """

    def prepare(*files, **options):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        names = [helpers.write_jsonl(folder / f"{k}.jsonl", documents) for k, documents in enumerate(files)]
        result = helpers.prepare(names, short_tokenizer(), folder / "out", validation_share=0.0, **options)
        assert adds_up(result.tally)
        shard = Corpus(folder / "out").shard(0)
        lengths = np.diff(shard.document_starts).tolist()
        return dict(zip(shard.rows.column("id").to_pylist(), lengths, strict=True)), result

    return prepare


def adds_up(tally):
    counts = tally.counts
    documents = ["kept", "that repeat another", "much like another", "too short without repeated paragraphs"]
    documents += ["too short", "without a long enough paragraph", "with a sentence of --decontaminate"]
    paragraphs = ["kept", "that repeat another", "in many documents", "too short", "of dropped documents"]
    by_steps = sum(count for name, count in counts.items() if name.startswith("paragraphs dropped: "))
    return counts["documents read"] == sum(counts[f"documents {why}"] for why in documents) and counts[
        "paragraphs read"
    ] == by_steps + sum(counts[f"paragraphs {why}"] for why in paragraphs)


def test_a_document_that_repeats_another_is_dropped_and_the_first_is_kept(run, documents):
    again = [{**documents[3], "id": "again"}, {**documents[4], "id": "too", "title": "Another title"}]
    kept, result = run(documents, again)
    assert set(kept) == {d["id"] for d in documents}
    assert result.tally.counts["documents that repeat another"] == 2


def test_what_differs_in_anything_but_white_space_is_another_document(run, documents):
    spaced = {"id": "spaced", "paragraphs": [p.replace(" ", "  ") for p in documents[0]["paragraphs"]]}
    changed = {"id": "changed", "paragraphs": [p.replace("a", "e") for p in documents[1]["paragraphs"]]}
    kept, _ = run([*documents, spaced, changed])
    assert set(kept) == {d["id"] for d in documents} | {"changed"}


def test_a_paragraph_that_repeats_an_earlier_one_is_dropped(run, documents):
    repeated = documents[0]["paragraphs"][0]
    documents[5]["paragraphs"].insert(2, repeated)
    documents[5]["paragraphs"].append(repeated)
    before = {d["id"]: len(d["paragraphs"]) for d in documents}
    kept, result = run(documents)
    assert kept == {**before, documents[5]["id"]: before[documents[5]["id"]] - 2}
    assert result.tally.counts["paragraphs that repeat another"] == 2


@pytest.mark.parametrize(("threshold", "removed"), [(6, 6), (7, 5), (0, 5)])
def test_a_paragraph_of_many_documents_is_dropped_from_all(run, documents, threshold, removed):
    for document in documents[:6]:
        document["paragraphs"].append(NOISE)
    documents[0]["paragraphs"].append(NOISE)  # twice in one document counts once
    _, result = run(documents, boilerplate=threshold)
    name = "paragraphs in many documents" if threshold == 6 else "paragraphs that repeat another"
    assert result.tally.counts[name] == removed + 1


def test_copies_of_a_document_do_not_make_boilerplate_of_its_paragraphs(run, documents):
    copies = [{**documents[0], "id": f"copy-{k}"} for k in range(20)]
    kept, result = run(documents, copies, boilerplate=5)
    assert kept[documents[0]["id"]] == len(documents[0]["paragraphs"])
    assert result.tally.counts["paragraphs in many documents"] == 0


def test_a_document_that_is_too_short_without_its_repeats_is_dropped(run, documents):
    end = "An end of its own, which is long enough for a paragraph."
    kept, result = run([*documents, {"id": "short", "paragraphs": [documents[0]["paragraphs"][0] * 2, end, NOISE]}])
    assert "short" in kept
    kept, result = run([*documents, {"id": "short", "paragraphs": [documents[0]["paragraphs"][0], end + " " * 9]}])
    assert "short" not in kept
    assert kept[documents[0]["id"]] == len(documents[0]["paragraphs"])
    assert result.tally.counts["documents too short without repeated paragraphs"] == 1


# Near-duplicates ----------------------------------------------------------------------------------------------------


def change(document, share, rng, words):
    """The document with that share of its words replaced."""
    paragraphs = [
        " ".join(rng.choice(words) if rng.random() < share else word for word in paragraph.split())
        for paragraph in document["paragraphs"]
    ]
    return {**document, "paragraphs": paragraphs}


def test_planted_near_duplicates_are_found_and_others_are_left(run, helpers):
    """With 1% of the words replaced, 95% of the 5-grams stay, which is a Jaccard similarity of .9; with 30%, of .1."""
    rng = random.Random(3)
    documents = helpers.synthetic_documents(60, seed="near")
    words = " ".join(p for d in documents for p in d["paragraphs"]).split()
    near = [{**change(d, 0.01, rng, words), "id": f"copy-{k}"} for k, d in enumerate(documents[:20])]
    far = [{**change(d, 0.3, rng, words), "id": f"far-{k}"} for k, d in enumerate(documents[20:40])]
    kept, result = run([*documents, *far], near, duplicates="near")
    dropped = {d["id"] for d in [*documents, *far, *near]} - set(kept)
    assert not ({name for name in dropped if not name.startswith("copy-")})
    assert len(dropped) >= 18  # of 20: recall of .9 or more
    counts = result.tally.counts
    assert counts["documents much like another"] + counts["documents that repeat another"] == len(dropped)


def test_documents_that_differ_in_their_numbers_are_not_alike(run):
    text = "In week {0} the home side won by {0} to {1} before {0}{1}0 people, who had paid {1}.{0} pounds each. "
    reports = [{"id": str(k), "paragraphs": [text.format(k, k + 3) * 3]} for k in range(12)]
    assert len(run(reports, duplicates="near")[0]) == 12


@pytest.mark.parametrize("duplicates", ["exact", "near"])
def test_questions_of_one_body_with_titles_and_right_answers_of_their_own_stay(helpers, tmp_path, duplicates):
    answers = [document["paragraphs"][0] for document in helpers.synthetic_documents(30, seed="answers")]
    asked = [{"title": f"How is {a[:9]}?", "text": NOISE, "answers": [a], "accepted": 0} for a in answers]
    name = f"questions:{helpers.write_jsonl(tmp_path / 'a.jsonl', asked)}"
    result = helpers.prepare([name], short_tokenizer(), tmp_path / "out", duplicates=duplicates)
    assert result.manifest.totals["documents"] == 30


@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=20), max_size=4))
def test_of_connected_documents_the_first_is_kept(bands):
    result = find_repeats([lambda pairs=pairs: np.array(pairs, dtype=np.int64).reshape(-1, 2) for pairs in bands])
    cluster = {n: {n} for n in range(31)}
    for a, b in [pair for pairs in bands for pair in pairs]:
        joined = cluster[a] | cluster[b]
        for n in joined:
            cluster[n] = joined
    assert sorted(result.tolist()) == [n for n in range(31) if n != min(cluster[n])]
