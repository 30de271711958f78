"""Reads the answers of an index from a table, a data set, documents or a forum."""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from data_pipeline.core.errors import KinspanError
from data_pipeline.matching import fold_characters
from data_pipeline.prepare.cleaning import Rules, Tally, clean, normalise
from data_pipeline.prepare.document import DOCUMENT_IDS, Document, note_unread_ids
from data_pipeline.prepare.read import MAX_REJECTED_WITHOUT_FLAG, read_input
from data_pipeline.prepare.readers import Record, expand_glob, is_url, parse_record, split_prefix
from finetune.data.answers import fold_text
from finetune.data.builders.forum import ForumQuestion, read_questions
from finetune.data.dataset import MissingSplit
from finetune.data.files import HUB
from finetune.data.files import NAME as FILES
from finetune.data.passages import Paragraphs
from finetune.data.registry import NAMES, load_split
from finetune.data.tables import read_table, read_texts
from finetune.evaluation.trec import CORPUS, find_beir_file

from .questions import BEIR_ID, take_text

logger = logging.getLogger(__name__)

# The names that a field's column may have in a table; --columns gives others
COLUMNS = {
    "text": ("text", "answer", "passage"),
    "id": DOCUMENT_IDS,
    "question": ("question",),
    "url": ("url", "link"),
    "title": ("title",),
}
FORUM = "forum"  # forum=Posts.xml


class Answer(NamedTuple):
    """Holds an answer, the question that it was given to, and its document's title; unknown fields are empty."""

    id: str
    text: str
    question: str = ""
    url: str = ""
    title: str = ""


def read_answers(
    sources: list[str], documents: list[str], columns: dict[str, str] | None = None, all_answers: bool = False
) -> list[Answer]:
    """Reads what ``--answers`` and ``--documents`` name, without answers that have no text."""
    answers: dict[str, Answer] = {}
    num_read = num_empty = 0
    streams = [(source, stream_answers(source, columns or {}, all_answers)) for source in sources]
    read = (answer for answer, _ in _read_documents(documents)) if documents else ()
    for source, stream in [*streams, (" ".join(documents), read)]:
        has_text = not source
        for answer in stream:
            num_read += 1
            has_text |= bool(answer.text)
            if not answer.text:
                num_empty += 1
                continue
            known = answers.setdefault(answer.id, answer)
            if (known.text, known.question or known.title) != (answer.text, answer.question or answer.title):
                raise KinspanError(f"{source}: the id {answer.id!r} has two different answers")
        if not has_text:
            raise KinspanError(f"{source} has no answer")
    if num_dropped := num_read - len(answers):
        logger.info(f"dropped {num_empty:,} answers without text and {num_dropped - num_empty:,} repeated ones")
    return list(answers.values())


def stream_answers(source: str, columns: dict[str, str], all_answers: bool) -> Iterator[Answer]:
    """Yields the answers of ``--answers``, empty and repeated ones too, with letters folded as in questions."""
    for answer in _open_source(source, columns, all_answers):  # unpaired surrogates become question marks
        valid = Answer._make(text.encode("utf-8", "replace").decode() for text in answer)
        yield valid._replace(text=fold_characters(valid.text))


def _open_source(source: str, columns: dict[str, str], all_answers: bool) -> Iterator[Answer]:
    name, _, path = source.partition("=")
    if not path or name not in (FORUM, *NAMES):
        name = ""
    beir = find_beir_file(Path(source), CORPUS)
    if columns and not beir and name not in (FILES, HUB) and (name or Path(source).is_dir()):
        raise KinspanError(f"--columns names the columns of a table, which {source} is not: leave it out")
    if name == FORUM:
        return _take_answers(read_questions([path], MAX_REJECTED_WITHOUT_FLAG), all_answers)
    if name:
        return _read_data_set(source, columns)
    if Path(source).is_dir() and not beir:
        raise KinspanError(f"{source}: this folder has no {CORPUS} of BEIR's form; --documents reads documents")
    return _read_table(beir or Path(source), columns)


