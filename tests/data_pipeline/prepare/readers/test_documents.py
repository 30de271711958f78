"""Markdown, Word, PDF, tables, books and Hugging Face data sets."""

import csv
import gzip
import io
import json
import textwrap
import zipfile

import datasets
import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.readers import find_input_files, find_parts
from data_pipeline.prepare.readers.text import PARAGRAPH_SENTENCES, join_lines
from tests.synthetic import write_file

FIRST = "The reader goes through the file once, and keeps what it finds in memory."
SECOND = "A second pass is not needed when the index is complete, which it mostly is."


# Markdown -----------------------------------------------------------------------------------------------------------


NO_PROSE = {
    "a.md": [
        *["## Secret", "Secret\n------", "```python\nsecret\n```", "    secret = 1", "<div>secret</div>"],
        *["| secret | secret |\n|---|---|\n| secret | secret |", "![secret](secret.png)", "<!-- secret -->"],
        "[secret]: https://secret.example",
    ],
    "a.rst": [
        *["Secret\n------", ">>> secret", ".. [1] secret", ".. image:: secret.png", ".. include:: /etc/passwd"],
        *[".. code-block:: python\n\n   secret = 1", ".. module:: secret\n   :synopsis: secret", ":Author: secret"],
        *["+------+------+\n|secret|secret|\n+------+------+", ".. toctree::\n\n   secret"],
    ],
}
TITLES = {"a.md": "# Title", "a.rst": "=====\nTitle\n====="}


@pytest.mark.parametrize(("name", "block"), [(name, block) for name, blocks in NO_PROSE.items() for block in blocks])
def test_what_is_no_prose_in_marked_up_text_goes(tmp_path, read, name, block):
    (document,), _, _ = read(write_file(tmp_path / name, f"{TITLES[name]}\n\n{FIRST}\n\n{block}\n\n{SECOND}\n"))
    assert document.title == "Title"
    assert document.paragraphs == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("text", "paragraphs"),
    [
        ("See :func:`~os.path.join`, :ref:`a link <secret>` and ``code``.", ["See os.path.join, a link and code."]),
        ("Some |sub| text.\n\n.. |sub| replace:: substituted", ["Some substituted text."]),
        (".. function:: secret(a)\n   :module: secret\n\n   Joins paths.\n\n   :param a: secret", ["Joins paths."]),
        (".. versionadded:: 3.2\n   It was added.", ["It was added."]),
        (".. note:: A note that begins at once.\n\n   And goes on.", ["A note that begins at once.", "And goes on."]),
        ("* One item.\n* Two items::\n\n      secret", ["One item.", "Two items:"]),
        ("* .. deprecated:: 3.0\n     In a list.", ["In a list."]),
        ("secret\n   A definition of it.", ["A definition of it."]),
        (".. unknown-thing:: secret\n   :option: secret\n\n   Its content.", ["Its content."]),
        ("No heading. `Broken <", ["No heading. `Broken <"]),
    ],
)
def test_the_prose_of_restructured_text(tmp_path, read, text, paragraphs):
    (document,), _, _ = read(write_file(tmp_path / "plain.rst.gz", gzip.compress(text.encode())))
    assert (document.title, [" ".join(p.split()) for p in document.paragraphs]) == ("plain.rst", paragraphs)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", f"# Title\n\n{FIRST}\n\n```\ncode = 1\n```\n\n{SECOND}\n\n    code = 2\n"),
        ("a.rst", f"Title\n=====\n\n{FIRST}\n\n.. code-block:: c\n\n   code = 1\n\n{SECOND}::\n\n   code = 2\n"),
        (
            "a.html",
            f"<p>{FIRST * 3}</p>" + "".join(f"<pre><code>code = {k};\n</code></pre><p>{SECOND}</p>" for k in "12"),
        ),
    ],
)
def test_blocks_of_code_are_kept_or_left_out_and_counted(tmp_path, read, name, text):
    path = write_file(tmp_path / name, text)
    for keep_code, count in ((False, 0), (True, 2)):
        (document,), _, _ = read(path, keep_code=keep_code)
        assert sum(" code = " in p for p in document.paragraphs) == count
        assert document.code_blocks == 2


