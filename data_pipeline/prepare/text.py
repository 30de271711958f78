"""Folds white space, and splits text into sentences."""

import re

_SURROGATES = re.compile("[\ud800-\udfff]")
# blingfire knows no full stop but that of European scripts. Chinese and Japanese put no space after theirs. What
# follows a Japanese quotation mostly belongs to the same sentence: 「...。」と言った。
_WIDE_STOPS = re.compile(r"(?<=[。！？｡])(?![。！？｡」』）”’)\]])|(?<=[。！？｡][”’])(?![。！？｡」』）”’)\]])")
_CLOSING = ("」", "』", "）", "”", "’")
STOPS = "。！？｡।॥؟۔።။។"
_OTHER_STOPS = re.compile(r"(?<=[।॥؟۔።။។])\s+")  # of Indian languages, Arabic, Urdu, Amharic, Burmese and Khmer
_HAS_OTHER = re.compile(f"[{STOPS}]")


def normalise(text: str) -> str:
    """Folds white space to single spaces, and replaces what no tokenizer accepts (NUL, lone surrogates)."""
    if "\x00" in text:
        text = text.replace("\x00", " ")
    if not text.isascii():
        text = _SURROGATES.sub("\ufffd", text)
    return " ".join(text.split())


def split_sentences(paragraph: str) -> list[str]:
    """Splits one paragraph into sentences with blingfire, and those at the full stops of other scripts.

    Thai and Lao have no full stop: there a paragraph may be one sentence.
    """
    import blingfire  # not at the top: training and ranking import this module, and need no blingfire

    sentences = blingfire.text_to_sentences(paragraph).split("\n")
    if not paragraph.isascii() and _HAS_OTHER.search(paragraph):
        joined: list[str] = []
        for part in sentences:  # which blingfire cuts before a closing bracket
            if joined and part.startswith(_CLOSING):
                joined[-1] += part
            else:
                joined.append(part)
        sentences = [s for part in joined for wide in _WIDE_STOPS.split(part) for s in _OTHER_STOPS.split(wide)]
    return [s for s in map(str.strip, sentences) if s] or [paragraph]
