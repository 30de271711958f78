"""Pages in both forms of Natural Questions, and the label of every sentence."""

import json

import pytest

from data_pipeline.prepare.document import Rejected
from data_pipeline.prepare.readers.reader import Record
from finetune.data.builders.natural_questions import Example, build_chunk, label_sentences, parse_example

NO_ANSWER = {"start_token": -1, "end_token": -1}


def tokens(page):
    return page.split(" ")


PAGE = tokens(
    "<H1> Ada Lovelace </H1> "
    "<P> Ada Lovelace was born in London . Her father , Lord Byron , left London soon after . </P> "
    '<Table> <Tr> <Th_colspan="2"> Born </Th> <Td> London </Td> </Tr> <Tr> <Td> Died </Td> <Td> 1852 </Td> </Tr> '
    "</Table> <P> She wrote notes . She lived in Londonderry </P> "
    "<Ul> <Li> see also Babbage </Li> <Li> London 's clubs </Li> </Ul>"
)


def at(words, page=PAGE, start=0):
    """The range of these words' tokens."""
    words = words.split(" ")
    first = next(i for i in range(start, len(page)) if page[i : i + len(words)] == words)
    return first, first + len(words)


def annotation(long=None, shorts=(), yes_no="NONE"):
    def span(s):
        return {"start_token": s[0], "end_token": s[1]}

    return {
        "annotation_id": 1,
        "long_answer": {**(span(long) if long else NO_ANSWER), "candidate_index": 0},
        "short_answers": [span(s) for s in shorts],
        "yes_no_answer": yes_no,
    }


FIRST = (at("<P>")[0], at("</P>")[1])  # the first paragraph
BORN = at("in London")[0] + 1, at("in London")[1]


def simplified(*annotations, page=PAGE, question="where was ada born"):
    record = {"question_text": question, "document_text": " ".join(page), "long_answer_candidates": []}
    return json.dumps({**record, "annotations": list(annotations), "example_id": 1}).encode()


def original(*annotations, page=PAGE, question="where was ada born"):
    of_page = [
        {
            "token": token.replace("_", " ") if token.startswith("<") else token,
            "start_byte": 9,
            "end_byte": 10,
            "html_token": token.startswith("<"),
        }
        for token in page
    ]
    record = {"question_text": question, "document_tokens": of_page, "document_html": "<html>", "example_id": 1}
    return json.dumps({**record, "annotations": list(annotations)}).encode()


def built(line):
    example = parse_example(line)
    assert isinstance(example, Example)
    return label_sentences(example)


@pytest.mark.parametrize("form", [simplified, original])
def test_every_label_by_the_papers_table(form):
    assert built(form(annotation(FIRST, [BORN]))) == [
        ("Ada Lovelace", 1),
        ("Ada Lovelace was born in London .", 4),
        ("Her father , Lord Byron , left London soon after .", 3),  # the words, but not annotated
        ("Born London", 2),  # a row is one text
        ("Died 1852", 1),
        ("She wrote notes .", 1),
        ("She lived in Londonderry", 1),  # whole words match, and only they
        ("see also Babbage", 1),
        ("London 's clubs", 2),
    ]


@pytest.mark.parametrize("form", [simplified, original])
def test_two_of_five_annotators_are_needed_and_all_count(form):
    table = at("<Table>")[0], at("</Table>")[1]
    died = at("1852")
    nothing, long_only = annotation(), annotation(FIRST)
    said = [annotation(FIRST, [BORN]), annotation(table, [died])]
    labels = dict(built(form(*said, nothing, nothing, long_only)))
    assert [text for text, label in labels.items() if label == 4] == ["Ada Lovelace was born in London .", "Died 1852"]
    assert [text for text, label in labels.items() if label == 3] == [
        "Her father , Lord Byron , left London soon after .",
        "Born London",
    ]
    assert parse_example(form(said[0], nothing, nothing, nothing, nothing)) == "no long answer"
    assert parse_example(form(said[0], long_only, long_only, nothing, nothing)) == "no short answer"


def test_why_a_question_is_not_kept():
    assert parse_example(simplified(annotation())) == "no long answer"
    assert parse_example(simplified(annotation(FIRST))) == "no short answer"
    assert parse_example(simplified(annotation(FIRST, yes_no="YES"))) == "answered by yes or no"
    assert parse_example(simplified()) == "no long answer"
    over_the_end = at("London </Td> </Tr> <Tr> <Td> Died")
    line = simplified(annotation((at("<Table>")[0], at("</Table>")[1]), [over_the_end]))
    assert build_chunk([Record("f", 1, line)])[0][3:] == ("no sentence holds a whole short answer", "", b"", ())


def test_a_sentence_does_not_end_inside_a_short_answer():
    page = tokens("<P> It is by J. R. Smith . He lives in No . 5 Street . Nobody knows . </P>")
    whole = (0, len(page))
    cut = built(simplified(annotation(whole, [at("knows", page)]), page=page))
    joined = built(simplified(annotation(whole, [at("Smith . He", page)]), page=page))
    assert len(joined) == len(cut) - 1
    assert any("Smith . He" in text and label == 4 for text, label in joined)
    assert " ".join(text for text, _ in joined) == " ".join(text for text, _ in cut)


def test_style_does_not_end_a_sentence_and_blocks_do():
    page = tokens("<P> The <B> small </B> <Sup> 2 </Sup> cat </P> <Div> a < b <Br> c </Div> d")
    texts = [text for text, _ in built(simplified(annotation((0, 10), [(1, 2)]), page=page))]
    assert texts == ["The small 2 cat", "a < b", "c", "d"]


def test_odd_characters_do_not_shift_labels():
    page = tokens("<P> \x00\x00 x\ufeff \ud800 . Then came the end . </P> <P>  \u00a0  </P>")
    sentences = built(simplified(annotation((0, 11), [at("end", page)]), page=page))
    assert [label for _, label in sentences] == [3, 4]
    assert sentences[1][0] == "Then came the end ."
    "".join(text for text, _ in sentences).encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        *[(b"{", "not JSON"), (b"\xff", "not JSON"), (b"[]", "not in the form of Natural Questions")],
        (b'{"question_text": "q"}', "not in the form of Natural Questions .KeyError: 'annotations'"),
        (simplified({"long_answer": {}}), "not in the form of Natural Questions"),
        (simplified(annotation(FIRST, [("a", 3)])), "not in the form of Natural Questions"),
        (simplified(annotation(FIRST, [(5, 5)])), "an answer is not within the page's 64 tokens"),
        (simplified(annotation((3, 5000), [(5, 6)])), "an answer is not within the page's 64 tokens"),
        (simplified(annotation(FIRST, [BORN]), question=" "), "the question is empty"),
    ],
)
def test_lines_that_are_not_of_the_data(line, reason):
    with pytest.raises(Rejected, match=reason):
        parse_example(line)
    assert build_chunk([Record("file", 7, line)])[0][:3] == ("file", 7, len(line))