def test_code_in_a_sentence_of_a_page_is_part_of_it(tmp_path, read):
    page = f"<p>{FIRST}</p><p>{SECOND}</p><p>Use the <code>foo</code> command with its options for that.</p>"
    (document,), _, _ = read(write_file(tmp_path / "a.html", page))
    assert document.paragraphs[-1] == "Use the foo command with its options for that."


def test_markup_within_markdown_is_taken_off(tmp_path, read):
    text = "---\ntitle: x\n---\nA *b* **c** `d` [e](f)\nand [g] &amp; <https://h.example>.\n\n"
    text += "- One.\n- 東京\n都。\n\n> Quoted.<br>Again.\n\n!!! note\n    A note.\n"
    (document,), _, _ = read(write_file(tmp_path / "notes.md", text))
    assert document.paragraphs[:4] == ["A b c d e and [g] & https://h.example.", "One.", "東京都。", "Quoted. Again."]
    assert document.paragraphs[4:] == ["note", "A note."]
    (second,), _, _ = read(write_file(tmp_path / "hugo.md", f"{text.replace('---', '+++')}\n### Low\n## High\n## Next"))
    assert (second.paragraphs, second.title, document.title) == (document.paragraphs, "High", "notes")


def test_the_pages_of_a_book_and_the_slides_of_a_talk(tmp_path, read):
    page = "<html><body><p>" + f"{FIRST} {SECOND} " * 4 + "</p></body></html>"
    with zipfile.ZipFile(tmp_path / "a.epub", "w") as archive:
        for name in ("mimetype", "META-INF/container.xml", "a.opf", "a.css"):
            archive.writestr(name, "<x/>")
        archive.writestr("one.xhtml", page)
    documents, rejected, _ = read(tmp_path / "a.epub")
    assert FIRST in documents[0].paragraphs[0]
    assert not rejected
    shape = '<x xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><a:p><a:r><a:t>{}</a:t></a:r></a:p></x>'
    with zipfile.ZipFile(tmp_path / "a.pptx", "w") as archive:
        for number, text in ((10, SECOND), (2, FIRST)):
            broken = text.replace(" ", "</a:t></a:r><a:br/><a:r><a:t>", 1)
            archive.writestr(f"ppt/slides/slide{number}.xml", shape.format(broken))
    (document,), _, _ = read(tmp_path / "a.pptx")
    assert document.paragraphs == [text.replace(" ", "\n", 1) for text in (FIRST, SECOND)]


@pytest.mark.parametrize("content", ['[{"text": "One."}, {"text": "Two."}, 3]', '{"text": "One."}'])
def test_json_of_a_list_or_of_one_object(tmp_path, read, content):
    documents, rejected, _ = read(write_file(tmp_path / "a.json", content))
    assert [d.paragraphs for d in documents] == [["One."], ["Two."]][: content.count("text")]
    assert len(rejected) == content.count("3")


# Word and PDF -------------------------------------------------------------------------------------------------------


