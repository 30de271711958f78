"""Extracts paragraphs of running text from wiki markup.

Headings, lists, tables, references, galleries, files, categories and templates are dropped. Some templates that stand
for words are replaced by them; a sentence with any other is dropped, and so is a paragraph with a formula.
"""

import html
import re
from typing import TYPE_CHECKING

from data_pipeline.matching import UNSPACED
from data_pipeline.prepare.cleaning import STOPS, TAG, split_sentences
from data_pipeline.prepare.document import Rejected

if TYPE_CHECKING:
    from mwparserfromhell.nodes import Node, Tag, Template
    from mwparserfromhell.wikicode import Wikicode

MAX_MARKUP = 2 << 20  # characters of the longest article that is parsed; MediaWiki stores no more bytes
MAX_DEPTH = 40  # of nested markup that is rendered
MAX_BRACKET_DEPTH, MAX_OPEN_TAGS = 200, 4000  # brackets within brackets; tags, tables, ... that are open at once
_BRACKETS = re.compile(r"(\{\{|\[\[)|\}\}|\]\]")
# Openings whose end the parser searches for each time, so that many unclosed ones take quadratic time
_OPENINGS = (
    re.compile(r"(<(?!br\b|hr\b|li\b|p\b)[A-Za-z])|</|/>"),
    re.compile(r"(\[http)|\]"),
    re.compile(r"(\{\|)|\|\}"),
    re.compile(r"(<!--)|-->"),
)
_BREAK, _FORMULA_MARK, _HOLE = "\n\n", "\ufffc", "\ufff9"
_DROPPED_TAGS = {
    "ref", "references", "table", "gallery", "timeline", "syntaxhighlight", "source", "pre", "score", "imagemap",
    "hiero", "templatedata", "graph", "mapframe", "maplink", "inputbox", "categorytree", "templatestyles", "section",
    "noinclude", "style", "indicator", "wbr", "ce", "img", "map",
}  # fmt: skip
_FORMULAS = {"math", "chem"}
_LISTS = {"li", "dd", "dt"}
_BLOCKS = {"div", "blockquote", "p", "center", "hr", "ul", "ol", "dl", "poem", "tr", "caption"}
_NOT_TEXT = re.compile(  # links to files and categories, and to the same page in other languages
    r"(?:file|image|category|media|datei|bild|kategorie|fichier|catégorie|archivo|imagen|categoría|immagine|categoria"
    r"|ficheiro|imagem|bestand|afbeelding|categorie|plik|grafika|kategoria|файл|изображение|категория|категорія"
    r"|ファイル|画像|カテゴリ|文件|檔案|图像|圖像|分类|分類|파일|그림|분류|ملف|صورة|تصنيف|پرونده|رده|קובץ|קטגוריה|चित्र|श्रेणी|fil|kategori"
    r"|dosya|berkas|soubor|fájl|kép|kategória|tiedosto|luokka|αρχείο|εικόνα|κατηγορία|tập tin|hình|thể loại|template"
    r"|resim|ไฟล์|ภาพ|หมวดหมู่|fitxer|датотека|слика|категорија|datoteka|slika|kategorija|চিত্র|বিষয়শ্রেণী|படிமம்|பகுப்பு"
    r"|فائل|زمرہ|fișier|súbor|pilt|kategooria|vaizdas|պատկեր|կատեգորիա|ფაილი|კატეგორია|fitxategi|portal"
    r"|(?-i:[a-z]{2,3}(?:-[a-z]{2,6})?(?=:[^ ]))):",
    re.I,
)
_LINE = re.compile(r"^[*#:;].*$|^-{4,}|^\|.*$|^!.*$|^\{\|.*$|__[A-Z]+__", re.M)
_SENTENCE_END = re.compile(rf"(?<=\w\w)[.!?][\"'”’)\]]*\s+(?=[\"'“‘(\[]?[^\W\d_a-z])|[{STOPS}][」』”’）]*")
# Chinese and other wikis write a word in all variants of their language: -{zh-hans:计算机;zh-hant:電腦}-
_VARIANTS = re.compile(r"-\{(?!\{)\s*(?:([HDT-])\||[A-Z;]*\||[a-z][a-z;-]*\|)?((?:[^{}]|\{\{[^{}]*\}\})*)\}-")
_VARIANT = re.compile(r"(?:[^;:]*=>\s*)?[a-z]{2,3}(?:-[a-z]+)?\s*:\s*([^;]*)")
_NO_WORD = re.compile(  # holes alone on a line, behind a word, in brackets, between sentences, and before a text
    rf"^[ \t]*(?:{_HOLE}[ \t]*)+$|(?<=[^\s(\[{{\"“„«{STOPS}{_HOLE}{UNSPACED}]){_HOLE}+|(?<=[{STOPS}]){_HOLE}+\s*$"
    rf"|(?<=[(\[])\s*{_HOLE}+\s*(?=[)\],;:])|(?<=[(\[,;:–—-])\s*{_HOLE}+\s*(?=[)\]])"
    rf"|(?<=[.!?…]\s){_HOLE}+(?=\s*(?:$|[^\W\d_a-z{UNSPACED}]))|^{_HOLE}+(?=[^\s{UNSPACED}])",
    re.M,
)
_NOTE = re.compile(
    r"r|rp|refn?|refnest|[se]fnm?p?|harv\w*|cite .*|citation needed|cn|fact|anchors?|要出典|来源请求|來源請求"
)
_EMPTY = re.compile(r"\(\s*(?:(?:[,;:/–—-]|or|and|pronounced|listen)\s*)*\)|\[\s*\]|«\s*»|\"\s*\"")
_SPACES = [
    (re.compile(r"([(\[])[\s,;:]+"), r"\1"),
    (re.compile(r"[\s,;:]+([)\]])"), r"\1"),
    (re.compile(r"\s+([.,;:!?])(?=\s|$|[\"')])"), r"\1"),
    (re.compile(r",(?:\s*,)+"), ","),
    (re.compile(r"[,;]\s*\."), "."),
    (re.compile(r"[ \t\xa0]+"), " "),
]
# For templates that stand for words, the indices of the values that are shown. A sentence with another is dropped.
_FIRST_SHOWN = (
    "nowrap", "nobr", "small", "smaller", "big", "abbr", "sc", "smallcaps", "tooltip", "em", "strong", "noitalic",
    "ill", "nihongo", "visible anchor", "vanchor", "interlanguage link", "ship", "uss", "hms", "not a typo", "sic",
    "text", "mvar", "var", "num", "val", "as of", "sup", "sub", "circa", "c.", "born in", "start date", "gaps",
    "formatnum", "link-en", "仮リンク", "lien", "nombre", "число",
)  # fmt: skip
_SECOND_SHOWN = ("lang", "langx", "transl", "transliteration", "color", "font color", "colored link")
_SHOWN = dict.fromkeys(_FIRST_SHOWN, (0,)) | dict.fromkeys(_SECOND_SHOWN, (1,))
_LITERAL = {
    "ndash": "–", "mdash": "—", "snd": " – ", "spaced ndash": " – ", "spnd": " – ", "spaced en dash": " – ",
    "nbsp": " ", "'": "’", "'s": "’s", "' \"": "' \"", "=": "=", "!": "|", "dash": "–", "en dash": "–", "em dash": "—",
    "crlf": " ", "spaces": " ", "thinsp": " ", "hsp": " ", "ad": "AD", "bc": "BC", "bce": "BCE", "ce": "CE",
}  # fmt: skip
_BETWEEN_NUMBERS = {"x", "×", "by", "to", "-", "–", "and", "or", "+/-", "xx", "to(-)"}
_BEFORE = {"circa": "c. ", "c.": "c. ", "as of": "As of "}


