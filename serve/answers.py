"""Answers to be searched, from a table, a data set, a forum's dump or a forum's corpus."""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.browse import ShownDocument, load_decoder, show_document
from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.prepare.cleaning import Rules, Tally, clean, normalise
from data_pipeline.prepare.document import Document
from data_pipeline.prepare.read import MAX_REJECTED_WITHOUT_FLAG, read_input
from data_pipeline.prepare.readers import parse_record
from finetune.data.builders.forum import ForumQuestion, read_questions
from finetune.data.dataset import MissingSplit
from finetune.data.registry import NAMES, load_split
from finetune.data.tables import FORMATS, Table, find_suffix, lacks_names, read_nameless_tsv, read_table
from finetune.evaluation.trec import CORPUS, find_beir_file

logger = logging.getLogger(__name__)

FIELDS = ("text", "id", "question", "url", "title")
BEIR_ID = "_id"
# What tables call the fields; --columns names others
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
    """An answer as people read it.

    id:       tells it from all others; one with the id of an older answer replaces it
    question: what it answered; "" where it is not known
    url:      where it is from; "" where it is not known
    title:    of the document that it is from; "" where there is none
    """

    id: str
    text: str
    question: str = ""
    url: str = ""
    title: str = ""


def read_answers(source: str, columns: dict[str, str], all_answers: bool = False) -> list[Answer]:
    """Reads the answers that ``--answers`` names; an answer without text is left out.

    source:  a table with a row for each answer; ``NAME=PLACE`` for the candidates of a data set, of all its splits;
             ``forum=DUMP`` for the accepted answers of a forum; or the folder of a corpus of questions, likewise;
             ``documents=PLACE`` for the paragraphs of documents, and the answers of a forum; a folder in BEIR's
             form
    columns: what the table calls its fields, where it is not one of COLUMNS
    all_answers: of a forum, take the answers that were not accepted too

    Raises KinspanError for what cannot be read, where an id stands twice, and where no answer is left.
    """
    answers: dict[str, Answer] = {}
    empty = again = 0
    for answer in stream_answers(source, columns, all_answers):
        if not answer.text:
            empty += 1
        elif answer.id not in answers:
            answers[answer.id] = answer
        elif answers[answer.id] == answer:
            again += 1
        else:
            raise KinspanError(f"{source}: the id {answer.id!r} stands there twice, with different answers")
    if empty:
        logger.info(f"{empty:,} answers without text: left out")
    if not answers:
        raise KinspanError(f"{source}: no answer in it")
    if again:
        logger.info(f"{again:,} answers stand there more than once: kept once")
    return list(answers.values())


def stream_answers(source: str, columns: dict[str, str], all_answers: bool) -> Iterator[Answer]:
    """Yields what stands in a source of ``read_answers`` as it is read, what has no text or stands twice too.

    Half a surrogate pair, which UTF-8 cannot hold, becomes a question mark.
    """
    return (Answer._make(map(_mend, answer)) for answer in _open_source(source, columns, all_answers))


