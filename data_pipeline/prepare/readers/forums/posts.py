"""The HTML of a forum's posts to paragraphs of text."""

from ..web.html import collect_paragraphs

_BLOCKS = {"p", "li", "blockquote", "div", "ul", "ol", "hr", "pre", "dd", "dt", "td", "th"}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_DROPPED = {"table", "script", "style", "iframe"} | _HEADINGS


def extract_paragraphs(html: str, keep_code: bool) -> list[str]:
    """Extract the paragraphs of a post. Headings and tables go; code within a sentence stays.

    keep_code: whether blocks of code are kept, each as a paragraph
    """
    from lxml.html import HTMLParser, document_fromstring

    if not html.strip():
        return []
    body = document_fromstring(f"<div>{html}</div>".encode(), parser=HTMLParser(encoding="utf-8", huge_tree=True))
    return collect_paragraphs(body, _BLOCKS, _DROPPED if keep_code else _DROPPED | {"pre"}, "br")
