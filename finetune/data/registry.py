"""The data sets of answer sentence selection, each by a line ``NAME=PLACE``."""

from collections.abc import Callable, Iterator
from pathlib import Path

from data_pipeline.errors import KinspanError
from data_pipeline.prepare.encode import normalise
from data_pipeline.prepare.readers.compression import COMPRESSED_SUFFIXES

from .answers import AnswerSet
from .collect import POSITIVE_GRADE, Row, collect
from .jacana import jacana_rows
from .tables import FORMATS, hub_splits, hub_table, json_lines, labelled, read_table, text_lines

SPLITS = ("train", "dev", "test")
NEGATIVE_GRADES = (1, 2, 3)

SPECS = """data sets (NAME=PLACE; files may be compressed: .gz, .xz, .zst):
  wikiqa=FOLDER       WikiQA-train.tsv, WikiQA-dev.tsv, WikiQA-test.tsv, as distributed
  trecqa=FOLDER       train-all.jsonl, dev.raw.jsonl, test.raw.jsonl; a line: {qid, question, answer, label}
  jacana=FOLDER       TREC-QA as distributed in jacana-qa-naacl2013-data-results: train2393.cleanup.xml (TRAIN-ALL) or
                      else train-less-than-40.manual-edit.xml (TRAIN), dev-less-than-40.manual-edit.xml,
                      test-less-than-40.manual-edit.xml; also as TRAIN-ALL.xml or TRAIN.xml, DEV.xml, TEST.xml
  asnq=FOLDER         train.tsv, dev.tsv, test.tsv: question, sentence and label 1 to 4; as distributed, or built from
                      Natural Questions by launch/build_asnq.py
  insuranceqa=FOLDER  answers.jsonl: {aid, text}; train.jsonl, valid.jsonl, test.jsonl: {qid, question, answers,
                      negatives}, lists of aids. 200 negatives a question: 2.6 million pairs to train on
  files=FOLDER        train, dev, test, each .jsonl, .csv, .tsv or .parquet, with columns question, answer, label (0 or
                      1) and optionally question_id, answer_id; .csv and .tsv have a first line of names, and .tsv no
                      quoting. Without question_id, questions are told apart by their text
  files=FILE          one such file: the split test
  hub=OWNER/NAME      a data set of the hub, or a folder that datasets.load_dataset opens, with such columns; dev is its
                      split dev, validation or valid"""

HUB_NAMES = {"train": ("train",), "dev": ("dev", "validation", "valid"), "test": ("test",)}
WIKIQA = {
    "question_id": "QuestionID",
    "question": "Question",
    "answer_id": "SentenceID",
    "answer": "Sentence",
    "label": "Label",
}


def load_split(
    spec: str,
    split: str,
    columns: dict[str, str] | None = None,
    negative_labels: tuple[int, ...] = NEGATIVE_GRADES,
) -> tuple[AnswerSet, list[str]]:
    """One split of a data set, unfiltered, and notes on what was left out or is odd, one line each.

    spec:            ``NAME=PLACE``, see SPECS
    split:           "train", "dev" or "test"
    columns:         what files= and hub= call question, answer, label, question_id and answer_id, where other than that
    negative_labels: ASNQ's labels that are negatives (Garg et al., 2020, table 6); other candidates are left out

    Raises KinspanError with file and line for everything that is not as it must be.
    """
    name, place = _parse(spec)
    if columns and name not in ("files", "hub"):
        raise KinspanError(f"{spec}: its columns have fixed names; only files= and hub= take others")
    if not negative_labels or not set(negative_labels) <= set(NEGATIVE_GRADES):
        raise KinspanError(f"negative labels {list(negative_labels)}: must be one or more of 1, 2 and 3")
    if name == "hub":
        table = hub_table(place, _hub_split(place, split))
        return collect(name, split, table.place, labelled(table, columns or {}))
    path = _file(name, Path(place), split)
    if path is None:
        raise KinspanError(f"{spec}: no split {split}: {_missing(name, Path(place), [split])}")
    if name == "files":
        table = read_table(path)
        return collect(name, split, table.place, labelled(table, columns or {}))
    rows = ROWS[name](path)
    data, notes = collect(name, split, f"{path} line", rows, name == "asnq", negative_labels)
    if name == "jacana" and split == "train":
        notes.insert(0, f"jacana train: read from {path.name}")
    return data, notes