def extract_paragraphs(markup: str) -> list[str]:
    """Extracts the paragraphs of an article. Raises Rejected for markup that is too long or too nested to parse."""
    import mwparserfromhell

    if len(markup) > MAX_MARKUP:
        raise Rejected(f"its markup is longer than {MAX_MARKUP >> 20} MB, which no article is")
    if _is_deeper(_BRACKETS, markup, MAX_BRACKET_DEPTH) or any(_is_deeper(p, markup, MAX_OPEN_TAGS) for p in _OPENINGS):
        raise Rejected("its markup is nested too deeply")  # parsing would take forever
    code = mwparserfromhell.parse(choose_variants(markup), skip_style_tags=True)
    text = _NO_WORD.sub("", _LINE.sub("", _render(code, 0).replace("'''", "").replace("''", "")))
    paragraphs = (_tidy(_drop_incomplete(" ".join(part.split()))) for part in re.split(r"\n\s*\n", text))
    kept = (drop_lead_in(paragraph) for paragraph in paragraphs if _FORMULA_MARK not in paragraph)
    return [paragraph for paragraph in kept if paragraph]


def choose_variants(markup: str) -> str:
    """Replaces words that are written in several variants of a language by the first of them."""

    def choose(match: re.Match[str]) -> str:
        words = match[2].strip("- ")  # a match[1] makes a rule for the rest of the page
        first = _VARIANT.match(words)
        return "" if match[1] else first[1].strip() if first else words

    return _VARIANTS.sub(choose, markup) if "-{" in markup else markup


