"""Compares texts as readers see them.

Both sides are compared in lower case (``fold_characters``) without punctuation, so that it does not matter how either
was tokenised ("5,000" or "5 , 000").
"""

import re
import unicodedata
from collections.abc import Iterator

CJK_CHARS = 3  # what ``count_chars`` counts for one

# Thai, Lao, Burmese, Khmer, Japanese and Chinese put no spaces between words: there each character counts as a word.
CJK = "\u3005-\u3007\u3041-\u3096\u30a1-\u30fa\u30fc-\u30fe\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U000323af"
UNSPACED = f"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff{CJK}"
_PAIRED = f"{UNSPACED}\uac00-\ud7a3"  # also Hangul, whose words end with particles
# Combining accents, Hebrew and Arabic points; then Syriac and Thaana points and the scripts from Hindi to Khmer without
# their full stops: ``\w`` does not match marks, and would cut a Hindi word at each vowel sign.
POINTS = "\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
MARKS = (
    f"{POINTS}\u0711\u0730-\u074a\u07a6-\u07b0"
    "\u0900-\u0963\u0966-\u0dff\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u0f71-\u0f84"
    "\u0f8d-\u0fbc\u102b-\u103e\u1056-\u1059\u105e-\u1064\u1071-\u1074\u1082-\u108d\u17b4-\u17d3\u200d"
)
WORD = rf"\w[\w{MARKS}]+"  # of two characters or more, as bm25s and scikit-learn cut words without marks
# Soft hyphens, zero-width characters, marks of the direction of writing, selectors; joiners only beside Latin letters
_INVISIBLE = "\u00ad\u034f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff"
_INVISIBLE_CHARACTER = re.compile(rf"[{_INVISIBLE}]|(?<![^\0-\u05ff])[\u200c\u200d]")
# Radicals, ligatures, forms of Arabic letters by their place in a word, wide and narrow letters, letters of formulas
_FORMS = re.compile(
    "[\u2e80-\u2fdf\ufb00-\ufdf9\ufe70-\ufefc\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uffdc\U0001d400-\U0001d7ff]+"
)
_UNSPACED_CHARACTER = re.compile(f"[{UNSPACED}]")
_PAIRED_CHARACTER = re.compile(f"[{_PAIRED}]")
_WIDE_CHARACTER = re.compile("[\u1100-\u11ff\u2e80-\ua4cf\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]")
_RUN_OR_WORD = re.compile(rf"([{_PAIRED}]+)|[^\W{_PAIRED}]+(?:[{MARKS}{_INVISIBLE}]+[^\W{_PAIRED}]*)*")
_WORD_OR_END = re.compile(rf"[^\W_{UNSPACED}]+(?:[{MARKS}]+[^\W_{UNSPACED}]*)*|[{UNSPACED}]|\n")
_BRACKETS = re.compile(r"-[LR][RCS]B-")  # the Penn Treebank's ( ) { } [ ]


def fold_characters(text: str) -> str:
    """Returns the text without invisible characters, with each letter in one form, so that equal texts look equal.

    It is Unicode's NFKC but for signs that mean something else there: 10² is not 102, ！ ends a Chinese sentence.
    """
    if text.isascii():
        return text
    visible = _INVISIBLE_CHARACTER.sub("", text)
    return unicodedata.normalize("NFC", _FORMS.sub(lambda run: unicodedata.normalize("NFKC", run[0]), visible))


def count_chars(text: str) -> int:
    """Returns the length of a text in characters. A Chinese, Japanese or Korean one counts as CJK_CHARS, since it says
    about as much as so many letters."""
    return len(text) if text.isascii() else len(text) + (CJK_CHARS - 1) * len(_WIDE_CHARACTER.findall(text))


def split_words(text: str) -> list[str]:
    """Splits into runs of letters and digits in lower case, characters of scripts without spaces, and line ends."""
    return _WORD_OR_END.findall(unicodedata.normalize("NFKC", fold_characters(text)).lower())


def space_out(text: str) -> str:
    """Puts spaces around each character of a script that has none between words."""
    return text if text.isascii() else _UNSPACED_CHARACTER.sub(r" \g<0> ", text)


def write_bigrams(text: str) -> str:
    """Writes scripts without spaces, and Korean, as overlapping pairs of characters, which BM25 compares like words."""
    if text.isascii() or not _PAIRED_CHARACTER.search(text):
        return text
    return " ".join(text[start:end] for start, end in locate_words(text))


def locate_words(text: str) -> Iterator[tuple[int, int]]:
    """Yields the start and end of each word; of each pair of neighbouring characters where BM25 compares those."""
    for match in _RUN_OR_WORD.finditer(text):
        start, end = match.span()
        if match[1] and end - start > 2:
            yield from ((first, first + 2) for first in range(start, end - 1))
        else:
            yield start, end


def list_words(text: str) -> list[str]:
    """Returns the words of a text in lower case, or its pairs of characters, as BM25 compares them."""
    text = fold_characters(text).lower()
    return [text[start:end] for start, end in locate_words(text)]


def undo_treebank(text: str) -> str:
    """Undoes the Penn Treebank's spelling of brackets and "n't", which some benchmarks use."""
    return _BRACKETS.sub(" ", text).replace(" n't", "n't")


def fold_words(text: str) -> str:
    """Returns the words of a text without case, accents and punctuation; "" if it has none."""
    decomposed = unicodedata.normalize("NFKD", undo_treebank(text))
    return " ".join(split_words("".join(c for c in decomposed if unicodedata.category(c) != "Mn")))