def test_fields_and_tracked_changes_of_a_word_file_are_part_of_its_sentences(tmp_path, read):
    docx = pytest.importorskip("docx")
    from docx.oxml import parse_xml
    from docx.oxml.ns import nsdecls

    made = docx.Document()
    made.add_heading("Heading", 1)
    made.add_table(1, 1).cell(0, 0).text = "secret"
    made.add_paragraph(SECOND, style="List Bullet")
    paragraph = made.add_paragraph("See")
    for xml in (
        "<w:fldSimple {} w:instr='REF x'><w:r><w:t> table 3</w:t></w:r></w:fldSimple>",
        "<w:ins {} w:id='1' w:author='a'><w:r><w:t> on page 7</w:t></w:r></w:ins>",
        "<w:del {} w:id='2' w:author='a'><w:r><w:delText> or not</w:delText></w:r></w:del>",
        "<w:sdt {}><w:sdtContent><w:r><w:t>, Ann.</w:t></w:r></w:sdtContent></w:sdt>",
        "<w:ruby {}><w:rt><w:r><w:t>ねこ</w:t></w:r></w:rt><w:rubyBase><w:r><w:t>猫</w:t></w:r></w:rubyBase></w:ruby>",
    ):
        paragraph._p.append(parse_xml(xml.format(nsdecls("w"))))
    block = f"<w:sdt {nsdecls('w')}><w:sdtContent><w:p><w:r><w:t>{FIRST}</w:t></w:r></w:p></w:sdtContent></w:sdt>"
    made.element.body.insert(0, parse_xml(block))
    made.save(tmp_path / "a.docx")
    (document,), _, _ = read(tmp_path / "a.docx")
    assert (document.title, document.paragraphs) == ("Heading", [FIRST, SECOND, "See table 3 on page 7, Ann.猫"])
    assert document.headings == ["", "Heading", "Heading"]


def make_pdf(lines):
    """A PDF of one page, written by hand."""
    shown = "".join(f"({line}) Tj 0 -14 Td\n" for line in lines)
    stream = f"BT /F1 12 Tf 50 700 Td\n{shown}ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    content, places = b"%PDF-1.4\n", []
    for number, item in enumerate(objects, 1):
        places.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, item)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer << /Root 1 0 R /Size 6 >>\nstartxref\n%d\n%%%%EOF" % len(content)
    return content + b"xref\n0 6\n0000000000 65535 f \n" + table + end


def test_the_lines_of_a_pdf_become_paragraphs(tmp_path, read):
    lines = ["The reader goes through the file once, and re-", "members what it finds.", "A second pass is not"]
    (document,), rejected, _ = read(write_file(tmp_path / "a.pdf", make_pdf(lines)))
    assert not rejected
    assert document.paragraphs == ["The reader goes through the file once, and remembers what it finds.", lines[2]]


def test_lines_of_a_text_without_blank_lines_are_joined_if_they_are_full(tmp_path, read):
    wrapped = textwrap.fill(f"{FIRST} {SECOND} " * 5, 60)
    hung = "Versicherte der Kranken-\nund Pflege-\nkasse."
    assert join_lines(hung.split("\n")) == ["Versicherte der Kranken- und Pflegekasse."]
    for text, paragraphs in ((wrapped, [" ".join(wrapped.split())]), (f"{FIRST}\n{SECOND}", [FIRST, SECOND])):
        (document,), _, _ = read(write_file(tmp_path / "a.txt", text))
        assert document.paragraphs == paragraphs


# Tables -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_rows_of_delimited_files_are_documents(tmp_path, read, suffix, delimiter):
    held = io.StringIO()
    writer = csv.writer(held, delimiter=delimiter)
    writer.writerows([["id", "extra", "text"], ["1", "x", f"{FIRST}\n\n{SECOND}"], ["2", "y", f'"{FIRST}", he said.']])
    documents, rejected, _ = read(write_file(tmp_path / f"a{suffix}", "\ufeff" + held.getvalue()))
    assert not rejected
    assert [(d.id, d.paragraphs) for d in documents] == [("1", [FIRST, SECOND]), ("2", [f'"{FIRST}", he said.'])]
    (alone,), _, _ = read(write_file(tmp_path / f"b{suffix}", "text\nOne; two.\n"))
    assert alone.paragraphs == ["One; two."]


