"""Answers to be searched, from a table, a data set, documents or a forum."""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.cleaning import Rules, Tally, clean, normalise
from data_pipeline.prepare.document import Document
from data_pipeline.prepare.read import MAX_REJECTED_WITHOUT_FLAG, read_input
from data_pipeline.prepare.readers import parse_record
from finetune.data.builders.forum import ForumQuestion, read_questions
from finetune.data.dataset import MissingSplit
from finetune.data.registry import NAMES, load_split
from finetune.data.tables import lacks_names, read_nameless_tsv, read_table
from finetune.evaluation.trec import CORPUS, find_beir_file

from .questions import BEIR_ID, take_text

logger = logging.getLogger(__name__)

# Names of the fields in tables; --columns gives others
COLUMNS = {
    "text": ("text", "answer", "passage"),
    "id": ("id", "answer_id", "aid", BEIR_ID),
    "question": ("question",),
    "url": ("url", "link"),
    "title": ("title",),
}
FORUM = "forum"  # forum=Posts.xml
DOCUMENTS = "documents"  # documents=FOLDER, anything that is prepared
ID_BYTES = 8  # of the hash that stands for an id


class Answer(NamedTuple):
    """Holds an answer, the question that it was given to, and its document's title; unknown fields are empty."""

    id: str
    text: str
    question: str = ""
    url: str = ""
    title: str = ""


def read_answers(source: str, columns: dict[str, str], all_answers: bool = False) -> list[Answer]:
    """Reads the answers that ``--answers`` names, without those that have no text.

    Raises KinspanError if the source cannot be read, an id has two answers, or no answer is left.
    """
    answers: dict[str, Answer] = {}
    empty = again = 0
    for answer in stream_answers(source, columns, all_answers):
        if not answer.text:
            empty += 1
        elif answers.setdefault(answer.id, answer) is not answer:
            again += 1
            if answers[answer.id] != answer:
                raise KinspanError(f"{source}: the id {answer.id!r} has two different answers")
    if not answers:
        raise KinspanError(f"{source}: no answer in it")
    if empty or again:
        logger.info(f"{source}: left out {empty:,} answers without text, and {again:,} repeated ones")
    return list(answers.values())


def stream_answers(source: str, columns: dict[str, str], all_answers: bool) -> Iterator[Answer]:
    """Yields the answers of a source of ``read_answers`` as they are read, empty and repeated ones too."""
    for answer in _open_source(source, columns, all_answers):  # half a surrogate pair becomes a question mark
        yield Answer._make(text.encode("utf-8", "replace").decode() for text in answer)


def _open_source(source: str, columns: dict[str, str], all_answers: bool) -> Iterator[Answer]:
    name, _, place = source.partition("=")
    if not place or name not in (FORUM, DOCUMENTS, *NAMES):
        name = ""
    beir = find_beir_file(Path(source), CORPUS)
    if columns and not beir and (name or Path(source).is_dir()):
        raise KinspanError(f"--columns names the columns of a table, which {source} is not: leave it out")
    if name == DOCUMENTS:
        return _read_documents(place)
    if name == FORUM:
        return _take_answers(read_questions([place], MAX_REJECTED_WITHOUT_FLAG), all_answers)
    if name:
        return _read_data_set(source)
    if Path(source).is_dir() and not beir:
        raise KinspanError(f"{source}: this folder has no {CORPUS} of BEIR's form")
    return _read_table(beir or Path(source), columns)


def name_by_hash(text: str, heading: str) -> str:
    """Returns the id of an answer whose source gives none. ``heading``: its question or title"""
    return hashlib.blake2b(f"{heading}\0{text}".encode("utf-8", "replace"), digest_size=ID_BYTES).hexdigest()


def _read_table(path: Path, columns: dict[str, str]) -> Iterator[Answer]:
    """Yields the rows of a table. In BEIR's form texts get their titles in front, as BEIR's models read them."""
    if unknown := columns.keys() - COLUMNS.keys():
        raise KinspanError(f"--columns: there is no field {min(unknown)!r}; known are {', '.join(COLUMNS)}")
    table = read_table(path)
    names = COLUMNS | {field: (name,) for field, name in columns.items()}
    if not columns and lacks_names(path, table, chain.from_iterable(COLUMNS.values())):
        table = read_nameless_tsv(path, ["id", "text"])
        logger.info(f"{path}: its first line names no columns: read as ids and texts")
    if table.fields and not any(name in table.fields for name in names["text"]):
        raise KinspanError(
            f"{path}: no column {' or '.join(names['text'])}; there are {', '.join(table.fields)}: give --columns "
            f"text=NAME, or --answers {DOCUMENTS}={path}"
        )
    is_beir = BEIR_ID in table.fields and not columns
    unseen = set(columns.values())
    for number, record in table.records([name for name in table.fields if name in chain(*names.values())]):
        unseen -= record.keys()
        values = {}
        for field, known in names.items():
            name = next((name for name in known if record.get(name) is not None), None)
            values[field] = take_text(record[name], name, f"{table.place} {number}") if name else ""
        if is_beir:
            values["text"] = f"{values.pop('title')} {values['text']}".strip()
        answer = Answer(**values)
        yield answer._replace(id=answer.id or name_by_hash(answer.text, answer.question or answer.title))
    if unseen:  # not every line of JSON needs all fields
        raise KinspanError(f"--columns: {path} has no column {min(unseen)}; there are {', '.join(table.fields)}")


