"""Benchmarks that Rücklé et al., 2020 ("MultiCQA", section 3.2) measure on, as their authors distribute them.

AskUbuntu (Lei et al., 2016, after dos Santos et al., 2015): which questions of the forum are similar to a question?
In the files, texts are lower-case words with spaces between, and bodies are cut after 100 words.

WikiPassageQA (Cohen et al., 2018): questions about a Wikipedia article, whose passages are the candidates.

InsuranceQA (Feng et al., 2015): questions whose candidate pool is 200 answers to other questions. Version 2 has pools
of answers that a search engine found. A right answer that the search did not find is not among the candidates, so that
a fifth of the questions has none; papers measure on the others.

SemEval's task 3 B is in semeval.py. LAS has no reader: kinspan data las makes it from a forum's dump.
"""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .collect import LeftOut, SourceRow
from .dataset import DataSet, find_beside
from .filters import NO_ALL_NEGATIVE, RAW
from .tables import check_fields, read_fields, read_json, read_json_lines, read_quoted_tsv

TEXTS = "text_tokenized.txt"
FILES = {"train": "train_random.txt", "dev": "dev.txt", "test": "test.txt"}
PASSAGES = "document_passages.json"
COLUMNS = ("QID", "Question", "DocumentID", "DocumentName", "RelevantPassages")
ANSWERS = "answers.jsonl"
VOCABULARY, ENCODED_ANSWERS = "vocabulary", "InsuranceQA.label2answer.token.encoded"
POOLS = {"train": ("train", 100), "dev": ("valid", 500), "test": ("test", 500)}


def read_askubuntu(path: Path) -> Iterator[SourceRow | LeftOut]:
    """Yields the candidates of each question, title and body joined, in the order of the file.

    A line has the question's id, the ids of the similar ones, those of the candidates, and in dev and test their BM25
    scores, separated by tabs; ids by spaces. Similar questions that are not among the candidates, as in training,
    follow them. Ids without a text are left out, and so is a question among its own candidates.
    """
    rows = read_fields(find_beside(path, TEXTS), "id", "title", "body")
    texts = {name.strip(): normalise(f"{title} {body}") for _, (name, title, body) in rows}
    for number, fields in read_fields(path, "question", "similar ones", "candidates", "scores", optional=1):
        question_id, similar, candidates = fields[0].strip(), fields[1].split(), fields[2].split()
        question = texts.get(question_id)
        if not question:
            yield LeftOut(f"questions without a text in {TEXTS}")
            continue
        for candidate in dict.fromkeys([*candidates, *similar]):
            text = texts.get(candidate)
            if text is None:
                yield LeftOut(f"candidates without a text in {TEXTS}")
            elif candidate != question_id:
                yield SourceRow(number, question_id, question, candidate, text, int(candidate in similar))


ASKUBUNTU = DataSet(
    name="askubuntu",
    help="text_tokenized.txt.gz, train_random.txt, dev.txt and test.txt, as distributed by Lei et al. Questions and "
    "candidates are titles with bodies. A training question has 100 random candidates: 1.3 million pairs.",
    file_names=lambda split: (FILES[split],),
    read=read_askubuntu,
    measured_on=NO_ALL_NEGATIVE,  # a question without a similar one is excluded, as its authors say
)


def read_wikipassageqa(path: Path) -> Iterator[SourceRow]:
    """Yields for each question all passages of its document, in their order.

    The file has tab-separated columns, of which RelevantPassages is like ``3,4``; the texts are in
    document_passages.json beside it, ``{document: {passage: text}}``.
    """
    texts = find_beside(path, PASSAGES)
    documents = {name: _read_document(texts, name, passages) for name, passages in read_json(texts, dict).items()}
    table = read_quoted_tsv(path)
    if missing := [column for column in COLUMNS if column not in table.fields]:
        raise KinspanError(f"{path}: no column {missing[0]!r}; there are {', '.join(table.fields)}")
    for line, record in table.records(list(COLUMNS)):
        document = record["DocumentID"].strip()
        passages = documents.get(document, {})
        relevant = {number.strip() for number in record["RelevantPassages"].split(",")}
        if unknown := sorted(relevant - passages.keys()):
            raise KinspanError(f"{path} line {line}: document {document} has no passage {unknown[0]!r}")
        for number, text in passages.items():
            answer_id, label = f"{document}-{number}", int(number in relevant)
            yield SourceRow(line, record["QID"], record["Question"], answer_id, text, label)


