"""Pairs of questions: titles, bodies, accepted answers and duplicates of a forum's dump."""

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from xml.sax.saxutils import quoteattr

import numpy as np
import pyarrow as pa
import pytest

from data_pipeline.browse import decode_pairs
from data_pipeline.corpus import Corpus, Shard, make_schema, map_shard
from data_pipeline.sampling.anchors import open_block
from data_pipeline.sampling.pairs import EASY
from data_pipeline.sampling.random_bits import draw_random_bits
from data_pipeline.sampling.stream import PairStream
from data_pipeline.sampling.texts import find_bodies, find_groups, find_linked, find_titles, view_texts
from data_pipeline.tokenizers import read_template
from objectives import FORUM_OBJECTIVES, OBJECTIVES, parse_mixture, title_body, title_sentence
from objectives.contrastive import as_contrastive
from tests.synthetic import short_tokenizer

NAMES = tuple(objective.name for objective in FORUM_OBJECTIVES)
QUESTIONS = 60


def write_forum(folder, questions=QUESTIONS, seed=0):
    """A dump: question n has the title "title n", a body of two paragraphs, up to three answers; each third one is a
    duplicate of the one before. Returns its texts: title, body, accepted answer and the number of the original."""
    rng, posts, links, known = random.Random(seed), [], [], {}
    word = lambda: f"{rng.choice('bdfgklmnprst')}{rng.choice('aeiou')}{rng.choice('bdfgklmnprst')}{rng.choice('aeiou')}"  # noqa: E731
    text = lambda count: " ".join(word() for _ in range(count)) + "."  # noqa: E731
    for n in range(1, questions + 1):
        title, body = f"title {n} {text(4)}", [text(12 + n % 9), f"{text(9)} {text(8)}"]
        answers = [text(10 + k) for k in range(n % 4)]
        number = 1000 + 10 * n
        accepted = f' AcceptedAnswerId="{number + 1}"' if len(answers) > 1 else ""
        html = "".join(f"<p>{part}</p>" for part in body)
        posts.append(f'<row Id="{n}" PostTypeId="1"{accepted} Title={quoteattr(title)} Body={quoteattr(html)} />')
        posts += [
            f'<row Id="{number + k}" PostTypeId="2" ParentId="{n}" Body={quoteattr(f"<p>{answer}</p>")} />'
            for k, answer in enumerate(answers)
        ]
        original = n - 1 if n % 3 == 0 else None
        if original:
            links.append(f'<row Id="{n}" PostId="{n}" RelatedPostId="{original}" LinkTypeId="3" />')
        right = answers[1] if accepted else None
        known[f"forum:{n}"] = title, " ".join(body), right, original and f"forum:{original}"
    folder.mkdir(parents=True)
    (folder / "Posts.xml").write_text("<?xml?>\n<posts>\n" + "\n".join(posts) + "\n</posts>\n")
    (folder / "PostLinks.xml").write_text("<?xml?>\n<postlinks>\n" + "\n".join(links) + "\n</postlinks>\n")
    return known


@pytest.fixture(scope="module")
def forum(tmp_path_factory, helpers):
    """A corpus of several shards of both splits, and the texts that it was made of."""
    folder = tmp_path_factory.mktemp("dump")
    known = write_forum(folder / "forum")
    helpers.prepare([folder / "forum"], short_tokenizer(), folder / "corpus", validation_share=0.2, shard_tokens=1000)
    return folder / "corpus", known


# What A and the positive's B are, and which questions have a pair.
EXPECTED = {
    "title_sentence": (lambda q, known: q[0], lambda q, known: q[1].partition(".")[0] + ".", lambda q: True),
    "title_body": (lambda q, known: q[0], lambda q, known: q[1], lambda q: True),
    "title_answer": (lambda q, known: q[0], lambda q, known: q[2], lambda q: q[2]),
    "question_answer": (lambda q, known: " ".join(q[:2]), lambda q, known: q[2], lambda q: q[2]),
    "duplicate": (lambda q, known: q[0], lambda q, known: known[q[3]][1], lambda q: q[3]),
    "duplicate_question": (
        lambda q, known: " ".join(q[:2]),
        lambda q, known: " ".join(known[q[3]][:2]),
        lambda q: q[3],
    ),
}


