"""``.txt``: a file is a document, and blank lines separate its paragraphs. ``bookcorpus``: books of BookCorpus.

A text file above MAX_RECORD_BYTES is read as a stream, and cut into documents of about PIECE_BYTES, each of which ends
at a blank line, or, after twice PIECE_BYTES, at any line end. BookCorpus has a sentence per line, with spaces around
punctuation, and marks neither paragraphs nor books: PARAGRAPH_SENTENCES neighbouring sentences make a paragraph, and a
chapter, or MAX_SENTENCES of one, a document.
"""

import re
import statistics
from collections.abc import Iterator
from xml.etree import ElementTree

from data_pipeline.prepare.cleaning import STOPS, normalise
from data_pipeline.prepare.document import Document, Rejected

from . import reader
from .compression import is_compressed, open_source
from .lines import cut_lines, split_bytes
from .reader import FilePart, Reader, Record, SourceFile, name_file

PIECE_BYTES = 1 << 20  # about a book
PARAGRAPH_SENTENCES = 8  # about a paragraph of a novel
MAX_SENTENCES = 2000  # about four chapters
ISO_2022 = b"\x1b$"  # begins Japanese, Korean or Chinese in these encodings of 7 bits
_CHAPTER = re.compile(rb"\s*(?:chapter|prologue|epilogue|part)\b[\s\w.:-]{0,20}$", re.I)
_FORBIDDEN = re.compile(  # in XML: control characters, and halves of characters of UTF-16
    r"&#(?:x0*(?:[0-8bcef]|1[0-9a-f]|d[89a-f][0-9a-f]{2}|fff[ef])|0*(?:[0-8]|1[124-9]|2\d|3[01]|6553[45]|5529[6-9]"
    r"|55[3-9]\d\d|56\d{3}|57[0-2]\d\d|573[0-3]\d|5734[0-3]));|[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]",
    re.I,
)
FULL_LINE = 0.8  # share of a long line's length; a shorter line that ends a sentence ends a paragraph
WIDTHS = range(40, 101)  # characters of the longest line of a text whose lines are wrapped
_SENTENCE_END = re.compile(rf"[.!?…:{STOPS}]['\"”’)\]」』）]*$")
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u00ad]$")
_AND = re.compile(r"(?:und|oder|bzw|sowie|and|og|och)\b")
_SPACES = [  # undo the tokenisation of that corpus
    (re.compile(r"\s+([.,;:!?%)\]]|n't\b|'(?:s|re|ve|ll|d|m)\b)"), r"\1"),
    (re.compile(r"([(\[$])\s+"), r"\1"),
    (re.compile(r"``\s*"), '"'),
    (re.compile(r"\s*''"), '"'),
]


def decode(content: bytes) -> str:
    """Decodes UTF-8, with or without a byte order mark. Raises Rejected if it is not UTF-8, or no text."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Rejected(f"not UTF-8 (byte {error.start}): convert it, such as with iconv") from error
    if text.count("\x00") > len(text) // 100 or ISO_2022 in content:
        raise Rejected("not text in UTF-8: it holds NULs, or is in ISO-2022: convert it, such as with iconv")
    return text


def parse_xml(content: bytes) -> ElementTree.Element:
    """Parses XML of UTF-8, with spaces for characters that XML forbids. Raises Rejected if it is broken."""
    try:
        return ElementTree.fromstring(_FORBIDDEN.sub(" ", content.decode("utf-8", "replace")))
    except ElementTree.ParseError as error:
        raise Rejected(f"not XML: {error}") from error


def join_lines(lines: list[str]) -> list[str]:
    """Joins lines to paragraphs, which end at a blank line, or at a short line that ends a sentence."""
    lines = [line.strip() for line in lines]
    lengths = sorted(len(line) for line in lines if line)
    full = FULL_LINE * statistics.median(lengths[len(lengths) // 2 :]) if lengths else 0
    paragraphs = [""]
    for line in lines:
        before = paragraphs[-1]
        is_cut = _HYPHEN.search(before) and line[:1].islower() and not _AND.match(line)  # not "Kranken- und"
        paragraphs[-1] = before[:-1] + line if is_cut else f"{before}\n{line}"
        if not line or (len(line) < full and _SENTENCE_END.search(line)):
            paragraphs.append("")
    return list(filter(None, map(normalise, paragraphs)))


def split_paragraphs(text: str) -> list[str]:
    """Splits running text at blank lines. Without any, every line is a paragraph, unless a text's lines are wrapped."""
    lines = text.strip().splitlines()  # a blank line at the end separates nothing
    if all(line.strip() for line in lines):
        longest = max(map(len, lines), default=0)
        wrapped = [line for line in lines if len(line) > FULL_LINE * longest and not _SENTENCE_END.search(line)]
        return join_lines(lines) if longest in WIDTHS and len(wrapped) > max(2, len(lines) / 2) else lines
    return "\n".join(line if line.strip() else "" for line in lines).split("\n\n")