def name_by_hash(text: str, heading: str) -> str:
    """Returns an id for an answer without one. ``heading``: its question or title"""
    return hashlib.blake2b(f"{heading}\0{text}".encode("utf-8", "replace"), digest_size=8).hexdigest()


def _read_table(path: Path, columns: dict[str, str]) -> Iterator[Answer]:
    """Yields the rows of a table; in BEIR's form each title is prepended to its text, as in BEIR's own evaluation."""
    if unknown := columns.keys() - COLUMNS.keys():
        raise KinspanError(f"--columns: there is no field {min(unknown)!r}; there are {', '.join(COLUMNS)}")
    table = read_table(path) if columns else read_texts(path, chain.from_iterable(COLUMNS.values()))
    names = COLUMNS | {field: (name,) for field, name in columns.items()}
    if not columns and {"question", "label"} <= set(table.fields):
        raise KinspanError(f"{path} has labelled questions: give files={path}, or --columns if the labels are others")
    if table.fields and not any(name in table.fields for name in names["text"]):
        raise KinspanError(
            f"{path}: no column {' or '.join(names['text'])}; there are {', '.join(table.fields)}: give --columns "
            f"text=NAME, or --documents {path}"
        )
    if not columns and not set(names["id"]) & set(table.fields):
        note_unread_ids(f"{path}: ids are made up", tuple(table.fields), tuple(chain(*names.values())))
    is_beir = BEIR_ID in table.fields and not columns
    missing = set(columns.values())
    for number, record in table.records([name for name in table.fields if name in chain(*names.values())]):
        missing -= record.keys()
        values = {}
        for field, columns_of_field in names.items():
            name = next((name for name in columns_of_field if record.get(name) is not None), None)
            values[field] = take_text(record[name], name, f"{table.place} {number}") if name else ""
        if is_beir:
            values["text"] = f"{values.pop('title')} {values['text']}".strip()
        answer = Answer(**values)
        yield answer._replace(id=answer.id or name_by_hash(answer.text, answer.question or answer.title))
    if missing:  # a line of JSON may lack fields, but not all lines
        raise KinspanError(f"--columns: {path} has no column {min(missing)}; there are {', '.join(table.fields)}")


def _read_data_set(source: str, columns: dict[str, str]) -> Iterator[Answer]:
    """Yields the candidates of all splits, each with a question it answers; texts that share an id get hashes as ids.

    If all ids are numbers within a question, such as q7-3, each text is yielded once.
    """
    candidates: dict[tuple[str, str], str] = {}  # question by id and text
    are_numbered = True
    for split in ("train", "dev", "test"):
        try:
            data = load_split(source, split, columns)
        except MissingSplit:
            continue
        ids, texts = data.answer_ids.dictionary_encode(), data.answers.dictionary_encode()  # millions may be repeated
        names, distinct = ids.dictionary.to_pylist(), texts.dictionary.to_pylist()
        rows = zip(ids.indices.to_pylist(), texts.indices.to_pylist(), data.labels, data.question_of, strict=True)
        for id_index, text_index, label, question in rows:
            key = names[id_index], distinct[text_index]
            are_numbered = are_numbered and key[0].startswith(f"{data.question_ids[question]}-")
            candidates[key] = candidates.get(key) or (data.questions[question] if label else "")
    if not candidates:
        raise KinspanError(f"{source} has none of the splits train, dev and test")
    frequencies = Counter(name for name, _ in candidates)
    unique = {text for name, text in candidates if frequencies[name] == 1}
    answers: dict[tuple[str, str], str] = {}
    first_ids: dict[str, str] = {}
    for (name, text), question in candidates.items():
        if frequencies[name] > 1:
            if text in unique:
                continue
            name = name_by_hash(text, "")
        key = first_ids.setdefault(text, name) if are_numbered else name, text
        answers[key] = answers.get(key) or question
    yield from (Answer(*key, question) for key, question in answers.items())


