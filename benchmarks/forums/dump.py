"""A made network of forums: dumps in StackExchange's format, of any number and size, from a few real ones.

No dump of 140 forums is at hand where these benchmarks run. Titles and paragraphs are taken from real dumps, cut at a
random word and joined with others, so that hardly two posts are alike while words, lengths and markup are real. What
comes out means nothing: it is for memory, files and time, and not for quality."""

import lzma
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from data_pipeline.errors import KinspanError
from data_pipeline.prepare.readers.forums.posts import extract_paragraphs
from pretrain.planning.forums import BALANCED, LARGEST, OF_BENCHMARKS

BLOCKS = re.compile(r"<(pre|ul|ol|blockquote)>.*?</\1>", re.S)
HAS_ANSWERS, ACCEPTED = 0.6, 0.6  # shares of questions that have answers, and of those that have accepted one
DUPLICATES, RELATED = 0.03, 0.1  # shares of questions that link to an earlier one
MOST_PENDING = 20  # posts between a question and its answers


@dataclass(frozen=True)
class Material:
    """What posts are made of.

    paragraphs: plain text
    blocks:     code, lists and quotations, as HTML
    """

    titles: list[str]
    paragraphs: list[str]
    blocks: list[str]


def read_material(folder: Path) -> Material:
    """Titles and paragraphs of the dumps in a folder's folders: Posts.xml or Posts.xml.xz in each.

    Raises KinspanError where there is none.
    """
    found = Material([], [], [])
    for path in sorted(folder.glob("*/Posts.xml*")):
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            for _, row in ElementTree.iterparse(file):
                body = row.get("Body", "")
                found.titles.extend(filter(None, [row.get("Title")]))
                found.paragraphs.extend(text for text in extract_paragraphs(body, keep_code=False) if len(text) > 60)
                found.blocks.extend(match[0] for match in BLOCKS.finditer(body) if len(match[0]) < 2000)
                row.clear()
    if not found.titles:
        raise KinspanError(f"--dumps {folder} holds no folder with a Posts.xml of questions")
    return found


def plan_forums(count: int, smallest: int, largest: int) -> dict[str, int]:
    """Names and numbers of questions, the largest first: equal steps on a logarithmic scale.

    The forums of the paper's sets and of its benchmarks come first, so that those sets can be trained on.
    """
    known = list(dict.fromkeys((*LARGEST, *BALANCED, *OF_BENCHMARKS)))
    names = known + [f"made-{number:03}" for number in range(1, count - len(known) + 1)]
    ratio = (smallest / largest) ** (1 / max(1, count - 1))
    return {name: round(largest * ratio**place) for place, name in enumerate(names[:count])}


def write_dump(folder: Path, forums: dict[str, int], material: Material, seed: int) -> Iterator[str]:
    """Writes a folder ``NAME.stackexchange.com`` for each forum, and yields its name when it is written."""
    for number, (name, size) in enumerate(forums.items()):
        place = folder / f"{name}.stackexchange.com"
        place.mkdir(parents=True, exist_ok=True)
        _write_forum(place, size, material, random.Random(f"{seed}/{number}"))
        yield name


def _write_forum(folder: Path, size: int, material: Material, draw: random.Random) -> None:
    """Posts.xml, in which answers stand somewhere below their question, and PostLinks.xml."""
    number, questions, pending = 0, [], []
    with (folder / "Posts.xml").open("w", encoding="utf-8") as posts:
        posts.write('<?xml version="1.0" encoding="utf-8"?>\n<posts>\n')
        while len(questions) < size or pending:
            if pending and (len(pending) > MOST_PENDING or len(questions) == size or draw.random() < 0.5):
                answer, parent = pending.pop(draw.randrange(len(pending)))
                posts.write(_format_row(answer, "2", {"ParentId": parent, "Body": _make_body(material, draw)}))
                continue
            number += 1
            count = draw.randint(1, 3) if draw.random() < HAS_ANSWERS else 0
            answers = range(number + 1, number + 1 + count)
            more = {"Title": _join(draw.choice(material.titles), draw.choice(material.titles), draw)}
            if count and draw.random() < ACCEPTED:
                more["AcceptedAnswerId"] = str(draw.choice(answers))
            posts.write(_format_row(number, "1", {"Body": _make_body(material, draw), **more}))
            questions.append(number)
            pending += [(answer, str(number)) for answer in answers]
            number += count
        posts.write("</posts>\n")
    _write_links(folder / "PostLinks.xml", questions, draw)


def _write_links(path: Path, questions: list[int], draw: random.Random) -> None:
    """Links from questions to earlier ones, at least two of duplicates (type 3) among them; the others are related."""
    later = questions[1:]
    duplicates = set(draw.sample(later, min(len(later), max(2, round(DUPLICATES * len(questions))))))
    with path.open("w", encoding="utf-8") as links:
        links.write('<?xml version="1.0" encoding="utf-8"?>\n<postlinks>\n')
        for place, question in enumerate(later):
            if question in duplicates or draw.random() < RELATED:
                kind, to = "3" if question in duplicates else "1", questions[draw.randint(0, place)]
                more = f'PostId="{question}" RelatedPostId="{to}" LinkTypeId="{kind}"'
                links.write(f'  <row Id="{place + 1}" CreationDate="2019-03-01T00:00:00.000" {more} />\n')
        links.write("</postlinks>\n")


def _make_body(material: Material, draw: random.Random) -> str:
    """One to three paragraphs, and now and then a block between them, as HTML."""
    pick = material.paragraphs
    html = [f"<p>{escape(_join(draw.choice(pick), draw.choice(pick), draw))}</p>" for _ in range(draw.randint(1, 3))]
    if material.blocks and draw.random() < 0.1:
        html.insert(1, draw.choice(material.blocks))
    return "\n\n".join(html) + "\n"


def _join(one: str, other: str, draw: random.Random) -> str:
    """The beginning of one text and the end of another, at most a hundred words of each."""
    words, others = one.split()[:100], other.split()[-100:]
    return " ".join(words[: draw.randint(1, len(words))] + others[-draw.randint(1, len(others)) :])


def _format_row(number: int, kind: str, more: dict[str, str]) -> str:
    fields = {"Id": str(number), "PostTypeId": kind, "CreationDate": "2019-03-01T00:00:00.000", "Score": "1", **more}
    quoted = {'"': "&quot;", "\n": "&#xA;", "\r": "&#xD;"}
    return "  <row " + " ".join(f'{name}="{escape(text, quoted)}"' for name, text in fields.items()) + " />\n"
