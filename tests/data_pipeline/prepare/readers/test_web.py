"""Pages of the web, and archives of crawls: every sample is read, and what is broken is counted."""

import gzip
import json
import sys

import pytest

from tests.synthetic import write_file

TEXT = "The reader goes through the page once, from its start to its end. It keeps what it finds in memory for a while."
PAGE = f"""<html><head><title>The title</title><script>secret()</script></head><body>
<nav><ul><li><a href="/">Secret menu</a></li><li><a href="/b">Secret entry</a></li></ul></nav>
<article><h1>The title</h1><p>{TEXT}</p><p>{TEXT.replace("reader", "writer")}</p>
<table><tr><td>secret</td><td>secret 1</td></tr><tr><td>secret</td><td>secret 2</td></tr></table>
<pre><code>secret = call()</code></pre>
<p>{TEXT.replace("reader", "editor")}</p></article>
<footer>Copyright secret</footer></body></html>""".encode()


def crawl(pages, kind="response", head="HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"):
    """The records of a WARC file, as bytes."""
    records = []
    for number, page in enumerate(pages):
        block = head.encode() + page
        records.append(
            f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: https://x.example/{number}\r\n"
            f"WARC-Date: 2020-01-01T00:00:00Z\r\nWARC-Record-ID: <urn:uuid:{number}>\r\n"
            f"Content-Type: application/http; msgtype={kind}\r\nContent-Length: {len(block)}\r\n\r\n".encode()
            + block
            + b"\r\n\r\n"
        )
    return records


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_main_text_of_a_page_is_kept(tmp_path, read, suffix):
    path = write_file(tmp_path / f"page.html{suffix}", gzip.compress(PAGE) if suffix else PAGE)
    (document,), _, _ = read(path)
    assert document.title == "The title"
    kept = [TEXT.replace("reader", who) for who in ("reader", "writer", "editor")]
    assert [p for p in document.paragraphs if "once" in p] == kept
    assert "secret" not in " ".join(document.paragraphs).casefold()


def test_a_broken_byte_changes_no_other_letter(tmp_path, read):
    (document,), _, _ = read(write_file(tmp_path / "a.html", PAGE.replace(b"<p>", "<p>“Straße” – ".encode()) + b"\x92"))
    assert document.paragraphs[0].startswith("“Straße” – ")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "shift_jis", "iso2022_jp"])
def test_a_sentence_of_a_page_is_in_one_piece_without_the_readings_above_it(tmp_path, read, encoding):
    text = "彼は<q>大きい<ruby>猫<rp>(</rp><rt>ねこ</rt></ruby></q>と言った。" + "名前は\n まだ無い。どこだ。" * 9
    page = f"<html><body><p>{text}<br><br>{'薄暗いじめじめした所でニャーニャー泣いていた。' * 9}</p></body></html>"
    (document,), _, _ = read(write_file(tmp_path / "a.html", page.encode(encoding)))
    assert document.paragraphs[0] == "彼は大きい猫と言った。" + "名前はまだ無い。どこだ。" * 9


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        *[("a.warc", b"".join), ("a.warc.gz", lambda records: gzip.compress(b"".join(records)))],
        ("b.warc.gz", lambda records: b"".join(map(gzip.compress, records))),
    ],
)
def test_the_pages_of_a_crawl_are_documents_named_by_their_address(tmp_path, read, name, pack):
    """Not compressed, compressed as a whole, and compressed record by record."""
    records = crawl([PAGE, PAGE]) + crawl([b"x"], "request")
    documents, rejected, omitted = read(write_file(tmp_path / name, pack(records)))
    assert [d.id for d in documents] == ["https://x.example/0", "https://x.example/1"]
    assert not rejected
    assert omitted == ["a record of the kind request"]


def test_other_answers_are_counted_by_what_they_are(tmp_path, read):
    image = crawl([b"x"], head="HTTP/1.1 200 OK\r\nContent-Type: Image/PNG\r\n\r\n")
    missing = crawl([PAGE], head="HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\n")
    untyped = crawl([PAGE], head="HTTP/1.1 200 OK\r\n\r\n")
    _, _, omitted = read(write_file(tmp_path / "a.warc", b"".join(image + missing + untyped)))
    by_type = ["not HTML but image/png", "not HTML but of no stated type"]
    assert omitted == [by_type[0], "an answer with another status than 200", by_type[1]]


@pytest.mark.parametrize(("name", "count"), [("one-brotli.warc.gz", 3), ("longwindow.jsonl.zst", 60)])
def test_pages_packed_by_brotli_and_zstd_with_a_window_of_2_gb_are_read(shared, read, name, count):
    documents, rejected, _ = read(shared / "data/field" / name)
    assert (len(documents), rejected) == (count, [])


def test_a_page_is_in_the_encoding_that_its_server_states(shared, read):
    truth = json.loads((shared / "data/field/charsets-truth.json").read_text())
    documents, rejected, _ = read(shared / "data/field/charsets.warc.gz")
    assert not rejected
    found = {document.id.rpartition("/")[2]: document.paragraphs[0] for document in documents}
    assert found == {name: paragraphs[0] for name, paragraphs in truth.items()}


def test_a_page_in_latin_1_that_only_its_server_states(tmp_path, read):
    texts = {"cp1252": "El perro causó daños en el jardín del señor Muñoz, que está muy enojado con el dueño."}
    texts |= {"cp1251": "Страхование жизни и здоровья нужно каждому человеку, который любит свою семью и работу."}
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=ISO-8859-1\r\n\r\n"
    for encoding, text in texts.items():
        page = f"<html><body><article><p>{text}</p><p>{text[5:]}</p></article></body></html>".encode(encoding)
        (document,), _, _ = read(write_file(tmp_path / "a.warc", b"".join(crawl([page], head=head))))
        assert document.paragraphs[0] == text


def test_of_a_crawl_only_a_page_that_cannot_be_unpacked_is_lost(tmp_path, read, monkeypatch):
    monkeypatch.setitem(sys.modules, "brotli", None)
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: {}\r\n\r\n"
    packed = gzip.compress(PAGE)
    records = crawl([b"x"], head=head.format("br")) + crawl([packed, packed[:-20], PAGE], head=head.format("gzip"))
    documents, (missing, damaged), _ = read(write_file(tmp_path / "a.warc", b"".join(records)))
    assert len(documents) == 2
    assert "brotli" in missing
    assert "cut off" in damaged


@pytest.mark.parametrize(
    ("name", "documents", "rejected", "omitted"),
    [
        *[("bad.arc", 0, 2, 2), ("example-bad.warc.gz.bad", 1, 0, 5), ("example-iana.org-chunked.warc", 1, 0, 2)],
        *[("example-space-in-url.arc", 1, 1, 1), ("example-trunc.warc", 0, 2, 3), ("example.arc.gz", 1, 0, 1)],
        ("example.warc.gz", 1, 0, 5),
    ],
)
def test_real_crawls_are_read_and_what_is_broken_is_counted(shared, tmp_path, read, name, documents, rejected, omitted):
    source = shared / "data/raw/warc/test/data" / name
    path = write_file(tmp_path / name.removesuffix(".bad"), source.read_bytes())
    result = read(path)
    assert tuple(map(len, result)) == (documents, rejected, omitted)
    assert all(d.paragraphs[0].startswith(("This domain is", "Management of the DNS")) for d in result[0])
