"""Forums: questions with their answers, whatever stands between them; counts equal to an XML parser's."""

import lzma
import os
import tarfile
from collections import Counter
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import pytest

from data_pipeline.prepare.cleaning import Rules, Tally, clean
from data_pipeline.prepare.readers import find_input_files, forums, parse_record, read_records, reader
from data_pipeline.prepare.readers.forums import extract_paragraphs

FORUMS = {  # questions, answers, accepted
    "beer": (663, 1572, 410),
    "conlang.meta": (54, 115, 11),
    "french.meta": (274, 487, 86),
    "history.meta": (556, 1095, 181),
    "matheducators": (397, 1507, 189),
    "quantumcomputing": (612, 1060, 389),
}


def row(**fields):
    return "  <row " + " ".join(f"{name}={quoteattr(str(value))}" for name, value in fields.items()) + " />\n"


def question(number, body="<p>Why?</p>", **fields):
    return row(Id=number, PostTypeId=1, Body=body, Title=f"Title {number}?", **fields)


def answer(number, parent, body="<p>So.</p>"):
    return row(Id=number, PostTypeId=2, ParentId=parent, Body=body)


def forum(folder, *rows, links=None, suffix="", pack=lambda content: content):
    folder.mkdir(parents=True, exist_ok=True)
    content = '\ufeff<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "".join(rows) + "</posts>"
    (folder / f"Posts.xml{suffix}").write_bytes(pack(content.encode()))
    if links is not None:
        text = "<postlinks>\n" + "".join(row(PostId=a, RelatedPostId=b, LinkTypeId=k) for a, b, k in links)
        (folder / f"PostLinks.xml{suffix}").write_bytes(pack((text + "</postlinks>").encode()))
    return folder / f"Posts.xml{suffix}"


@pytest.mark.parametrize(("suffix", "pack"), [("", lambda content: content), (".xz", lzma.compress)])
def test_a_question_comes_with_its_answers_and_links(tmp_path, read, suffix, pack):
    path = forum(
        tmp_path / "cats.example",
        answer(3, 1, "<p>Before it.</p>"),
        answer(6, 55),
        question(1, "<p>Why <code>x</code>?</p><pre><code>secret()</code></pre>", AcceptedAnswerId=5),
        question(2, ""),
        answer(5, 1, "<pre><code>secret()</code></pre>"),
        answer(4, 1, "<p>One.</p><p>Two.</p>"),
        row(Id=9, PostTypeId=5, Body="A tag."),
        links=[(1, 2, 3), (2, 1, 1), (1, 77, 3), (88, 1, 3)],
        suffix=suffix,
        pack=pack,
    )
    documents, rejected, omitted = read(path)
    assert not rejected
    assert Counter(omitted) == {
        "a post that is neither question nor answer": 1,
        "a link of a question that is not in the file": 1,
        "an answer whose question is not in the file": 1,
    }
    first, second = documents
    assert (first.id, first.title, first.source) == ("cats.example:1", "Title 1?", "cats.example")
    assert first.paragraphs == ["Why x?"]
    assert first.answers == ["Before it.", "One.\nTwo.", ""]
    assert first.accepted == 2
    assert first.links == ["cats.example:2", "cats.example:77"]
    assert first.group == second.group == "cats.example:2"
    assert (second.paragraphs, second.answers, second.accepted, second.links) == (["Title 2?"], [], None, [])
    assert all(d.title_is_text and d.is_post for d in documents)


def test_the_notice_of_a_duplicate_does_not_give_the_original_away(tmp_path, read):
    """Old dumps hold it, and other quotations stay."""
    link = '<a href="https://x.example/questions/2/y">Title 2?</a>'
    notice = f"<blockquote>\n  <p><strong>Possible Duplicate:</strong><br>\n  {link}  </p>\n</blockquote>\n\n"
    second = "<blockquote><p>Possible Duplicate: a song</p></blockquote>"
    path = forum(tmp_path / "f", question(1, f"{notice}<p>Why?</p>"), question(2, f"{second}<p>Who?</p>"))
    documents, _, _ = read(path)
    assert [d.paragraphs for d in documents] == [["Why?"], ["Possible Duplicate: a song", "Who?"]]


