"""Reads documents: a file per format; ``registry.py`` lists the readers, ``files.py`` finds the files of an input."""

from .compression import is_url  # noqa: F401
from .files import InputFile, InputFiles, check_unchanged, expand_glob, find_input_files, refuse_own_output  # noqa: F401
from .reader import FilePart, Reader, Record  # noqa: F401
from .registry import (  # noqa: F401
    FORMATS,
    PYTHON_DOCS,
    READERS,
    find_parts,
    find_reader,
    get_reader,
    parse_record,
    read_records,
    split_prefix,
)
