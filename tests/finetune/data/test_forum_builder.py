"""A forum's questions as a data set of answer selection."""

import json
from dataclasses import replace

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from finetune.data.answers import fold_text
from finetune.data.builders.forum import KINDS, ForumQuestion, build_forum_set, choose_split, read_questions
from finetune.data.registry import load_split
from tests.conftest import write_jsonl
from tests.launch.entries import program_of
from tests.programs import run_program
from tests.synthetic import short_tokenizer

SHARES = {"dev": 0.2, "test": 0.3}


def write_help_desk(path, count=60):
    """Questions in twenty subjects of three; each has an answer, and each third one is a duplicate of the first."""
    lines = []
    for n in range(count):
        subject, kind = divmod(n, 3)
        words = f"subject{subject}"
        text = f"My {words} of case{n} does not do what it should do, and nobody knows why."
        answers = [f"Switch {words} off, remark{n}.", f"Restart {words}, as in answer{n}."]
        line = {"id": f"q{n}", "title": f"How does {words} work in case{n}?", "text": text, "answers": answers}
        lines.append({**line, "accepted": 1 if kind != 1 else None, "links": [f"q{n - 2}"] if kind == 2 else []})
    return f"questions:{write_jsonl(path, lines)}"


@pytest.fixture
def questions(tmp_path):
    return read_questions([write_help_desk(tmp_path / "desk.jsonl")])


@pytest.mark.parametrize(
    ("kind", "count", "query", "right"),
    [
        ("title_answer", 40, lambda q: q.title, lambda q, known: q.answer),
        ("title_body", 60, lambda q: q.title, lambda q, known: q.body),
        (
            "duplicate",
            20,
            lambda q: f"{q.title} {q.body}",
            lambda q, known: f"{known[q.links[0]].title} {known[q.links[0]].body}",
        ),
    ],
)
def test_each_question_stands_with_its_right_answer_and_similar_ones(questions, tmp_path, kind, count, query, right):
    counts = build_forum_set(questions, kind, tmp_path / "set", SHARES, candidates=5)
    assert sum(counts.values()) == count
    known = {question.id: question for question in questions}
    for split in counts:
        data = load_split(f"files={tmp_path / 'set'}", split)
        assert data.num_questions == counts[split]
        answers = data.answers.to_pylist()
        for number, rows in enumerate(data.question_slices()):
            question = known[data.question_ids[number]]
            assert data.questions[number] == query(question)
            labels = data.labels[rows].tolist()
            assert labels.count(1) == 1
            assert len(labels) == 5
            assert answers[rows][labels.index(1)] == right(question, known)
            subject = question.title.split()[2]
            others = [answer for answer, label in zip(answers[rows], labels, strict=True) if not label]
            same = [q for q in questions if q.title.split()[2] == subject and q.group != question.group]
            offered = [q for q in same if q.answer or kind != "title_answer"]
            offered = [q for q in offered if split != "train" or choose_split(q, SHARES) == "train"]
            assert sum(f"{subject} " in a or f"{subject}," in a for a in others) == len(offered)


def write_tangled_desk(path, count=300):
    """Questions in tens: siblings, a chain, a duplicate of two, a circle, and two that are on their own."""
    within = {1: [0], 2: [0], 3: [2], 5: [4, 3], 6: [7], 7: [6]}
    lines = []
    for n in range(count):
        ten, kind = n - n % 10, n % 10
        text = f"subject{n // 10} is broken in case{n}, and nobody knows why."
        links = [f"q{ten + target}" for target in within.get(kind, [])]
        answers = [f"Restart subject{n // 10}, as in answer{n}."]
        line = {"id": f"q{n}", "title": f"How does subject{n // 10} work in case{n}?", "text": text, "links": links}
        lines.append({**line, "answers": answers, "accepted": 0})
    return f"questions:{write_jsonl(path, lines)}"