def test_the_dump_of_a_forum_is_read_out_of_its_archive(tmp_path, read):
    """As they are published: a 7z with the files of a forum."""
    py7zr = pytest.importorskip("py7zr")
    forum(tmp_path / "in", question(1, AcceptedAnswerId=2), answer(2, 1), links=[(1, 5, 3)])
    (tmp_path / "in/Users.xml").write_text("<users></users>")
    archive = tmp_path / "cats.example.7z"
    with py7zr.SevenZipFile(archive, "w") as packed:
        for name in ("Posts.xml", "PostLinks.xml", "Users.xml"):
            packed.write(tmp_path / "in" / name, name)
    (document,), rejected, _ = read(archive)
    assert not rejected
    assert (document.id, document.accepted, document.links) == ("cats.example:1", 0, ["cats.example:5"])
    (with_code,), rejected, _ = read(archive, keep_code=True)
    assert not rejected
    assert (with_code.id, with_code.links) == (document.id, document.links)
    with tarfile.open(tmp_path / "cats.example.tar", "w") as packed:
        packed.add(tmp_path / "in", "cats.example")
    assert [d.links for d in read(tmp_path / "cats.example.tar")[0]] == [document.links]


def test_a_forum_has_one_name_however_its_dump_is_named(tmp_path, monkeypatch):
    """Ids begin with it, and decide what is held out."""
    (tmp_path / "beer").mkdir()
    monkeypatch.chdir(tmp_path / "beer")
    same = ["Posts.xml.xz", "../beer/Posts.xml", "stackexchange:beer/Posts.xml", "x.zip::a/beer/Posts.xml"]
    same += ["beer.stackexchange.com.7z::Posts.xml"]
    assert {forums.name_forum(file) for file in same} == {"beer"}
    assert forums.name_forum("history.meta.stackexchange.com.7z::Posts.xml") == "history.meta"
    assert forums.name_forum("stackoverflow.com-Posts.7z::Posts.xml") == "stackoverflow.com-Posts"


@pytest.mark.parametrize("folders", [("beer", "cats"), ("beer/dump", "cats/dump")])
def test_forums_are_sources_of_their_own_whatever_their_folders_are_called(tmp_path, folders):
    """A link leads within its source."""
    for folder in folders:
        forum(tmp_path / folder, question(1))
    files = find_input_files([str(tmp_path)]).files
    records = [record for file in files for record in read_records(file.name, None, file.called)]
    documents = [document for record in records for document in parse_record(record)]
    assert [d.source for d in documents] == list(folders)
    assert [d.id for d in documents] == [f"{folder.rpartition('/')[2]}:1" for folder in folders]


def test_a_large_file_is_put_in_order_in_groups(tmp_path, monkeypatch, read):
    rows = [question(k) for k in range(1, 200)] + [answer(1000 + k, k) for k in range(199, 0, -1)]
    path = forum(tmp_path / "f", *rows)
    whole = read(path)[0]
    monkeypatch.setattr(forums, "BUCKET_BYTES", 2000)
    before = len(os.listdir("/proc/self/fd"))
    grouped = read(path)[0]
    assert sorted(grouped, key=lambda d: d.id) == sorted(whole, key=lambda d: d.id)
    assert len(grouped) == 199
    assert all(len(d.answers) == 1 for d in grouped)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_broken_row_costs_its_question(tmp_path, monkeypatch, read):
    monkeypatch.setattr(reader, "MAX_RECORD_BYTES", 5000)
    rows = [question(1).replace("/>", ">"), question(2), question(3, "x" * 6000), row(PostTypeId=1)]
    documents, rejected, _ = read(forum(tmp_path / "f", *rows))
    assert [d.id for d in documents] == ["f:2"]
    assert len(rejected) == 3


@pytest.mark.parametrize(
    "bad", ["&#x0E;", "&#x8;", "&#14;", "&#xFFFE;", "&#xD83D;&#xDE00;", "&#55357;", "\x0b", "\x00"]
)
def test_a_character_that_xml_forbids_costs_itself(tmp_path, read, bad):
    rows = [question(1, AcceptedAnswerId=2), answer(2, 1, "<p>So@it &#60; is.</p>").replace("@", bad)]
    (document,), rejected, _ = read(forum(tmp_path / "f", *rows))
    assert (document.answers, document.accepted, rejected) == (["So it < is."], 0, [])