def read_paragraphs(documents: list[str]) -> Paragraphs:
    """Reads the paragraphs of documents as ``--documents`` does, or the answers of a forum, each text once."""
    answers: dict[str, tuple[Answer, str]] = {}
    for answer, heading in _read_documents(documents):
        if answer.text:
            answers.setdefault(fold_text(answer.text), (answer, heading))
    names = [(answer.id.rpartition("#")[0], answer.title or answer.question) for answer, _ in answers.values()]
    places = [(name, Path(name).name, Path(name).stem, title) for name, title in names]
    return Paragraphs([answer.text for answer, _ in answers.values()], places, [h for _, h in answers.values()])


def _read_documents(sources: list[str]) -> Iterator[tuple[Answer, str]]:
    """Yields cleaned paragraphs with their document's title, or a forum's answers, and the heading above each.

    An id is the document's id and a number, with a hash appended if another text has the same. A file's id is the
    source's name and the path in it, so that neither other sources nor other files change it.
    """
    tops = [Path(top) for source in sources for top in expand_glob(split_prefix(source)[1])]
    names = Counter(top.resolve().name for top in tops)
    labels = {top: name if names[name := top.resolve().name] == 1 else str(top).strip("./") for top in tops}
    tally, used_ids = Tally(), set[str]()
    made: dict[tuple[str, str], tuple[Answer, str]] = {}

    def parse(record: Record) -> list[Document]:
        path, _, inside = split_prefix(record.file)[1].partition("::")
        top = next((parent for parent in (Path(path), *Path(path).parents) if parent in labels), None)
        called = path if top is None or is_url(path) else Path(labels[top], Path(path).relative_to(top), inside)
        return parse_record(replace(record, called=str(called)))

    def make(document: Document) -> list[tuple[Answer, str]]:
        if document.title_is_text:
            texts, heading = list(map(normalise, document.answers)), {"question": normalise(document.title)}
        else:
            texts = clean(document, Rules(min_document_chars=0), tally) or []
            is_title = document.title not in (document.id, Path(document.id).stem)  # but the file's name
            heading = {"title": normalise(document.title) if is_title else ""}
        stem = normalise(document.id).replace(" ", "_")  # a TREC file cannot hold white space
        url = document.url or (stem if is_url(stem) else "")
        keys = [(text, document.title) for text in texts]
        above, section = dict(zip(map(fold_text, document.paragraphs), document.headings, strict=False)), ""
        for number, key in enumerate(keys, 1):
            section = above.get(fold_text(key[0]), section)  # a paragraph that was changed has the one before it
            if key not in made:
                name = f"{stem}#{number}"
                unique = f"{name}-{name_by_hash(*key)}" if name in used_ids else name
                made[key] = Answer(unique, key[0], url=url, **heading), section
                used_ids.add(name)
        return [made[key] for key in keys]

    answers = read_input(sources, parse, make, MAX_REJECTED_WITHOUT_FLAG)
    if not answers:
        raise KinspanError(f"--documents {' '.join(sources)}: no paragraph of running text and no answer of a forum")
    num_read, num_kept = tally.counts["paragraphs read"], sum(not answer.question for answer, _ in answers)
    if num_read > num_kept:
        logger.info(f"dropped {num_read - num_kept:,} of {num_read:,} paragraphs: short, or no running text")
    return iter(answers)


def _take_answers(questions: Iterable[ForumQuestion], all_answers: bool) -> Iterator[Answer]:
    """Yields the accepted answers, with the id of their question, and with ``all_answers`` the others too."""
    num_unanswered = num_dropped = 0
    for question in questions:
        num_unanswered += question.accepted < 0
        for number, text in enumerate(question.answers):
            if number == question.accepted:
                yield Answer(question.id, text, question.title)
            elif all_answers:
                yield Answer(f"{question.id}/{number + 1}", text, question.title)
            else:
                num_dropped += 1
    if num_unanswered:
        logger.info(f"{num_unanswered:,} questions have no accepted answer")
    if num_dropped:
        logger.info(f"dropped {num_dropped:,} answers that were not accepted; --all_answers keeps them")
