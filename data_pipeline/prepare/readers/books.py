"""``bookcorpus``: books of BookCorpus, a sentence a line, with spaces around their punctuation.

Neither paragraphs nor books are marked there. A paragraph is made of neighbouring sentences, up to a blank line where
there is one; a document ends where a chapter begins, where the file ends, or after MAX_SENTENCES.
"""

import re
from collections.abc import Iterator

from data_pipeline.prepare.document import Document, Rejected

from .compression import open_source
from .lines import cut_lines
from .reader import FilePart, Reader, Record, SourceFile, name_file, name_record
from .text import decode

PARAGRAPH_SENTENCES = 8  # about a page's paragraph of a novel
MAX_SENTENCES = 2000  # about four chapters
_CHAPTER = re.compile(rb"\s*(?:chapter|prologue|epilogue|part)\b[\s\w.:-]{0,20}$", re.I)
_SPACES = [  # what the tokenizer of that corpus put apart
    (re.compile(r"\s+([.,;:!?%)\]]|n't\b|'(?:s|re|ve|ll|d|m)\b)"), r"\1"),
    (re.compile(r"([(\[$])\s+"), r"\1"),
    (re.compile(r"``\s*"), '"'),
    (re.compile(r"\s*''"), '"'),
]


def _read_chapters(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, list[bytes] | Rejected]]:
    chapter: list[bytes] = []
    first = 1
    with open_source(source) as file:
        for number, (_, line) in enumerate(cut_lines(file, 0, None), 1):
            if isinstance(line, Rejected):
                yield number, line
                continue
            starts = line is not None and _CHAPTER.match(line.rstrip())
            if chapter and (starts or len(chapter) >= MAX_SENTENCES):
                yield first, chapter
                chapter = []
            first = first if chapter else number
            if not starts:
                chapter.append(line or b"\n")
    if chapter:
        yield first, chapter


def _parse(record: Record) -> list[Document]:
    name = name_file(record.file)
    paragraphs: list[list[str]] = [[]]
    for line in record.content:
        sentence = join_tokens(decode(line))
        if not sentence or len(paragraphs[-1]) >= PARAGRAPH_SENTENCES:
            paragraphs.append([])
        if sentence:
            paragraphs[-1].append(sentence)
    title = name.rpartition(".")[0] or name
    joined = [" ".join(sentences) for sentences in paragraphs if sentences]
    return [Document(f"{name_record(record)}:{record.line}", title, joined, name)] if joined else []


def join_tokens(sentence: str) -> str:
    """Puts punctuation back where it stood: ``did n't he ?`` becomes ``didn't he?``"""
    sentence = " ".join(sentence.split())  # first: a pattern would try a long run of spaces from each of them
    for pattern, replacement in _SPACES:
        sentence = pattern.sub(replacement, sentence)
    return " ".join(sentence.split())


READER = Reader(_read_chapters, _parse, may_be_compressed=True, names=r"books_large_p\d+\.txt")
