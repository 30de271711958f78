from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.prepare.cleaning import Rules, Tally, clean, normalise, split_sentences
from data_pipeline.prepare.document import Document
from data_pipeline.prepare.encode import is_held_out, name_split

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)  # lone surrogates too


@given(ANY_TEXT)
def test_normalised_text_has_single_spaces_and_can_be_encoded(text):
    out = normalise(text)
    assert normalise(out) == out
    assert out == " ".join(out.split())
    assert "\x00" not in out
    out.encode("utf-8")


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=200))
def test_sentences_lose_no_letter(text):
    paragraph = normalise(text)
    if paragraph:
        sentences = split_sentences(paragraph)
        assert "".join("".join(sentences).split()) == "".join(paragraph.split())
        assert all(s and s == s.strip() for s in sentences)


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. Smith paid 3.50 for it.", "Was it worth that?", "He said so!"],
        ["Am 3. Mai 1999 kam er.", "Im 19. Jahrhundert nicht.", "Es waren 12.", "Ende."],
        *[["春天来了。", "花开了吗？", "开了！"], ["彼は「本当ですか。」と言った。", "私は笑った。"]],
        *[["ذهب الرجل إلى السوق.", "هل عاد؟", "نعم عاد."], ["האיש הלך לשוק.", "הוא חזר בערב.", "כולם שמחו."]],
        *[["यह एक वाक्य है।", "यह दूसरा वाक्य है।"], ["မြို့သည် ကြီးသည်။", "မြစ်သည် ရှည်သည်။"]],
        *[["Սա մեկն է։", "Սա երկուսն է։"], ["འདི་གཅིག་ཡིན།", "འདི་གཉིས་ཡིན༎", "འདི་གསུམ་ཡིན།"]],
        *[["他走了……", "“你去吗？！”", "他问。"], ["「行くの？」", "彼は聞いた。"], ["《你去吗？》上映。", "好。"]],
    ],
)
def test_sentences_are_split_where_a_reader_would(sentences):
    space = "" if sentences[-1].endswith(("。", "！")) else " "
    assert split_sentences(space.join(sentences)) == sentences


LENGTHS = st.lists(st.integers(0, 90), max_size=8)


@given(LENGTHS, st.integers(0, 80), st.integers(0, 300))
def test_cleaning_keeps_what_is_long_enough_and_counts_all_of_it(lengths, paragraph_chars, document_chars):
    tally = Tally()
    document = Document("id", "", [f"{k}".zfill(n) if n else "  " for k, n in enumerate(lengths)], "source")
    kept = clean(document, Rules(paragraph_chars, document_chars, skip_steps=["tables", "headers"]), tally) or []
    long = [p for p in document.paragraphs if p.strip() and len(p) >= paragraph_chars]
    assert kept == (long if sum(map(len, long)) >= document_chars else [])
    counts = tally.counts
    read, dropped = counts["paragraphs read"], counts["paragraphs of dropped documents"]
    assert read == len(kept) + counts["paragraphs too short"] + dropped
    refused = counts["documents too short"] + counts["documents without a long enough paragraph"]
    assert counts["documents read"] == 1
    assert refused == (0 if kept else 1)


@given(st.text(max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_holds_out_the_same_documents_and_more(document_id, share, second):
    small, large = sorted((share, second))
    assert is_held_out(document_id, large) or not is_held_out(document_id, small)
    assert not is_held_out(document_id, 0.0)
    assert is_held_out(document_id, 1.0)


def test_a_text_has_one_split_under_any_id_and_title_and_a_question_with_any_answers():
    document = Document("a:1", ["text"], "title", "source")
    assert name_split(document, [5, 6]) == name_split(replace(document, id="a:2", title_is_text=True), [5, 6])
    assert name_split(document, [5, 6]) != name_split(document, [5, 7])
    question = replace(document, is_post=True)
    assert name_split(question, [5]) == name_split(replace(question, answers=["new"]), [6])
    assert name_split(question, [5]) != name_split(replace(question, id="a:2"), [5])
