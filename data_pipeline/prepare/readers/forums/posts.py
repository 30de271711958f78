"""The HTML of a forum's posts to paragraphs of text."""

_BLOCKS = {"p", "li", "blockquote", "div", "ul", "ol", "hr", "pre", "dd", "dt", "td", "th"}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_DROPPED = {"table", "script", "style", "iframe"} | _HEADINGS


def extract_paragraphs(html: str, keep_code: bool) -> list[str]:
    """Extract the paragraphs of a post. Headings and tables go; code within a sentence stays.

    keep_code: whether blocks of code are kept, each as a paragraph
    """
    from lxml import etree
    from lxml.html import HTMLParser, document_fromstring

    dropped_tags = _DROPPED if keep_code else _DROPPED | {"pre"}
    if not html.strip():
        return []
    body = document_fromstring(f"<div>{html}</div>".encode(), parser=HTMLParser(encoding="utf-8", huge_tree=True))
    paragraphs: list[list[str]] = [[]]
    dropped = 0
    for event, element in etree.iterwalk(body, events=("start", "end", "comment", "pi")):
        is_block = element.tag in _BLOCKS or element.tag in dropped_tags
        if is_block:
            paragraphs.append([])
        if event == "start":
            dropped += element.tag in dropped_tags
            if element.tag == "br":
                paragraphs[-1].append(" ")
            if not dropped and element.text:
                paragraphs[-1].append(element.text)
            continue
        if event == "end":
            dropped -= element.tag in dropped_tags
        if not dropped and element.tail:
            paragraphs[-1].append(element.tail)
    return [text for text in (" ".join("".join(parts).split()) for parts in paragraphs) if text]