def read_whole(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | Rejected]]:
    """Yields a whole file as a record, or Rejected if it is larger than MAX_RECORD_BYTES."""
    with open_source(source) as file:
        content = file.read(reader.MAX_RECORD_BYTES + 1)
        rest = sum(map(len, iter(lambda: file.read(1 << 20), b""))) if len(content) > reader.MAX_RECORD_BYTES else 0
    yield 1, reader.reject_too_long("file", len(content) + rest) if rest else content


def name_title(record: Record) -> tuple[str, str]:
    """Returns the id of a document that is a file, and its title: the file's name without folders and suffix."""
    base = name_file(record.file)
    return record.name, base.rpartition(".")[0] or base


# Text -----------------------------------------------------------------------------------------------------


def _split(name: str, size: int) -> list[FilePart | None]:
    """Cuts a file that is too long for a document into ranges of bytes; other files are one part."""
    is_whole = is_compressed(name) or size <= reader.MAX_RECORD_BYTES
    return [None] if is_whole else [*split_bytes(name, size)]


def _read_text(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, bytes | dict | Rejected]]:
    """Yields a text as a record, or in pieces, ``{"text": bytes}``, each with the offset of its first byte, plus 1."""
    with open_source(source) as file:
        content = b"" if part else file.read(reader.MAX_RECORD_BYTES + 1)
    if not part and len(content) <= reader.MAX_RECORD_BYTES:
        yield 1, content
        return
    del content
    piece: list[bytes] = []
    first = size = 0
    with open_source(source) as file:
        for offset, line in cut_lines(file, part.begin if part else 0, part.end if part else None):
            if isinstance(line, Rejected):
                yield offset + 1, line
                continue
            first = first if piece else offset
            piece.append(line or b"\n")
            size += len(piece[-1])
            if size >= PIECE_BYTES and (line is None or size >= 2 * PIECE_BYTES):
                yield first + 1, {"text": b"".join(piece)}
                piece, size = [], 0
    if piece:
        yield first + 1, {"text": b"".join(piece)}


def _parse_text(record: Record) -> list[Document]:
    name, title = name_title(record)
    is_part = isinstance(record.content, dict)
    text = decode(record.content["text"] if is_part else record.content)
    if text.startswith(("%PDF-", "{\\rtf")):  # which may be pure ASCII
        raise Rejected("not text but PDF or RTF: name it .pdf, or convert it")
    document_id = f"{name}:{record.line}" if is_part else name
    return [Document(document_id, title, split_paragraphs(text), record.source, is_part=is_part)]


# BookCorpus -----------------------------------------------------------------------------------------------


def _read_chapters(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, list[bytes] | Rejected]]:
    chapter: list[bytes] = []
    first = 1
    with open_source(source) as file:
        for number, (_, line) in enumerate(cut_lines(file, 0, None), 1):
            if isinstance(line, Rejected):
                yield number, line
                continue
            is_heading = line is not None and _CHAPTER.match(line.rstrip())
            if chapter and (is_heading or len(chapter) >= MAX_SENTENCES):
                yield first, chapter
                chapter = []
            first = first if chapter else number
            if not is_heading:
                chapter.append(line or b"\n")
    if chapter:
        yield first, chapter


def _parse_chapter(record: Record) -> list[Document]:
    paragraphs: list[list[str]] = [[]]
    for line in record.content:
        sentence = join_tokens(decode(line))
        if not sentence or len(paragraphs[-1]) >= PARAGRAPH_SENTENCES:
            paragraphs.append([])
        if sentence:
            paragraphs[-1].append(sentence)
    joined = [" ".join(sentences) for sentences in paragraphs if sentences]
    name, title = name_title(record)
    return [Document(f"{name}:{record.line}", title, joined, record.source)] if joined else []


def join_tokens(sentence: str) -> str:
    """Undoes the tokenisation of BookCorpus: ``did n't he ?`` becomes ``didn't he?``"""
    sentence = " ".join(sentence.split())  # first, since the patterns take quadratic time on long runs of spaces
    for pattern, replacement in _SPACES:
        sentence = pattern.sub(replacement, sentence)
    return " ".join(sentence.split())


READER = Reader(_read_text, _parse_text, may_be_compressed=True, split=_split)
BOOKS = Reader(_read_chapters, _parse_chapter, may_be_compressed=True, names=r"books_large_p\d+\.txt")