@pytest.mark.parametrize("kind", ["title_answer", "title_body", "duplicate"])
def test_declared_duplicates_are_never_wrong_and_never_parted(helpers, tmp_path, kind):
    """Not those at two links' distance, of the other direction, or of the same original either; prepare agrees."""
    name = write_tangled_desk(tmp_path / "desk.jsonl")
    questions = {question.id: question for question in read_questions([name])}
    build_forum_set(list(questions.values()), kind, tmp_path / "set", SHARES, candidates=20)
    first = [0, 0, 0, 0, 0, 0, 6, 6, 8, 9]  # of each one's group, in its ten
    group = {f"q{n}": (n // 10, first[n % 10]) for n in range(300)}
    splits: dict[tuple[int, int], set[str]] = {}
    held_out = set()
    for split in ("train", "dev", "test"):
        data = load_split(f"files={tmp_path / 'set'}", split)
        for asked, rows in zip(data.question_ids, data.question_slices(), strict=True):
            splits.setdefault(group[asked], set()).add(split)
            held_out |= {asked} if split != "train" else set()
            ids, labels = data.answer_ids[rows].to_pylist(), data.labels[rows].tolist()
            right = {answer for answer, label in zip(ids, labels, strict=True) if label}
            assert right == (set(questions[asked].links) if kind == "duplicate" else {asked})
            assert all(label or group[answer] != group[asked] for answer, label in zip(ids, labels, strict=True))
            assert len(ids) == 20
    assert all(len(of_group) == 1 for of_group in splits.values())
    helpers.prepare([name], short_tokenizer(), tmp_path / "corpus", validation_share=sum(SHARES.values()))
    corpus = Corpus(tmp_path / "corpus")
    held = [corpus.shard(n) for n, info in enumerate(corpus.manifest.shards) if info.split == "validation"]
    of_corpus = {name for shard in held for name in shard.rows.column("id").to_pylist()}
    asked_for = {q for q in questions if kind != "duplicate" or questions[q].links}
    assert held_out == of_corpus & asked_for


@pytest.mark.parametrize("kind", ["title_answer", "title_body", "duplicate"])
def test_training_questions_have_no_candidate_of_a_dev_or_test_question(kind, tmp_path):
    """Neither by its id nor by its text: short answers recur."""
    questions = read_questions([write_help_desk(tmp_path / "desk.jsonl", 120)])
    short = ("Yes.", "Restart it!", "restart  IT!", "Ask the landlord.")
    questions = [
        replace(q, answers=(*q.answers[:1], short[n % 9 - 5])) if n % 9 > 4 else q for n, q in enumerate(questions)
    ]
    counts = build_forum_set(questions, kind, tmp_path / "set", SHARES, candidates=10)
    split_of = {q.id: choose_split(q, SHARES) for q in questions}
    form = KINDS[kind]
    held_out = {fold_text(form.candidate(q)) for q in questions if split_of[q.id] != "train"} - {""}
    data = load_split(f"files={tmp_path / 'set'}", "train")
    assert {split_of[name] for name in data.answer_ids.to_pylist()} == {"train"}
    assert held_out.isdisjoint(map(fold_text, data.answers.to_pylist()))
    assert all(data.positives == 1)
    usable = [q for q in questions if split_of[q.id] == "train" and form.query(q) and form.candidate(q)]
    kept = [q for q in usable if kind == "duplicate" or fold_text(form.candidate(q)) not in held_out]
    assert counts["train"] == data.num_questions == len(kept)
    assert kind != "title_answer" or len(kept) < len(usable)


def test_words_with_vowel_signs_are_compared_whole(tmp_path):
    """Each Hindi word is in two questions, which are the wrong candidates of each other."""
    words = [f"{letter}\u0940{letter}\u0947" for letter in "कखगघचछजझटठ"]
    questions = [ForumQuestion(str(n), words[n % 10], f"{words[n % 10]} {n:02}", (), -1, (), str(n)) for n in range(20)]
    build_forum_set(questions, "title_body", tmp_path / "set", {"dev": 0.0, "test": 0.0}, candidates=2)
    lines = [json.loads(line) for line in (tmp_path / "set/train.jsonl").read_text().splitlines()]
    wrong = {(line["question_id"], line["answer_id"]) for line in lines if not line["label"]}
    assert wrong == {(str(n), str((n + 10) % 20)) for n in range(20)}


def test_all_texts_are_searched_where_the_best_are_no_candidates(tmp_path):
    """Thirty questions are of one group: the only wrong candidate is the least similar text."""
    questions = [ForumQuestion(str(n), "same words", f"same words {n:02}", (), -1, (), "one") for n in range(30)]
    questions.append(ForumQuestion("other", "else", "else where", (), -1, (), "two"))
    build_forum_set(questions, "title_body", tmp_path / "set", {"dev": 0.0, "test": 0.0}, candidates=2)
    lines = [json.loads(line) for line in (tmp_path / "set/train.jsonl").read_text().splitlines()]
    assert [line["answer_id"] for line in lines if not line["label"]] == [*["other"] * 30, "0"]


def test_a_link_into_another_file_is_refused(tmp_path):
    first = write_help_desk(tmp_path / "desk.jsonl", 6)
    line = {"id": "other", "title": "Another?", "text": "It is broken.", "links": ["q2"]}
    (tmp_path / "more.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(KinspanError, match="question 'other'"):
        read_questions([first, f"questions:{tmp_path / 'more.jsonl'}"])


def test_a_forum_without_what_is_asked_for_is_refused(questions, tmp_path):
    alone = [question for question in questions if not question.links]
    with pytest.raises(KinspanError, match="--kind duplicate"):
        build_forum_set(alone, "duplicate", tmp_path / "set", SHARES)
    assert not (tmp_path / "set").exists()
    (tmp_path / "file").touch()
    with pytest.raises(KinspanError, match="--output_dir"):
        build_forum_set(questions, "title_body", tmp_path / "file", SHARES)


def test_the_entry_builds_what_launch_evaluate_reads(tmp_path):
    name = write_help_desk(tmp_path / "desk.jsonl")
    entry, flags = program_of("build_las"), ("--output_dir", tmp_path / "set")
    done = run_program(*entry, "--input", name, *flags, "--candidates", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "60 questions, 40 with an accepted answer" in done.stdout
    assert load_split(f"files={tmp_path / 'set'}", "test").num_questions > 0