def _read_document(path: Path, document: str, passages: object) -> dict[str, str]:
    """Returns the texts of a document's passages by their numbers, in their order."""
    if not isinstance(passages, dict) or not all(isinstance(text, str) for text in passages.values()):
        raise KinspanError(f"{path}: document {document!r} is not an object of passages, which are strings")
    ordered = sorted(passages, key=lambda number: (int(number) if number.isdecimal() else -1, number))
    return {number: normalise(passages[number]) for number in ordered}


WIKIPASSAGEQA = DataSet(
    name="wikipassageqa",
    help="train.tsv, dev.tsv and test.tsv with the columns QID, Question, DocumentID, DocumentName and "
    "RelevantPassages, and document_passages.json. All passages of the document are candidates, 58 on average.",
    file_names=lambda split: (f"{split}.tsv",),
    read=read_wikipassageqa,
    measured_on=RAW,
)


def read_insuranceqa(path: Path) -> Iterator[SourceRow]:
    """Yields each question's right answers and then its negatives, whose texts are in answers.jsonl beside the file."""
    source = find_beside(path, ANSWERS)
    texts: dict[str, str] = {}
    for number, record in read_json_lines(source):
        check_fields(record, f"{source} line {number}", str, "aid", "text")
        texts[record["aid"]] = normalise(record["text"])
    for number, record in read_json_lines(path):
        where = f"{path} line {number}"
        check_fields(record, where, str, "qid", "question")
        check_fields({"answers": [], "negatives": [], **record}, where, list, "answers", "negatives")
        yield SourceRow(number, record["qid"], record["question"], None, None, 0)
        for field, label in (("answers", 1), ("negatives", 0)):
            for aid in record.get(field, ()):
                if not isinstance(aid, str) or aid not in texts:
                    raise KinspanError(f"{where}: {field} has aid {aid!r}, which {source.name} lacks")
                yield SourceRow(number, record["qid"], record["question"], aid, texts[aid], label)


INSURANCEQA = DataSet(
    name="insuranceqa",
    help="answers.jsonl with lines {aid, text}, and train.jsonl, valid.jsonl and test.jsonl with lines {qid, question, "
    "answers, negatives}, of which the last two are lists of aids. There are 200 negatives per question, hence 2.6 "
    "million training pairs.",
    file_names=lambda split: (f"{'valid' if split == 'dev' else split}.jsonl",),
    read=read_insuranceqa,
    accuracy=True,
    measured_on=NO_ALL_NEGATIVE,
)


def read_insuranceqa_v2(path: Path) -> Iterator[SourceRow]:
    """Yields each question's pool, in the order of the file.

    Texts are word numbers. A line has the domain, the question, the right answers and the pool, separated by tabs, and
    spaces within a field. In training, right answers that are not in the pool follow it.
    """
    words: dict[str, str] = {}
    for _, (key, word) in read_fields(find_beside(path, VOCABULARY), "number", "word"):
        words.setdefault(key, word)
    encoded = find_beside(path, ENCODED_ANSWERS)
    answers = read_fields(encoded, "answer", "words")
    texts = {aid: _decode(text, words, f"{encoded} line {number}") for number, (aid, text) in answers}
    split = next(name for name, (part, _) in POOLS.items() if f".{part}." in path.name)
    for number, fields in read_fields(path, "domain", "question", "right answers", "pool"):
        where = f"{path} line {number}"
        question = _decode(fields[1], words, where)
        right, pool = fields[2].split(), fields[3].split()
        for aid in dict.fromkeys([*pool, *right] if split == "train" else pool):
            if aid not in texts:
                raise KinspanError(f"{where}: answer {aid!r} is not in {encoded.name}")
            yield SourceRow(number, f"{split}-{number}", question, aid, texts[aid], int(aid in right))


def _decode(text: str, words: dict[str, str], where: str) -> str:
    try:
        return normalise(" ".join([words[number] for number in text.split()]))
    except KeyError as error:
        raise KinspanError(f"{where}: word {error} is not in {VOCABULARY}") from error


def _name_pools(split: str) -> tuple[str, ...]:
    part, size = POOLS[split]
    return (f"InsuranceQA.question.anslabel.token.{size}.pool.solr.{part}.encoded",)


INSURANCEQA_V2 = DataSet(
    name="insuranceqa_v2",
    help=f"The folder V2 of InsuranceQA: {VOCABULARY}; {ENCODED_ANSWERS}; {_name_pools('dev')[0]} and "
    f"{_name_pools('test')[0]}, which have pools of 500 answers; {_name_pools('train')[0]}, with pools of 100 "
    "and the right answers.",
    file_names=_name_pools,
    read=read_insuranceqa_v2,
    accuracy=True,
    measured_on=NO_ALL_NEGATIVE,
)