DAMAGED = {
    "cut": ("Posts.xml.xz", lambda content: lzma.compress(lzma.decompress(content).partition(b"</posts>")[0])),
    "two": ("Posts.xml.xz", lambda content: lzma.compress(lzma.decompress(content) * 2)),
    "links": ("PostLinks.xml.xz", lambda content: content[:-20]),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_file_that_is_damaged_or_holds_two_forums_says_so(tmp_path, read, case):
    """Control characters, which real dumps hold, are read."""
    asked = question(1, "a@b").replace("@", "&#x1F;")
    path = forum(tmp_path / "f", asked, links=[(1, 2, 3)], suffix=".xz", pack=lzma.compress)
    name, damage = DAMAGED[case]
    path.with_name(name).write_bytes(damage(path.with_name(name).read_bytes()))
    (document,), (reason,), _ = read(path)
    assert (document.id, document.paragraphs) == ("f:1", ["a b"])
    assert "cannot read on" in reason
    assert ("PostLinks.xml.xz" in reason) == (case == "links")


@pytest.mark.parametrize(
    ("html", "paragraphs"),
    [
        ("<p>One.</p>\n<p>Two <b>bold</b> words.</p>", ["One.", "Two bold words."]),
        ("<h1>Heading</h1><p>Text.</p>", ["Text."]),
        ("<ul><li>One.</li><li>Two.</li></ul>after", ["One.", "Two.", "after"]),
        ("<blockquote><p>Quoted.</p></blockquote><p>Not.</p>", ["Quoted.", "Not."]),
        ('<p>See <a href="x">here</a><br>now <img src="y">.</p>', ["See here now ."]),
        ("a &lt;b&gt; c &amp; d", ["a <b> c & d"]),
        ("<table><tr><td>1</td></tr></table><p>Text.</p><!-- no --><hr>", ["Text."]),
        *[("<p>Unclosed<p>tags <b>everywhere", ["Unclosed", "tags everywhere"]), ("", []), (" \n ", [])],
        ("<div>" * 400 + "deep" + "</div>" * 400, ["deep"]),
    ],
)
def test_the_html_of_a_post_becomes_paragraphs(html, paragraphs):
    assert extract_paragraphs(html, keep_code=False) == paragraphs


@pytest.mark.parametrize("name", FORUMS)
def test_a_real_forum_is_read_in_full(shared, read, name):
    folder = shared / "data/stackexchange" / name
    documents, rejected, omitted = read(folder / "Posts.xml.xz")
    with lzma.open(folder / "Posts.xml.xz") as file:
        rows = [dict(element.attrib) for _, element in ElementTree.iterparse(file) if element.tag == "row"]
    questions = {r["Id"]: r for r in rows if r["PostTypeId"] == "1"}
    answers = {r["Id"] for r in rows if r["PostTypeId"] == "2" and r["ParentId"] in questions}
    accepted = [r for r in questions.values() if r.get("AcceptedAnswerId") in answers]
    assert (len(questions), len(answers), len(accepted)) == FORUMS[name]
    assert {d.id for d in documents} == {f"{name}:{number}" for number in questions}
    assert len(documents) == len(questions)
    assert sum(len(d.answers) for d in documents) == len(answers)
    assert sum(d.accepted is not None for d in documents) == len(accepted)
    duplicates = []
    if (folder / "PostLinks.xml.xz").exists():
        with lzma.open(folder / "PostLinks.xml.xz") as file:
            links = [e.attrib for _, e in ElementTree.iterparse(file) if e.get("LinkTypeId") == "3"]
        duplicates = [f"{name}:{e['PostId']}>{name}:{e['RelatedPostId']}" for e in links]
    result = [f"{d.id}>{link}" for d in documents for link in d.links]
    assert sorted(result) == sorted(d for d in duplicates if d.partition(">")[0].partition(":")[2] in questions)
    assert omitted.count("a link of a question that is not in the file") == len(duplicates) - len(result)
    assert len(rejected) == 0
    tally = Tally()
    assert all(clean(document, Rules(), tally) for document in documents)
    assert tally.counts["paragraphs too short"] == 0