def squeeze(text):
    """Decoded text, whose spaces are not those of the original."""
    return text.replace(" ", "")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_pairs_are_as_defined(forum, make_stream, helpers, name, split):
    """Every question that can be used comes once in an epoch, with its own text and with that of another one."""
    folder, known = forum
    make_a, make_b, is_usable = EXPECTED[name]
    stream = make_stream(folder, objective=name, split=split, max_length=512)
    pairs = list(decode_pairs(stream, helpers.tokenizer(short_tokenizer()), 0, stream.epoch_pairs))
    assert [pair["kind"] for pair in pairs] == ["positive", "easy"] * (len(pairs) // 2)
    anchors = [pair["doc_id"] for pair in pairs[::2]]
    texts = {squeeze(make_b(q, known)) for q in known.values() if is_usable(q)}
    for positive, negative in zip(pairs[::2], pairs[1::2], strict=True):
        question = known[positive["doc_id"]]
        assert squeeze(positive["a"]) == squeeze(negative["a"]) == squeeze(make_a(question, known))
        assert squeeze(positive["b"]) == squeeze(make_b(question, known))
        assert squeeze(negative["b"]) in texts - {squeeze(positive["b"])}
    assert len(set(anchors)) == len(anchors)
    both = make_stream(folder, objective=name, split="train" if split == "validation" else "validation")
    assert len(anchors) + both.epoch_pairs // 2 == sum(bool(is_usable(q)) for q in known.values())


def test_a_question_and_its_duplicate_stand_in_one_shard_and_one_split(forum):
    folder, known = forum
    corpus, place = Corpus(folder), {}
    for number, info in enumerate(corpus.manifest.shards):
        for identifier in corpus.shard(number).rows.column("id").to_pylist():
            place[identifier] = number, info.split
    assert len(corpus.manifest.shards) > 3
    assert all(place[identifier] == place[q[3]] for identifier, q in known.items() if q[3])


def test_negatives_are_any_other_question_alike_and_new_in_every_epoch(forum, make_stream, tools):
    stream = make_stream(forum[0], objective="title_body")
    half = stream.epoch_pairs // 2
    drawn, epochs = Counter(), []
    for epoch in range(200):
        of_epoch = {}
        for rows in stream.pairs(epoch * 2 * half, 2 * half):
            a, b = (spans.paragraph[rows.kinds == EASY] for spans in rows.texts)
            assert (a != b).all()
            of_epoch |= dict(zip(a.tolist(), b.tolist(), strict=True))
            drawn.update(b.tolist())
        epochs.append(of_epoch)
    tools.as_likely((drawn[p] for p in range(half)), [1] * half)
    assert np.mean([epochs[0][a] == epochs[1][a] for a in epochs[0]]) < 0.2


def list_texts(view):
    """The tokens of each text of a view."""
    starts = view.sentence_starts
    return [view.tokens[starts[k] : starts[k + 1]].tolist() for k in range(0, len(starts) - 1, 2)]


@pytest.mark.parametrize("wide", [False, True])
def test_a_view_reads_titles_and_bodies_where_they_stand(tmp_path, wide):
    """Questions with an empty title or body, and those whose body is the title, are left out."""
    titles = [[[1, 2], [3]], [], [[4]], [[5, 6]], [[7]]]
    bodies = [[[[10, 11], [12]], [[13]]], [[[14]]], [], [[[5, 6]]], [[[8], [9]]]]
    numbers = [str(n) for n in range(5)]
    columns = {"id": numbers, "title": numbers, "source": numbers, "held_out": [0] * 5}
    schema = make_schema(wide, ["title_tokens"])
    rows = pa.RecordBatch.from_pydict({**columns, "title_tokens": titles, "tokens": bodies}, schema=schema)
    path = tmp_path / "shard.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(rows)
    shard = map_shard(path)
    view = title_body.view(shard)
    assert view.document_starts.tolist() == [0, 1, 1, 1, 1, 2]
    assert list_texts(view) == [[1, 2, 3], [10, 11, 12, 13], [7], [8, 9]]
    assert view.viewed is shard
    assert list_texts(title_sentence.view(shard)) == [[1, 2, 3], [10, 11], [7], [8]]
    assert isinstance(view_texts(shard, np.array([0]), [find_titles(shard), find_bodies(shard)]), Shard)
    for name in ("title_answer", "duplicate"):  # whose columns are missing
        assert OBJECTIVES[name].view(shard).document_starts.tolist() == [0] * 6


IN_GROUP = 6


@pytest.fixture(scope="module")
def linked_forum(tmp_path_factory, helpers):
    """Groups of six questions: duplicates of one, of a duplicate, and of one that is not in the file."""
    folder, lines = tmp_path_factory.mktemp("linked"), []
    links = lambda first, gone: {1: [first], 2: [first + 1], 3: [gone, first], 5: [gone, first + 4]}  # noqa: E731
    for n in range(10 * IN_GROUP):
        number, first = n % IN_GROUP, n - n % IN_GROUP
        linked = [str(link) for link in links(first, f"gone{first}").get(number, [])]
        lines.append({"id": str(n), "title": f"How is {n} done?", "text": f"I tried {n} {n}.", "links": linked})
    asked = f"questions:{helpers.write_jsonl(folder / 'asked.jsonl', lines)}"
    options = {"validation_share": 0.0, "duplicates": "keep", "shard_tokens": 200}
    helpers.prepare([asked], short_tokenizer(), folder / "corpus", **options)
    return folder / "corpus"


def open_linked(folder, objective):
    """All of the corpus as one block, and which group each of its paragraphs is of."""
    corpus = Corpus(folder)
    assert len(corpus.manifest.shards) > 1
    block = open_block(corpus, tuple(range(len(corpus.manifest.shards))), "train", objective)
    located = [block.locate(paragraph)[:2] for paragraph in range(len(block.paragraph))]
    return block, np.array([int(shard.document_id(row)) // IN_GROUP for shard, row in located])


@pytest.mark.parametrize("name", ["duplicate", "duplicate_question"])
def test_no_negative_is_of_the_group_of_the_anchor_and_other_draws_stay(linked_forum, name):
    objective = OBJECTIVES[name]
    block, group = open_linked(linked_forum, objective)
    anchors = np.tile(block.anchors, 20)
    bits = draw_random_bits(1, "test", 0, len(anchors), objective.num_draws)
    drawn = objective.sample(block, anchors, bits).texts[1].paragraph[:, 1]
    assert (group[drawn] != group[anchors]).all()
    freely = replace(objective, sample=partial(objective.sample, skip_duplicates=False))
    before = freely.sample(block, anchors, bits).texts[1].paragraph[:, 1]
    assert np.array_equal(drawn != before, group[before] == group[anchors])
    assert (drawn != before).any()


def test_no_negative_has_the_title_of_the_anchor(tmp_path, helpers):
    lines = [{"id": str(n), "title": f"T {max(n, 4)}", "text": f"Part {n} of it."} for n in range(8)]  # five "T 4"
    asked = f"questions:{helpers.write_jsonl(tmp_path / 'asked.jsonl', lines)}"
    helpers.prepare([asked], short_tokenizer(), tmp_path / "corpus", validation_share=0.0)
    block = open_block(Corpus(tmp_path / "corpus"), (0,), "train", OBJECTIVES["title_body"])
    anchors = np.tile(block.anchors, 20)
    bits = draw_random_bits(1, "test", 0, len(anchors), OBJECTIVES["title_body"].num_draws)
    drawn = OBJECTIVES["title_body"].sample(block, anchors, bits)
    shard = block.shards[0]
    titles = [
        shard.rows.column("title")[block.locate(paragraph)[1]].as_py() for paragraph in range(len(block.paragraph))
    ]
    negatives = drawn.texts[1].paragraph[:, 1]
    assert sorted(titles) == ["T 4"] * 5 + ["T 5", "T 6", "T 7"]
    assert all(titles[anchor] != titles[other] for anchor, other in zip(anchors, negatives, strict=True))
    assert len(set(negatives)) == 8


def test_a_link_leads_to_a_question_of_its_own_file(tmp_path, helpers):
    """Two help desks count their questions from 0; both files have one name. Questions without a body repeat."""
    for desk in ("beer", "math"):
        lines = [
            {"id": n, "title": f"{desk} {n}?", "text": f"{desk} {n}.", "links": [n - 1][: n % 2]} for n in range(8)
        ]
        lines += [{"title": f"{desk}?", "paragraphs": [], "answers": [desk], "accepted": 0}] * 2
        (tmp_path / desk).mkdir()
        helpers.write_jsonl(tmp_path / desk / "desk.jsonl", lines)
    inputs = [f"questions:{tmp_path}/{desk}/desk.jsonl" for desk in ("beer", "math")]
    result = helpers.prepare(inputs, short_tokenizer(), tmp_path / "out", validation_share=0.0)
    assert result.tally.counts["documents that repeat another"] == 2
    shard = Corpus(tmp_path / "out").shard(0)
    titles, linked, group = shard.rows.column("title").to_pylist(), find_linked(shard), find_groups(shard)
    assert (linked >= 0).sum() == 8
    for row in np.flatnonzero(linked >= 0).tolist():
        desk, number = titles[row].rstrip("?").split()
        assert titles[linked[row]] == f"{desk} {int(number) - 1}?"
        assert group[row] == group[linked[row]]
    assert len(set(group.tolist())) == 2 * (4 + 1)


@pytest.mark.parametrize("name", ["duplicate", "title_body"])
def test_of_a_bi_encoder_a_question_and_its_duplicates_are_one_document(linked_forum, helpers, name):
    """So none of them is a negative of another in a batch."""
    mixture = as_contrastive(parse_mixture(name).read_from(Corpus(linked_forum)))
    stream = PairStream(mixture, template=read_template(helpers.tokenizer(short_tokenizer()), alone=True), seed=1)
    count = stream.epoch_pairs
    asked = [
        int(shard.document_id(row)) // IN_GROUP
        for rows in stream.pairs(0, count)
        for shard, row, _ in map(rows.block.locate, rows.texts[0].paragraph)
    ]
    documents = stream.batch(0, count).groups[:, 0].reshape(count, 2)
    assert np.array_equal(documents[:, 0], documents[:, 1])
    pairs = set(zip(documents[:, 0].tolist(), asked, strict=True))
    assert len(pairs) == len(set(asked)) == len(np.unique(documents)) > 5