def _drop_incomplete(paragraph: str) -> str:
    """Drops the sentences in which a template stood for words."""
    for sentence in split_sentences(paragraph) if _HOLE in paragraph else ():
        if _HOLE in sentence:
            paragraph = paragraph.replace(sentence, "", 1)
    return "" if _HOLE in paragraph else paragraph


def drop_lead_in(paragraph: str) -> str:
    """Drops a last sentence that ends with a colon, since the list or quotation that it announces was dropped."""
    if not paragraph.endswith((":", "：")):
        return paragraph
    ends = [match.end() for match in _SENTENCE_END.finditer(paragraph)]
    return paragraph[: ends[-1]].rstrip() if ends else ""


def _is_deeper(pattern: re.Pattern[str], markup: str, max_depth: int) -> bool:
    """Tells whether more than ``max_depth`` openings, the pattern's group 1, are ever open at once."""
    depth = 0
    for match in pattern.finditer(markup):
        depth = max(0, depth + (1 if match[1] else -1))
        if depth > max_depth:
            return True
    return False


def _tidy(paragraph: str) -> str:
    """Repairs what the removal of markup left, such as empty brackets and spaces before commas."""
    text = _EMPTY.sub("", html.unescape(paragraph))
    for pattern, replacement in _SPACES:
        text = pattern.sub(replacement, text)
    return text.strip()


def _render(code: "Wikicode", depth: int) -> str:
    """Renders nodes as text, without list items, which end at the line end."""
    from mwparserfromhell import nodes

    parts: list[str] = []
    in_list = False
    for node in code.nodes if depth < MAX_DEPTH else ():
        if isinstance(node, nodes.Text):
            text = TAG.sub(" ", str(node.value))  # the parser leaves tags without their end
            if in_list:
                _, line_end, text = text.partition("\n")
                in_list = not line_end
                text = line_end + text
        elif isinstance(node, nodes.Tag):
            tag = str(node.tag).strip().casefold()
            in_list = in_list or (tag in _LISTS and node.wiki_markup is not None)
            text = "" if in_list else _render_tag(node, tag, depth)
        elif in_list:
            text = ""
        else:
            text = _render_other(node, depth)
        parts.append(text)
    return "".join(parts)


def _render_tag(node: "Tag", tag: str, depth: int) -> str:
    if tag in _DROPPED_TAGS or tag in _LISTS:
        return _BREAK if tag in {"table", "gallery", *_LISTS} else ""
    if tag in _FORMULAS:
        return _FORMULA_MARK
    if tag == "br":
        return " "
    inside = _render(node.contents, depth + 1) if node.contents is not None else ""
    return f"{_BREAK}{inside}{_BREAK}" if tag in _BLOCKS else inside


def _render_other(node: "Node", depth: int) -> str:
    from mwparserfromhell import nodes

    if isinstance(node, nodes.Heading):
        return _BREAK
    if isinstance(node, nodes.HTMLEntity):
        return node.normalize()
    if isinstance(node, nodes.Wikilink):
        target = str(node.title).strip()
        text = _render(node.text, depth + 1) if node.text is not None else target.lstrip(":").replace("_", " ")
        return "" if _NOT_TEXT.match(target) else text
    if isinstance(node, nodes.ExternalLink):
        return _render(node.title, depth + 1) if node.title is not None else ""
    if isinstance(node, nodes.Template):
        return _render_template(node, depth)
    return ""  # comments, and arguments of templates


def _render_template(node: "Template", depth: int) -> str:
    name, colon, argument = str(node.name).partition(":")
    name = " ".join(name.replace("_", " ").split()).casefold()
    if name in _LITERAL:
        return _LITERAL[name]
    if name in ("math", "chem", "chem2") or name.startswith("frac"):
        return _FORMULA_MARK
    shown: tuple[int, ...] = _SHOWN.get(name, (0,) if name.startswith("lang-") else ())
    if colon:
        return argument.strip() if name in _SHOWN and "{" not in argument else _HOLE
    values = [p.value for p in node.params if not p.showkey]
    if name in ("convert", "cvt"):
        shown = tuple(range(_count_measures(values)))
    words = [_render(values[k], depth + 1).strip() for k in shown if k < len(values)]
    if not any(words):
        return "" if shown or _NOTE.fullmatch(name) else _HOLE
    return _BEFORE.get(name, "") + " ".join(words)


def _count_measures(values: "list[Wikicode]") -> int:
    """Counts the first values of {{convert}} that are the quantity to convert: ``5|km``, ``2|x|3|m``."""
    count = 2
    while count < len(values) and str(values[count - 1]).strip() in _BETWEEN_NUMBERS:
        count += 2
    return count
