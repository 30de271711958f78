import re

import pytest

from data_pipeline.prepare.report import _plot_lengths
from tests.synthetic import short_tokenizer


@pytest.fixture(scope="module")
def page(helpers, tmp_path_factory, plots):
    folder = tmp_path_factory.mktemp("report")
    documents = helpers.synthetic_documents(20, seed="report")
    documents.append({**documents[0], "id": "again"})
    documents.append({"id": "<script>alert(1)</script>", "paragraphs": ["Short <b>and</b> bold."]})
    source = helpers.write_jsonl(folder / "in.jsonl", documents)
    source.write_text(source.read_text() + "{broken\n")
    helpers.prepare([source], short_tokenizer(), folder / "out", licence="CC BY-SA 4.0")
    return (folder / "out/report.html").read_text()


def test_the_page_says_what_was_read_kept_and_dropped(page):
    text = " ".join(re.sub("<[^>]*>", " ", page).split())
    for part in ("in.jsonl", "CC BY-SA 4.0", "documents read 22", "dropped: repeats another 1", "not JSON", "Title "):
        assert part in text
    assert "paragraphs too short: 1" in text
    assert "tokens per sentence" in text
    assert page.count("<svg") == 3


def test_the_page_loads_nothing_and_holds_no_markup_of_documents(page):
    assert not re.search(r"<(script|link|img|iframe)\b|url\((?!#)|@import|https?://(?!www\.w3\.org)", page)
    assert "<b>and</b>" not in page


def test_lengths_are_shown_up_to_where_nearly_all_are(plots):
    import numpy as np

    counts = np.zeros(201, dtype=int)
    counts[1:11] = 100
    counts[200] = 1
    plot = _plot_lengths("tokens", counts)
    assert plot["median"] in (5, 6)
    assert plot["svg"].count("clip-path") <= 40  # a bar for each length to 10, and the grid