def test_rows_between_two_quotation_marks_of_a_table_without_quoting_are_not_one_document(tmp_path, read):
    rows = ["id\ttext", "1\tOne.", '2\t"Two, he said.', "3\tThree.", "4\tFour.", '5\tFive."', "6\tSix."]
    documents, (reason,), _ = read(write_file(tmp_path / "a.tsv", "\r\n".join(rows)))
    assert [d.id for d in documents] == ["1", "6"]
    assert reason.startswith("4 rows were read as one")
    documents, rejected, _ = read(write_file(tmp_path / "b.tsv", 'id\ttext\n1\t"A line,\nand a\ttab\nin it."\n'))
    assert (len(documents), rejected) == (1, [])
    documents, (reason,), _ = read(write_file(tmp_path / "c.tsv", 'id\ttext\n1\tOne.\n2\t"Two", he said.\n'))
    assert len(documents) == 1
    assert "line 3: its quotation marks do not pair up" in reason


def test_broken_rows_are_rejected_one_by_one(tmp_path, read):
    content = b"text,id\nOne,1\n\nToo,many,columns\nCaf\xe9,3\nLast,4\n\n"
    documents, rejected, _ = read(write_file(tmp_path / "a.csv", content))
    assert [d.id for d in documents] == ["1", "4"]
    assert rejected == ["the row has 3 columns, and the first row 2", "not UTF-8"]


# Hugging Face -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf") / "saved"
    rows = [{"text": f"{FIRST} {k}", "title": f"T{k}", "label": k} for k in range(10)]
    datasets.Dataset.from_list(rows).save_to_disk(folder, num_shards=2)
    return folder


def test_a_saved_data_set_is_read(saved, read):
    datasets.load_from_disk(saved).map(lambda row: {"text": row["text"].upper()})  # leaves a file in the folder
    assert len(list(saved.glob("*.arrow"))) == 3
    files, unknown, _ = find_input_files([str(saved)])
    assert len(files) == 2
    assert not unknown
    documents = [d for f in files for d in read(f.name)[0]]
    assert [d.title for d in documents] == [f"T{k}" for k in range(10)]
    assert documents[3].paragraphs == [f"{FIRST} 3"]


def test_a_data_set_by_its_name_is_streamed_in_parts(tmp_path, read):
    """A name on the hub and a folder are loaded by the same call; a folder needs no network."""
    (tmp_path / "set").mkdir()
    for name, texts in (("a", ("One.", "Two.")), ("b", ("Three.", "Four."))):
        write_file(tmp_path / f"set/train-{name}.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
    (before,), *_ = find_input_files([f"hf:{tmp_path}/set"])
    parts = [read(before.name, part)[0] for part in find_parts(before.name, before.size)]
    assert [[d.paragraphs for d in part] for part in parts] == [[["One."], ["Two."]], [["Three."], ["Four."]]]
    assert len({d.id for part in parts for d in part}) == 4
    assert read(before.name)[0][0].paragraphs == ["One."]
    with pytest.raises(KinspanError, match="hf:"):
        find_parts(f"{before.name}::none", before.size)
    write_file(tmp_path / "set/train-b.jsonl", '{"text": "One."}\n')
    assert find_input_files([before.name])[0] != [before]  # else the old corpus would count as this one


# Books --------------------------------------------------------------------------------------------------------------


def test_sentences_of_a_book_become_paragraphs_and_chapters(tmp_path, read):
    lines = [f"this is sentence number {k} ." for k in range(2 * PARAGRAPH_SENTENCES + 1)]
    text = "\n".join(["chapter 1", *lines, "chapter two", "it goes on , does n't it ?", "", "a new paragraph ."])
    documents, rejected, _ = read(write_file(tmp_path / "books_large_p1.txt", text + "\n"))
    assert not rejected
    assert [len(d.paragraphs) for d in documents] == [3, 2]
    assert documents[0].paragraphs[0].startswith("this is sentence number 0. this is sentence number 1.")
    assert documents[1].paragraphs == ["it goes on, doesn't it?", "a new paragraph."]
    assert len({d.id for d in documents}) == 2
