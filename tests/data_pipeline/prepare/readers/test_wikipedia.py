"""Wiki markup becomes running text; what is no article is counted; no entity grows."""

import bz2
import json
import re
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.prepare.cleaning import Rules, Tally, clean
from data_pipeline.prepare.document import Rejected
from data_pipeline.prepare.readers import lines, reader
from data_pipeline.prepare.readers.wiki_markup import drop_lead_in, extract_paragraphs
from tests.synthetic import write_file

PROSE = "The reader goes through the page once. It keeps the text."


def page(title="T", text=PROSE, namespace=0, number=1, extra=""):
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>{namespace}</ns>\n    <id>{number}</id>{extra}\n"
        f"    <revision>\n      <id>9</id>\n      <text>{escape(text)}</text>\n    </revision>\n  </page>\n"
    )


def dump(*pages):
    return f'<mediawiki xml:lang="en">\n  <siteinfo/>\n{"".join(pages)}</mediawiki>\n'


# Markup -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "markup",
    [
        *["== Secret ==", "* secret\n* secret", "# secret [[secret]] ''secret''\n## secret", "; secret : secret"],
        *[": secret <math>x</math>", "{| class=secret\n|-\n| secret || secret\n|}"],
        *["{{Infobox secret\n| a = secret {{b|c}}\n}}", "[[File:secret.jpg|thumb|A secret [[link]] in it]]"],
        *["[[Category:Secret]]", "[[ファイル:a.jpg|thumb|secret]]\n[[หมวดหมู่:secret]]", "[[fr:Secret]]"],
        *["<ref>secret</ref><ref name=secret />", "<!-- secret -->", "<gallery>\nsecret.jpg|secret\n</gallery>"],
        *["<syntaxhighlight lang=python>secret</syntaxhighlight>", "{{cite web|title=secret}}"],
        *["__NOTOC__ __SECRET__", "The secret is <math>x^2</math> in it.", "[https://secret.example]"],
    ],
)
def test_what_is_no_prose_goes(markup):
    assert extract_paragraphs(f"{PROSE}\n\n{markup}\n\n{PROSE}") == [PROSE, PROSE]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''Bold''' and ''italic''.", "Bold and italic."),
        ("A [[link]], [[target|named]] and [[plural]]s.", "A link, named and plurals."),
        ("See [https://x.example the page], [[CSI: Miami]] and [[Re:Zero]].", "See the page, CSI: Miami and Re:Zero."),
        ("One line\nand the next.", "One line and the next."),
        ("Fish &amp; chips&nbsp;here, 5&ndash;6.", "Fish & chips here, 5–6."),
        ("It is {{convert|5|km|mi}} long and {{convert|2|x|3|m|ft}} wide.", "It is 5 km long and 2 x 3 m wide."),
        ("He said {{lang|fr|oui}} {{nowrap|at once}}.", "He said oui at once."),
        ("''Emma''{{'s}} author wrote {{langx|fr|oui}}.", "Emma’s author wrote oui."),
        ("Anna ({{IPAc-en|a}}; {{respell|a}}) was born{{cn}}, here<ref>x</ref>.", "Anna was born, here."),
        ("Water is H<sub>2</sub>O and <small>small</small>.", "Water is H2O and small."),
        *[("1940{{ndash}}45 and {{circa|1950}}.", "1940–45 and c. 1950."), ("<div>In a box.</div>", "In a box.")],
        ("<nowiki>[[not a link]]</nowiki>.", "[[not a link]]."),
        (
            "-{zh-hans:计算机;zh-hant:電腦}-是-{A|zh-tw:軟體; zh-cn:软件}--{H|zh-cn:软件}--{-}-，-{電腦}-。",
            "计算机是軟體，電腦。",
        ),
        ("It has {{formatnum:1234567}} rivets.", "It has 1234567 rivets."),
        # sentences with a hole go
        ("Lyon est là. Elle compte {{unité|460000}} et va. Elle est belle{{refnec}}.", "Lyon est là. Elle est belle."),
        ("試合は{{R|a}}長い。{{ルビ|蹴|しゅう}}とも。至{{CURRENTYEAR}}年。終わる。{{Sfn|B}}", "試合は長い。終わる。"),
        ("{{Infobox|a}}\n'''It''' ({{IPA|b}}; X) is here. {{Zitat|Ja.}} The town is.", "It (X) is here. The town is."),
    ],
)
def test_markup_within_a_sentence_is_taken_off(markup, text):
    assert extract_paragraphs(markup) == [text]


def test_a_sentence_that_leads_in_to_a_list_goes_with_it():
    assert extract_paragraphs(f"{PROSE} There are three:\n* one\n* two") == [PROSE]
    assert extract_paragraphs("These are they:\n* one") == []
    assert extract_paragraphs("甲是乙。它們有三：\n* 一") == ["甲是乙。"]
    assert drop_lead_in("Dr. A. Smith says: no.") == "Dr. A. Smith says: no."


@given(st.text(st.sampled_from("[]{}|='<>/refmath *#:;\n\n!-&a b.T"), max_size=120))
def test_any_markup_gives_clean_paragraphs(markup):
    for paragraph in extract_paragraphs(markup):
        assert paragraph
        assert paragraph == paragraph.strip()
        assert "\n" not in paragraph


@pytest.mark.parametrize("deep", ["{{a|", "[[a|", "[http://a ", "<div>", "<ref>", "{|\n", "<!--"])
def test_markup_that_is_nested_without_end_costs_its_page(deep):
    """The parser would take hours for what a hostile page of two megabytes can hold."""
    with pytest.raises(Rejected, match="nested too deeply"):
        extract_paragraphs(f"{PROSE}\n\n{deep * 50_000}")
    with pytest.raises(Rejected, match="nested too deeply"):
        extract_paragraphs("|}-->]</" * 50_000 + deep * 50_000)  # ends that stand before all beginnings close none
    assert extract_paragraphs(f"{PROSE}\n\n{deep * 100}")[0] == PROSE


# Dumps --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".bz2"])
def test_a_dump_is_read_and_what_is_no_article_is_counted(tmp_path, read, suffix):
    content = dump(
        page("An article", number=7),
        page("Talk:X", namespace=1),
        page("Old", text="#REDIRECT [[New]]"),
        page("Old too", extra='<redirect title="New" />'),
        page("Mercury (disambiguation)"),
        page("Mars", text="'''Mars''' may be:\n* x\n{{disambiguation|planet}}"),
        page(
            "Last",
            number=8,
            text=f"{{{{Nota disambigua|x}}}}\n{PROSE}",
            extra="<revision><text>#REDIRECT [[What it was at first]]</text></revision>",
        ),
    )
    packed = bz2.compress(content.encode()) if suffix else content
    documents, rejected, omitted = read(write_file(tmp_path / f"wiki.xml{suffix}", packed))
    assert [(d.id, d.title, d.paragraphs) for d in documents] == [("7", "An article", [PROSE]), ("8", "Last", [PROSE])]
    assert not rejected
    assert omitted.count("a redirect") == omitted.count("a disambiguation") == 2
    assert omitted.count("not an article but a page of namespace 1") == 1


def test_other_xml_is_skipped_once_in_however_many_parts(tmp_path, monkeypatch, read_in_parts):
    monkeypatch.setattr(lines, "PART_BYTES", 1000)
    (documents, (reason,), _), count = read_in_parts(write_file(tmp_path / "a.xml", "<rss>" + "x" * 5000 + "</rss>"))
    assert count > 4
    assert not documents
    assert "not a MediaWiki dump" in reason


ENTITIES = "".join(f'<!ENTITY e{k} "{f"&e{k - 1};" * 10 if k else "lol"}">' for k in range(12))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (page("Bad").replace("</text>", "</txt>"), "not XML"),
        *[(page("Bomb").replace(PROSE, "&e11;"), "undefined entity"), (page(text="x" * 3_000_000), "larger than")],
    ],
    ids=["broken", "entity bomb", "huge"],
)
def test_a_page_that_cannot_be_read_costs_itself(tmp_path, monkeypatch, read, bad, reason):
    monkeypatch.setattr(reader, "MAX_RECORD_BYTES", 100_000)
    content = f"<!DOCTYPE mediawiki [{ENTITIES}]>\n" + dump(page(number=1), bad, page(number=2))
    documents, (why,), _ = read(write_file(tmp_path / "a.xml", content))
    assert [d.id for d in documents] == ["1", "2"]
    assert reason in why


@pytest.mark.parametrize("end", [-20, -400])
def test_a_dump_that_is_cut_off_says_so(tmp_path, read, end):
    documents, (reason,), _ = read(
        write_file(tmp_path / "a.xml", dump(page(number=1), page(number=2), page(number=3))[:end])
    )
    assert 0 < len(documents) < 3
    assert "cut off" in reason


def test_a_real_dump_reads_as_prose(shared, read):
    (path,) = (shared / "data/raw/wikixml").glob("*.xml")
    documents, rejected, omitted = read(path)
    assert len(documents) == 88
    assert not rejected
    assert set(omitted) == {"not an article but a page of namespace 14"}
    assert len(omitted) == 11
    paragraphs = [p for d in documents for p in clean(d, Rules(), Tally()) or []]
    assert 600 < len(paragraphs) < 800
    odd = [p for p in paragraphs if re.search(r"\[\[|\]\]|\{\{|\}\}|''|</|^[*#:;|]|\( *\)|:$|&\w+;", p)]
    assert not odd


# WikiExtractor ------------------------------------------------------------------------------------------------------

DOC = '<doc id="{0}" url="https://x?curid={0}" title="Title {0}">\nTitle {0}\n\n{1}\n\nHistory.\n{1}\n</doc>\n'


def test_blocks_of_wikiextractor_are_documents(tmp_path, read):
    path = write_file(tmp_path / "wiki_00", DOC.format(1, PROSE) + DOC.format(2, "A &amp; b."))
    documents, rejected, _ = read(path)
    assert not rejected
    assert [(d.id, d.title) for d in documents] == [("1", "Title 1"), ("2", "Title 2")]
    assert documents[0].paragraphs == [PROSE, "History.", PROSE]
    broken = "Let formula_1 be a set.\nBULLET::::- One.\nThere are three:\n" + PROSE
    assert read(write_file(path, DOC.format(1, broken)))[0][0].paragraphs[0] == PROSE


def test_json_of_wikiextractor_is_read_alike(tmp_path, read):
    lines = [{"id": "1", "url": "u", "title": "Title 1", "text": f"Title 1\n\n{PROSE}\n\nSection::::History.\n{PROSE}"}]
    documents, _, _ = read(write_file(tmp_path / "wiki_01", "".join(json.dumps(line) + "\n" for line in lines)))
    assert [(d.id, d.title, d.paragraphs) for d in documents] == [("1", "Title 1", [PROSE, PROSE])]


def test_what_is_broken_in_wikiextractors_output_is_named(tmp_path, read):
    content = "stray\n" + DOC.format(1, PROSE) + "<doc>\nx\n</doc>\n{broken\n" + DOC.format(2, PROSE)[:-8]
    documents, rejected, _ = read(write_file(tmp_path / "wiki_00", content))
    assert [d.id for d in documents] == ["1"]
    assert [reason.partition(":")[0] for reason in rejected] == [
        *["not between <doc ...> and </doc>", "<doc ...> has no id", "not JSON", "cannot read on"]
    ]