def _read_data_set(source: str) -> Iterator[Answer]:
    """Yields the candidates of all splits, each with a question it answers; texts that share an id are named by hash.

    An id such as q7-3 is a number within question q7: if all ids are such numbers, each text comes once.
    """
    candidates: dict[tuple[str, str], str] = {}  # question by id and text
    are_numbers = True
    for split in ("train", "dev", "test"):
        try:
            data = load_split(source, split)
        except MissingSplit:
            continue
        ids, texts = data.answer_ids.dictionary_encode(), data.answers.dictionary_encode()  # millions may repeat
        names, distinct = ids.dictionary.to_pylist(), texts.dictionary.to_pylist()
        rows = zip(ids.indices.to_pylist(), texts.indices.to_pylist(), data.labels, data.question_of, strict=True)
        for id_number, text_number, label, question in rows:
            key = names[id_number], distinct[text_number]
            are_numbers = are_numbers and key[0].startswith(f"{data.question_ids[question]}-")
            candidates[key] = candidates.get(key) or (data.questions[question] if label else "")
    if not candidates:
        raise KinspanError(f"{source}: it has none of the splits train, dev and test")
    frequencies = Counter(name for name, _ in candidates)
    identified = {text for name, text in candidates if frequencies[name] == 1}
    answers: dict[tuple[str, str], str] = {}
    first_ids: dict[str, str] = {}
    for (name, text), question in candidates.items():
        if frequencies[name] > 1:
            if text in identified:
                continue
            name = name_by_hash(text, "")
        key = first_ids.setdefault(text, name) if are_numbers else name, text
        answers[key] = answers.get(key) or question
    yield from (Answer(*key, question) for key, question in answers.items())


def _read_documents(place: str) -> Iterator[Answer]:
    """Yields the paragraphs of documents as preparing keeps them, with the documents' titles; of a forum, its answers.

    The id is the document's and a number, and a hash if another text has both.
    """
    tally, taken = Tally(), set[str]()
    ids: dict[tuple[str, str], str] = {}

    def make(document: Document) -> list[Answer]:
        if document.title_is_text:
            texts, heading = list(map(normalise, document.answers)), {"question": document.title}
        else:
            texts, heading = clean(document, Rules(min_document_chars=0), tally), {"title": document.title}
        stem = "_".join(document.id.split())  # a TREC file cannot hold white space
        answers = []
        for number, text in enumerate(texts, 1):
            key, name = (text, document.title), f"{stem}#{number}"
            if key not in ids:
                ids[key] = f"{name}-{name_by_hash(*key)}" if name in taken else name
                taken.add(name)
            answers.append(Answer(ids[key], text, **heading))
        return answers

    answers = read_input([place], parse_record, make, MAX_REJECTED_WITHOUT_FLAG)
    if not answers:
        raise KinspanError(f"{DOCUMENTS}={place}: no paragraph of running text, and no answer of a forum")
    read, kept = tally.counts["paragraphs read"], sum(not answer.question for answer in answers)
    if read > kept:
        logger.info(f"{read - kept:,} of {read:,} paragraphs are short or no running text: left out")
    return iter(answers)


def _take_answers(questions: Iterable[ForumQuestion], all_answers: bool) -> Iterator[Answer]:
    """Yields the accepted answers of a forum's questions, by the id of their question; or all of them."""
    unanswered = left_out = 0
    for question in questions:
        unanswered += question.accepted < 0
        for number, text in enumerate(question.answers):
            if number == question.accepted:
                yield Answer(question.id, text, question.title)
            elif all_answers:
                yield Answer(f"{question.id}/{number + 1}", text, question.title)
            else:
                left_out += 1
    if unanswered:
        logger.info(f"{unanswered:,} questions have no accepted answer")
    if left_out:
        logger.info(f"{left_out:,} answers were not accepted, and are left out; --all_answers takes them too")