def _mend(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _open_source(source: str, columns: dict[str, str], all_answers: bool) -> Iterator[Answer]:
    name, _, place = source.partition("=")
    beir = find_beir_file(Path(source), CORPUS)
    is_named = place and name in (FORUM, DOCUMENTS, *NAMES)
    if columns and (is_named or (Path(source).is_dir() and not beir)):
        raise KinspanError(f"--columns names the columns of a table, which {source} is not: leave it out")
    if name in (FORUM, DOCUMENTS) and place:
        if name == DOCUMENTS:
            return _read_documents(place)
        return _take_answers(read_questions([place], MAX_REJECTED_WITHOUT_FLAG), all_answers)
    if name in NAMES and place:
        return _read_data_set(source)
    if beir:
        return _read_table(beir, columns)
    if Path(source).is_dir():
        if not (Path(source) / "manifest.json").is_file():
            raise KinspanError(
                f"{source}: this folder has no {CORPUS} of BEIR's form, and no manifest.json of a corpus"
            )
        return _take_answers(_read_corpus(Path(source)), all_answers)
    return _read_table(Path(source), columns)


def name_by_hash(text: str, heading: str) -> str:
    """The id of an answer whose source gives none: the same answer gets the same one.

    heading: its question or title
    """
    return hashlib.blake2b(f"{heading}\0{text}".encode("utf-8", "replace"), digest_size=ID_BYTES).hexdigest()


def _read_table(path: Path, columns: dict[str, str]) -> Iterator[Answer]:
    if not path.exists() or find_suffix(path) not in FORMATS:
        files = f"a file ({', '.join(FORMATS)})"
        folders = f"a corpus folder, a folder in BEIR's form, {FORUM}=DUMP, {DOCUMENTS}=PLACE"
        known = f"{files}, {folders}, or NAME=PLACE with one of {', '.join(NAMES)}"
        reason = "there is no such file" if not path.exists() else "not a known format"
        raise KinspanError(f"{path}: {reason}; give {known}")
    if unknown := [field for field in columns if field not in FIELDS]:
        raise KinspanError(f"--columns: there is no field {unknown[0]!r}; known are {', '.join(FIELDS)}")
    table = read_table(path)
    names = {field: (columns[field],) if field in columns else COLUMNS[field] for field in FIELDS}
    if not columns and lacks_names(path, table, chain.from_iterable(COLUMNS.values())):
        table = read_nameless_tsv(path, ["id", "text"])
        logger.info(f"{path}: its first line names no columns: read as ids and texts")
    if not table.fields:
        raise KinspanError(f"{path}: no answer in it")
    if not any(name in table.fields for name in names["text"]):
        raise KinspanError(
            f"{path}: no column {' or '.join(names['text'])}; there are {', '.join(table.fields)}: name the "
            f"answers' one with --columns text=NAME, or index documents with --answers {DOCUMENTS}={path}"
        )
    if "label" in table.fields:
        logger.info(
            f"{path} has a column label: what is labelled wrong is an answer here too, with the question that it does "
            "not answer; files=FOLDER reads questions with labelled candidates"
        )
    if BEIR_ID in table.fields and not columns:
        logger.info(f"{path}: in BEIR's form, and so texts are searched and ranked with their titles in front")
        return _take_rows(table, columns, names, join_title=True)
    return _take_rows(table, columns, names)


def _take_rows(
    table: Table, columns: dict[str, str], names: dict[str, tuple[str, ...]], join_title: bool = False
) -> Iterator[Answer]:
    """The rows that have a text; ``join_title`` puts the title in front of it, as BEIR's models read it.

    Raises KinspanError for a column of ``columns`` that no row has: not every line of JSON needs all fields.
    """
    empty = []
    wanted = [name for name in table.fields if any(name in of_field for of_field in names.values())]
    unseen = set(columns.values())
    for number, record in table.records(wanted):
        unseen -= record.keys()
        values = {field: _take_field(record, names[field], f"{table.place} {number}") for field in FIELDS}
        if join_title:
            values["text"] = f"{values.pop('title')} {values['text']}".strip()
        answer = Answer(**values)
        if answer.text:
            yield answer._replace(id=answer.id or name_by_hash(answer.text, answer.question or answer.title))
        else:
            empty.append(f"{number:,}")
    if unseen:
        file = table.place.rsplit(" ", 1)[0]
        raise KinspanError(f"--columns: {file} has no column {min(unseen)}; there are {', '.join(table.fields)}")
    if empty:
        lines = ", ".join(empty[:5]) + (", ..." if len(empty) > 5 else "")
        logger.info(f"{len(empty):,} rows without {' or '.join(names['text'])}: left out ({table.place} {lines})")


def _take_field(record: dict[str, Any], names: tuple[str, ...], place: str) -> str:
    """The first of these fields that is there and not null; "" where none is."""
    name = next((name for name in names if record.get(name) is not None), None)
    return take_text(record[name], name, place) if name else ""


def take_text(value: Any, name: str, place: str) -> str:
    """A field's text; a whole number counts as text, as ids often are. Raises KinspanError for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise KinspanError(f"{place}: {name!r} is no text: {str(value)[:60]!r}")
    return str(value).strip()


def _read_data_set(source: str) -> Iterator[Answer]:
    """The candidates of all splits, each with a question it answers; texts that share an id come by their hashes.

    An id such as q7-3 is a number within the question q7: where all are so, a text that has several comes once.
    """
    text_of: dict[tuple[str, str], str] = {}  # question by id and text
    splits, are_numbers = 0, True
    for split in ("train", "dev", "test"):
        try:
            data = load_split(source, split)
        except MissingSplit:
            continue
        splits += 1
        ids, texts = data.answer_ids.dictionary_encode(), data.answers.dictionary_encode()
        id_of, text_number = ids.dictionary.to_pylist(), texts.dictionary.to_pylist()
        rows = zip(ids.indices.to_pylist(), texts.indices.to_pylist(), data.labels, data.question_of, strict=True)
        for of_id, of_text, label, question in rows:
            key = id_of[of_id], text_number[of_text]
            are_numbers = are_numbers and key[0].startswith(f"{data.question_ids[question]}-")
            if label and not text_of.get(key):
                text_of[key] = data.questions[question]
            else:
                text_of.setdefault(key, "")
    if not splits:
        raise KinspanError(f"{source}: it has none of the splits train, dev and test")
    often = Counter(own for own, _ in text_of)
    named = {text for own, text in text_of if often[own] == 1}
    question_of: dict[tuple[str, str], str] = {}
    first: dict[str, str] = {}  # id of a text
    for (own, text), question in text_of.items():
        if often[own] == 1 or text not in named:
            name = own if often[own] == 1 else name_by_hash(text, "")
            key = first.setdefault(text, name) if are_numbers else name, text
            question_of[key] = question_of.get(key) or question
    yield from (Answer(*key, question) for key, question in question_of.items())


def _read_documents(place: str) -> Iterator[Answer]:
    """The paragraphs of documents as preparing keeps them, with the documents' titles; of a forum, its answers."""
    tally, kept = Tally(), 0
    names: dict[tuple[str, str], str] = {}
    taken: Counter[str] = Counter()

    def name(document: Document, number: int, text: str) -> str:
        """The id of a document's text: the document's own with a number, and a hash where another text has it."""
        key = text, document.title
        if key not in names:
            own = f"{'_'.join(document.id.split())}#{number}"  # no white space, which a TREC file cannot hold
            names[key] = f"{own}-{name_by_hash(*key)}" if taken[own] else own
            taken[own] += 1
        return names[key]

    def make(document: Document) -> list[Answer]:
        nonlocal kept
        if document.title_is_text:
            texts = list(map(normalise, document.answers))
            return [Answer(name(document, n, text), text, question=document.title) for n, text in enumerate(texts, 1)]
        texts = clean(document, Rules(min_document_chars=0), tally)
        kept += len(texts)
        return [Answer(name(document, n, text), text, title=document.title) for n, text in enumerate(texts, 1)]

    answers = read_input([place], parse_record, make, MAX_REJECTED_WITHOUT_FLAG)
    if not answers:
        raise KinspanError(f"{DOCUMENTS}={place}: no paragraph of running text, and no answer of a forum")
    if dropped := tally.counts["paragraphs read"] - kept:
        logger.info(f"{dropped:,} of {dropped + kept:,} paragraphs are short or no running text: left out")
    if shared := sum(taken.values()) - len(taken):
        logger.info(f"{shared:,} texts are of documents that share an id with another: a hash is added to their ids")
    return iter(answers)


def _read_corpus(folder: Path) -> Iterator[ShownDocument]:
    """The documents of a corpus, as far as their token ids tell their text."""
    corpus = Corpus(folder)
    decoder = load_decoder(folder)
    for number in range(len(corpus.manifest.shards)):
        shard = corpus.shard(number)
        for row in range(len(shard.held_out)):
            yield show_document(shard, row, decoder)


def _take_answers(questions: Iterable[ForumQuestion | ShownDocument], all_answers: bool) -> Iterator[Answer]:
    """The answers of a forum's questions: the accepted ones, by the id of their question; or all of them."""
    unaccepted = others = empty = 0
    for question in questions:
        unaccepted += question.accepted < 0
        for number, text in enumerate(question.answers):
            if not text:
                empty += 1
            elif number == question.accepted:
                yield Answer(question.id, text, question.title)
            elif all_answers:
                yield Answer(f"{question.id}/{number + 1}", text, question.title)
            else:
                others += 1
    if unaccepted:
        logger.info(f"{unaccepted:,} questions have no accepted answer")
    if others:
        logger.info(
            f"{others:,} answers were not accepted, and are left out: to search them too, build another index with "
            "--all_answers"
        )
    if empty:
        logger.info(f"{empty:,} answers have no text: left out")
