"""White space and characters that every text has, whatever its source."""

import re

_SURROGATES = re.compile("[\ud800-\udfff]")


def normalise(text: str) -> str:
    """Fold white space to single spaces, and replace what no tokenizer accepts (NUL, lone surrogates)."""
    if "\x00" in text:
        text = text.replace("\x00", " ")
    if not text.isascii():
        text = _SURROGATES.sub("\ufffd", text)
    return " ".join(text.split())
