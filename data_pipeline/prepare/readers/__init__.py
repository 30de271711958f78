"""Reading documents: one file per format; ``registry.py`` names them all, ``files.py`` finds the files of an input."""

from .compression import is_url
from .files import InputFile, check_unchanged, count_suffixes, find_input_files, format_skipped
from .reader import FilePart, Reader, Record
from .registry import (
    FORMATS,
    PYTHON_DOCS,
    READERS,
    SKIPPED,
    UNREADABLE,
    find_parts,
    find_reader,
    get_reader,
    parse_record,
    read_records,
    split_prefix,
)

__all__ = [
    "FORMATS",
    "PYTHON_DOCS",
    "READERS",
    "SKIPPED",
    "UNREADABLE",
    "FilePart",
    "InputFile",
    "Reader",
    "Record",
    "check_unchanged",
    "count_suffixes",
    "find_input_files",
    "find_parts",
    "find_reader",
    "format_skipped",
    "get_reader",
    "is_url",
    "parse_record",
    "read_records",
    "split_prefix",
]