def parse_columns(text: str | None) -> dict[str, str] | None:
    """``question=query,label=relevant`` as a dictionary."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and equals and column for name, equals, column in pairs):
        raise KinspanError(f"--columns {text}: write question=query,answer=passage,label=relevant")
    return {name: column for name, _, column in pairs}


def splits_of(spec: str) -> list[str]:
    """The splits that are there, of "train", "dev" and "test". Raises KinspanError where there is none."""
    name, place = _parse(spec)
    if name == "hub":
        there = hub_splits(place)
        found = [split for split in SPLITS if any(n in there for n in HUB_NAMES[split])]
    else:
        found = [split for split in SPLITS if _file(name, Path(place), split)]
    if not found:
        why = "" if name == "hub" else f": {_missing(name, Path(place), list(SPLITS))}"
        raise KinspanError(f"{spec}: neither train nor dev nor test is there{why}")
    return found


def _parse(spec: str) -> tuple[str, str]:
    name, _, place = spec.partition("=")
    known = [*NAMES, "hub"]
    if name not in known or not place:
        raise KinspanError(f"{spec}: not a data set; write NAME=PLACE, where NAME is one of {', '.join(known)}")
    return name, place


def _file(name: str, place: Path, split: str) -> Path | None:
    """The file of a split; None where there is none."""
    if name == "files" and place.is_file():
        suffix = Path(place.stem).suffix if place.suffix in COMPRESSED_SUFFIXES else place.suffix
        if suffix not in FORMATS:
            raise KinspanError(f"files={place}: not a known format; known are {', '.join(FORMATS)}")
        return place if split == "test" else None
    found = [p for n in NAMES[name](split) for s in ("", *COMPRESSED_SUFFIXES) if (p := place / f"{n}{s}").is_file()]
    if name == "files" and len(found) > 1:
        raise KinspanError(f"{place}: both {found[0].name} and {found[1].name} are there: which is {split}? Keep one")
    return found[0] if found else None


def _missing(name: str, place: Path, splits: list[str]) -> str:
    """Why a split is not there."""
    if place.is_file():
        return "a single file is the split test" if name == "files" else "this is a file, not a folder"
    if not place.is_dir():
        return "there is no such folder"
    return "looked for " + ", ".join(n for split in splits for n in NAMES[name](split))


def _hub_split(place: str, split: str) -> str:
    there = hub_splits(place)
    for name in HUB_NAMES[split]:
        if name in there:
            return name
    raise KinspanError(f"hub={place}: no split {split}; there are {', '.join(there)}")


def _wikiqa(path: Path) -> Iterator[Row]:
    return labelled(read_table(path), WIKIQA)


def _trecqa(path: Path) -> Iterator[Row]:
    return labelled(read_table(path), {"question_id": "qid"})


def _asnq(path: Path) -> Iterator[Row]:
    """``question \\t sentence \\t label``, no first line of names, no quoting."""
    grades = {str(grade): grade for grade in (*NEGATIVE_GRADES, POSITIVE_GRADE)}
    for number, line in text_lines(path):
        fields = line.split("\t")
        if len(fields) != 3:
            raise KinspanError(f"{path} line {number}: {len(fields)} fields, not 3: question, sentence, label")
        grade = grades.get(fields[2])
        if grade is None:
            raise KinspanError(f"{path} line {number}: label {fields[2]!r} is none of 1, 2, 3 and 4")
        yield number, None, fields[0], None, normalise(fields[1]), grade


def _insuranceqa(path: Path) -> Iterator[Row]:
    answers_path = _file("insuranceqa", path.parent, "answers")
    if answers_path is None:
        raise KinspanError(f"{path.parent}: answers.jsonl is not there")
    texts: dict[str, str] = {}
    for number, record in json_lines(answers_path):
        aid, text = record.get("aid"), record.get("text")
        if not isinstance(aid, str) or not isinstance(text, str):
            raise KinspanError(f'{answers_path} line {number}: "aid" and "text" must both be there, as strings')
        if aid in texts:
            raise KinspanError(f"{answers_path} line {number}: aid {aid!r} was there before")
        texts[aid] = normalise(text)
    for number, record in json_lines(path):
        qid, question = record.get("qid"), record.get("question")
        if not isinstance(qid, str) or not isinstance(question, str):
            raise KinspanError(f'{path} line {number}: "qid" and "question" must both be there, as strings')
        yield number, qid, question, None, None, 0
        for field, label in (("answers", 1), ("negatives", 0)):
            for aid in record.get(field, ()):
                if aid not in texts:
                    raise KinspanError(
                        f"{path} line {number}: {field} has aid {aid!r}, which {answers_path.name} lacks"
                    )
                yield number, qid, question, aid, texts[aid], label


def _jacana_names(split: str) -> tuple[str, ...]:
    all_of_it = ("train2393.cleanup.xml", "TRAIN-ALL.xml") if split == "train" else ()
    return (*all_of_it, f"{split}-less-than-40.manual-edit.xml", f"{split.upper()}.xml")


TRECQA = {"train": "train-all.jsonl", "dev": "dev.raw.jsonl", "test": "test.raw.jsonl"}
NAMES: dict[str, Callable[[str], tuple[str, ...]]] = {  # of a split's file, the one to prefer first
    "wikiqa": lambda split: (f"WikiQA-{split}.tsv",),
    "trecqa": lambda split: (TRECQA[split],),
    "jacana": _jacana_names,
    "asnq": lambda split: (f"{split}.tsv",),
    "insuranceqa": lambda split: (f"{'valid' if split == 'dev' else split}.jsonl",),
    "files": lambda split: tuple(f"{split}{suffix}" for suffix in FORMATS),
}
ROWS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "wikiqa": _wikiqa,
    "trecqa": _trecqa,
    "jacana": jacana_rows,
    "asnq": _asnq,
    "insuranceqa": _insuranceqa,
}
